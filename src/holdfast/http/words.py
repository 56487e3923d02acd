"""What a worker elsewhere says of its attempts, as JSON tagged by `say`, and what each means."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias
from uuid import UUID

from msgspec import Meta, Raw, Struct, field

from holdfast.durable.failures import told
from holdfast.durable.replay import NAME_LIMIT, check_step_name
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
from holdfast.flow.finish import after_error, after_timeout, error_body
from holdfast.flow.reports import MESSAGE_LIMIT, TRACEBACK_LIMIT, TYPE_LIMIT, writable
from holdfast.identity import jitter
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import MISMATCH, RESERVED, SLEEP, LoggedEvent
from holdfast.lifecycle.payload import Body, check_body, check_text, digest
from holdfast.lifecycle.states import EventType, State
from holdfast.lifecycle.times import After, seconds
from holdfast.services.hearing import ENDS, Standing

LONGEST_SECONDS = 10 * 365 * 86_400.0

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
Use: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]


class Saying(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="say"):
    """What each of them is: a word on one attempt of a job."""

    asks: ClassVar[bool] = False
    adds: ClassVar[bool] = False
    completes: ClassVar[bool] = False

    internal_id: UUID
    """The job's."""
    attempt: Annotated[int, Meta(ge=1)]

    @property
    def step(self) -> tuple[str, int] | None:
        """The name and the use under which it is recorded."""
        return None


class SayStart(Saying, frozen=True, kw_only=True, tag="start"):
    """The work begins now; said, and answered, before anything is done that others can see."""

    def command(self, standing: Standing) -> c.Command:
        """Say it in the words of the law."""
        return c.Start(actor=standing.actor)

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it was written before."""
        return event.type is EventType.STARTED


class SayHeartbeat(Saying, frozen=True, kw_only=True, tag="heartbeat"):
    """It goes on: renew the lease."""

    def command(self, standing: Standing) -> c.Command:
        """Say it in the words of the law."""
        return c.Heartbeat(actor=standing.actor)

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it needs no more telling: the attempt had ended by its own word."""
        return event.type in ENDS


class SayProgress(Saying, frozen=True, kw_only=True, tag="progress"):
    """How far it is: any JSON."""

    progress: Raw

    def command(self, standing: Standing) -> c.Command:
        """Say it in the words of the law."""
        return c.Progress(actor=standing.actor, body=_body(self.progress, "progress"))

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it needs no more telling: the attempt had ended by its own word."""
        return event.type in ENDS


class Trouble(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error in words. What is too long is cut."""

    message: str
    type: str = "Error"
    """What the worker's language calls it."""
    code: str | None = None
    """A stable name for programs; `handler_error` if there is none."""
    traceback: str = ""

    @classmethod
    def of(cls, report: ErrorReport) -> Trouble:
        """Read a told error back."""
        return cls(
            message=report.message,
            type=report.type,
            code=report.code,
            traceback=report.traceback,
        )

    def failure(self) -> StepFailed:
        """Make the error that a handler in Python gets, should it go on with the job."""
        report = self.report(StepFailed.code)
        error = StepFailed(f"{report.type}: {report.message}", code=report.code)
        error.report = report
        return error

    def report(self, otherwise: str) -> ErrorReport:
        """Tell it as errors of handlers are told; `otherwise` is the code if it has none."""
        return ErrorReport(
            type=writable(self.type or "Error", TYPE_LIMIT),
            message=writable(self.message, MESSAGE_LIMIT),
            code=otherwise if self.code is None else check_text(self.code, "code", limit=200),
            traceback=writable(self.traceback, TRACEBACK_LIMIT),
        )


