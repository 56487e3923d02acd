"""What a report of a worker elsewhere means: the command of the law, and the event it leads to."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from msgspec import Struct

from holdfast.errors import (
    BadData,
    ErrorReport,
    HoldfastError,
    PermanentError,
    Refused,
    RemoteError,
    StepFailed,
    StepMismatch,
    TransientError,
    ValidationError,
)
from holdfast.flow.finish import end_after_error, end_after_timeout, error_body
from holdfast.ids import jitter
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.history import STEP_STARTS
from holdfast.lifecycle.payload import Body, check_body, check_text, digest
from holdfast.lifecycle.record import MISMATCH, RESERVED, SLEEP, Actor, Draft, Job, LoggedEvent
from holdfast.lifecycle.times import After, seconds
from holdfast.lifecycle.transitions import OWNER_LEAVES
from holdfast.ports.models import Claimed
from holdfast.queries.error_reports import MESSAGE_LIMIT, TRACEBACK_LIMIT, TYPE_LIMIT, writable
from holdfast.tasks.durable.replay import NAME_LIMIT, check_step_name
from holdfast.tasks.durable.step_errors import step_error_body
from holdfast.worker_protocol.reports import (
    AnyReport,
    CancelReport,
    CompleteReport,
    FailReport,
    HeartbeatReport,
    OwnReport,
    ProgressReport,
    ReleaseReport,
    StartReport,
    StepReport,
    TimeOutReport,
    Trouble,
    WaitReport,
)

Report: TypeAlias = AnyReport | OwnReport
ADDS_RECORD = (StepReport, WaitReport)
"""Reports that the law would accept a second time, so that their event is looked for first."""


class Situation(Struct, frozen=True, kw_only=True):
    """What a report is decided on."""

    job: Job
    """As it was last confirmed."""
    draft: Draft
    """As it will be after the reports before it in the same batch."""
    actor: Actor
    claimed: Claimed | None
    """With what it was asked to do, for a report that needs it."""
    now: int
    """The store's clock, where the job has a time limit or the report asks for it; else 0."""


def needs_request(report: Report) -> bool:
    """Return whether the command of a report depends on what the job was asked to do."""
    if isinstance(report, OwnReport):
        return report.needs_request
    return isinstance(report, FailReport | TimeOutReport)


def command_of(report: Report, situation: Situation) -> c.Command:
    """Return the command for a report; raise BadData if the report is invalid."""
    actor = situation.actor
    match report:
        case StartReport():
            return c.Start(actor=actor)
        case HeartbeatReport():
            return c.Heartbeat(actor=actor)
        case ProgressReport():
            return c.Progress(actor=actor, body=check_body(bytes(report.progress), "progress"))
        case StepReport():
            return c.Step(
                actor=actor,
                name=check_step_name(report.name),
                use=report.use,
                started=report.started,
                failed=report.error is not None,
                body=_build_step_body(report),
            )
        case WaitReport():
            return _build_wait(report, situation)
        case CompleteReport():
            return c.Complete(actor=actor, body=_check_result(report))
        case FailReport() | TimeOutReport():
            return build_failure(report, situation)
        case CancelReport():
            return c.Cancel(actor=actor)
        case ReleaseReport():
            return c.Release(actor=actor, reason=report.reason, unserved=report.unserved)
        case OwnReport():
            return report.command_on(situation)
    assert_never(report)


def _build_wait(report: WaitReport, situation: Situation) -> c.Command:
    """Consume the signal if it has arrived, else suspend the job."""
    signal = _awaited_signal_name(report)
    if any(one.name == signal for one in situation.draft.signals):
        return c.Step(actor=situation.actor, name=signal, use=report.use, consumes=signal)
    until = None if report.seconds is None else After(seconds(report.seconds))
    return c.Wait(actor=situation.actor, signal=signal, until=until)


def build_failure(report: FailReport | TimeOutReport, situation: Situation) -> c.Command:
    job, actor, claimed = situation.job, situation.actor, situation.claimed
    assert claimed is not None
    if isinstance(report, TimeOutReport):
        return end_after_timeout(job, actor, claimed=claimed, jitter=jitter())
    return end_after_error(
        job,
        actor,
        _build_error(report),
        claimed=claimed,
        started=situation.draft.running,
        jitter=jitter(),
    )


def is_written_by(report: Report, event: LoggedEvent) -> bool:
    """Return whether an event of the same attempt is what this report had led to.

    Refused where the event records another result for the same step.
    """
    match report:
        case StartReport():
            return c.written_by(event, c.Start)
        case HeartbeatReport() | ProgressReport():
            # The attempt had ended by its own report: nothing is left to write.
            return event.type in OWNER_LEAVES
        case StepReport():
            return _is_step(report, event)
        case WaitReport():
            return _is_wait(report, event) or became_cancel(event)
        case CompleteReport():
            return c.written_by(event, c.Complete) and event.digest == digest(_check_result(report))
        case FailReport():
            return is_failure(report, event)
        case TimeOutReport():
            return c.written_by(event, c.TimeOut, c.Retry, c.DeadLetter) or became_cancel(event)
        case CancelReport():
            return c.written_by(event, c.Cancel)
        case ReleaseReport():
            return c.written_by(event, c.Release) or became_cancel(event)
        case OwnReport():
            return report.is_written_by(event)
    assert_never(report)


