"""Submits of many jobs at once: one that is invalid fails alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import Raw, Struct
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.errors import HoldfastError, TooLarge, ValidationError
from holdfast.http.json_body import answer, read_json
from holdfast.http.request import HttpCall
from holdfast.http.routes import RequestReader
from holdfast.operations import requests as q
from holdfast.operations.problems import problem_of
from holdfast.operations.requests import Answer, Wanted, WantedJob
from holdfast.operations.views import Each, Receipt, Receipts

T = TypeVar("T")
_WANTED: Any = Wanted
"""To a type checker, a union is not a type."""
SUBMIT_LIMIT = 1000
"""How many jobs one request may submit."""


class _Calls(Struct, forbid_unknown_fields=True):
    """Jobs to submit together, all of them calls of tasks."""

    jobs: list[WantedJob]


class _UnreadJobs(Struct, forbid_unknown_fields=True):
    """Jobs to submit together, none of them read yet."""

    jobs: list[Raw]


async def answer_submits(call: HttpCall, _: RequestReader) -> Response:
    """Submit the jobs that can be read; answer for each, in order."""
    answers: dict[int, Answer] = {}
    jobs: dict[int, Wanted] = {}
    key = call.idempotency_key
    for number, one in enumerate(await _read_jobs(call)):
        if isinstance(one, ValidationError):
            answers[number] = one
        else:
            jobs[number] = one if key is None else _with_id(one, f"{key}/{number}")
    answers |= zip(jobs, await call.do(q.SubmitJobs(jobs=[*jobs.values()])), strict=True)
    each = [
        _answer_one(call, answers[number], f"$.jobs[{number}]") for number in range(len(answers))
    ]
    return answer(Receipts(jobs=each))


async def _read_jobs(call: HttpCall) -> Sequence[Wanted | ValidationError]:
    """Read the jobs of a request together; if one is not a call, each by itself."""
    try:
        return _bounded((await call.body(_Calls)).jobs)
    except ValidationError:
        texts = _bounded((await call.body(_UnreadJobs)).jobs)
        return [_read_one(bytes(text), f"$.jobs[{number}]") for number, text in enumerate(texts)]


def _bounded(jobs: list[T]) -> list[T]:
    if len(jobs) > SUBMIT_LIMIT:
        raise TooLarge(f"{len(jobs):,} jobs in one request; the limit is {SUBMIT_LIMIT:,}")
    return jobs


def _read_one(text: bytes, place: str) -> Wanted | ValidationError:
    try:
        found: Wanted = read_json(text, _WANTED, root=place)
        return found
    except ValidationError as error:
        return error


def _with_id(job: Wanted, request_id: str) -> Wanted:
    return job if job.request_id is not None else replace(job, request_id=request_id)


def _answer_one(call: HttpCall, outcome: Answer, place: str) -> Each:
    if isinstance(outcome, HoldfastError):
        return Each(problem=problem_of(outcome, call.request_id, place))
    call.server.count_submit(outcome)
    return Each(accepted=Receipt.of(outcome))
