"""Submit: from a request to a job in the ledger, once, whatever happens to the reply."""

from __future__ import annotations

from holdfast.errors import (
    BadData,
    HoldfastError,
    JobPurged,
    JobUnreadable,
    KeyBusy,
    KeyConflict,
    RequestIdReused,
    TooManyNames,
)
from holdfast.lifecycle.job import Actor
from holdfast.lifecycle.submit import Submission
from holdfast.lifecycle.submit import submit as decide_submit
from holdfast.ports import Store, SubmitRefused, Submitted


async def submit(store: Store, submission: Submission, actor: Actor) -> Submitted:
    """Submit one job, or return the one that its keys stand for; a refusal is raised."""
    outcome = (await store.submit([decide_submit(submission, actor)]))[0]
    if isinstance(outcome, SubmitRefused):
        raise refused_submit(outcome)
    return outcome


def refused_submit(refusal: SubmitRefused) -> HoldfastError:
    """Turn a refused submit into the error that callers catch."""
    holder = None if refusal.holder is None else str(refusal.holder)
    match refusal.code:
        case "key_conflict":
            return KeyConflict(refusal.message, job_id=holder)
        case KeyBusy.code:
            return KeyBusy(refusal.message)
        case TooManyNames.code:
            return TooManyNames(refusal.message)
        case JobPurged.code:
            return JobPurged(refusal.message, job_id=holder)
        case JobUnreadable.code:
            return JobUnreadable(refusal.message, job_id=holder)
        case "request_id_reused":
            return RequestIdReused(refusal.message, job_id=holder)
        case _:
            return BadData(refusal.message, code=refusal.code)
