"""Dead letters: what is left of a job that could not be done, for people to read.

What can be done about a letter is in `flow.redrive`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from holdfast.errors import HoldfastError, NoSuchJob, Refused
from holdfast.lifecycle.dialects.progress import Standing
from holdfast.lifecycle.dialects.vocabularies import B, is_dead_in_b
from holdfast.lifecycle.history import REDRIVES, SETTLEMENTS, History
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job, JobId, LoggedEvent
from holdfast.lifecycle.retry import failure_stage
from holdfast.lifecycle.states import LETTERED, Letter, Retention, State
from holdfast.lifecycle.transitions import ENDS, LEAVES
from holdfast.ports.models import Query
from holdfast.ports.store import Store


class DeadLetterView(Struct, frozen=True, kw_only=True):
    """One dead letter: why and where the job failed, its attempts, and how it was settled."""

    id: JobId
    job_id: str
    task: str
    queue: str
    tenant: str
    state: State
    letter: Letter | None
    """None for a job that only seed B calls dead: denied, timed out, or lost before it ran."""
    reason_code: str
    """A reason of B14; for a job that its policy let fail, the error's own code."""
    stage: str
    error_code: str
    last_error: dict[str, Any]
    """Type, message, code, traceback and chain, as far as the end has them."""
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
    """The newest job that it was redriven as."""
    retention: Retention


class LetterFilter(Struct, frozen=True, kw_only=True):
    """Selects letters by how they were settled, and by their jobs."""

    letter: Letter = Letter.OPEN
    tenant: str | None = None
    queue: str | None = None
    task: str | None = None
    error_code: str | None = None
    """The reason of a dead-lettered job; the error's own code of a failed one."""
    created_from: int | None = None
    created_until: int | None = None


class LetterPage(Struct, frozen=True, kw_only=True):
    """Letters, newest job first; `next` continues after them, None is the end."""

    letters: list[DeadLetterView]
    next: JobId | None
    unreadable: dict[JobId, str]
    """Letters whose events have no end; the other letters are listed."""


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
    page = await store.find(_build_query(letters, before, limit))
    read: list[DeadLetterView] = []
    unreadable: dict[JobId, str] = {}
    for job in page.jobs:
        try:
            read.append(build_letter(job, await read_past(store, job)))
        except Damaged as error:
            unreadable[job.id] = str(error)
    return LetterPage(letters=read, next=page.next, unreadable=unreadable)


async def read_letter(store: Store, id: JobId) -> DeadLetterView:
    """Read one letter; also of a job that only seed B calls dead (B15)."""
    job = await read_job(store, id)
    if job.terminal:
        past = await read_past(store, job)
        if job.letter is not None or is_dead_in_b(_standing(past)):
            return build_letter(job, past)
    raise no_letter_error(job)


async def count_letters(store: Store, letters: LetterFilter) -> int:
    return sum([len(jobs) async for jobs in walk_lettered_jobs(store, letters, batch=1000)])


async def walk_lettered_jobs(
    store: Store,
    letters: LetterFilter,
    *,
    batch: int,
    before: JobId | None = None,
    limit: int | None = None,
) -> AsyncIterator[list[Job]]:
    """Walk over all jobs with such letters, newest first, in bounded batches.

    By the id of the last one: what is settled or comes meanwhile moves no job into or out of a
    later batch, and a job made from a letter is newer than the start of the walk.
    """
    left = limit
    while left is None or left > 0:
        wanted = batch if left is None else min(batch, left)
        page = await store.find(_build_query(letters, before, wanted))
        if page.jobs:
            yield page.jobs
        if page.next is None:
            return
        before = page.next
        left = None if left is None else left - len(page.jobs)


def _build_query(letters: LetterFilter, before: JobId | None, limit: int) -> Query:
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
    """The events of an ended job have no end; `holdfast verify` shows the damage."""

    code = "damaged"


async def read_job(store: Store, id: JobId) -> Job:
    job = (await store.get([id]))[0]
    if job is None:
        raise NoSuchJob(f"no job {id}", job_id=str(id))
    return job


def no_letter_error(job: Job) -> Refused:
    """Return the error for a job without a letter to read, redrive or discard."""
    text = f"job {job.public_id} ({job.state}) has no dead letter"
    if job.state not in LETTERED:
        text += "; only failed and dead-lettered jobs are redriven"
    return Refused(text, code="no_dead_letter", job_id=job.public_id)


async def read_past(store: Store, job: Job) -> Past:
    """Find the events that matter, newest first: a job may have had thousands before them."""
    first = await store.events(job.id, limit=1)
    # Two suffice: where the job had no owner at its end, the one before is how it lost it.
    lasts = await store.latest_events(job.id, ENDS | LEAVES, limit=2)
    if not first or not lasts or not lasts[0].ends:
        raise Damaged(f"the events of job {job.public_id} have no end", job_id=str(job.id))
    return Past(
        first=first[0],
        ending=lasts[0],
        departure=History(lasts).departure,
        settlements=await store.latest_events(job.id, SETTLEMENTS),
    )


def build_letter(job: Job, past: Past) -> DeadLetterView:
    """Put a letter together from the record and its events."""
    ending, departure = past.ending, past.departure
    settled = next(iter(past.settlements), None)
    redriven = next((one for one in past.settlements if one.type in REDRIVES), None)
    code = job.error_code or ""
    return DeadLetterView(
        id=job.id,
        job_id=job.public_id,
        task=job.task,
        queue=job.queue,
        tenant=job.tenant,
        state=job.state,
        letter=job.letter,
        reason_code=B.error(_standing(past)) or code,
        stage=failure_stage(ending),
        error_code=code,
        last_error=_find_last_error(ending, code),
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


def _find_last_error(ending: LoggedEvent, code: str) -> dict[str, Any]:
    if ending.body is not None:
        error = decode_body(ending.body)
        if isinstance(error, dict):
            return error
        return {"message": error if isinstance(error, str) else repr(error), "code": code}
    if ending.digest is not None:
        return {"message": "erased by retention", "code": code}
    rule = ending.facts.rule
    message = ending.reason or (f"denied by rule {rule}" if rule else code)
    return {"message": message, "code": code}
