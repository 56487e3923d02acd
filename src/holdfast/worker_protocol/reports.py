"""What a worker elsewhere reports of its attempts: data alone, as JSON tagged by `say`.

`report_commands` turns a report into a command of the law, `apply_reports` writes a batch of them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias
from uuid import UUID

from msgspec import Meta, Raw, Struct, field

from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.record import LoggedEvent

LONGEST_SECONDS = 10 * 365 * 86_400.0

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_SECONDS)]
Use: TypeAlias = Annotated[int, Meta(ge=1, le=1_000_000)]


class AttemptReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="say"):
    """A report on one attempt of a job."""

    internal_id: UUID
    """The job's."""
    attempt: Annotated[int, Meta(ge=1)]


class StartReport(AttemptReport, frozen=True, kw_only=True, tag="start"):
    """The work starts now; sent, and answered, before it has any effect that others can see."""


class HeartbeatReport(AttemptReport, frozen=True, kw_only=True, tag="heartbeat"):
    """It continues: renew the lease."""


class ProgressReport(AttemptReport, frozen=True, kw_only=True, tag="progress"):
    """How far it is: any JSON."""

    progress: Raw


class Trouble(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An error as text. What is too long is cut."""

    message: str
    type: str = "Error"
    """What the worker's language calls it."""
    code: str | None = None
    """A stable name for programs; `handler_error` if there is none."""
    traceback: str = ""


class StepReport(AttemptReport, frozen=True, kw_only=True, tag="step"):
    """A step is done, and a later attempt must not do it again.

    `begun` reports, before the step has its effect, that it is about to have one: what a later
    attempt finds started, and neither done nor failed, may have happened or not. `error` instead of
    a result: it failed, and the work continued without it.
    """

    name: str
    use: Use = 1
    """Which use of the name it is in this job, from 1."""
    result: Raw = field(default_factory=lambda: Raw(b"null"))
    started: bool = field(default=False, name="begun")
    error: Trouble | None = None


class WaitReport(AttemptReport, frozen=True, kw_only=True, tag="wait"):
    """It waits for a signal, for a number of seconds, or for whichever comes first.

    If the signal has arrived it is consumed, and its payload is the answer. Else the job is
    suspended and this attempt is over: a later one finds among the recorded steps how the wait
    ended.
    """

    signal: str | None = None
    """None only sleeps."""
    use: Use = 1
    """Which wait for this signal it is in this job, from 1."""
    seconds: Seconds | None = None


class CompleteReport(AttemptReport, frozen=True, kw_only=True, tag="complete"):
    """All is done; here is the result."""

    result: Raw = field(default_factory=lambda: Raw(b"null"))


class FailReport(AttemptReport, frozen=True, kw_only=True, tag="fail"):
    """It failed. The job's policy decides what follows: another try, a dead letter, or the end.

    `permanent`: no further try will help. `unfit`: the job's arguments are invalid. With the code
    `step_mismatch`, because this code does not have a recorded step, the job is suspended and uses
    no try: it continues once a worker has the step.
    """

    error: Trouble
    kind: Literal["transient", "permanent", "unfit"] = "transient"
    retry_in_seconds: Seconds | None = None
    """When to try again, if not by the policy's backoff."""


class TimeOutReport(AttemptReport, frozen=True, kw_only=True, tag="time_out"):
    """It ran longer than its timeout, and was stopped."""


class CancelReport(AttemptReport, frozen=True, kw_only=True, tag="cancel"):
    """It was stopped, as requested."""


class ReleaseReport(AttemptReport, frozen=True, kw_only=True, tag="release"):
    """It is given back, for another worker: it was not started, or may safely be started again."""

    reason: str = "given back by its worker"
    unserved: bool = False
    """The worker does not have the task, or not in the job's version: then it costs nothing."""


class OwnReport(Struct, frozen=True, kw_only=True):
    """A report of this process, which never comes as JSON and knows its command itself."""

    needs_request: ClassVar[bool] = True
    """Whether its command depends on what the job was asked to do."""

    internal_id: UUID
    attempt: int

    def command_on(self, situation: Any) -> Command:
        """Return the command of the law; raise if the job does not allow the report."""
        raise NotImplementedError

    def is_written_by(self, event: LoggedEvent) -> bool:
        """Return whether an event of the same attempt is what this report had led to."""
        raise NotImplementedError


AnyReport: TypeAlias = (
    StartReport
    | HeartbeatReport
    | ProgressReport
    | StepReport
    | WaitReport
    | CompleteReport
    | FailReport
    | TimeOutReport
    | CancelReport
    | ReleaseReport
)
