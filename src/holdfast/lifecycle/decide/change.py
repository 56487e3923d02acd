"""What every rule returns: the change with its one event, or a refusal."""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import replace

from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.derive import apply
from holdfast.lifecycle.linked import compensation
from holdfast.lifecycle.payload import check_number, check_text, check_time, digest, sound_body
from holdfast.lifecycle.record import (
    NO_FACTS,
    Change,
    Draft,
    DraftEvent,
    Event,
    Facts,
    NewJob,
    Refusal,
    Unchanged,
)
from holdfast.lifecycle.states import OWNED, EventType, Operation, Role
from holdfast.lifecycle.times import NOW, Time
from holdfast.lifecycle.transitions import Row

Decision: TypeAlias = Change | Unchanged | Refusal

# Named once: reading a member off an enum's class costs as much as a call (Python 3.11).
_OWNER, _CLAIM, _HEARTBEAT = Role.OWNER, Operation.CLAIM, Operation.HEARTBEAT


def change(
    record: Draft,
    row: Row,
    command: Command,
    *,
    type: EventType | None = None,
    at: Time = NOW,
    lease: Time | None = None,
    run_at: Time | None = None,
    facts: Facts = NO_FACTS,
    body: bytes | None = None,
    submits: tuple[NewJob, ...] = (),
) -> Change:
    """Write the one event of a change, and derive the record that follows from it."""
    _check_texts(command, facts)
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
        # Here, where every way to end comes through: it exists exactly if the end does.
        submits = (*submits, *compensation(record, target, command.actor))
    return Change(
        record=record,
        event=event,
        next=apply(record, event),
        fenced=command.actor.role is _OWNER,
        submits=submits,
    )


def _check_texts(command: Command, facts: Facts) -> None:
    """Raise BadData for text that cannot be kept, as a submit does: before anything is written."""
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
        for output in (facts.log, facts.artifacts):
            if output is not None:
                check_text(output.digest, "digest", limit=200)
                check_number(output.bytes, "bytes", low=0, high=2**62)


_FACT_TEXTS = (
    *("held", "unheld", "wait_for", "signal", "step", "error_code", "result_ptr"),
    *("stage", "rule", "rules", "worker", "late_state", "network"),
)


def refuse(code: str, record: Draft, text: str) -> Refusal:
    """Return a refusal whose message names the job and its state."""
    return Refusal(code=code, message=f"job {record.public_id} ({record.state}) {text}")


def refuse_live_lease(record: Draft) -> Refusal:
    """Refuse to take a job from an owner that may still act."""
    return refuse("lease_live", record, f"is held by {record.owner} with a live lease")


def refuse_second_run(record: Draft, advice: str = "") -> Refusal:
    """Refuse to run a handler again that is not idempotent."""
    return refuse("not_idempotent", record, f"has started and must not be run again{advice}")


def refuse_unread_signals(record: Draft) -> Refusal:
    """Refuse to decide on a wait while the signal that ends it may not have been read."""
    text = f"has {record.unread_signals:,} pending signals that were not read; read them first"
    return refuse("signals_unread", record, text)
