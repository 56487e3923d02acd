"""decide(record, command): what the law makes of a wish. Pure; the store commits or refuses it.

The order of the questions is the order of the answers a caller wants: may this role do it at all,
does the caller hold the job, is there such an edge, does a requested cancel turn it, is the
operation's own condition met.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import apply
from holdfast.lifecycle.job import (
    NO_FACTS,
    RESERVED,
    SIGNAL_NAME,
    UNCONFIRMED,
    UNKILLABLE,
    Actor,
    Change,
    Draft,
    DraftEvent,
    Event,
    Facts,
    NewJob,
    Refusal,
    Unchanged,
)
from holdfast.lifecycle.linked import compensation
from holdfast.lifecycle.payload import TEXT_LIMIT, check_text, check_time, digest, sound_body
from holdfast.lifecycle.plain import PLAIN
from holdfast.lifecycle.policy import policy_faults, told_faults
from holdfast.lifecycle.retry import (
    REASONS,
    STAGES,
    UNSERVED_PAUSE,
    backoff,
    exhausted,
    loss_costs,
    release_costs,
    stall_delay,
)
from holdfast.lifecycle.signals import is_awaited, oldest_signal
from holdfast.lifecycle.states import (
    OWNED,
    TERMINAL,
    Cancel,
    EventType,
    Letter,
    Operation,
    Retention,
    Role,
    State,
)
from holdfast.lifecycle.terms import weaker_terms
from holdfast.lifecycle.times import NOW, After, Time
from holdfast.lifecycle.transitions import ROLES, STICKY, Row, find_row

Decision: TypeAlias = Change | Unchanged | Refusal
C = TypeVar("C", bound=c.Command)

# Named once: reading a member off an enum's class costs as much as a call (Python 3.11).
_UNKNOWN, _CLEANED, _OWNER = State.UNKNOWN, Retention.CLEANED, Role.OWNER
_CLAIM, _HEARTBEAT = Operation.CLAIM, Operation.HEARTBEAT


def decide(record: Draft, command: c.Command) -> Decision:
    """Answer a command with a change, with "that already holds", or with a refusal."""
    plainly = PLAIN.get(type(command))
    if plainly is not None and (change := plainly(record, command)) is not None:
        return change
    return deliberate(record, command)


def deliberate(record: Draft, command: c.Command) -> Decision:
    """Answer any command, question by question."""
    if record.state is _UNKNOWN:
        return _refuse("unknown_state", record, "was written by a newer version; upgrade first")
    actor, operation = command.actor, command.operation
    if actor.role not in ROLES[operation]:
        return _refuse("role_not_allowed", record, f"{actor.role} may not {operation}")
    if actor.role is _OWNER and not is_owner(record, actor):
        return _repeat(record, command) or _lost(record, actor)
    row = find_row(operation, record.state, actor.role)
    if row is None:
        return _repeat(record, command) or _illegal(record, command)
    if record.retention is _CLEANED:
        return _repeat(record, command) or _refuse("cleaned", record, "is cleaned; nothing follows")
    if is_turned(record, command):
        return _turned(record, command)
    return _DECIDERS[operation](record, row, command)


def is_owner(record: Draft, actor: Actor) -> bool:
    """Whether the actor holds this very attempt."""
    return record.owner == actor.name and record.attempt == actor.attempt


def is_turned(record: Draft, command: c.Command) -> bool:
    """Whether a requested cancel turns this way out into `cancel` (resolution 11)."""
    return record.cancel_requested is not None and may_turn(command)


def may_turn(command: c.Command) -> bool:
    """Whether a requested cancel would turn this way out."""
    if isinstance(command, c.Failing) and command.submits:
        # A linked retry is a retry: the work would get away from its cancel under another id.
        return True
    if command.operation not in STICKY:
        return False
    owners_word = command.operation in (Operation.DEAD_LETTER, Operation.TIME_OUT)
    return not (owners_word and command.actor.role is Role.OWNER)


def turned_reason(command: c.Command) -> str:
    """Say why a way out became a cancel."""
    return command.reason or f"{command.operation} after a cancel request"


def _turned(record: Draft, command: c.Command) -> Decision:
    return _cancel(
        record,
        _CANCEL_ROW,
        c.Cancel(
            actor=command.actor,
            request_id=command.request_id,
            reason=turned_reason(command),
            as_of=getattr(command, "as_of", None),
            epoch=getattr(command, "epoch", 1),
            exit_code=getattr(command, "exit_code", None),
        ),
    )


def _repeat(record: Draft, command: c.Command) -> Unchanged | None:
    """Recognise a wish that already came true (A14, resolution 9)."""
    if command.operation is Operation.CLEANED and record.retention is Retention.CLEANED:
        return Unchanged(record)
    target = _TARGETS.get(command.operation)
    if target is None or record.state is not target:
        return None
    actor = command.actor
    if actor.role is Role.OWNER and record.attempt != actor.attempt:
        return None
    if record.state in OWNED and actor.role is Role.OWNER and record.owner != actor.name:
        return None
    match command:
        case c.Complete(body=body) if record.result_digest != digest(body):
            return None
        case c.Failing(error_code=code) if record.terminal and record.error_code != code:
            return None
        case c.Wait(signal=signal) if record.wait_for != signal:
            return None
    return Unchanged(record)


_TARGETS = {
    Operation.ADMIT: State.QUEUED,
    Operation.DENY: State.DENIED,
    Operation.START: State.RUNNING,
    Operation.WAIT: State.WAITING,
    Operation.COMPLETE: State.SUCCEEDED,
    Operation.FAIL: State.FAILED,
    Operation.LOSE: State.FAILED,
    Operation.RETRY: State.RETRYING,
    Operation.RELEASE: State.STALLED,
    Operation.STALL: State.STALLED,
    Operation.REQUEUE: State.QUEUED,
    Operation.CANCEL: State.CANCELLED,
    Operation.TIME_OUT: State.TIMED_OUT,
    Operation.DEAD_LETTER: State.DEAD_LETTERED,
}


def _change(
    record: Draft,
    row: Row,
    command: c.Command,
    *,
    type: EventType | None = None,
    at: Time = NOW,
    lease: Time | None = None,
    run_at: Time | None = None,
    facts: Facts = NO_FACTS,
    body: bytes | None = None,
    submits: tuple[NewJob, ...] = (),
) -> Change:
    """Write the one event of a change, and the record that follows from it."""
    _check_words(command, facts)
    if run_at is not None and run_at is not NOW:
        check_time(run_at, "run_at")
    target = row.targets(record.state)
    # Fifteen keywords at most: Python calls with more than that take four times as long.
    event: DraftEvent = Event(
        id=record.id,
        rev=record.rev + 1,
        type=type or row.events[0],
        from_state=record.state,
        to_state=target,
        at=at,
        actor=command.actor.label,
        attempt=record.attempt + (command.operation is _CLAIM),
        beats=record.beats if command.operation is not _HEARTBEAT else 0,
        request_id=command.request_id,
        reason=command.reason,
        lease_expires_at=lease if target in OWNED else record.lease_expires_at,
        run_at=run_at,
        facts=facts,
    )
    if body is not None:
        body = sound_body(body, "body")
        event = replace(event, body=body, digest=digest(body))
    if record.policy.compensates:
        # Here, where every way to end comes through: it is there exactly if the end is.
        submits = (*submits, *compensation(record, target, command.actor))
    return Change(
        record=record,
        event=event,
        next=apply(record, event),
        fenced=command.actor.role is _OWNER,
        submits=submits,
    )


def _check_words(command: c.Command, facts: Facts) -> None:
    """Refuse text that cannot be kept, as a submit does: by BadData, before anything is written."""
    if command.reason is not None:
        check_text(command.reason, "reason", empty=True)
    if command.request_id is not None:
        check_text(command.request_id, "request_id")
    # An owner's name is the one that its claim was written under.
    if command.actor.role is not _OWNER:
        check_text(command.actor.name, "the actor's name")
    if facts is not NO_FACTS:
        for name in _FACT_TEXTS:
            if (text := getattr(facts, name)) is not None:
                check_text(text, name)


_FACT_TEXTS = (
    "held",
    "unheld",
    "wait_for",
    "signal",
    "step",
    "error_code",
    "result_ptr",
    "stage",
    "rule",
    "late_state",
)


def _plain(record: Draft, row: Row, command: c.Command) -> Decision:
    return _change(record, row, command)


def _deny(record: Draft, row: Row, command: c.Deny) -> Decision:
    if record.attempt > 0:
        return _refuse("already_claimed", record, "was claimed before; request its cancel instead")
    facts = Facts(error_code="denied", rule=command.rule)
    return _change(record, row, command, facts=facts, body=command.body)


def _hold(record: Draft, row: Row, command: c.Hold) -> Decision:
    if command.hold in record.held_by:
        return Unchanged(record)
    return _change(record, row, command, facts=Facts(held=command.hold))


def _unhold(record: Draft, row: Row, command: c.Unhold) -> Decision:
    if command.hold not in record.held_by:
        return Unchanged(record)
    return _change(record, row, command, facts=Facts(unheld=command.hold))


def _reschedule(record: Draft, row: Row, command: c.Reschedule | c.Requeue) -> Decision:
    return _change(record, row, command, run_at=command.run_at)


def _claim(record: Draft, row: Row, command: c.Claim) -> Decision:
    if not record.claimable:
        return _refuse("held", record, f"is held by {', '.join(record.held_by)}")
    facts = Facts(epoch=command.epoch) if command.epoch != 1 else NO_FACTS
    return _change(record, row, command, lease=After(record.policy.lease), facts=facts)


def _correct_terms(record: Draft, row: Row, command: c.CorrectTerms) -> Decision:
    policy = command.policy
    if policy == record.policy:
        return Unchanged(record)
    if faults := policy_faults(policy, bounded=False):
        raise BadData(told_faults(faults), field=faults[0].term)
    if weaker := weaker_terms(policy, record.policy):
        text = f"would get weaker terms ({', '.join(weaker)}); terms may only be corrected upwards"
        return _refuse("weaker_terms", record, text)
    lease = record.lease_expires_at
    return _change(record, row, command, lease=lease, facts=Facts(policy=policy))


def _start(record: Draft, row: Row, command: c.Start) -> Decision:
    lease = After(record.policy.running_lease - command.ago)
    return _change(record, row, command, at=After(-command.ago), lease=lease)


def _heartbeat(record: Draft, row: Row, command: c.Heartbeat) -> Decision:
    policy = record.policy
    lease = policy.lease if record.state is State.CLAIMED else policy.running_lease
    event = c.BEAT_EVENT[command.by_handler]
    return _change(record, row, command, type=event, lease=After(lease))


def _adopt(record: Draft, row: Row, command: c.Adopt) -> Decision:
    if record.owner == command.actor.name:
        return Unchanged(record)
    epoch = command.epoch if command.epoch != 1 else None
    facts = Facts(last_owner=record.owner, epoch=epoch)
    return _change(record, row, command, lease=After(record.policy.running_lease), facts=facts)


def _step(record: Draft, row: Row, command: c.Step) -> Decision:
    consumed = None
    if command.consumes is not None:
        if record.unread_signals:
            return _unread(record)
        consumed = oldest_signal(record, command.consumes)
        if consumed is None:
            return _refuse("no_signal", record, f"has no pending signal {command.consumes!r}")
    link = command.submits[0].record.id if command.submits else None
    facts = Facts(step=command.name, step_use=command.use, consumed=consumed, link=link)
    event = c.step_event(command)
    return _change(
        record,
        row,
        command,
        type=event,
        lease=record.lease_expires_at,
        facts=facts,
        body=command.body,
        submits=command.submits,
    )


def _progress(record: Draft, row: Row, command: c.Progress) -> Decision:
    if command.body is None and not command.unkillable:
        return _refuse("nothing_said", record, "is told of progress without saying any")
    facts = Facts(kill=UNKILLABLE) if command.unkillable else NO_FACTS
    lease = record.lease_expires_at
    return _change(record, row, command, lease=lease, facts=facts, body=command.body)


def _wait(record: Draft, row: Row, command: c.Wait) -> Decision:
    if record.unread_signals:
        return _unread(record)
    if oldest_signal(record, command.signal) is not None:
        return _refuse("signal_pending", record, f"already has the signal {command.signal!r}")
    facts = Facts(wait_for=command.signal)
    return _change(record, row, command, run_at=command.until, facts=facts)


def _resume(record: Draft, row: Row, command: c.Resume) -> Decision:
    if record.unread_signals:
        return _unread(record)
    rev = oldest_signal(record, record.wait_for or "")
    if rev is not None:
        return _change(record, row, command, run_at=NOW, facts=Facts(consumed=rev))
    if _past(record.run_at, command.as_of):
        return _change(record, row, command, run_at=NOW, facts=Facts(timer=True))
    return _refuse("not_due", record, f"still waits for {record.wait_for!r}")


def _complete(record: Draft, row: Row, command: c.Complete) -> Decision:
    facts = NO_FACTS
    if command.exit_code is not None or command.result_ptr or command.execution_ms is not None:
        facts = Facts(
            exit_code=command.exit_code,
            result_ptr=command.result_ptr,
            execution_ms=command.execution_ms,
        )
    return _change(record, row, command, facts=facts, body=command.body)


def _failure(
    record: Draft,
    row: Row,
    command: c.Failing,
    *,
    run_at: Time | None = None,
    counted: bool = True,
    **more: Any,
) -> Change:
    """Write an ending or a retry that an error brought about."""
    facts = Facts(
        error_code=command.error_code,
        exit_code=command.exit_code,
        result_ptr=command.result_ptr,
        execution_ms=command.execution_ms,
        failures=record.failures + 1 if counted else None,
        last_owner=_last_owner(record, command),
        link=command.submits[0].record.id if command.submits else None,
        **more,
    )
    return _change(
        record, row, command, run_at=run_at, facts=facts, body=command.body, submits=command.submits
    )


def _fail(record: Draft, row: Row, command: c.Fail) -> Decision:
    # A failure that is retried, by a linked job, is not one that somebody has to look at.
    letter = Letter.OPEN if record.policy.letter_on_fail and not command.submits else None
    return _failure(record, row, command, letter=letter)


def _lose(record: Draft, row: Row, command: c.Lose) -> Decision:
    if record.state in OWNED and not _lost_lease(record, command.as_of, command.epoch):
        return _refuse("lease_live", record, f"is held by {record.owner} with a live lease")
    letter = Letter.OPEN if record.policy.letter_on_fail else None
    # From stalled, the stall has counted what this attempt cost: an attempt fails at most once.
    kill = _evidence(record, command.actor.role)
    return _failure(record, row, command, counted=record.state in OWNED, letter=letter, kill=kill)


def _retry(record: Draft, row: Row, command: c.Retry) -> Decision:
    if record.state is State.RUNNING and not record.policy.idempotent:
        text = "has started and must not be run again; end it with a linked retry (A16)"
        return _refuse("not_idempotent", record, text)
    if exhausted(record):
        return _refuse("exhausted", record, "has no try left; fail or dead-letter it")
    delay = command.retry_in
    if delay is None:
        delay = backoff(record.policy, record.failures + 1, command.jitter)
    return _failure(record, row, command, run_at=After(delay))


def _release(record: Draft, row: Row, command: c.Release) -> Decision:
    if record.state is State.RUNNING and not record.policy.idempotent:
        return _refuse("not_idempotent", record, "has started and must not be run again")
    if command.unserved and record.state is State.CLAIMED:
        return _change(record, row, command, run_at=After(UNSERVED_PAUSE))
    costs = release_costs(record)
    if costs and exhausted(record):
        return _refuse("exhausted", record, "was released too often; dead-letter it")
    facts = Facts(releases=record.releases + 1, failures=record.failures + 1 if costs else None)
    return _change(record, row, command, run_at=NOW, facts=facts)


def _stall(record: Draft, row: Row, command: c.Stall) -> Decision:
    # Resolution 7: a job that is not started in time is taken back whatever its lease says.
    unstarted = record.state is State.CLAIMED and _past(record.timeout_at, command.as_of)
    if not (unstarted or _lost_lease(record, command.as_of, command.epoch)):
        return _refuse("lease_live", record, f"is held by {record.owner} with a live lease")
    costs = loss_costs(record)
    if costs and exhausted(record):
        return _refuse("exhausted", record, "has no try left; dead-letter it")
    if record.state is State.RUNNING and not record.policy.idempotent:
        return _refuse("not_idempotent", record, "has started and must not be run again")
    failures = record.failures + costs
    facts = Facts(
        failures=failures if costs else None,
        releases=None if costs else record.releases + 1,
        last_owner=record.owner,
        kill=UNCONFIRMED,
    )
    delay = stall_delay(record, failures, command.jitter) if costs else 0
    return _change(record, row, command, run_at=After(delay), facts=facts)


def _request_cancel(record: Draft, row: Row, command: c.RequestCancel) -> Decision:
    if record.cancel_requested in (command.mode, Cancel.HARD):
        return Unchanged(record)
    return _change(
        record, row, command, lease=record.lease_expires_at, facts=Facts(cancel=command.mode)
    )


def _cancel(record: Draft, row: Row, command: c.Cancel) -> Decision:
    owned = record.state in OWNED
    role = command.actor.role
    if owned and record.cancel_requested is None:
        return _refuse("no_cancel_request", record, "was not asked to cancel")
    # A passed time limit is enough too: a time_out that was turned must end what never reacts.
    late = _is_late(record, command.as_of, command.epoch)
    over = late or _lost_lease(record, command.as_of, command.epoch)
    if owned and role is Role.RECONCILER and not over:
        return _refuse("lease_live", record, f"is held by {record.owner} with a live lease")
    if not owned and role is Role.RECONCILER and not command.parent_cancelled:
        return _refuse("parent_lives", record, "is cancelled by a sweep only after its parent")
    hard = command.mode is Cancel.HARD and record.cancel_requested is not Cancel.HARD
    facts = Facts(
        error_code="cancelled",
        # Its children are asked as it was itself: they may run where it does not.
        cancel=Cancel.HARD if hard else None,
        exit_code=command.exit_code,
        kill=_evidence(record, role),
        last_owner=_last_owner(record, command),
    )
    return _change(record, row, command, facts=facts)


def _time_out(record: Draft, row: Row, command: c.TimeOut) -> Decision:
    if command.actor.role is Role.OWNER:
        limits = (record.policy.timeout, record.policy.start_timeout, record.deadline_at)
        if all(limit is None for limit in limits):
            return _refuse("no_time_limit", record, "has no timeout and no deadline")
    elif not _is_late(record, command.as_of, command.epoch):
        return _refuse("not_due", record, "has not reached its timeout or deadline")
    role = command.actor.role
    kill = _evidence(record, role) if role is not Role.OWNER or command.killed else None
    return _failure(record, row, command, counted=record.state in OWNED, kill=kill)


def _dead_letter(record: Draft, row: Row, command: c.DeadLetter) -> Decision:
    if command.error_code not in REASONS or command.stage not in STAGES:
        text = f"{command.error_code!r} at stage {command.stage!r} is no dead-letter reason"
        return _refuse("bad_reason", record, text)
    owned = record.state in OWNED
    if (
        owned
        and command.actor.role is Role.RECONCILER
        and not _lost_lease(record, command.as_of, command.epoch)
    ):
        return _refuse("lease_live", record, f"is held by {record.owner} with a live lease")
    # An owner that ends its job in the dead letters has seen the handler end.
    role = command.actor.role
    kill = None if role is Role.OWNER else _evidence(record, role)
    return _failure(record, row, command, counted=owned, stage=command.stage, kill=kill)


def _signal(record: Draft, row: Row, command: c.SignalJob) -> Decision:
    own = command.name.startswith(RESERVED)
    check_text(command.name, "a signal's name", limit=TEXT_LIMIT if own else SIGNAL_NAME)
    # What the job is parked on is consumed in the same commit, and what Holdfast sends is few.
    kept = not own and not is_awaited(record, command.name)
    if kept and record.pending_signals >= command.limit:
        text = (
            f"has {record.pending_signals:,} pending signals; send more once it has consumed some, "
            "or raise the limit: holdfast limits --signals N"
        )
        return _refuse("too_many_signals", record, text)
    lease = record.lease_expires_at if record.state in OWNED else None
    facts = Facts(signal=command.name)
    return _change(record, row, command, lease=lease, facts=facts, body=command.body)


def _late_result(record: Draft, row: Row, command: c.LateResult) -> Decision:
    late = f"{command.actor.attempt or 0}:{command.actor.name}"
    if late in record.late_results:
        return Unchanged(record)
    facts = Facts(
        late=late,
        late_state=command.state,
        error_code=command.error_code,
        result_ptr=command.result_ptr,
    )
    return _change(record, row, command, facts=facts, body=command.body)


def _compensated(record: Draft, row: Row, command: c.Compensated) -> Decision:
    return _change(record, row, command, facts=Facts(link=command.link))


def _redriven(record: Draft, row: Row, command: c.Redriven) -> Decision:
    if record.letter is Letter.REDRIVEN and not command.again:
        return Unchanged(record)
    if record.letter is Letter.DISCARDED and not command.again:
        return _refuse("letter_discarded", record, "has a discarded letter; redrive it with again")
    facts = Facts(link=command.link, letter=Letter.REDRIVEN)
    return _change(record, row, command, facts=facts, submits=command.submits)


def _discarded(record: Draft, row: Row, command: c.Discarded) -> Decision:
    if record.letter is None:
        return _refuse("no_dead_letter", record, "has no dead letter")
    if record.letter is Letter.DISCARDED:
        return Unchanged(record)
    if record.letter is Letter.REDRIVEN:
        return _refuse("letter_redriven", record, "was redriven; there is nothing to put away")
    return _change(record, row, command, facts=Facts(letter=Letter.DISCARDED))


def _clean(record: Draft, row: Row, command: c.Clean) -> Decision:
    if record.retention is Retention.CLEANING:
        return Unchanged(record)
    return _change(record, row, command, facts=Facts(retention=Retention.CLEANING))


def _cleaned(record: Draft, row: Row, command: c.Cleaned) -> Decision:
    if record.retention is not Retention.CLEANING:
        return _refuse("not_cleaning", record, "must be cleaning before it is cleaned")
    return _change(record, row, command, facts=Facts(retention=Retention.CLEANED))


def _past(time: Time | None, as_of: int | None) -> bool:
    return isinstance(time, int) and as_of is not None and time <= as_of


def _lost_lease(record: Draft, as_of: int | None, epoch: int) -> bool:
    # A claim of an older epoch is fenced whatever its lease says (a restored database).
    return _past(record.lease_expires_at, as_of) or (record.epoch or 1) < epoch


def _is_late(record: Draft, as_of: int | None, epoch: int) -> bool:
    if _past(record.deadline_at, as_of) or _past(record.timeout_at, as_of):
        return True
    if record.state not in OWNED or record.policy.on_silence != "time_out":
        return False
    return _lost_lease(record, as_of, epoch)


def _last_owner(record: Draft, command: c.Command) -> str | None:
    # By the label: a sweep may run in the owner's process and bear its name.
    return None if record.owner == command.actor.label else record.owner or record.lost_owner


def _evidence(record: Draft, role: Role) -> str | None:
    if record.state not in OWNED:
        return UNCONFIRMED if record.lost_owner is not None else None
    return "confirmed" if role is Role.OWNER else UNCONFIRMED


def _refuse(code: str, record: Draft, text: str) -> Refusal:
    return Refusal(code=code, message=f"job {record.public_id} ({record.state}) {text}")


def _unread(record: Draft) -> Refusal:
    # What it waits for may be among those that were not read.
    text = f"has {record.unread_signals:,} pending signals that were not read; read them first"
    return _refuse("signals_unread", record, text)


def _lost(record: Draft, actor: Actor) -> Refusal:
    holder = f"held by {record.owner}" if record.owner else "held by nobody"
    text = f"is at attempt {record.attempt}, {holder}; {actor.name} lost attempt {actor.attempt}"
    return _refuse("lease_lost", record, text)


def _illegal(record: Draft, command: c.Command) -> Refusal:
    code = "terminal" if record.state in TERMINAL else "illegal_transition"
    return _refuse(code, record, f"does not allow {command.operation} by {command.actor.role}")


_CANCEL_ROW = next(
    row for row in (find_row(Operation.CANCEL, State.RUNNING, Role.OWNER),) if row is not None
)
_DECIDERS: dict[Operation, Callable[[Draft, Row, Any], Decision]] = {
    Operation.ADMIT: _plain,
    Operation.DENY: _deny,
    Operation.HOLD: _hold,
    Operation.UNHOLD: _unhold,
    Operation.RESCHEDULE: _reschedule,
    Operation.CLAIM: _claim,
    Operation.CORRECT_TERMS: _correct_terms,
    Operation.START: _start,
    Operation.HEARTBEAT: _heartbeat,
    Operation.ADOPT: _adopt,
    Operation.STEP: _step,
    Operation.PROGRESS: _progress,
    Operation.WAIT: _wait,
    Operation.RESUME: _resume,
    Operation.COMPLETE: _complete,
    Operation.FAIL: _fail,
    Operation.LOSE: _lose,
    Operation.RETRY: _retry,
    Operation.RELEASE: _release,
    Operation.STALL: _stall,
    Operation.REQUEUE: _reschedule,
    Operation.REQUEST_CANCEL: _request_cancel,
    Operation.CANCEL: _cancel,
    Operation.TIME_OUT: _time_out,
    Operation.DEAD_LETTER: _dead_letter,
    Operation.SIGNAL: _signal,
    Operation.LATE_RESULT: _late_result,
    Operation.COMPENSATED: _compensated,
    Operation.REDRIVEN: _redriven,
    Operation.DISCARDED: _discarded,
    Operation.CLEAN: _clean,
    Operation.CLEANED: _cleaned,
}
