"""Finish: from what a handler did to the command that ends its attempt (resolutions 7, 11, 16)."""

from __future__ import annotations

import msgspec

from holdfast.errors import (
    HoldfastError,
    NoSuchTask,
    PermanentError,
    TransientError,
    UnfitResult,
    ValidationError,
)
from holdfast.flow.reports import report_of
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import Actor, Job
from holdfast.lifecycle.payload import Body, encode_body
from holdfast.lifecycle.retry import exhausted, release_costs
from holdfast.lifecycle.times import SECOND

HANDLER_ERROR = "handler_error"
"""The code of an error that is none of Holdfast's own; its type stands in the body."""


def error_body(error: BaseException) -> Body:
    """Write an error down: type, message, traceback and causes, all bounded."""
    return encode_body(msgspec.to_builtins(report_of(error)), "error")


def after_error(
    job: Job, actor: Actor, error: BaseException, *, started: bool, jitter: float
) -> c.Command:
    """Say how an attempt ends whose handler raised."""
    match error:
        case ValidationError():
            return _dead(actor, "validation_failed", "input", error)
        case UnfitResult():
            return _dead(actor, "validation_failed", "output", error)
        case PermanentError():
            return c.Fail(actor=actor, error_code=error.reason_code, body=error_body(error))
        case _ if may_retry(job, started=started):
            return _retry(actor, error, jitter)
        case NoSuchTask():
            return _dead(actor, "dependency_unavailable", "input", error)
        case _:
            return _exhausted(job, actor, error)


def may_retry(job: Job, *, started: bool) -> bool:
    """Whether this attempt may be followed by another one of the same job."""
    return not exhausted(job) and (job.policy.idempotent or not started)


def _retry(actor: Actor, error: BaseException, jitter: float) -> c.Retry:
    asked = error.retry_in if isinstance(error, TransientError) else None
    return c.Retry(
        actor=actor,
        error_code=error_code(error),
        body=error_body(error),
        jitter=jitter,
        retry_in=None if asked is None else int(asked * SECOND),
    )


def _exhausted(job: Job, actor: Actor, error: BaseException) -> c.Command:
    if job.policy.on_exhausted == "fail":
        return c.Fail(actor=actor, error_code=error_code(error), body=error_body(error))
    return _dead(actor, "exhausted_retries", "exec", error)


def _dead(actor: Actor, reason: str, stage: str, error: BaseException) -> c.DeadLetter:
    return c.DeadLetter(actor=actor, error_code=reason, stage=stage, body=error_body(error))


def error_code(error: BaseException) -> str:
    """Name an error by a stable code."""
    return error.reason_code if isinstance(error, HoldfastError) else HANDLER_ERROR


def after_timeout(job: Job, actor: Actor, *, jitter: float) -> c.Command:
    """Say how an attempt ends that was killed at its time limit."""
    error = TimeoutError(f"ran longer than {(job.policy.timeout or 0) / SECOND:g} seconds")
    if may_retry(job, started=True):
        return c.Retry(actor=actor, error_code="timeout", body=error_body(error), jitter=jitter)
    return c.TimeOut(actor=actor, error_code="timeout", body=error_body(error))


def after_shutdown(job: Job, actor: Actor, *, started: bool) -> c.Command:
    """Give a job back, or, where it must not run again, end it: a deploy burns no attempt."""
    if started and not job.policy.idempotent:
        error = HoldfastError("its worker was shut down before it was done")
        return _dead(actor, "infrastructure_failure", "exec", error)
    if release_costs(job) and exhausted(job):
        error = HoldfastError(f"was given back {job.releases} times and has no try left")
        return _dead(actor, "exhausted_retries", "exec", error)
    return c.Release(actor=actor, reason="its worker was shut down")
