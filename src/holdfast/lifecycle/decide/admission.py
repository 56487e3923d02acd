"""Rules for a job that nobody owns yet: admit, deny, hold, unhold, reschedule, requeue, claim."""

from __future__ import annotations

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide.change import Decision, change, refuse
from holdfast.lifecycle.record import NO_FACTS, Draft, Facts, Unchanged
from holdfast.lifecycle.times import After
from holdfast.lifecycle.transitions import Row


def admit(record: Draft, row: Row, command: c.Admit) -> Decision:
    """Admit a job to its queue."""
    facts = NO_FACTS
    lifted = command.lifts if command.lifts in record.held_by else None
    if (command.rule, command.rules, lifted) != (None, None, None):
        facts = Facts(rule=command.rule, rules=command.rules, unheld=lifted)
    return change(record, row, command, facts=facts)


def deny(record: Draft, row: Row, command: c.Deny) -> Decision:
    """Refuse it by policy; what was claimed may have had effects, and is cancelled instead."""
    if record.attempt > 0:
        return refuse("already_claimed", record, "was claimed before; request its cancel instead")
    facts = Facts(error_code="denied", rule=command.rule, rules=command.rules)
    return change(record, row, command, facts=facts, body=command.body)


def hold(record: Draft, row: Row, command: c.Hold) -> Decision:
    """Add a named hold."""
    if command.hold in record.held_by:
        return Unchanged(record)
    return change(record, row, command, facts=Facts(held=command.hold))


def unhold(record: Draft, row: Row, command: c.Unhold) -> Decision:
    """Remove a named hold."""
    if command.hold not in record.held_by:
        return Unchanged(record)
    return change(record, row, command, facts=Facts(unheld=command.hold))


def reschedule(record: Draft, row: Row, command: c.Reschedule | c.Requeue) -> Decision:
    """Make it due at another time."""
    return change(record, row, command, run_at=command.run_at)


def claim(record: Draft, row: Row, command: c.Claim) -> Decision:
    """Grant the lease of a claim; a held job has none to give."""
    if not record.claimable:
        return refuse("held", record, f"is held by {', '.join(record.held_by)}")
    facts = Facts(epoch=command.epoch) if command.epoch != 1 else NO_FACTS
    return change(record, row, command, lease=After(record.policy.lease), facts=facts)