class SayStep(Saying, frozen=True, kw_only=True, tag="step"):
    """A step is done, and shall not be done again by a later attempt.

    `begun` says before its effect that it is about to have one: what a later attempt finds begun,
    and neither done nor failed, may have happened or not. `error` instead of a result: it failed,
    and the work went on without it.
    """

    adds = True

    name: str
    use: Use = 1
    """Which use of the name it is in this job, from 1."""
    result: Raw = field(default_factory=lambda: Raw(b"null"))
    begun: bool = False
    error: Trouble | None = None

    @property
    def step(self) -> tuple[str, int] | None:
        """The name and the use under which it is recorded; None for a name that nothing has."""
        return _step(self.name, self.use)

    def command(self, standing: Standing) -> c.Command:
        """Say it in the words of the law."""
        return c.Step(
            actor=standing.actor,
            name=check_step_name(self.name),
            use=self.use,
            started=self.begun,
            failed=self.error is not None,
            body=self._body(),
        )

    def _body(self) -> Body | None:
        if self.begun:
            if self.error is not None or bytes(self.result) != b"null":
                raise BadData(
                    f"step {self.name!r} is only begun: it has no result and no error yet"
                )
            return None
        if self.error is not None:
            return told(self.error.failure())
        return _body(self.result, f"the result of step {self.name!r}")

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it was written before; refused where another result was."""
        facts, body = event.facts, self._body()
        same = (facts.step, facts.step_use, facts.consumed) == (self.name, self.use, None)
        if not same or (event.type is EventType.STEP_STARTED) is not self.begun:
            return False
        if event.digest != (None if body is None else digest(body)):
            raise Refused(
                f"step {self.name!r} (use {self.use}) is recorded with another result; "
                "a second use of a name is said with `use`",
                code="step_recorded",
            )
        return True


class SayWait(Saying, frozen=True, kw_only=True, tag="wait"):
    """It waits for a signal, for so many seconds, or for whichever comes first.

    If the signal is there it is used up and its payload is the answer. Else the job is parked and
    this attempt is over: a later one finds what came of the wait among the recorded steps.
    """

    adds = True

    signal: str | None = None
    """None only sleeps."""
    use: Use = 1
    """Which wait for this signal it is in this job, from 1."""
    seconds: Seconds | None = None

    def _signal(self) -> str:
        if self.signal is None:
            if self.seconds is None:
                raise BadData("say what to wait for: a signal, seconds, or both")
            return SLEEP
        check_text(self.signal, "a signal's name", limit=NAME_LIMIT)
        if self.signal.startswith(RESERVED):
            raise BadData(f"signal names that begin with {RESERVED!r} are Holdfast's own")
        return self.signal

    @property
    def step(self) -> tuple[str, int] | None:
        """The signal and the use under which it is recorded; None for a name that nothing has."""
        return _step(self.signal or SLEEP, self.use)

    def command(self, standing: Standing) -> c.Command:
        """Use the signal up if it is there, else park: say it in the words of the law."""
        signal = self._signal()
        if any(one.name == signal for one in standing.draft.signals):
            return c.Step(actor=standing.actor, name=signal, use=self.use, consumes=signal)
        until = None if self.seconds is None else After(seconds(self.seconds))
        return c.Wait(actor=standing.actor, signal=signal, until=until)

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it was written before, in either way, or turned into a cancel."""
        facts, signal = event.facts, self._signal()
        if event.type is EventType.WAITING:
            return facts.wait_for == signal
        if _was_turned(event):
            return True
        taken = event.type is EventType.STEP_COMPLETED and facts.consumed is not None
        return taken and (facts.step, facts.step_use) == (signal, self.use)


