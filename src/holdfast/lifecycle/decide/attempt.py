"""Rules for a job while an owner runs it, waits with it, or takes it over."""

from __future__ import annotations

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide.change import Decision, change, refuse, refuse_unread_signals
from holdfast.lifecycle.execution_policy import faults_text, policy_faults
from holdfast.lifecycle.lease import is_lost, renewal
from holdfast.lifecycle.payload import TEXT_LIMIT, check_text
from holdfast.lifecycle.record import (
    NO_FACTS,
    RESERVED,
    SIGNAL_NAME,
    UNKILLABLE,
    Draft,
    Facts,
    Unchanged,
)
from holdfast.lifecycle.signals import is_awaited, oldest_signal
from holdfast.lifecycle.states import CancelMode, Role
from holdfast.lifecycle.terms import weaker_terms
from holdfast.lifecycle.times import NOW, After, is_past
from holdfast.lifecycle.transitions import Row


def correct_terms(record: Draft, row: Row, command: c.CorrectTerms) -> Decision:
    """Replace the job's terms by its task's; never by weaker ones."""
    policy = command.policy
    if policy == record.policy:
        return Unchanged(record)
    if faults := policy_faults(policy, bounded=False):
        raise BadData(faults_text(faults), field=faults[0].term)
    if weaker := weaker_terms(policy, record.policy):
        text = f"would get weaker terms ({', '.join(weaker)}); terms may only be corrected upwards"
        return refuse("weaker_terms", record, text)
    return change(record, row, command, lease=record.lease_expires_at, facts=Facts(policy=policy))


def start(record: Draft, row: Row, command: c.Start) -> Decision:
    """Record that the handler started, `ago` before this is written."""
    lease = After(record.policy.running_lease - command.ago)
    facts = NO_FACTS if command.network is None else Facts(network=command.network)
    return change(record, row, command, at=After(-command.ago), lease=lease, facts=facts)


def heartbeat(record: Draft, row: Row, command: c.Heartbeat) -> Decision:
    """Renew the lease."""
    event = c.BEAT_EVENT[command.by_handler]
    return change(record, row, command, type=event, lease=After(renewal(record)))


def adopt(record: Draft, row: Row, command: c.Adopt) -> Decision:
    """Move a run to another owner on the same host, or renew one's own, within the same attempt.

    What was only claimed counts as running afterwards: it may have started, and nobody saw it.
    """
    mine = record.owner == command.actor.name
    if mine and not is_lost(record, command.as_of, command.epoch):
        return Unchanged(record)
    if not mine and command.actor.role is Role.BUS:
        # Nothing proves to a bus that another owner is dead.
        return refuse("not_owner", record, f"is held by {record.owner}; a bus adopts only its own")
    epoch = command.epoch if command.epoch != 1 else None
    facts = Facts(last_owner=record.owner, epoch=epoch)
    return change(record, row, command, lease=After(record.policy.running_lease), facts=facts)


def step(record: Draft, row: Row, command: c.Step) -> Decision:
    """Remember a step; one that waits for a signal consumes the oldest such signal."""
    consumed = None
    if command.consumes is not None:
        if record.unread_signals:
            return refuse_unread_signals(record)
        consumed = oldest_signal(record, command.consumes)
        if consumed is None:
            return refuse("no_signal", record, f"has no pending signal {command.consumes!r}")
    link = command.submits[0].record.id if command.submits else None
    facts = Facts(step=command.name, step_use=command.use, consumed=consumed, link=link)
    return change(
        record,
        row,
        command,
        type=c.step_event(command),
        lease=record.lease_expires_at,
        facts=facts,
        body=command.body,
        submits=command.submits,
    )


def progress(record: Draft, row: Row, command: c.Progress) -> Decision:
    """Record how far a run is, or that it cannot be killed."""
    if command.body is None and not command.unkillable:
        return refuse("nothing_said", record, "got a progress report that reports nothing")
    facts = Facts(kill=UNKILLABLE) if command.unkillable else NO_FACTS
    lease = record.lease_expires_at
    return change(record, row, command, lease=lease, facts=facts, body=command.body)


def wait(record: Draft, row: Row, command: c.Wait) -> Decision:
    """Give up the lease until a signal or a time; not while that signal is pending."""
    if record.unread_signals:
        return refuse_unread_signals(record)
    if oldest_signal(record, command.signal) is not None:
        return refuse("signal_pending", record, f"already has the signal {command.signal!r}")
    facts = Facts(wait_for=command.signal)
    return change(record, row, command, run_at=command.until, facts=facts)


def resume(record: Draft, row: Row, command: c.Resume) -> Decision:
    """End a wait: by the oldest signal that it waits for, else because its time has come."""
    if record.unread_signals:
        return refuse_unread_signals(record)
    rev = oldest_signal(record, record.wait_for or "")
    if rev is not None:
        return change(record, row, command, run_at=NOW, facts=Facts(consumed=rev))
    if is_past(record.run_at, command.as_of):
        return change(record, row, command, run_at=NOW, facts=Facts(timer=True))
    return refuse("not_due", record, f"still waits for {record.wait_for!r}")


def signal(record: Draft, row: Row, command: c.SignalJob) -> Decision:
    """Keep a signal for a wait; a job keeps a limited number that no wait has consumed."""
    internal = command.name.startswith(RESERVED)
    check_text(command.name, "a signal's name", limit=TEXT_LIMIT if internal else SIGNAL_NAME)
    # The one it waits for is consumed in the same commit, and Holdfast itself sends few.
    kept = not internal and not is_awaited(record, command.name)
    if kept and record.pending_signals >= command.limit:
        text = (
            f"has {record.pending_signals:,} pending signals; send more once it has consumed some, "
            "or raise the limit: holdfast limits --signals N"
        )
        return refuse("too_many_signals", record, text)
    lease = record.lease_expires_at if record.owned else None
    facts = Facts(signal=command.name)
    return change(record, row, command, lease=lease, facts=facts, body=command.body)


def request_cancel(record: Draft, row: Row, command: c.RequestCancel) -> Decision:
    """Ask the owner to end it; a hard request replaces a soft one, never the other way."""
    if record.cancel_requested in (command.mode, CancelMode.HARD):
        return Unchanged(record)
    facts = Facts(cancel=command.mode)
    return change(record, row, command, lease=record.lease_expires_at, facts=facts)
