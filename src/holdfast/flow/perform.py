"""One command on one job: read, decide, commit; decide anew when somebody else came first.

This is the careful path of control commands and tools. A worker's path never reads before it
writes: it decides on the record that its last commit confirmed.
"""

from __future__ import annotations

from contextlib import aclosing

from holdfast.errors import (
    HoldfastError,
    LawBroken,
    LeaseConflictError,
    NoSuchJob,
    Refused,
    RequestIdReused,
    StaleRevision,
)
from holdfast.flow.correlate import correlated
from holdfast.flow.history import event_pages
from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.decide import Decision, decide
from holdfast.lifecycle.job import Change, Job, JobId, LoggedEvent, Refusal, Unchanged
from holdfast.lifecycle.rebase import REBASES, rebase, same_request
from holdfast.ports import Committed, Jobs, Lost, Rejected


async def perform(
    store: Jobs,
    id: JobId,
    command: Command,
    *,
    expected_rev: int | None = None,
    follow: Command | None = None,
    rebases: int = REBASES,
) -> Job:
    """Carry a command out, once, and return the record it led to.

    An `expected_rev` given by the caller is never rebased: if the job has moved on, it is told so.
    `follow` is carried out in the same commit, if the law allows it upon the first. `rebases` is
    how often it is decided anew when somebody else came first.
    """
    job = await _read(store, id)
    if repeat := await _repeated(store, job, command):
        return repeat
    check_revision(job, expected_rev)
    decision = decide(job, command)
    for _ in range(rebases + 1):
        change = _accepted(job, decision)
        if change is None:
            return job
        changes = await correlated(store, [change, *_follow(change, follow)])
        outcome = (await store.commit(changes))[-1]
        if not isinstance(outcome, Lost):
            return _written(job, outcome)
        job, decision = await _decide_anew(store, change, outcome, command, expected_rev)
    raise Refused(f"job {job.public_id} changed {rebases} times meanwhile", job_id=job.public_id)


async def _read(store: Jobs, id: JobId) -> Job:
    job = (await store.get([id]))[0]
    if job is None:
        raise NoSuchJob(f"no job {id}", job_id=str(id))
    return job


async def _repeated(store: Jobs, job: Job, command: Command) -> Job | None:
    """Answer a request_id that this job has seen: success if it is the same, else refused.

    The record was read first: what lands after this look makes the compare-and-set miss.
    """
    if command.request_id is None:
        return None
    event = await event_of(store, job.id, command.request_id)
    if event is None:
        return None
    if event.actor != command.actor.label or not same_request(event, command):
        raise RequestIdReused(
            f"request_id {command.request_id!r} already stands for {event.type} at revision "
            f"{event.rev} of job {job.public_id}; use a new one",
            job_id=job.public_id,
        )
    return await _read(store, job.id)


async def event_of(store: Jobs, id: JobId, request_id: str) -> LoggedEvent | None:
    """Find the event that a request led to."""
    async with aclosing(event_pages(store, id)) as pages:
        async for page in pages:
            for event in page:
                if event.request_id == request_id:
                    return event
    return None


def check_revision(job: Job, expected_rev: int | None) -> None:
    """Refuse if the caller knows another revision than the job's (C3)."""
    if expected_rev is not None and job.rev != expected_rev:
        raise StaleRevision(
            f"job {job.public_id} is at revision {job.rev}, not {expected_rev}; read it again",
            job_id=job.public_id,
        )


def _accepted(job: Job, decision: Decision) -> Change | None:
    match decision:
        case Refusal(code=code, message=message):
            raise refused(code, message, job.public_id)
        case Unchanged():
            return None
        case Change():
            return decision


def _follow(change: Change, command: Command | None) -> list[Change]:
    decision = None if command is None else decide(change.next, command)
    return [decision] if isinstance(decision, Change) else []


def refused(code: str, message: str, job_id: str) -> HoldfastError:
    """Turn the law's refusal into the error that callers catch."""
    kind = LeaseConflictError if code == "lease_lost" else Refused
    return kind(message, code=code, job_id=job_id)


def _written(job: Job, outcome: Committed | Rejected) -> Job:
    if isinstance(outcome, Rejected):
        raise LawBroken(outcome.message, code=outcome.code, job_id=job.public_id)
    return outcome.job


async def _decide_anew(
    store: Jobs, change: Change, outcome: Lost, command: Command, expected_rev: int | None
) -> tuple[Job, Decision]:
    current = outcome.current
    if current is None:
        raise NoSuchJob(f"job {change.id} is gone", job_id=str(change.id))
    check_revision(current, expected_rev)
    if current.rev == change.record.rev:
        # The record is unchanged, so it was the lease that had passed by the store's clock.
        raise LeaseConflictError(
            f"the lease on job {current.public_id} has passed", job_id=current.public_id
        )
    if repeat := await _repeated(store, current, command):
        return repeat, Unchanged(repeat)
    return current, rebase(current, command)
