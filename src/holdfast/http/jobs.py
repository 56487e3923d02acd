"""Routes about jobs: submit, read, wait, cancel, signal, resolve, explain."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from fastapi import APIRouter, Query
from msgspec import Raw, Struct
from msgspec.structs import replace
from pydantic import StringConstraints
from starlette.responses import Response

from holdfast.errors import HoldfastError, ResultTimeout, TooLarge, ValidationError
from holdfast.flow.history import EventPage
from holdfast.flow.lineage import Lineage
from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer, answer_job, read_instant, read_json
from holdfast.http.documents import KEY, REVISION, TENANT, documented
from holdfast.http.names import Name
from holdfast.http.problems import problem_of
from holdfast.http.scopes import Scope
from holdfast.lifecycle.dialects.vocabularies import DIALECTS
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.states import Letter, State
from holdfast.messages import (
    NOTHING,
    Cancelling,
    Each,
    Explanation,
    Holding,
    JobList,
    Many,
    ProgressView,
    Receipt,
    Receipts,
    Rescheduling,
    Resolving,
    Result,
    Signalling,
)
from holdfast.operations import Answer, Wanted
from holdfast.ports import Query as JobQuery
from holdfast.ports import Submitted
from holdfast.views import JobView

T = TypeVar("T")
SUBMIT_LIMIT = 1000
"""How many jobs one request may submit."""
LIST_LOOK = 2000
"""How many jobs one list looks at, at most, where an index does not tell whether they fit."""
DIALECT_EVENTS = 10_000
"""Of how many events a history is told in a dialect: it has no pages there."""
WAIT_LIMIT_SECONDS = 60.0
EXISTING = "Existing job returned (idempotent)"

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


Text = Annotated[str | None, Query(min_length=1, max_length=200)]
Label = Annotated[str, StringConstraints(pattern=r"^[^=]+=", max_length=1200)]
"""`name=text`; a job must have all that are given."""
Wait = Annotated[float, Query(ge=0, le=WAIT_LIMIT_SECONDS)]
DialectKey = Annotated[Literal["A", "B", "C", "D", "E"] | None, Query()]


def in_dialects(described: dict[str, Any]) -> dict[str, Any]:
    """Describe that a route also answers in the words of a seed."""
    told = described["responses"][200]["content"]["application/json"]
    told["schema"] = {"anyOf": [told["schema"], {"type": "object", "title": "In a dialect"}]}
    return described


@router.post(
    "",
    status_code=201,
    **documented(takes=Wanted, reads=(TENANT, KEY), _200=Receipt, _201=Receipt),
)
async def submit_job(ask: Annotated[Ask, asking(Scope.SUBMIT)]) -> Response:
    """Submit one job; 200 and `created: false` if one of its keys stands for an earlier one."""
    wanted = await ask.body(Wanted)
    if ask.key is not None and wanted.request_id is None:
        wanted = replace(wanted, request_id=ask.key)
    [outcome] = await ask.submit([wanted])
    if isinstance(outcome, HoldfastError):
        raise outcome
    receipt = _receipt(outcome)
    headers = {"location": f"/v1/jobs/{receipt.job.internal_id}", "etag": f'"{receipt.job.rev}"'}
    return answer(receipt, 201 if receipt.created else 200, **headers)


@router.post("/batch", **documented(takes=Many, reads=(TENANT, KEY), _200=Receipts))
async def submit_jobs(ask: Annotated[Ask, asking(Scope.SUBMIT)]) -> Response:
    """Submit many jobs together; one that is bad fails alone.

    A queue that the token is not for refuses them all.
    """
    outcomes: dict[int, Answer] = {}
    wanted: dict[int, Wanted] = {}
    for number, one in enumerate(await _read_many(ask)):
        if isinstance(one, ValidationError):
            outcomes[number] = one
        else:
            wanted[number] = one if ask.key is None else _keyed(one, f"{ask.key}/{number}")
    outcomes |= zip(wanted, await ask.submit([*wanted.values()]), strict=True)
    told = [_each(outcomes[n], ask.request_id, f"$.jobs[{n}]") for n in range(len(outcomes))]
    return answer(Receipts(jobs=told))


@router.get("", **documented(_200=JobList))
async def list_jobs(  # noqa: PLR0917  what a query string may say
    ask: Annotated[Ask, asking(Scope.READ)],
    state: Annotated[list[State], Query()] = [],  # noqa: B006  read, never written
    queue: Text = None,
    task: Text = None,
    tenant: Text = None,
    parent: Text = None,
    workflow_id: Text = None,
    correlation_id: Text = None,
    error_code: Text = None,
    letter: Letter | None = None,
    label: Annotated[list[Label], Query()] = [],  # noqa: B006  read, never written
    created_from: datetime | None = None,
    created_until: datetime | None = None,
    before: UUID | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List jobs, newest first.

    Of a filter that no index knows, a page tells what a bounded look found: it may be short, or
    empty, and still have a `next`.
    """
    jobs = ask.jobs
    page = await jobs.find(
        JobQuery(
            tenant=tenant,
            states=tuple(state),
            queue=queue,
            task=task,
            parent_id=None if parent is None else (await jobs.get(parent)).id,
            workflow_id=workflow_id,
            correlation_id=correlation_id,
            error_code=error_code,
            letter=letter,
            labels=tuple(_label(one) for one in label),
            created_from=read_instant(created_from, "created_from"),
            created_until=read_instant(created_until, "created_until"),
            before=None if before is None else JobId(before),
            limit=limit,
            look=LIST_LOOK,
        )
    )
    following = None if page.next is None else str(page.next)
    return answer(JobList(jobs=[JobView.of(job) for job in page.jobs], next=following))


