"""What a job came to, for whoever waits for it: a result, or the error that tells how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct

from holdfast.errors import (
    HoldfastError,
    JobCancelled,
    JobDeadLettered,
    JobDenied,
    JobError,
    JobFailed,
    JobTimedOut,
    ResultErased,
)
from holdfast.flow.history import ReadEvent
from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.states import EventType, State
from holdfast.ports import Store

ENDINGS = (
    EventType.SUCCEEDED,
    EventType.FAILED,
    EventType.CANCELLED,
    EventType.TIMED_OUT,
    EventType.DENIED,
    EventType.DEAD_LETTERED,
)
_ERRORS: dict[State, type[JobError]] = {
    State.FAILED: JobFailed,
    State.CANCELLED: JobCancelled,
    State.TIMED_OUT: JobTimedOut,
    State.DENIED: JobDenied,
    State.DEAD_LETTERED: JobDeadLettered,
}


class Outcome(Struct, frozen=True, kw_only=True):
    """How a job ended, in plain values that also cross to another process."""

    job_id: str
    task: str
    state: State
    error_code: str | None = None
    body: bytes | None = None
    """The result, or the error."""
    erased: bool = False
    reason: str | None = None
    first_id: str | None = None
    """The job that was waited for, where this one is a later try of it."""

    def error(self) -> HoldfastError | None:
        """Tell an end without a result as the error that `result()` raises."""
        if self.state is not State.SUCCEEDED:
            return self._job_error()
        if self.erased:
            return ResultErased(f"the result of job {self.job_id} was erased", job_id=self.job_id)
        return None

    def _job_error(self) -> HoldfastError:
        kind = _ERRORS.get(self.state, JobError)
        said = decode_body(self.body)
        which = "" if self.first_id is None else f", the last try of job {self.first_id},"
        return kind(
            f"job {self.job_id} ({self.task}){which} {_ENDED.get(self.state, self.state)}"
            + _because(self.error_code, said, self.reason),
            job_id=self.job_id,
            error_code=self.error_code,
            error=said,
        )


def outcome_of(job: Job, last: LoggedEvent | None, first_id: str) -> Outcome:
    """Tell how a job ended by the event that ended it."""
    return Outcome(
        job_id=job.public_id,
        task=job.task,
        state=job.state,
        error_code=job.error_code,
        body=last.body if last else None,
        erased=last is None or (last.body is None and last.digest is not None),
        reason=last.reason if last else None,
        first_id=None if job.public_id == first_id else first_id,
    )


async def last_event(store: Store, id: JobId) -> LoggedEvent | None:
    """Find the event that ended a job; annotations may have followed."""
    found = await store.latest_events(id, ENDINGS, limit=1)
    return found[0] if found else None


async def linked_retry(store: Store, last: LoggedEvent | None) -> Job | None:
    """Find the new job that is the next try of one that ended by this event (A16)."""
    if last is None or last.type is EventType.SUCCEEDED or last.facts.link is None:
        return None
    return (await store.get([last.facts.link]))[0]


def next_try(log: Sequence[ReadEvent]) -> JobId | None:
    """Find in a job's history the new job that is its next try."""
    for event in reversed(log):
        if event.type in ENDINGS:
            link = None if event.type == EventType.SUCCEEDED else event.facts.get("link")
            return None if link is None else JobId(UUID(link))
    return None


async def outcome(store: Store, job: Job) -> Outcome | None:
    """Tell what a job came to, by its last try; None while that has not ended."""
    first_id = job.public_id
    while job.terminal:
        last = await last_event(store, job.id)
        again = await linked_retry(store, last)
        if again is None:
            return outcome_of(job, last, first_id)
        job = again
    return None


_ENDED = {
    State.FAILED: "failed",
    State.CANCELLED: "was cancelled",
    State.TIMED_OUT: "timed out",
    State.DENIED: "was denied",
    State.DEAD_LETTERED: "ended in the dead letters",
}


def _because(code: str | None, said: Any, reason: str | None) -> str:
    if isinstance(said, dict) and said.get("type"):
        return f": {said['type']}: {said.get('message', '')}"
    told = said if isinstance(said, str) else reason
    parts = [part for part in (code, told) if part]
    return f": {': '.join(parts)}" if parts else ""
