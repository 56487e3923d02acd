"""Rules for what ends an attempt: with a result, an error, a loss, a cancel or a time limit."""

from __future__ import annotations

from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide.change import (
    Decision,
    change,
    refuse,
    refuse_live_lease,
    refuse_second_run,
)
from holdfast.lifecycle.lease import (
    is_lost,
    is_timed_out,
    kill_evidence,
    last_owner,
    start_is_overdue,
)
from holdfast.lifecycle.record import NO_FACTS, UNCONFIRMED, Change, Draft, Facts
from holdfast.lifecycle.retry import (
    REASONS,
    STAGES,
    UNSERVED_PAUSE,
    backoff,
    exhausted,
    loss_costs,
    release_costs,
    runs_once,
    stall_delay,
)
from holdfast.lifecycle.states import BOXED, OWNED, CancelMode, Letter, Operation, Role
from holdfast.lifecycle.times import NOW, After, Time
from holdfast.lifecycle.transitions import STICKY, TABLE, Row


def complete(record: Draft, row: Row, command: c.Complete) -> Decision:
    """Succeed with a result; what runs in a box only with the exit code 0 (resolution 17)."""
    if record.kind in BOXED and command.exit_code != 0:
        ended = "no" if command.exit_code is None else f"the exit code {command.exit_code} and no"
        text = f"has {ended} observed exit code 0, without which a {record.kind} cannot succeed"
        return refuse("no_exit_code", record, text)
    left = _left_by(command)
    facts = Facts(**left) if any(fact not in (None, "") for fact in left.values()) else NO_FACTS
    return change(record, row, command, facts=facts, body=command.body)


def _left_by(command: c.Command) -> dict[str, Any]:
    """Return what a command knows of the run that it ends, as facts."""
    return {name: getattr(command, name, None) for name in c.LEFT_BY_RUN}


def fail(record: Draft, row: Row, command: c.Fail) -> Decision:
    """Fail permanently; a failure that a linked job retries leaves no dead letter."""
    letter = Letter.OPEN if record.policy.letter_on_fail and not command.submits else None
    return _write_failure(record, row, command, letter=letter)


def lose(record: Draft, row: Row, command: c.Lose) -> Decision:
    """Fail a job whose owner is gone and which has no retries.

    A sweep knows that by the lease, a host by its lock, which the owner held until it died.
    """
    by_host = command.actor.role is Role.HOST
    if record.owned and not by_host and not is_lost(record, command.as_of, command.epoch):
        return refuse_live_lease(record)
    letter = Letter.OPEN if record.policy.letter_on_fail else None
    # From stalled, the stall has counted what this attempt cost: an attempt fails at most once.
    kill = kill_evidence(record, command.actor.role, gone=command.gone)
    return _write_failure(record, row, command, counted=record.owned, letter=letter, kill=kill)


def retry(record: Draft, row: Row, command: c.Retry) -> Decision:
    """Leave the rest to another attempt, after a delay."""
    if runs_once(record):
        return refuse_second_run(record, "; end it with a linked retry (A16)")
    if exhausted(record):
        return refuse("exhausted", record, "has no try left; fail or dead-letter it")
    delay = command.retry_in
    if delay is None:
        delay = backoff(record.policy, record.failures + 1, command.jitter)
    return _write_failure(record, row, command, run_at=After(delay))


def release(record: Draft, row: Row, command: c.Release) -> Decision:
    """Return a job to its queue without a failure; from the 20th time on each costs one."""
    if runs_once(record):
        return refuse_second_run(record)
    if command.unserved and record.claimed:
        return change(record, row, command, run_at=After(UNSERVED_PAUSE))
    costs = release_costs(record)
    if costs and exhausted(record):
        return refuse("exhausted", record, "was released too often; dead-letter it")
    facts = Facts(releases=record.releases + 1, failures=record.failures + 1 if costs else None)
    return change(record, row, command, run_at=NOW, facts=facts)


def stall(record: Draft, row: Row, command: c.Stall) -> Decision:
    """Take it from an owner that was lost, or that did not start it in time (resolution 7)."""
    overdue = start_is_overdue(record, command.as_of)
    if not overdue and not is_lost(record, command.as_of, command.epoch):
        return refuse_live_lease(record)
    costs = loss_costs(record)
    if costs and exhausted(record):
        return refuse("exhausted", record, "has no try left; dead-letter it")
    if runs_once(record):
        return refuse_second_run(record)
    failures = record.failures + costs
    facts = Facts(
        failures=failures if costs else None,
        releases=None if costs else record.releases + 1,
        last_owner=record.owner,
        kill=UNCONFIRMED,
    )
    delay = stall_delay(record, failures, command.jitter) if costs else 0
    return change(record, row, command, run_at=After(delay), facts=facts)


