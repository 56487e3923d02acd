"""Dead letters: what is left of a job that could not be done, as a person wants to read it.

Reading alone; what can be done about a letter is in `redrive`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from holdfast.errors import HoldfastError, NoSuchJob, Refused
from holdfast.lifecycle.dialects.standing import Standing
from holdfast.lifecycle.dialects.vocabularies import B
from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.states import OWNED, TERMINAL, EventType, Letter, Retention, State
from holdfast.ports import Query, Store


class DeadLetter(Struct, frozen=True, kw_only=True):
    """One dead letter: why, where and after what (B14 to B16), and what became of it."""

    id: JobId
    job_id: str
    task: str
    queue: str
    tenant: str
    state: State
    letter: Letter | None
    """None of a job that seed B alone calls dead: denied, timed out, lost before it ran."""
    reason_code: str
    """One of B14's; of a job that its policy let fail, the error's own code."""
    stage: str
    error_code: str
    last_error: dict[str, Any]
    """Type, message, code, traceback and chain, as far as the end told them."""
    attempts: int
    failures: int
    last_owner: str | None
    last_lease_expires_at: int | None
    correlation_id: str | None
    created_at: int
    dead_at: int
    settled_at: int | None
    """When it was last redriven or discarded."""
    settled_by: str | None
    redriven_as: JobId | None
    """The newest job that was made of it."""
    retention: Retention


class LetterFilter(Struct, frozen=True, kw_only=True):
    """Which letters: by what became of them, and by the jobs they are of."""

    letter: Letter = Letter.OPEN
    tenant: str | None = None
    queue: str | None = None
    task: str | None = None
    error_code: str | None = None
    """Of a dead-lettered job this is the reason; of a failed one, the error's own code."""
    created_from: int | None = None
    created_until: int | None = None


class LetterPage(Struct, frozen=True, kw_only=True):
    """Letters, newest job first; `next` continues after them, None is the end."""

    letters: list[DeadLetter]
    next: JobId | None
    unreadable: dict[JobId, str]
    """Letters whose events do not tell an end; the others are listed all the same."""


class Past(Struct, frozen=True, kw_only=True):
    """The events that a letter is read from."""

    first: LoggedEvent
    ending: LoggedEvent
    departure: LoggedEvent | None
    """The event by which the last owner lost or left the job."""
    settlements: list[LoggedEvent]
    """How it was redriven or discarded, newest first."""


async def list_letters(
    store: Store, letters: LetterFilter, *, before: JobId | None = None, limit: int = 50
) -> LetterPage:
    """List one page of letters."""
    page = await store.find(_query(letters, before, limit))
    read: list[DeadLetter] = []
    unreadable: dict[JobId, str] = {}
    for job in page.jobs:
        try:
            read.append(letter_of(job, await past_of(store, job)))
        except Damaged as error:
            unreadable[job.id] = str(error)
    return LetterPage(letters=read, next=page.next, unreadable=unreadable)


async def show(store: Store, id: JobId) -> DeadLetter:
    """Read one letter; also of a job that only seed B calls dead (B15)."""
    job = await read_job(store, id)
    if job.terminal:
        past = await past_of(store, job)
        if job.letter is not None or B.word(_standing(past)) == "dead_lettered":
            return letter_of(job, past)
    raise no_letter(job)


async def count_letters(store: Store, letters: LetterFilter) -> int:
    """Count them, page by page."""
    return sum([len(jobs) async for jobs in lettered_jobs(store, letters, batch=1000)])


async def lettered_jobs(
    store: Store,
    letters: LetterFilter,
    *,
    batch: int,
    before: JobId | None = None,
    limit: int | None = None,
) -> AsyncIterator[list[Job]]:
    """Walk over all jobs with such letters, newest first, in bounded batches.

    By the id of the last one: what is settled or comes meanwhile moves nobody into or out of a
    later batch, and a job made from a letter is newer than the walk's begin.
    """
    left = limit
    while left is None or left > 0:
        wanted = batch if left is None else min(batch, left)
        page = await store.find(_query(letters, before, wanted))
        if page.jobs:
            yield page.jobs
        if page.next is None:
            return
        before = page.next
        left = None if left is None else left - len(page.jobs)


