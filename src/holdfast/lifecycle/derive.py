"""From events to the record: the one definition of what an event changes.

`decide` uses `apply` to make the next record, verify and rebuild use it to check and restore it.
It reads the states stored in an event, never its type alone (E8), so that an event of a newer
version still moves a job as far as its states are known.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from holdfast.lifecycle.record import (
    NO_FACTS,
    UNCONFIRMED,
    Created,
    Event,
    Facts,
    Job,
    LoggedEvent,
    Record,
    Signal,
)
from holdfast.lifecycle.states import BEATS, HOLDABLE, OWNED, TERMINAL, Letter, State
from holdfast.lifecycle.times import T, later


def derive(events: Iterable[LoggedEvent]) -> Job | None:
    """Fold a job's events, in order, into its record."""
    record: Job | None = None
    for event in events:
        record = born(event) if record is None else apply(record, event)
    return record


def derive_status(events: Iterable[LoggedEvent]) -> State | None:
    """Return the state alone: the last event with a known state decides."""
    state = None
    for event in events:
        if event.to_state is not State.UNKNOWN:
            state = event.to_state
    return state


def born(event: Event[T]) -> Record[T]:
    """Return the record that a first event makes."""
    made = event.created
    if made is None:
        raise ValueError(f"the first event of {event.id} does not contain what was submitted")
    return Record(
        id=event.id,
        **dict(zip(_FIXED, _fixed(made), strict=True)),
        deadline_at=event.deadline_at,
        created_at=event.at,
        state=event.to_state,
        rev=event.rev,
        run_at=event.run_at,
        held_by=event.facts.holds,
        updated_at=event.at,
    )


_FIXED = tuple(name for name in Created.__struct_fields__ if name in Record.__struct_fields__)
"""What the first event fixes, and the record repeats."""
_fixed = attrgetter(*_FIXED)

# Reading a member off an enum's class costs as much as a call (Python 3.11), and every change of
# every job comes through here.
_UNKNOWN, _CLAIMED, _RUNNING = State.UNKNOWN, State.CLAIMED, State.RUNNING
_WAITING, _SUCCEEDED = State.WAITING, State.SUCCEEDED
_DISOWNED = {"owner": None, "epoch": None, "lease_expires_at": None, "timeout_at": None}


def apply(record: Record[T], event: Event[T]) -> Record[T]:
    """Return what a record is after an event."""
    source, target = record.state, event.to_state
    if target is _UNKNOWN:
        target = source
    changes: dict[str, Any] = {
        "state": target,
        "rev": event.rev,
        "updated_at": event.at,
        # By revision, not one by one: earlier heartbeats may have been dropped.
        "beats": record.beats + event.rev - record.rev if event.type in BEATS else 0,
    }
    if target in OWNED:
        _apply_ownership(record, event, target, changes)
    elif source in OWNED:
        changes.update(_DISOWNED)
    if event.run_at is not None:
        changes["run_at"] = event.run_at
    if source is not target and (target is _WAITING or source is _WAITING):
        _apply_wait(event, target, changes)
    if target in TERMINAL and source not in TERMINAL:
        _apply_outcome(event, target, changes)
    if record.held_by and target not in HOLDABLE:
        changes["held_by"] = ()
    if event.facts is not NO_FACTS:
        _apply_facts(record, event, changes)
    return replace(record, **changes)


def _apply_ownership(
    record: Record[T], event: Event[T], target: State, changes: dict[str, Any]
) -> None:
    if event.lease_expires_at is None:
        return
    source = record.state
    changes["lease_expires_at"] = event.lease_expires_at
    if target is _CLAIMED and source is not _CLAIMED:
        changes.update(owner=event.actor, epoch=event.facts.epoch or 1, attempt=event.attempt)
        changes.update(
            started_at=None, timeout_at=_compute_timeout(record, event, target), lost_owner=None
        )
    elif target is _RUNNING and source is _CLAIMED:
        changes["started_at"] = event.at
        changes["timeout_at"] = _compute_timeout(record, event, target)
    if event.facts.last_owner is not None:
        changes.update(owner=event.actor, epoch=event.facts.epoch or 1)


def _apply_wait(event: Event[T], target: State, changes: dict[str, Any]) -> None:
    if target is _WAITING:
        changes["wait_for"], changes["run_at"] = event.facts.wait_for, event.run_at
    else:
        changes["wait_for"] = None


def _compute_timeout(record: Record[T], event: Event[T], target: State) -> T | None:
    """Count a phase's time limit from when its lease was granted.

    Not from `at`: the time of a start folded into a later commit may be cut to the job's last
    event, and the row would then differ from its events.
    """
    policy = record.policy
    limit, lease = (
        (policy.start_timeout, policy.lease)
        if target is _CLAIMED
        else (policy.timeout, policy.running_lease)
    )
    if limit is None or event.lease_expires_at is None:
        return None
    return later(event.lease_expires_at, limit - lease)


def _apply_outcome(event: Event[T], target: State, changes: dict[str, Any]) -> None:
    changes["finished_at"] = event.at
    if target is _SUCCEEDED:
        changes["result_digest"] = event.digest
    else:
        changes["error_code"] = event.facts.error_code
    if target is State.DEAD_LETTERED:
        changes["letter"] = Letter.OPEN


_COPIED = (
    ("failures", "failures"),
    ("releases", "releases"),
    ("cancel", "cancel_requested"),
    ("letter", "letter"),
    ("retention", "retention"),
    ("policy", "policy"),
)


def _apply_facts(record: Record[T], event: Event[T], changes: dict[str, Any]) -> None:
    facts = event.facts
    for fact, column in _COPIED:
        if (value := getattr(facts, fact)) is not None:
            changes[column] = value
    if facts.held is not None or facts.unheld is not None:
        changes["held_by"] = _holds(record, facts)
    if facts.signal is not None or facts.consumed is not None:
        changes["signals"] = _signals(record, event)
    if facts.kill == UNCONFIRMED and record.owner is not None:
        changes["lost_owner"] = record.owner
    if facts.late is not None:
        changes["late_results"] = (*record.late_results, facts.late)
    if changes["state"] in TERMINAL and record.state not in TERMINAL:
        changes.update(exit_code=facts.exit_code, result_ptr=facts.result_ptr)


def _holds(record: Record[T], facts: Facts) -> tuple[str, ...]:
    placed = set() if facts.held is None else {facts.held, *facts.holds}
    return tuple(sorted({*record.held_by, *placed} - {facts.unheld}))


def _signals(record: Record[T], event: Event[T]) -> tuple[Signal, ...]:
    kept = tuple(signal for signal in record.signals if signal.rev != event.facts.consumed)
    return (*kept, Signal(event.facts.signal, event.rev)) if event.facts.signal else kept