@router.get("/{job}", **in_dialects(documented(_200=JobView)))
async def get_job(
    ask: Annotated[Ask, asking(Scope.READ)], job: Name, dialect: DialectKey = None, wait: Wait = 0.0
) -> Response:
    """Read a job, once it has ended or `wait` seconds have passed.

    `dialect` tells it in the words of one of the five seeds.
    """
    record = await _awaited(ask, job, wait)
    if dialect is None:
        return answer_job(record)
    events = await ask.jobs.events_without_bodies(record, DIALECT_EVENTS)
    return answer(DIALECTS[dialect].render(record, events), etag=f'"{record.rev}"')


@router.get("/{job}/history", **in_dialects(documented(_200=EventPage)))
async def get_history(
    ask: Annotated[Ask, asking(Scope.READ)],
    job: Name,
    dialect: DialectKey = None,
    after: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """Read a job's history after a revision, in pages of about 4 MiB; `next` is the next `after`.

    `dialect` returns all of it, without bodies, in the words of one of the five seeds.
    """
    if dialect is None:
        return answer(await ask.jobs.event_page(job, after=after, limit=limit))
    record = await ask.jobs.get(job)
    events = await ask.jobs.events_without_bodies(record, DIALECT_EVENTS)
    return answer({"events": DIALECTS[dialect].history(events)})


@router.get("/{job}/progress", **documented(_200=ProgressView))
async def get_progress(ask: Annotated[Ask, asking(Scope.READ)], job: Name) -> Response:
    """Read how far a job is, by the last report of its handler."""
    return answer(ProgressView.of(await ask.jobs.progress(job)))


@router.get("/{job}/result", **documented(_200=Result, _202=JobView))
async def get_result(
    ask: Annotated[Ask, asking(Scope.READ)], job: Name, wait: Wait = 0.0
) -> Response:
    """Wait up to `wait` seconds for a job's end; 202 and the job if it has not come.

    Of a job that was tried again as a new one, this is the end of the last try.
    """
    ending = None
    with suppress(ResultTimeout):
        outcome = ask.jobs.outcome(job, wait)
        ending = await (ask.patiently(outcome) if wait else outcome)
    if ending is None:
        return answer_job(await ask.jobs.get(job), 202)
    told = ending.outcome
    body = NOTHING if told.body is None else Raw(told.body)
    good = told.state is State.SUCCEEDED
    return answer(
        Result(
            job_id=told.job_id,
            task=told.task,
            state=told.state,
            result=body if good else NOTHING,
            error=NOTHING if good else body,
            error_code=told.error_code,
            reason=told.reason,
            erased=told.erased,
            job=JobView.of(ending.job),
        )
    )


@router.post(
    "/{job}/cancel", **documented(takes=Cancelling, reads=(TENANT, KEY, REVISION), _200=JobView)
)
async def cancel_job(ask: Annotated[Ask, asking(Scope.CONTROL)], job: Name) -> Response:
    """Cancel a job: at once where nobody holds it, else its owner is asked."""
    how = await ask.body(Cancelling)
    record = await ask.jobs.cancel(
        job,
        hard=how.hard,
        reason=how.reason,
        request_id=ask.key,
        expected_rev=ask.expected_rev,
    )
    return answer_job(record)


@router.post(
    "/{job}/signal", **documented(takes=Signalling, reads=(TENANT, KEY, REVISION), _200=JobView)
)
async def signal_job(ask: Annotated[Ask, asking(Scope.CONTROL)], job: Name) -> Response:
    """Send a job a signal; one that comes before its wait is kept."""
    signal = await ask.body(Signalling)
    record = await ask.jobs.signal(
        job,
        signal.name,
        bytes(signal.payload),
        request_id=ask.key,
        expected_rev=ask.expected_rev,
    )
    return answer_job(record)


@router.post(
    "/{job}/resolve", **documented(takes=Resolving, reads=(TENANT, KEY, REVISION), _200=JobView)
)
async def resolve_step(ask: Annotated[Ask, asking(Scope.CONTROL)], job: Name) -> Response:
    """Say whether a step had its effect that a job asks about."""
    said = await ask.body(Resolving)
    record = await ask.jobs.resolve(
        job,
        said.step,
        happened=said.happened,
        result=said.result,
        force=said.force,
        request_id=ask.key,
        expected_rev=ask.expected_rev,
    )
    return answer_job(record)


@router.post(
    "/{job}/hold", **documented(takes=Holding, reads=(TENANT, KEY, REVISION), _200=JobView)
)
async def hold_job(ask: Annotated[Ask, asking(Scope.CONTROL)], job: Name) -> Response:
    """Keep a job from being claimed until the hold is lifted."""
    body = await ask.body(Holding)
    record = await ask.jobs.hold(
        job,
        body.hold,
        reason=body.reason,
        request_id=ask.key,
        expected_rev=ask.expected_rev,
    )
    return answer_job(record)


@router.post(
    "/{job}/unhold", **documented(takes=Holding, reads=(TENANT, KEY, REVISION), _200=JobView)
)
async def unhold_job(ask: Annotated[Ask, asking(Scope.CONTROL)], job: Name) -> Response:
    """Lift a hold; other holds of the job stay."""
    body = await ask.body(Holding)
    record = await ask.jobs.unhold(
        job,
        body.hold,
        reason=body.reason,
        request_id=ask.key,
        expected_rev=ask.expected_rev,
    )
    return answer_job(record)


@router.post(
    "/{job}/reschedule",
    **documented(takes=Rescheduling, reads=(TENANT, KEY, REVISION), _200=JobView),
)
async def reschedule_job(ask: Annotated[Ask, asking(Scope.CONTROL)], job: Name) -> Response:
    """Make a job that has no owner due after `delay`, or at `run_at`."""
    body = await ask.body(Rescheduling)
    record = await ask.jobs.reschedule(
        job,
        delay=body.delay,
        run_at=body.run_at,
        reason=body.reason,
        request_id=ask.key,
        expected_rev=ask.expected_rev,
    )
    return answer_job(record)


@router.get("/{job}/why", **documented(_200=Explanation))
async def explain_job(ask: Annotated[Ask, asking(Scope.READ)], job: Name) -> Response:
    """Tell what a job is doing, why it is not running, and who did that."""
    told = await ask.jobs.why(job)
    return answer(Explanation(text=told.text, advice=told.advice, why=told))


@router.get("/{job}/lineage", **documented(_200=Lineage))
async def get_lineage(ask: Annotated[Ask, asking(Scope.READ)], job: Name) -> Response:
    """Read the tree that a job stands in."""
    return answer(await ask.jobs.lineage(job))


def _label(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


class _ManyAsText(Struct, forbid_unknown_fields=True):
    """Jobs to submit together, none of them read yet."""

    jobs: list[Raw]


async def _read_many(ask: Ask) -> Sequence[Wanted | ValidationError]:
    """Read the jobs of a request together; if one does not fit, each by itself."""
    try:
        return _bounded((await ask.body(Many)).jobs)
    except ValidationError:
        texts = _bounded((await ask.body(_ManyAsText)).jobs)
        return [_read_one(bytes(text), f"$.jobs[{n}]") for n, text in enumerate(texts)]


def _bounded(jobs: list[T]) -> list[T]:
    if len(jobs) > SUBMIT_LIMIT:
        raise TooLarge(f"{len(jobs):,} jobs in one request; the limit is {SUBMIT_LIMIT:,}")
    return jobs


def _read_one(text: bytes, place: str) -> Wanted | ValidationError:
    try:
        return read_json(text, Wanted, root=place)
    except ValidationError as error:
        return error


def _keyed(wanted: Wanted, key: str) -> Wanted:
    return wanted if wanted.request_id is not None else replace(wanted, request_id=key)


def _each(outcome: Answer, request_id: str, place: str) -> Each:
    if isinstance(outcome, HoldfastError):
        return Each(problem=problem_of(outcome, request_id, place))
    return Each(accepted=_receipt(outcome))


def _receipt(outcome: Submitted) -> Receipt:
    return Receipt(
        job_id=outcome.job.public_id,
        created=outcome.created,
        job=JobView.of(outcome.job),
        message=None if outcome.created else EXISTING,
    )


async def _awaited(ask: Ask, job: str, wait: float) -> Job:
    record = None
    with suppress(ResultTimeout):
        if wait:
            record = await ask.patiently(ask.jobs.ended(job, wait))
    return record or await ask.jobs.get(job)
