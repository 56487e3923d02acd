"""Rules for a job that nobody owns yet: admit, deny, approve, hold, unhold, reschedule, claim."""

from __future__ import annotations

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide.change import Decision, change, refuse
from holdfast.lifecycle.holds import (
    POLICY_HOLD,
    UNADMITTED,
    gates,
    is_expired,
    is_gate,
    is_lifted_otherwise,
    next_approval,
    read_approval,
)
from holdfast.lifecycle.record import NO_FACTS, Draft, Facts, Refusal, Unchanged
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.times import After
from holdfast.lifecycle.transitions import Row


def admit(record: Draft, row: Row, command: c.Admit) -> Decision:
    """Admit a job to its queue, once the gates that it waits at have let it through."""
    lifted = command.lifts if command.lifts in record.held_by else None
    if lifted is not None and is_lifted_otherwise(lifted, Role.SCHEDULER):
        return _refuse_to_lift(record, lifted)
    if waits := [hold for hold in gates(record) if hold != lifted]:
        return refuse("held", record, f"is not admitted while it is held by {', '.join(waits)}")
    facts = Facts(
        rule=command.rule,
        rules=command.rules,
        verdict=command.verdict,
        decided_by=command.decided_by,
        policy=command.policy,
        unheld=lifted,
    )
    return change(record, row, command, facts=NO_FACTS if facts == NO_FACTS else facts)


def deny(record: Draft, row: Row, command: c.Deny) -> Decision:
    """Refuse it; what was claimed may have had effects, and is cancelled instead."""
    if record.attempt > 0:
        return refuse("already_claimed", record, "was claimed before; request its cancel instead")
    if command.actor.role is Role.CONTROL and next_approval(record) is None:
        return _refuse_without_approval(record)
    facts = Facts(
        error_code=command.error_code,
        rule=command.rule,
        rules=command.rules,
        decided_by=command.decided_by,
    )
    return change(record, row, command, facts=facts, body=command.body)


def approve(record: Draft, row: Row, command: c.Approve) -> Decision:
    """Lift one approval, as long as there is time."""
    awaited = read_approval(command.hold)
    if awaited is None or command.hold not in record.held_by:
        return _refuse_without_approval(record)
    if is_expired(record, awaited, command.as_of):
        text = f"was to be approved within {awaited.seconds:,} s; submit it again"
        return refuse(c.APPROVAL_EXPIRED, record, text)
    facts = Facts(unheld=command.hold, rule=awaited.rule, approved=command.approved)
    return change(record, row, command, facts=facts)


def _refuse_without_approval(record: Draft) -> Refusal:
    return refuse("no_approval_awaited", record, "does not await an approval")


def hold(record: Draft, row: Row, command: c.Hold) -> Decision:
    """Add named holds; those of policies are the scheduler's, and so is what a decision lifts."""
    role = command.actor.role
    for name in (command.hold, *command.holds):
        if role is Role.CONTROL and is_lifted_otherwise(name, role):
            text = f"cannot be held by {name!r}, which only policies place; use another name"
            return refuse("reserved_hold", record, text)
    if command.lifts is not None and (role is Role.CONTROL or command.lifts != POLICY_HOLD):
        return _refuse_to_lift(record, command.lifts)
    placed = {command.hold, *command.holds} - set(record.held_by)
    if not placed:
        return Unchanged(record)
    if record.state not in UNADMITTED and any(is_gate(name) for name in placed):
        return refuse("admitted", record, "was admitted; a gate can hold it no more")
    facts = Facts(
        held=command.hold,
        holds=command.holds,
        unheld=command.lifts,
        rule=command.rule,
        rules=command.rules,
        verdict=command.verdict,
        decided_by=command.decided_by,
        approvers=command.approvers,
        on_expiry=command.on_expiry,
        terms=command.terms,
    )
    return change(record, row, command, facts=facts)


def unhold(record: Draft, row: Row, command: c.Unhold) -> Decision:
    """Remove a named hold, unless only a gate of policies lifts it."""
    if is_lifted_otherwise(command.hold, command.actor.role):
        return _refuse_to_lift(record, command.hold)
    if command.hold not in record.held_by:
        return Unchanged(record)
    return change(record, row, command, facts=Facts(unheld=command.hold))


def _refuse_to_lift(record: Draft, hold: str) -> Refusal:
    if read_approval(hold) is not None:
        instead = "people lift it, by their approval"
    elif hold == POLICY_HOLD:
        instead = "the rules decide on it: see `holdfast why`"
    else:
        instead = "a rule denied it: change the rules, and submit it again"
    return refuse("reserved_hold", record, f"keeps the hold {hold!r}; {instead}")


def reschedule(record: Draft, row: Row, command: c.Reschedule | c.Requeue) -> Decision:
    """Make it due at another time."""
    return change(record, row, command, run_at=command.run_at)


def claim(record: Draft, row: Row, command: c.Claim) -> Decision:
    """Grant the lease of a claim; a held job has none to give."""
    if not record.claimable:
        return refuse("held", record, f"is held by {', '.join(record.held_by)}")
    facts = Facts(epoch=command.epoch) if command.epoch != 1 else NO_FACTS
    return change(record, row, command, lease=After(record.policy.lease), facts=facts)
