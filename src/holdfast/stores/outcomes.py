"""Outcomes that both engines return: of a submit whose keys the law has judged, and refusals."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from holdfast.errors import JobPurged, JobUnreadable, LeaseConflictError, RequestIdReused
from holdfast.lifecycle.keys import KeyRefusal, judge_known
from holdfast.lifecycle.record import Job, JobId, LoggedEvent, NewJob
from holdfast.ports.models import (
    ClaimRequest,
    Rejected,
    SubmitOutcome,
    SubmitRefused,
    Submitted,
)
from holdfast.stores.quarantine import unreadable


class Enlisted(Struct, frozen=True, kw_only=True):
    """What became of a submit inside a transaction that is the caller's to commit."""

    id: JobId
    job_id: str
    """The public id."""
    created: bool


class ChildRefused(Exception):
    """A job that depends on a change was refused, and so is the change."""

    def __init__(self, refusal: SubmitRefused) -> None:
        super().__init__(refusal.message)
        self.rejected = Rejected(code=refusal.code, message=refusal.message)


def settle_known(job: NewJob, known: Job, first: LoggedEvent | None) -> SubmitOutcome:
    """Return the outcome of a submit whose internal id exists."""
    refusal = judge_known(job, first)
    return Submitted(known, created=True) if refusal is None else refused_by_key(refusal)


def refused_by_key(refusal: KeyRefusal) -> SubmitRefused:
    """Return the outcome of a submit whose keys belong to another job."""
    return SubmitRefused(code=refusal.code, message=refusal.message, holder=refusal.holder)


def refused_as_purged(id: JobId) -> SubmitRefused:
    """Refuse a submit whose key belongs to a purged job."""
    return SubmitRefused(
        code=JobPurged.code,
        message=f"the job_id or request_id belongs to job {id}, which was purged; use a new one",
        holder=id,
    )


def refused_as_unreadable(id: JobId, reason: str) -> SubmitRefused:
    """Refuse a submit whose key or id belongs to a damaged job."""
    error = unreadable(id, reason)
    return SubmitRefused(code=error.code, message=str(error), holder=id)


def rejected_as_unreadable(bad: Mapping[JobId, str]) -> dict[JobId, Rejected]:
    """Reject changes of damaged jobs, given why each is."""
    return {
        id_: Rejected(code=JobUnreadable.code, message=str(unreadable(id_, reason)))
        for id_, reason in bad.items()
    }


def check_repeated_claim(request: ClaimRequest, owner: str, is_held: bool) -> None:
    """Check that a claim request which took something before may be answered once more."""
    if owner != request.owner:
        raise RequestIdReused(
            f"claim request {request.request_id!r} was made by {owner}; use a new request_id"
        )
    if not is_held:
        raise LeaseConflictError(
            f"claim request {request.request_id!r} was answered before, and its owner no "
            "longer has those jobs; claim with a new request_id"
        )