def cancel(record: Draft, row: Row, command: c.Cancel) -> Decision:
    """Cancel it: who owns it after a request, a sweep once it is lost or its parent cancelled."""
    owned, by_sweep = record.owned, command.actor.role is Role.RECONCILER
    if owned and record.cancel_requested is None:
        return refuse("no_cancel_request", record, "was not asked to cancel")
    if owned and by_sweep and not _is_over(record, command):
        return refuse_live_lease(record)
    if not owned and by_sweep and not command.parent_cancelled:
        return refuse("parent_lives", record, "is cancelled by a sweep only after its parent")
    hard = command.mode is CancelMode.HARD and record.cancel_requested is not CancelMode.HARD
    facts = Facts(
        error_code="cancelled",
        # Its children are asked as it was itself: they may run where it does not.
        cancel=CancelMode.HARD if hard else None,
        kill=kill_evidence(record, command.actor.role, gone=command.gone),
        last_owner=last_owner(record, command.actor),
        **_left_by(command),
    )
    return change(record, row, command, facts=facts, body=command.body)


def _is_over(record: Draft, command: c.Cancel) -> bool:
    # A passed time limit is enough too: a time_out that was turned must end what never reacts.
    late = is_timed_out(record, command.as_of, command.epoch)
    return late or is_lost(record, command.as_of, command.epoch)


def time_out(record: Draft, row: Row, command: c.TimeOut) -> Decision:
    """End it by a time limit: its owner if there is one, a sweep once it has passed."""
    role = command.actor.role
    if role is Role.OWNER:
        limits = (record.policy.timeout, record.policy.start_timeout, record.deadline_at)
        if all(limit is None for limit in limits):
            return refuse("no_time_limit", record, "has no timeout and no deadline")
    elif not is_timed_out(record, command.as_of, command.epoch):
        return refuse("not_due", record, "has not reached its timeout or deadline")
    kill = kill_evidence(record, role) if role is not Role.OWNER or command.killed else None
    return _write_failure(record, row, command, counted=record.owned, kill=kill)


def dead_letter(record: Draft, row: Row, command: c.DeadLetter) -> Decision:
    """End it in the dead letters, for one of the reasons of B14."""
    if command.error_code not in REASONS or command.stage not in STAGES:
        text = f"cannot have the dead-letter reason {command.error_code!r} at {command.stage!r}"
        return refuse("bad_reason", record, text)
    role, owned = command.actor.role, record.owned
    by_sweep = role is Role.RECONCILER
    if owned and by_sweep and not is_lost(record, command.as_of, command.epoch):
        return refuse_live_lease(record)
    # An owner that ends its job in the dead letters has seen the handler end.
    kill = None if role is Role.OWNER else kill_evidence(record, role)
    return _write_failure(record, row, command, counted=owned, stage=command.stage, kill=kill)


def _write_failure(
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
        failures=record.failures + 1 if counted else None,
        last_owner=last_owner(record, command.actor),
        link=command.submits[0].record.id if command.submits else None,
        **_left_by(command),
        **more,
    )
    return change(
        record, row, command, run_at=run_at, facts=facts, body=command.body, submits=command.submits
    )


def may_turn(command: c.Command) -> bool:
    """Return whether a requested cancel turns this way out into `cancel` (resolution 11)."""
    if isinstance(command, c.Failing) and command.submits:
        # A linked retry is a retry: the work would get away from its cancel under another id.
        return True
    if command.operation not in STICKY:
        return False
    ends = command.operation in (Operation.DEAD_LETTER, Operation.TIME_OUT)
    return not (ends and command.actor.role is Role.OWNER)


def turned_reason(command: c.Command) -> str:
    """Return why a way out became a cancel."""
    return command.reason or f"{command.operation} after a cancel request"


def cancel_instead(record: Draft, command: c.Command) -> Decision:
    """Cancel instead of another way out."""
    return cancel(
        record,
        _CANCEL_ROW,
        c.Cancel(
            actor=command.actor,
            request_id=command.request_id,
            reason=turned_reason(command),
            as_of=getattr(command, "as_of", None),
            epoch=getattr(command, "epoch", 1),
            gone=getattr(command, "gone", False),
            **_left_by(command),
        ),
    )


_CANCEL_ROW = next(
    row for row in TABLE if row.operation is Operation.CANCEL and row.sources == OWNED
)