def _is_step(report: StepReport, event: LoggedEvent) -> bool:
    facts, body = event.facts, _build_step_body(report)
    same = (facts.step, facts.step_use, facts.consumed) == (report.name, report.use, None)
    if not same or (event.type in STEP_STARTS) is not report.started:
        return False
    if event.digest != (None if body is None else digest(body)):
        raise Refused(
            f"step {report.name!r} (use {report.use}) is recorded with another result; "
            "number a second use of a name with `use`",
            code="step_recorded",
        )
    return True


def _is_wait(report: WaitReport, event: LoggedEvent) -> bool:
    facts, signal = event.facts, _awaited_signal_name(report)
    if c.written_by(event, c.Wait):
        return facts.wait_for == signal
    taken = c.written_by(event, c.Step) and facts.consumed is not None
    return taken and (facts.step, facts.step_use) == (signal, report.use)


def is_failure(report: FailReport, event: LoggedEvent) -> bool:
    if c.written_by(event, c.Fail, c.Retry, c.DeadLetter):
        return event.digest == digest(error_body(_build_error(report)))
    if c.written_by(event, c.Wait):
        return event.facts.wait_for == MISMATCH and report.error.code == StepMismatch.code
    return became_cancel(event)


def became_cancel(event: LoggedEvent) -> bool:
    """Return whether another way out was turned into this cancel: only those have a reason."""
    return c.written_by(event, c.Cancel) and event.reason is not None


def record_key(report: Report) -> tuple[str, int] | None:
    """Return the name and the use under which a report is recorded; None if it adds no record.

    None also for a name that cannot be kept: not every store can be asked for it.
    """
    match report:
        case StepReport():
            name, use = report.name, report.use
        case WaitReport():
            name, use = report.signal or SLEEP, report.use
        case _:
            return None
    try:
        return check_text(name, "a name", limit=NAME_LIMIT), use
    except BadData:
        return None


def _awaited_signal_name(report: WaitReport) -> str:
    if report.signal is None:
        if report.seconds is None:
            raise BadData("a wait needs a signal, seconds, or both")
        return SLEEP
    check_text(report.signal, "a signal's name", limit=NAME_LIMIT)
    if report.signal.startswith(RESERVED):
        raise BadData(f"signal names that start with {RESERVED!r} are reserved")
    return report.signal


def _check_result(report: CompleteReport) -> Body:
    return check_body(bytes(report.result), "the result")


def _build_step_body(report: StepReport) -> Body | None:
    if report.started:
        if report.error is not None or bytes(report.result) != b"null":
            raise BadData(f"step {report.name!r} has started only: no result or error yet")
        return None
    if report.error is not None:
        return step_error_body(_build_step_failure(report.error))
    return check_body(bytes(report.result), f"the result of step {report.name!r}")


def _build_step_failure(trouble: Trouble) -> StepFailed:
    """Make the error that a handler in Python gets, should it continue the job."""
    report = _build_error_report(trouble, StepFailed.code)
    error = StepFailed(f"{report.type}: {report.message}", code=report.code)
    error.report = report
    return error


def _build_error(report: FailReport) -> HoldfastError:
    found = _build_error_report(report.error, _CODES[report.kind])
    error: HoldfastError
    match report.kind:
        case "transient" if found.code == StepMismatch.code:
            error = StepMismatch(found.message)
        case "permanent":
            error = PermanentError(found.message, code=found.code)
        case "unfit":
            error = ValidationError(found.message, code=found.code)
        case "transient":
            error = TransientError(found.message, code=found.code, retry_in=report.retry_in_seconds)
    error.report = found
    return error


def _build_error_report(trouble: Trouble, code: str) -> ErrorReport:
    """Return an error as those of handlers are kept; `code` is for one that has none."""
    return ErrorReport(
        type=writable(trouble.type or "Error", TYPE_LIMIT),
        message=writable(trouble.message, MESSAGE_LIMIT),
        code=code if trouble.code is None else check_text(trouble.code, "code", limit=200),
        traceback=writable(trouble.traceback, TRACEBACK_LIMIT),
    )


def trouble_of(report: ErrorReport) -> Trouble:
    """Show a recorded error to a worker."""
    return Trouble(
        message=report.message, type=report.type, code=report.code, traceback=report.traceback
    )


_CODES = {
    "transient": RemoteError.code,
    "permanent": PermanentError.code,
    "unfit": ValidationError.code,
}
