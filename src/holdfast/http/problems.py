"""Errors over HTTP: problem documents (RFC 9457) with the code that Python and the CLI know."""

from __future__ import annotations

from math import ceil
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from holdfast import errors as e
from holdfast.messages import Problem

MEDIA = "application/problem+json"


class Verdict(Struct, frozen=True):
    """How one kind of error is answered."""

    status: int
    title: str
    advice: str


# The first that fits counts: what is special stands before what it is a case of.
VERDICTS: tuple[tuple[type[e.HoldfastError], Verdict], ...] = (
    (
        e.Unauthorized,
        Verdict(401, "No valid token", "send a token: `Authorization: Bearer …`"),
    ),
    (
        e.Forbidden,
        Verdict(403, "Not covered by this token", "use a token of a role that covers it"),
    ),
    (e.NoSuchRoute, Verdict(404, "Nothing here", "see /openapi.json for what there is")),
    (e.NoSuchMethod, Verdict(405, "Not by this method", "see the Allow header")),
    (
        e.JobPurged,
        Verdict(410, "Purged", "its record was removed by retention; see docs/retention.md"),
    ),
    (
        e.NoSuchJob,
        Verdict(404, "No such job", "check the id, and that the token is of the job's tenant"),
    ),
    (
        e.NoSuchToken,
        Verdict(404, "No such token", "list the tokens that this one has a say over"),
    ),
    (e.NoSuchWebhook, Verdict(404, "No such webhook", "list the webhooks of the token's tenant")),
    (e.AddressBlocked, Verdict(422, "Not a public address", "give one that everybody can reach")),
    (e.TooSlow, Verdict(408, "Too slow", "send the whole body at once; nothing was written")),
    (e.TooLarge, Verdict(413, "Too large", "send less in one request")),
    (e.UnsupportedMedia, Verdict(415, "Unsupported form", "send JSON, not compressed")),
    (
        e.StaleRevision,
        Verdict(412, "The job has moved on", "read it again, and decide by its present revision"),
    ),
    (
        e.KeyConflict,
        Verdict(409, "The key is taken", "use another key, or send what it stands for"),
    ),
    (
        e.RequestIdReused,
        Verdict(409, "The request id is taken", "use a new Idempotency-Key for a new request"),
    ),
    (
        e.LeaseConflictError,
        Verdict(409, "The lease is lost", "stop this attempt, and write nothing more for it"),
    ),
    (
        e.TooManyNames,
        Verdict(409, "Too many names", "use a queue or needs that the tenant has already"),
    ),
    (
        e.ReservedName,
        Verdict(422, "Reserved name", "choose a name that does not begin with `holdfast.`"),
    ),
    (e.ValidationError, Verdict(422, "Unfit input", "mend what the detail names")),
    (e.BadData, Verdict(422, "Unfit input", "mend what the detail names")),
    (e.NoSuchTask, Verdict(422, "No such task", "check the task's name")),
    (e.Refused, Verdict(409, "Refused", "read the job: its state does not allow it")),
    (e.ResultErased, Verdict(410, "Erased", "its result was removed by retention")),
    (e.RateLimited, Verdict(429, "Too many requests", "come again after Retry-After")),
    (e.Overloaded, Verdict(503, "Too busy", "come again after Retry-After")),
    (
        e.JobUnreadable,
        Verdict(500, "The job is damaged", "run `holdfast verify`, and repair what it names"),
    ),
    (
        e.StoreFull,
        Verdict(507, "No room left", "make room on the database's disk, then send it again"),
    ),
    (
        e.StoreReplaced,
        Verdict(503, "The database file was replaced", "restart the server on the right file"),
    ),
    (
        e.KeyBusy,
        Verdict(503, "The key is busy", "send it again, once the transaction has ended"),
    ),
    (
        e.JobBusy,
        Verdict(503, "The job is locked", "send it again, once the transaction has ended"),
    ),
    (
        e.StoreUnavailable,
        Verdict(503, "The database is away", "send it again, with the same Idempotency-Key"),
    ),
    (
        e.ServerEnding,
        Verdict(503, "The server ends", "send it again: to another one, or when it is back"),
    ),
    (
        e.ServerFailed,
        Verdict(500, "The server failed", "look into its log for the request id"),
    ),
    (e.StoreError, Verdict(500, "The database failed", "see `holdfast doctor` and `verify`")),
    (e.HoldfastError, Verdict(400, "Bad request", "see the detail")),
)


def verdict_of(error: e.HoldfastError) -> Verdict:
    """Tell how an error is answered."""
    return next(verdict for kind, verdict in VERDICTS if isinstance(error, kind))


def problem_of(error: e.HoldfastError, request_id: str, place: str | None = None) -> Problem:
    """Tell an error as a problem document; `place` is where in a body its field is, if in one."""
    verdict = verdict_of(error)
    return Problem(
        type=f"urn:holdfast:error:{error.code}",
        title=verdict.title,
        status=verdict.status,
        code=error.code,
        detail=str(error) or verdict.title,
        advice=verdict.advice,
        request_id=request_id,
        job_id=UNSET if error.job_id is None else error.job_id,
        field=_path(error.field, place),
    )


def _path(field: str | None, place: str | None) -> str | UnsetType:
    """Tell a field by its path; what reading a body found has one already."""
    if field is None:
        return UNSET
    return field if place is None or field.startswith("$") else f"{place}.{field}"


def problem_response(error: e.HoldfastError, request_id: str, method: str) -> Response:
    """Answer a request with a problem document, and the headers that go with it."""
    problem = problem_of(error, request_id, "$" if method == "POST" else None)
    return Response(
        msgspec.json.encode(problem),
        problem.status,
        headers=dict(_headers(error, problem.status)),
        media_type=MEDIA,
    )


def _headers(error: e.HoldfastError, status: int) -> dict[str, Any]:
    if isinstance(error, e.RateLimited):
        return {"Retry-After": str(max(1, ceil(error.retry_in)))}
    if status == 503:
        return {"Retry-After": "1"}
    return {"WWW-Authenticate": "Bearer"} if status == 401 else {}
