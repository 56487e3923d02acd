"""Finish: from what a handler did to the command that ends its attempt (resolutions 7, 11, 16)."""

from __future__ import annotations

import msgspec

from holdfast.errors import (
    HoldfastError,
    NoSuchTask,
    PermanentError,
    StepMismatch,
    TransientError,
    UnfitResult,
    ValidationError,
)
from holdfast.flow.reports import fitting, report_of
from holdfast.identity import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import MISMATCH, Actor, Job, NewJob
from holdfast.lifecycle.linked import linked_retry
from holdfast.lifecycle.payload import TEXT_LIMIT, Body, encode_body
from holdfast.lifecycle.retry import (
    COMPENSATION_FAILED,
    exhausted,
    is_compensation,
    recheck_delay,
    release_costs,
)
from holdfast.lifecycle.times import SECOND, After
from holdfast.ports import Claimed

HANDLER_ERROR = "handler_error"
"""The code of an error that is none of Holdfast's own; its type stands in the body."""


def error_body(error: BaseException) -> Body:
    """Write an error down: type, message, traceback and causes, all bounded."""
    return encode_body(msgspec.to_builtins(report_of(error)), "error")


def after_error(
    job: Job, actor: Actor, error: BaseException, *, claimed: Claimed, started: bool, jitter: float
) -> c.Command:
    """Say how an attempt ends whose handler raised; `claimed` is what it was asked to do."""
    match error:
        case StepMismatch():
            return _parked(job, actor, error)
        case ValidationError():
            return dead_letter(job, actor, "validation_failed", "input", error)
        case UnfitResult():
            return dead_letter(job, actor, "validation_failed", "output", error)
        case PermanentError() if is_compensation(job):
            return dead_letter(job, actor, COMPENSATION_FAILED, "exec", error)
        case PermanentError():
            return c.Fail(actor=actor, error_code=error.code, body=error_body(error))
        case _ if may_retry(job, started=started):
            return _retry(actor, error, jitter)
        case NoSuchTask():
            return dead_letter(job, actor, "dependency_unavailable", "input", error)
        case _ if exhausted(job):
            return _exhausted(job, actor, error)
        case _:
            again = _retry_as_new(job, actor, claimed, jitter, error)
            return c.Fail(
                actor=actor, error_code=error_code(error), body=error_body(error), submits=again
            )


def _parked(job: Job, actor: Actor, error: StepMismatch) -> c.Wait:
    """Park a job whose recorded steps this code does not have, until code comes that has them.

    It costs no try: another try of the same code would not help, and nothing was run.
    """
    return c.Wait(
        actor=actor,
        signal=MISMATCH,
        until=After(recheck_delay(job)),
        reason=fitting(str(error), TEXT_LIMIT),
    )


def may_retry(job: Job, *, started: bool) -> bool:
    """Whether this attempt may be followed by another one of the same job."""
    return not exhausted(job) and (job.policy.idempotent or not started)


def _retry(actor: Actor, error: BaseException, jitter: float) -> c.Retry:
    return c.Retry(
        actor=actor,
        error_code=error_code(error),
        body=error_body(error),
        jitter=jitter,
        retry_in=_retry_in(error),
    )


def _retry_in(error: BaseException) -> int | None:
    asked = error.retry_in if isinstance(error, TransientError) else None
    return None if asked is None else int(asked * SECOND)


def _retry_as_new(
    job: Job, actor: Actor, claimed: Claimed, jitter: float, error: BaseException
) -> tuple[NewJob, ...]:
    """Make the next try of what has started and is not idempotent: a job of its own (A16)."""
    new = linked_retry(
        job,
        claimed.created,
        actor,
        id=mint_id(),
        body=claimed.body,
        correlation_id=claimed.correlation_id,
        jitter=jitter,
        retry_in=_retry_in(error),
    )
    return (new,)


def _exhausted(job: Job, actor: Actor, error: BaseException) -> c.Command:
    if job.policy.on_exhausted == "fail":
        return c.Fail(actor=actor, error_code=error_code(error), body=error_body(error))
    return dead_letter(job, actor, "exhausted_retries", "exec", error)


def dead_letter(
    job: Job, actor: Actor, reason: str, stage: str, error: BaseException
) -> c.DeadLetter:
    """End a job in the dead letters; whatever was the matter, an undoing that failed says so."""
    code = COMPENSATION_FAILED if is_compensation(job) else reason
    return c.DeadLetter(actor=actor, error_code=code, stage=stage, body=error_body(error))


def error_code(error: BaseException) -> str:
    """Name an error by a stable code."""
    return error.code if isinstance(error, HoldfastError) else HANDLER_ERROR


def after_timeout(job: Job, actor: Actor, *, claimed: Claimed, jitter: float) -> c.Command:
    """Say how an attempt ends that was killed at its time limit."""
    error = TimeoutError(f"ran longer than {(job.policy.timeout or 0) / SECOND:g} seconds")
    if may_retry(job, started=True):
        return c.Retry(actor=actor, error_code="timeout", body=error_body(error), jitter=jitter)
    if is_compensation(job):
        return dead_letter(job, actor, COMPENSATION_FAILED, "exec", error)
    again = () if exhausted(job) else _retry_as_new(job, actor, claimed, jitter, error)
    return c.TimeOut(actor=actor, error_code="timeout", body=error_body(error), submits=again)


def after_shutdown(job: Job, actor: Actor, *, started: bool) -> c.Command:
    """Give a job back, or, where it must not run again, end it: a deploy burns no attempt."""
    if started and not job.policy.idempotent:
        error = HoldfastError("its worker was shut down before it was done")
        return dead_letter(job, actor, "infrastructure_failure", "exec", error)
    if release_costs(job) and exhausted(job):
        error = HoldfastError(f"was given back {job.releases} times and has no try left")
        return dead_letter(job, actor, "exhausted_retries", "exec", error)
    return c.Release(actor=actor, reason="its worker was shut down")
