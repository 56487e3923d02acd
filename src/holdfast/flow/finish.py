"""Finish: from what a handler did to the command that ends its attempt (resolutions 7, 11, 16)."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.errors import (
    BadData,
    BoxRefused,
    HoldfastError,
    NoSuchTask,
    PermanentError,
    RuntimeTrouble,
    StepMismatch,
    TransientError,
    UnfitResult,
    UploadExpired,
    UploadRefused,
    ValidationError,
)
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.linked import linked_retry
from holdfast.lifecycle.payload import TEXT_LIMIT, Body, encode_body
from holdfast.lifecycle.record import MISMATCH, Actor, Job, NewJob
from holdfast.lifecycle.retry import (
    COMPENSATION_FAILED,
    UPLOAD_EXPIRED,
    exhausted,
    is_compensation,
    recheck_delay,
    release_costs,
)
from holdfast.lifecycle.states import BOXED
from holdfast.lifecycle.times import SECOND, After
from holdfast.ports.box import BoxExit, CommandFailed, CommandStopped
from holdfast.ports.models import Claimed
from holdfast.queries.error_reports import describe_error, redact_and_cut

HANDLER_ERROR = "handler_error"
"""The code of an error that is not one of Holdfast's own; its type is in the body."""


def error_body(error: BaseException) -> Body:
    """Encode an error: type, message, traceback and causes, all bounded."""
    return encode_body(msgspec.to_builtins(describe_error(error)), "error")


def end_after_return(
    actor: Actor, value: Any, pack: Callable[[Any], Body], task: str
) -> c.Complete:
    """Return how an attempt ends whose handler returned a value."""
    try:
        body = pack(value)
    except BadData as error:
        raise UnfitResult(f"the result of {task} cannot be kept: {error}") from error
    return c.Complete(actor=actor, body=body)


def end_after_stop(  # noqa: PLR0917
    reason: str | None,
    job: Job,
    actor: Actor,
    error: BaseException | None,
    claimed: Claimed,
    jitter: Callable[[], float],
    *,
    started: bool,
) -> c.Command | None:
    """Return how an attempt ends that was stopped, or whose handler raised; None if it was lost."""
    if isinstance(error, CommandStopped) and reason != "lease_lost":
        return end_after_kill(reason, job, actor, error, started=started)
    match reason:
        case "lease_lost":
            return None
        case _ if isinstance(error, CommandFailed):
            # It ended by itself, whatever was asked of it meanwhile (resolution 11).
            return end_after_failure(actor, error)
        case "cancel":
            return c.Cancel(actor=actor)
        case "timeout":
            return end_after_timeout(job, actor, claimed=claimed, jitter=jitter())
        case "deadline":
            return c.TimeOut(actor=actor, error_code="deadline", reason="deadline passed")
        case "shutdown" if isinstance(error, CancelledError):
            return end_after_shutdown(job, actor, started=started)
        case _:
            cause = error or HoldfastError("ended without an outcome")
            return end_after_error(
                job, actor, cause, claimed=claimed, started=started, jitter=jitter()
            )


def end_after_exit(actor: Actor, exit: BoxExit) -> c.Complete | c.Fail:
    """Return how a command ends that ended by itself (D4, D5)."""
    if exit.code == 0:
        return c.Complete(actor=actor, body=encode_body({"exit_code": 0}), exit_code=0)
    return end_after_failure(actor, CommandFailed(exit))


def end_after_failure(actor: Actor, error: CommandFailed) -> c.Fail:
    """Return how a command ends that failed by itself, or whose outputs could not be kept."""
    return c.Fail(
        actor=actor, error_code=error.code, body=error_body(error), exit_code=error.exit.code
    )


def end_after_kill(
    reason: str | None, job: Job, actor: Actor, stopped: CommandStopped, *, started: bool
) -> c.Command:
    """Return how a command ends that was asked to stop, or killed, whatever its exit code (D6–D8).

    What it was stopped for is its end, also where it handled the request and exited with 0.
    """
    code = None if stopped.exit is None else stopped.exit.code
    match reason:
        case "timeout":
            error = TimeoutError("Job exceeded timeout limit")
            return c.TimeOut(actor=actor, body=error_body(error), exit_code=code)
        case "deadline":
            return c.TimeOut(
                actor=actor, error_code="deadline", reason="deadline passed", exit_code=code
            )
        case "cancel":
            return c.Cancel(actor=actor, exit_code=code)
        case _:
            # By the end of its worker, whether or not it was asked: nobody else kills it.
            end = end_after_shutdown(job, actor, started=started)
            return replace(end, exit_code=code) if isinstance(end, c.DeadLetter) else end


