"""The two decisions that nearly every job needs, each in one step: its start and its success.

`deliberate` asks one question after the other, and `apply` derives the next record from any event.
What they return in the ordinary case is written out here, on the same rows of the table; all other
cases are left to them. The tests decide everything both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import digest, sound_body
from holdfast.lifecycle.record import Change, Draft, DraftEvent, Event
from holdfast.lifecycle.states import BOXED, EventType, Operation, Retention, Role, State
from holdfast.lifecycle.times import NOW, After
from holdfast.lifecycle.transitions import TABLE

# Named once: reading a member off an enum's class costs as much as a call (Python 3.11).
_OWNER, _LIVE = Role.OWNER, Retention.LIVE


def _edges_of(operation: Operation) -> dict[State, tuple[EventType, State]]:
    """Return what an owner's operation does, by the state before: its event, the state after."""
    return {
        source: (row.events[0], row.targets(source))
        for row in TABLE
        if row.operation is operation and _OWNER in row.roles
        for source in row.sources
    }


_STARTS, _COMPLETES = _edges_of(Operation.START), _edges_of(Operation.COMPLETE)


def _is_ordinary(record: Draft, command: c.Command) -> bool:
    """Return whether the job's owner sent it, without more, and nothing is in its way."""
    actor = command.actor
    return (
        actor.role is _OWNER
        and record.owner == actor.name
        and record.attempt == actor.attempt
        and command.request_id is None
        and command.reason is None
        and record.retention is _LIVE
        and not record.held_by
    )


def _start(record: Draft, command: c.Start) -> Change | None:
    edge = _STARTS.get(record.state)
    if edge is None or command.network is not None or not _is_ordinary(record, command):
        return None
    type_, target = edge
    policy, rev, ago = record.policy, record.rev + 1, command.ago
    at, lease = After(-ago), After(policy.running_lease - ago)
    event: DraftEvent = Event(
        id=record.id,
        rev=rev,
        type=type_,
        from_state=record.state,
        to_state=target,
        at=at,
        actor=command.actor.name,
        attempt=record.attempt,
        beats=record.beats,
        lease_expires_at=lease,
    )
    after = replace(
        record,
        state=target,
        rev=rev,
        updated_at=at,
        beats=0,
        lease_expires_at=lease,
        started_at=at,
        timeout_at=None if policy.timeout is None else After(policy.timeout - ago),
    )
    return Change(record=record, event=event, next=after, fenced=True)


def _complete(record: Draft, command: c.Complete) -> Change | None:
    edge = _COMPLETES.get(record.state)
    if edge is None or not _is_ordinary(record, command) or _has_facts(command):
        return None
    if record.kind in BOXED:
        # It has no exit code here, and such a success is refused in words.
        return None
    type_, target = edge
    rev, body = record.rev + 1, sound_body(command.body, "body")
    named = digest(body)
    event: DraftEvent = Event(
        id=record.id,
        rev=rev,
        type=type_,
        from_state=record.state,
        to_state=target,
        at=NOW,
        actor=command.actor.name,
        attempt=record.attempt,
        beats=record.beats,
        lease_expires_at=record.lease_expires_at,
        body=body,
        digest=named,
    )
    after = replace(
        record,
        state=target,
        rev=rev,
        updated_at=NOW,
        beats=0,
        owner=None,
        epoch=None,
        lease_expires_at=None,
        timeout_at=None,
        finished_at=NOW,
        result_digest=named,
    )
    return Change(record=record, event=event, next=after, fenced=True)


def _has_facts(command: c.Complete) -> bool:
    return (
        command.exit_code is not None
        or command.execution_ms is not None
        or bool(command.result_ptr)
        or command.worker is not None
        or command.log is not None
        or command.artifacts is not None
    )


FAST_PATH: dict[type[c.Command], Callable[[Draft, Any], Change | None]] = {
    c.Start: _start,
    c.Complete: _complete,
}
"""What decides a command in the ordinary case; it returns None in every other case."""
