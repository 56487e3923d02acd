"""Errors as HTTP answers: problem documents, with the headers that go with them."""

from __future__ import annotations

from math import ceil
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast import errors as e
from holdfast.operations.problems import problem_of

MEDIA = "application/problem+json"


def problem_response(error: e.HoldfastError, request_id: str, method: str) -> Response:
    """Answer a request with a problem document."""
    problem = problem_of(error, request_id, "$" if method == "POST" else None)
    return Response(
        msgspec.json.encode(problem),
        problem.status,
        headers=dict(_make_headers(error, problem.status)),
        media_type=MEDIA,
    )


def _make_headers(error: e.HoldfastError, status: int) -> dict[str, Any]:
    if isinstance(error, e.RateLimited):
        return {"Retry-After": str(max(1, ceil(error.retry_in)))}
    if status == 503:
        return {"Retry-After": "1"}
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}