def _query(letters: LetterFilter, before: JobId | None, limit: int) -> Query:
    return Query(
        letter=letters.letter,
        tenant=letters.tenant,
        queue=letters.queue,
        task=letters.task,
        error_code=letters.error_code,
        created_from=letters.created_from,
        created_until=letters.created_until,
        before=before,
        limit=limit,
    )


class Damaged(HoldfastError):
    """The events of an ended job do not tell its end; `holdfast verify` says more."""

    code = "damaged"


async def read_job(store: Store, id: JobId) -> Job:
    """Read a job that must be there."""
    job = (await store.get([id]))[0]
    if job is None:
        raise NoSuchJob(f"no job {id}", job_id=str(id))
    return job


def no_letter(job: Job) -> Refused:
    """Say that there is nothing to read, redrive or discard."""
    text = f"job {job.public_id} ({job.state}) has no dead letter"
    if job.state is not State.FAILED:
        text += "; only failed and dead-lettered jobs are redriven"
    return Refused(text, code="no_dead_letter", job_id=job.public_id)


async def past_of(store: Store, job: Job) -> Past:
    """Find the events that matter, newest first: a job may have had thousands before them."""
    first = await store.events(job.id, limit=1)
    # Two suffice: where nobody held the job at its end, the one before is how that came about.
    lasts = await store.latest_events(job.id, _ENDINGS + _DEPARTURES, limit=2)
    if not first or not lasts or lasts[0].to_state not in TERMINAL:
        raise Damaged(f"the events of job {job.public_id} do not tell its end", job_id=str(job.id))
    return Past(
        first=first[0],
        ending=lasts[0],
        departure=next((event for event in lasts if event.from_state in OWNED), None),
        settlements=await store.latest_events(job.id, SETTLEMENTS),
    )


_ENDINGS = (
    EventType.DEAD_LETTERED,
    EventType.FAILED,
    EventType.TIMED_OUT,
    EventType.DENIED,
    EventType.CANCELLED,
    EventType.SUCCEEDED,
)
_DEPARTURES = (EventType.RETRYING, EventType.STALLED, EventType.RELEASED, EventType.WAITING)
SETTLEMENTS = (EventType.REDRIVEN, EventType.DISCARDED)


def letter_of(job: Job, past: Past) -> DeadLetter:
    """Put a letter together from the record and its events."""
    ending, departure = past.ending, past.departure
    settled = next(iter(past.settlements), None)
    redriven = next((one for one in past.settlements if one.type is EventType.REDRIVEN), None)
    code = job.error_code or ""
    return DeadLetter(
        id=job.id,
        job_id=job.public_id,
        task=job.task,
        queue=job.queue,
        tenant=job.tenant,
        state=job.state,
        letter=job.letter,
        reason_code=B.error(_standing(past)) or code,
        stage=_stage(ending),
        error_code=code,
        last_error=_last_error(ending, code),
        attempts=job.attempt,
        failures=job.failures,
        last_owner=None if departure is None else departure.facts.last_owner or departure.actor,
        last_lease_expires_at=None if departure is None else departure.lease_expires_at,
        correlation_id=ending.correlation_id or past.first.correlation_id,
        created_at=job.created_at,
        dead_at=ending.at,
        settled_at=None if settled is None else settled.at,
        settled_by=None if settled is None else settled.actor,
        redriven_as=None if redriven is None else redriven.facts.link,
        retention=job.retention,
    )


def _standing(past: Past) -> Standing:
    return Standing().after(past.ending)


def _stage(ending: LoggedEvent) -> str:
    """Tell where it failed (B16); what did not say so did while it ran, or before it could."""
    if ending.facts.stage is not None:
        return ending.facts.stage
    if ending.to_state is State.DENIED:
        return "input"
    return "fetch" if ending.from_state in _BEFORE_RUNNING else "exec"


_BEFORE_RUNNING = (State.PENDING, State.QUEUED, State.CLAIMED)


def _last_error(ending: LoggedEvent, code: str) -> dict[str, Any]:
    if ending.body is not None:
        told = decode_body(ending.body)
        return told if isinstance(told, dict) else {"message": _text(told), "code": code}
    if ending.digest is not None:
        return {"message": "erased by retention", "code": code}
    rule = ending.facts.rule
    message = ending.reason or (f"denied by rule {rule}" if rule else code)
    return {"message": message, "code": code}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
