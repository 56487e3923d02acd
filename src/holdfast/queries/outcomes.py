"""Outcomes: the result that a job ended with, or the error that describes how it ended."""

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
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import NO_FACTS, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import SUCCESSFUL, State
from holdfast.lifecycle.transitions import END_EVENTS, ENDS
from holdfast.ports.store import Store
from holdfast.queries.history import ReadEvent


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
    exit_code: int | None = None
    """That of a command."""
    result_ptr: str | None = None
    """Where the result is, if its worker put it elsewhere; also beside an error (A9)."""
    worker_id: str | None = None
    """Who ran it, where that is not its owner."""
    execution_ms: int | None = None
    """How long it ran, by its worker."""

    def error(self) -> HoldfastError | None:
        """Return an end without a result as the error that `result()` raises."""
        if self.state not in SUCCESSFUL:
            return self._make_job_error()
        if self.erased:
            return ResultErased(f"the result of job {self.job_id} was erased", job_id=self.job_id)
        return None

    def _make_job_error(self) -> HoldfastError:
        kind = _ERRORS.get(END_EVENTS.get(self.state, ""), JobError)
        error = decode_body(self.body)
        which = "" if self.first_id is None else f", the last try of job {self.first_id},"
        return kind(
            f"job {self.job_id} ({self.task}){which} {_ENDED.get(kind, self.state)}"
            + _write_cause(self.error_code, error, self.reason),
            job_id=self.job_id,
            error_code=self.error_code,
            error=error,
            exit_code=self.exit_code,
        )


def make_outcome(job: Job, last: LoggedEvent | None, first_id: str) -> Outcome:
    """Return the outcome of a job, by the event that ended it."""
    facts = NO_FACTS if last is None else last.facts
    return Outcome(
        job_id=job.public_id,
        task=job.task,
        state=job.state,
        error_code=job.error_code,
        body=last.body if last else None,
        erased=last is None or (last.body is None and last.digest is not None),
        reason=last.reason if last else None,
        first_id=None if job.public_id == first_id else first_id,
        exit_code=job.exit_code,
        result_ptr=job.result_ptr,
        worker_id=facts.worker,
        execution_ms=facts.execution_ms,
    )


async def last_event(store: Store, id: JobId) -> LoggedEvent | None:
    """Find the event that ended a job; annotations may have followed."""
    found = await store.latest_events(id, ENDS, limit=1)
    return found[0] if found else None


async def find_linked_retry(store: Store, last: LoggedEvent | None) -> Job | None:
    """Find the new job that is the next try of one that ended by this event (A16)."""
    if last is None or last.to_state in SUCCESSFUL or last.facts.link is None:
        return None
    return (await store.get([last.facts.link]))[0]


def find_next_try(log: Sequence[ReadEvent]) -> JobId | None:
    """Find in a job's history the new job that is its next try."""
    for event in reversed(log):
        if event.type in ENDS:
            link = None if event.to_status in SUCCESSFUL else event.facts.get("link")
            return None if link is None else JobId(UUID(link))
    return None


async def read_outcome(store: Store, job: Job) -> Outcome | None:
    """Return the outcome of a job, by its last try; None while that has not ended."""
    first_id = job.public_id
    while job.terminal:
        last = await last_event(store, job.id)
        again = await find_linked_retry(store, last)
        if again is None:
            return make_outcome(job, last, first_id)
        job = again
    return None


_ENDED: dict[type[JobError], str] = {
    JobFailed: "failed",
    JobCancelled: "was cancelled",
    JobTimedOut: "timed out",
    JobDenied: "was denied",
    JobDeadLettered: "ended in the dead letters",
}
_ERRORS = {kind.code: kind for kind in _ENDED}
"""By the code of the error, which is the type of the event that ends the job."""


def _write_cause(code: str | None, error: Any, reason: str | None) -> str:
    if isinstance(error, dict) and error.get("type"):
        return f": {error['type']}: {error.get('message', '')}"
    parts = [part for part in (code, error if isinstance(error, str) else reason) if part]
    return f": {': '.join(parts)}" if parts else ""