class SayComplete(Saying, frozen=True, kw_only=True, tag="complete"):
    """All is done; here is the result."""

    completes = True

    result: Raw = field(default_factory=lambda: Raw(b"null"))

    def command(self, standing: Standing) -> c.Command:
        """Say it in the words of the law."""
        return c.Complete(actor=standing.actor, body=_body(self.result, "the result"))

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it was written before."""
        same = digest(_body(self.result, "the result"))
        return event.type is EventType.SUCCEEDED and event.digest == same


class SayFail(Saying, frozen=True, kw_only=True, tag="fail"):
    """It failed. The job's policy says what follows: another try, a dead letter, or the end.

    `permanent`: no further try will help. `unfit`: the job's arguments are not what it takes. With
    the code `step_mismatch`, because this code does not have a recorded step, the job is parked and
    costs no try: it goes on once a worker comes that has the step.
    """

    asks = True

    error: Trouble
    kind: Literal["transient", "permanent", "unfit"] = "transient"
    retry_in_seconds: Seconds | None = None
    """When to try again, if not by the policy's backoff."""

    def command(self, standing: Standing) -> c.Command:
        """Say what follows, in the words of the law."""
        assert standing.claimed is not None
        return after_error(
            standing.job,
            standing.actor,
            self._error(),
            claimed=standing.claimed,
            started=standing.draft.state is State.RUNNING,
            jitter=jitter(),
        )

    def _error(self) -> HoldfastError:
        report = self.error.report(_CODES[self.kind])
        error: HoldfastError
        match self.kind:
            case "transient" if report.code == StepMismatch.code:
                error = StepMismatch(report.message)
            case "permanent":
                error = PermanentError(report.message, code=report.code)
            case "unfit":
                error = ValidationError(report.message, code=report.code)
            case "transient":
                error = TransientError(
                    report.message, code=report.code, retry_in=self.retry_in_seconds
                )
        error.report = report
        return error

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it was written before, or turned into a cancel."""
        if event.type in (EventType.FAILED, EventType.RETRYING, EventType.DEAD_LETTERED):
            return event.digest == digest(error_body(self._error()))
        if event.type is EventType.WAITING:
            return event.facts.wait_for == MISMATCH and self.error.code == StepMismatch.code
        return _was_turned(event)


class SayTimeOut(Saying, frozen=True, kw_only=True, tag="time_out"):
    """It ran longer than its timeout, and was stopped."""

    asks = True

    def command(self, standing: Standing) -> c.Command:
        """Say what follows, in the words of the law."""
        assert standing.claimed is not None
        return after_timeout(
            standing.job, standing.actor, claimed=standing.claimed, jitter=jitter()
        )

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it was written before, or turned into a cancel."""
        ends = (EventType.TIMED_OUT, EventType.RETRYING, EventType.DEAD_LETTERED)
        return event.type in ends or _was_turned(event)


class SayCancel(Saying, frozen=True, kw_only=True, tag="cancel"):
    """It was stopped, as was asked for."""

    def command(self, standing: Standing) -> c.Command:
        """Say it in the words of the law."""
        return c.Cancel(actor=standing.actor)

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it was written before."""
        return event.type is EventType.CANCELLED


class SayRelease(Saying, frozen=True, kw_only=True, tag="release"):
    """It is given back, for another worker: it was not begun, or may safely be begun again."""

    reason: str = "given back by its worker"
    unserved: bool = False
    """The worker does not have the task, or not in the job's version: then it costs nothing."""

    def command(self, standing: Standing) -> c.Command:
        """Say it in the words of the law."""
        return c.Release(actor=standing.actor, reason=self.reason, unserved=self.unserved)

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether it was written before, or turned into a cancel."""
        return event.type is EventType.RELEASED or _was_turned(event)


AnyWord: TypeAlias = (
    SayStart
    | SayHeartbeat
    | SayProgress
    | SayStep
    | SayWait
    | SayComplete
    | SayFail
    | SayTimeOut
    | SayCancel
    | SayRelease
)

_CODES = {
    "transient": RemoteError.code,
    "permanent": PermanentError.code,
    "unfit": ValidationError.code,
}


def _was_turned(event: LoggedEvent) -> bool:
    """Whether it is a cancel that another way out was turned into: only those give a reason."""
    return event.type is EventType.CANCELLED and event.reason is not None


def _step(name: str, use: int) -> tuple[str, int] | None:
    """Refuse to look for a name that cannot be kept: not every store can be asked for it."""
    try:
        return check_text(name, "a name", limit=NAME_LIMIT), use
    except BadData:
        return None


def _body(raw: Raw, what: str) -> Body:
    return check_body(bytes(raw), what)
