"""Commands: what can be done to a job. `decide` returns a change or a refusal for each.

`as_of` is the store's clock as the sender last read it: it proves that a time has come, because
the compare-and-set proves that the record did not change since.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import (
    PENDING_SIGNALS,
    Actor,
    Event,
    JobId,
    KeptOutput,
    NewJob,
    Record,
)
from holdfast.lifecycle.states import CancelMode, EventType, Operation
from holdfast.lifecycle.times import NOW, T, Time
from holdfast.lifecycle.transitions import EVENTS


class Command(Struct, frozen=True, kw_only=True, gc=False):
    """What every command carries."""

    operation: ClassVar[Operation]
    actor: Actor
    request_id: str | None = None
    reason: str | None = None

    @classmethod
    def events(cls) -> frozenset[EventType]:
        """Return the types of the events that it may write."""
        return EVENTS[cls.operation]


class Admit(Command, frozen=True, kw_only=True):
    """Let a pending job into its queue."""

    operation = Operation.ADMIT
    rule: str | None = None
    rules: str | None = None
    """See `Facts.rules`."""
    lifts: str | None = None
    """The hold that is over with its admission."""
    verdict: str | None = None
    decided_by: str | None = None
    """See `Facts.decided_by`."""
    policy: Policy | None = None
    """The terms that the decision limits the job to."""


DENIED = "denied"
"""The error code of a job that a rule denied."""
DENIED_BY_PERSON = "denied_by_person"
"""The error code of a job that a person denied who was asked to approve it."""
APPROVAL_EXPIRED = "approval_expired"
"""The error code of a job that nobody approved in time."""


class Deny(Command, frozen=True, kw_only=True):
    """Refuse a job: by policy, or by a person who was asked to approve it."""

    operation = Operation.DENY
    rule: str
    rules: str | None = None
    error_code: str = DENIED
    decided_by: str | None = None
    body: bytes | None = None


class Approve(Command, frozen=True, kw_only=True):
    """Lift one of the approvals that a job awaits."""

    operation = Operation.APPROVE
    hold: str
    approved: str | None = None
    """The digest of the request that the person saw."""
    as_of: int | None = None


class Hold(Command, frozen=True, kw_only=True):
    """Keep a job from being claimed, under a named hold; the scheduler may place several at once.

    Where a decision on a pending job places them, `lifts` is the hold that awaited the decision.
    """

    operation = Operation.HOLD
    hold: str
    holds: tuple[str, ...] = ()
    """More of them."""
    lifts: str | None = None
    rule: str | None = None
    rules: str | None = None
    verdict: str | None = None
    decided_by: str | None = None
    approvers: tuple[str, ...] = ()
    on_expiry: str | None = None
    terms: Policy | None = None
    """See `Facts.terms`."""


class Unhold(Command, frozen=True, kw_only=True):
    """Lift one named hold."""

    operation = Operation.UNHOLD
    hold: str


class Reschedule(Command, frozen=True, kw_only=True):
    """Make a job due at another time."""

    operation = Operation.RESCHEDULE
    run_at: Time


class Claim(Command, frozen=True, kw_only=True):
    """Take the lease. Stores apply this edge themselves; tests compare them with `decide`."""

    operation = Operation.CLAIM
    epoch: int = 1


class CorrectTerms(Command, frozen=True, kw_only=True):
    """Replace the job's terms by those of its task, before it starts (resolution 18)."""

    operation = Operation.CORRECT_TERMS
    policy: Policy


class Start(Command, frozen=True, kw_only=True):
    """Record that the handler started, `ago` microseconds before this is written."""

    operation = Operation.START
    ago: int = 0
    network: str | None = None
    """See `Facts.network`."""


class Heartbeat(Command, frozen=True, kw_only=True):
    """Renew the lease: by the worker's keeper, or by the handler itself."""

    operation = Operation.HEARTBEAT
    by_handler: bool = False


class Adopt(Command, frozen=True, kw_only=True):
    """Take over a run of a dead process of the same host, or one's own whose lease has passed."""

    operation = Operation.ADOPT
    as_of: int | None = None
    """Only for what the sender holds itself: shows that its lease has passed."""
    epoch: int = 1


class Step(Command, frozen=True, kw_only=True):
    """Remember a step: started (before its effect), done with its result, or failed."""

    operation = Operation.STEP
    name: str
    use: int = 1
    started: bool = False
    failed: bool = False
    body: bytes | None = None
    consumes: str | None = None
    """The name of the signal that this step waits for and that is already pending."""
    submits: tuple[NewJob, ...] = ()
    """Children: they exist exactly if the step is remembered."""


class Progress(Command, frozen=True, kw_only=True):
    """Report how far a run is, or that it runs on although it should have been killed."""

    operation = Operation.PROGRESS
    body: bytes | None = None
    unkillable: bool = False
    """A kill had no effect (a thread cannot be killed): it runs on until it ends by itself."""


class Wait(Command, frozen=True, kw_only=True):
    """Wait for a signal, a time, or whichever comes first."""

    operation = Operation.WAIT
    signal: str
    until: Time | None = None


class Resume(Command, frozen=True, kw_only=True):
    """End a wait, by its oldest signal or because its time has come."""

    operation = Operation.RESUME
    as_of: int | None = None


class EndOfRun(Command, frozen=True, kw_only=True):
    """What every command carries that ends an attempt: what is known of the run, or left of it."""

    exit_code: int | None = None
    result_ptr: str | None = None
    execution_ms: int | None = None
    worker: str | None = None
    log: KeptOutput | None = None
    artifacts: KeptOutput | None = None


LEFT_BY_RUN = EndOfRun.__struct_fields__[len(Command.__struct_fields__) :]
"""The fields of `EndOfRun` beside those of every command; the facts have the same names."""