def end_before_start(job: Job, actor: Actor, error: BaseException) -> c.Command:
    """Return how a command ends, or goes back, that could not be made ready to start.

    What is the host's fault costs the job nothing: it waits a while and is claimed again, maybe
    by another host. It cannot fail: that end is for what has started.
    """
    match error:
        case BoxRefused():
            return make_dead_letter(job, actor, "dependency_unavailable", "fetch", error)
        case UploadExpired():
            return make_dead_letter(job, actor, UPLOAD_EXPIRED, "fetch", error)
        case UploadRefused():
            return make_dead_letter(job, actor, "validation_failed", "fetch", error)
        case RuntimeTrouble() | OSError():
            reason = redact_and_cut(f"this host cannot run it now: {error}", TEXT_LIMIT)
            return c.Release(actor=actor, reason=reason, unserved=True)
        case _:
            return make_dead_letter(job, actor, "infrastructure_failure", "fetch", error)


def end_after_error(
    job: Job, actor: Actor, error: BaseException, *, claimed: Claimed, started: bool, jitter: float
) -> c.Command:
    """Return how an attempt ends whose handler raised; `claimed` is what it was asked to do."""
    match error:
        case StepMismatch():
            return _wait_for_matching_code(job, actor, error)
        case _ if not started and job.kind in BOXED and not isinstance(error, ValidationError):
            return end_before_start(job, actor, error)
        case ValidationError():
            return make_dead_letter(job, actor, "validation_failed", "input", error)
        case UnfitResult():
            return make_dead_letter(job, actor, "validation_failed", "output", error)
        case PermanentError() if is_compensation(job):
            return make_dead_letter(job, actor, COMPENSATION_FAILED, "exec", error)
        case PermanentError():
            return c.Fail(actor=actor, error_code=error.code, body=error_body(error))
        case _ if may_retry(job, started=started):
            return _make_retry(actor, error, jitter)
        case NoSuchTask():
            return make_dead_letter(job, actor, "dependency_unavailable", "input", error)
        case _ if exhausted(job):
            return _exhausted(job, actor, error)
        case _:
            again = _make_linked_retry(job, actor, claimed, jitter, error)
            return c.Fail(
                actor=actor, error_code=error_code(error), body=error_body(error), submits=again
            )


def _wait_for_matching_code(job: Job, actor: Actor, error: StepMismatch) -> c.Wait:
    """Make a job wait until a worker has code with all of its recorded steps.

    No try is used: another try of the same code would not help, and nothing was run.
    """
    return c.Wait(
        actor=actor,
        signal=MISMATCH,
        until=After(recheck_delay(job)),
        reason=redact_and_cut(str(error), TEXT_LIMIT),
    )


def may_retry(job: Job, *, started: bool) -> bool:
    """Return whether another attempt of the same job may follow this one."""
    return not exhausted(job) and (job.policy.idempotent or not started)


def _make_retry(actor: Actor, error: BaseException, jitter: float) -> c.Retry:
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


def _make_linked_retry(
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
    return make_dead_letter(job, actor, "exhausted_retries", "exec", error)


def make_dead_letter(
    job: Job, actor: Actor, reason: str, stage: str, error: BaseException
) -> c.DeadLetter:
    """End a job in the dead letters; a compensation that failed has its own code."""
    code = COMPENSATION_FAILED if is_compensation(job) else reason
    return c.DeadLetter(actor=actor, error_code=code, stage=stage, body=error_body(error))


def error_code(error: BaseException) -> str:
    """Return the stable code of an error."""
    return error.code if isinstance(error, HoldfastError) else HANDLER_ERROR


def end_after_timeout(job: Job, actor: Actor, *, claimed: Claimed, jitter: float) -> c.Command:
    """Return how an attempt ends that was killed at its time limit."""
    error = TimeoutError(f"ran longer than {(job.policy.timeout or 0) / SECOND:g} seconds")
    if may_retry(job, started=True):
        return c.Retry(actor=actor, error_code="timeout", body=error_body(error), jitter=jitter)
    if is_compensation(job):
        return make_dead_letter(job, actor, COMPENSATION_FAILED, "exec", error)
    again = () if exhausted(job) else _make_linked_retry(job, actor, claimed, jitter, error)
    return c.TimeOut(actor=actor, error_code="timeout", body=error_body(error), submits=again)


def end_after_shutdown(job: Job, actor: Actor, *, started: bool) -> c.Command:
    """Release a job, or end it where it must not run again: a deploy costs no attempt."""
    if started and not job.policy.idempotent:
        error = HoldfastError("its worker was shut down before it was done")
        return make_dead_letter(job, actor, "infrastructure_failure", "exec", error)
    if release_costs(job) and exhausted(job):
        error = HoldfastError(f"was given back {job.releases} times and has no try left")
        return make_dead_letter(job, actor, "exhausted_retries", "exec", error)
    return c.Release(actor=actor, reason="its worker was shut down")