class Complete(EndOfRun, frozen=True, kw_only=True):
    """Succeed, with a result; JSON null is one."""

    operation = Operation.COMPLETE
    body: bytes = b"null"


class Failing(EndOfRun, frozen=True, kw_only=True):
    """What every command carries that ends an attempt with an error."""

    error_code: str
    body: bytes | None = None
    submits: tuple[NewJob, ...] = ()
    """A linked retry (A16); the event names it."""


class Fail(Failing, frozen=True, kw_only=True):
    """End as failed."""

    operation = Operation.FAIL


class Lose(Failing, frozen=True, kw_only=True):
    """End a job whose owner is gone and which has no retries (D14)."""

    operation = Operation.LOSE
    as_of: int | None = None
    """Shows a sweep that the lease has passed; a host needs none."""
    epoch: int = 1
    gone: bool = False
    """Whether the host saw that nothing of the run is left, because its box is absent or empty."""


class Retry(Failing, frozen=True, kw_only=True):
    """Give up this attempt; the next is due by backoff, or `retry_in` microseconds from now."""

    operation = Operation.RETRY
    jitter: float = 0.0
    retry_in: int | None = None


class Release(Command, frozen=True, kw_only=True):
    """Give back a job that was not run, or may safely be run again."""

    operation = Operation.RELEASE
    unserved: bool = False
    """Its owner does not have the task, or not in its version: nothing was run, so this costs
    nothing, however often it happens, and the job is due again after a pause."""


class Stall(Command, frozen=True, kw_only=True):
    """Take a job from an owner whose lease has passed."""

    operation = Operation.STALL
    as_of: int
    epoch: int = 1
    jitter: float = 0.0


class Requeue(Command, frozen=True, kw_only=True):
    """Put a stalled job back into its queue."""

    operation = Operation.REQUEUE
    run_at: Time = NOW


class RequestCancel(Command, frozen=True, kw_only=True):
    """Ask the owner to end the job."""

    operation = Operation.REQUEST_CANCEL
    mode: CancelMode = CancelMode.SOFT


class Cancel(EndOfRun, frozen=True, kw_only=True):
    """End as cancelled."""

    operation = Operation.CANCEL
    mode: CancelMode = CancelMode.SOFT
    """How the jobs that run below a job without an owner are to be ended."""
    as_of: int | None = None
    epoch: int = 1
    parent_cancelled: bool = False
    gone: bool = False
    """See `Lose.gone`: of a loss that a requested cancel turned into this, or on the word of a
    bus's worker."""
    body: bytes | None = None
    """What a bus's worker reported beside it."""


class TimeOut(Failing, frozen=True, kw_only=True):
    """End as timed out."""

    operation = Operation.TIME_OUT
    error_code: str = "timeout"
    as_of: int | None = None
    epoch: int = 1
    killed: bool = True
    """Whether an owner killed the run; of a lost owner's run it is unknown."""


class DeadLetter(Failing, frozen=True, kw_only=True):
    """End in the dead letters; `error_code` is one of the reasons of B14."""

    operation = Operation.DEAD_LETTER
    stage: str
    as_of: int | None = None
    epoch: int = 1


class SignalJob(Command, frozen=True, kw_only=True):
    """Send a signal; it is buffered until a wait consumes it."""

    operation = Operation.SIGNAL
    name: str
    body: bytes = b"null"
    limit: int = PENDING_SIGNALS
    """Refused if the job has as many pending signals, unless it waits for this one."""


class LateResult(Command, frozen=True, kw_only=True):
    """Record what a fenced or late sender reported about a job that has ended."""

    operation = Operation.LATE_RESULT
    state: str
    body: bytes | None = None
    error_code: str | None = None
    result_ptr: str | None = None


class Annotate(Command, frozen=True, kw_only=True):
    """Note on an ended job which job followed from it."""

    link: JobId | None = None


class Compensated(Annotate, frozen=True, kw_only=True):
    """Its compensation succeeded."""

    operation = Operation.COMPENSATED


class Redriven(Annotate, frozen=True, kw_only=True):
    """Its dead letter was submitted again."""

    operation = Operation.REDRIVEN
    submits: tuple[NewJob, ...] = ()
    again: bool = False
    """Deliberately: also where the letter was redriven or discarded before."""


class Discarded(Annotate, frozen=True, kw_only=True):
    """Its dead letter was read and put away."""

    operation = Operation.DISCARDED


class Clean(Command, frozen=True, kw_only=True):
    """Start to delete logs and artifacts."""

    operation = Operation.CLEAN


class Cleaned(Command, frozen=True, kw_only=True):
    """Logs and artifacts are gone."""

    operation = Operation.CLEANED


def cancel_or_ask(
    record: Record[T],
    actor: Actor,
    mode: CancelMode,
    *,
    reason: str | None,
    request_id: str | None = None,
    parent_cancelled: bool = False,
) -> Cancel | RequestCancel:
    """Cancel a job at once if it has no owner, else ask its owner to end it."""
    if record.owned:
        return RequestCancel(actor=actor, mode=mode, reason=reason, request_id=request_id)
    return Cancel(
        actor=actor,
        mode=mode,
        reason=reason,
        request_id=request_id,
        parent_cancelled=parent_cancelled,
    )


def written_by(event: Event[T], *kinds: type[Command]) -> bool:
    """Return whether an event is of a type that such commands write."""
    return any(event.type in kind.events() for kind in kinds)


BEAT_EVENT = {True: EventType.HEARTBEAT, False: EventType.LEASE_RENEWED}


def step_event(step: Step) -> EventType:
    """Return the type of the event that remembers a step."""
    if step.started:
        return EventType.STEP_STARTED
    return EventType.STEP_FAILED if step.failed else EventType.STEP_COMPLETED
