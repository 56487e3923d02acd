"""The law: one table of data. What is not in it is refused.

Constraints and triggers of both schemas, the diagram in the docs and the matrix of the tests are
made from this table or tested against it. A new edge is one row here and one migration.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Flag, auto

from msgspec import Struct

from holdfast.lifecycle.states import (
    CLAIMABLE,
    HOLDABLE,
    LETTERED,
    LIVE,
    OWNED,
    TERMINAL,
    UNOWNED,
    EventType,
    Operation,
    Role,
    State,
)

_S, _O, _R, _E = State, Operation, Role, EventType


class Repeats(Flag):
    """How a repetition of an operation is recognised, whose first reply was lost."""

    NOT = 0
    BY_STATE = auto()
    """The job is already in the state that it leads to."""
    BY_REQUEST = auto()
    """Its event is looked up by its request_id: it comes from a client, not from an owner."""


_BY_STATE, _BY_REQUEST = Repeats.BY_STATE, Repeats.BY_REQUEST


class Row(Struct, frozen=True):
    """One line of the table. `target=None` means that the state stays."""

    operation: Operation
    sources: frozenset[State]
    target: State | None
    roles: frozenset[Role]
    events: tuple[EventType, ...]
    repeats: Repeats = Repeats.NOT
    folds: bool = False
    """May share one row update with its neighbours of the same job (see `paths`)."""
    effect: str = ""

    def targets(self, source: State) -> State:
        """Return the state that this row leads to from `source`."""
        return source if self.target is None else self.target


def _row(
    operation: Operation,
    sources: frozenset[State] | set[State],
    target: State | None,
    roles: set[Role],
    events: tuple[EventType, ...] | EventType,
    *,
    repeats: Repeats = Repeats.NOT,
    folds: bool = False,
    effect: str = "",
) -> Row:
    return Row(
        operation,
        frozenset(sources),
        target,
        frozenset(roles),
        events if isinstance(events, tuple) else (events,),
        repeats,
        folds,
        effect,
    )


# A row reads: operation, from, to, by, event; then how a repetition is recognised, whether it
# folds, and its effect in words. The formatter would spread each over ten lines.
# fmt: off
TABLE: tuple[Row, ...] = (
    _row(_O.ADMIT, {_S.PENDING}, _S.QUEUED, {_R.SCHEDULER}, _E.ADMITTED, repeats=_BY_STATE),
    _row(_O.DENY, {_S.PENDING, _S.QUEUED}, _S.DENIED, {_R.SCHEDULER}, _E.DENIED,
         repeats=_BY_STATE,
         effect="error; only while attempt is 0; losing to a claim becomes request_cancel"),
    _row(_O.DENY, {_S.PENDING}, _S.DENIED, {_R.CONTROL}, _E.DENIED,
         repeats=_BY_STATE, effect="error; only what awaits an approval"),
    _row(_O.APPROVE, {_S.PENDING}, None, {_R.CONTROL}, _E.APPROVED,
         repeats=_BY_REQUEST, effect="lifts one approval of those that it awaits"),
    _row(_O.HOLD, HOLDABLE, None, {_R.SCHEDULER, _R.CONTROL}, _E.HELD,
         repeats=_BY_REQUEST, effect="held_by"),
    _row(_O.UNHOLD, HOLDABLE, None, {_R.SCHEDULER, _R.CONTROL}, _E.UNHELD,
         repeats=_BY_REQUEST, effect="held_by"),
    _row(_O.RESCHEDULE, HOLDABLE, None, {_R.SCHEDULER, _R.CONTROL}, _E.RESCHEDULED,
         repeats=_BY_REQUEST, effect="run_at"),
    _row(_O.CLAIM, CLAIMABLE, _S.CLAIMED, {_R.WORKER, _R.BUS}, _E.CLAIMED,
         effect="attempt +1, owner, lease"),
    _row(_O.CORRECT_TERMS, {_S.CLAIMED}, None, {_R.OWNER}, _E.TERMS_CORRECTED,
         effect="the policy becomes the task's; never a weaker one (resolution 18)"),
    _row(_O.START, {_S.CLAIMED}, _S.RUNNING, {_R.OWNER}, _E.STARTED,
         repeats=_BY_STATE, folds=True, effect="started_at, lease"),
    _row(_O.HEARTBEAT, OWNED, None, {_R.OWNER}, (_E.HEARTBEAT, _E.LEASE_RENEWED), effect="lease"),
    _row(_O.ADOPT, OWNED, _S.RUNNING, {_R.HOST, _R.BUS}, _E.ADOPTED,
         effect="new owner, lease; same attempt; the lease may be past; a bus only its own"),
    _row(_O.STEP, {_S.RUNNING}, None, {_R.OWNER},
         (_E.STEP_STARTED, _E.STEP_COMPLETED, _E.STEP_FAILED), folds=True,
         effect="a step's result or error, or the signal it consumed"),
    _row(_O.PROGRESS, {_S.RUNNING}, None, {_R.OWNER}, _E.PROGRESSED,
         folds=True, effect="how far it is; or that it runs on because it is unkillable"),
    _row(_O.WAIT, {_S.RUNNING}, _S.WAITING, {_R.OWNER}, _E.WAITING,
         repeats=_BY_STATE, folds=True,
         effect="what for, until when; refused while a matching signal is pending"),
    _row(_O.RESUME, {_S.WAITING}, _S.QUEUED, {_R.CONTROL, _R.RECONCILER}, _E.WAIT_COMPLETED,
         effect="consumes the signal or the timer"),
    _row(_O.COMPLETE, {_S.RUNNING}, _S.SUCCEEDED, {_R.OWNER}, _E.SUCCEEDED,
         repeats=_BY_STATE, folds=True,
         effect="result; a command or agent only with exit code 0 (resolution 17)"),
    _row(_O.FAIL, {_S.RUNNING}, _S.FAILED, {_R.OWNER}, _E.FAILED,
         repeats=_BY_STATE, folds=True, effect="error, failures +1"),
    _row(_O.LOSE, OWNED | {_S.STALLED}, _S.FAILED, {_R.RECONCILER}, _E.FAILED,
         repeats=_BY_STATE, effect="error code, failures +1; after a lost lease"),
    _row(_O.LOSE, OWNED, _S.FAILED, {_R.HOST}, _E.FAILED,
         repeats=_BY_STATE,
         effect="the same at once: who holds the host's lock knows that the owner is dead"),
    _row(_O.RETRY, OWNED, _S.RETRYING, {_R.OWNER}, _E.RETRYING,
         repeats=_BY_STATE, folds=True, effect="failures +1, run_at by backoff"),
    _row(_O.RELEASE, OWNED, _S.STALLED, {_R.OWNER}, _E.RELEASED,
         repeats=_BY_STATE, folds=True,
         effect="no failure; capped; from running only if idempotent"),
    _row(_O.STALL, OWNED, _S.STALLED, {_R.RECONCILER}, _E.STALLED,
         repeats=_BY_STATE, effect="failures +1 (resolution 2), run_at (resolution 6)"),
    _row(_O.REQUEUE, {_S.STALLED}, _S.QUEUED, {_R.RECONCILER, _R.CONTROL}, _E.REQUEUED,
         repeats=_BY_STATE | _BY_REQUEST, effect="run_at"),
    _row(_O.REQUEST_CANCEL, OWNED, None, {_R.CONTROL, _R.SCHEDULER, _R.RECONCILER},
         _E.CANCEL_REQUESTED, repeats=_BY_REQUEST, effect="sticky flag, soft or hard"),
    _row(_O.CANCEL, UNOWNED, _S.CANCELLED, {_R.CONTROL, _R.RECONCILER}, _E.CANCELLED,
         repeats=_BY_STATE | _BY_REQUEST,
         effect="error; the reconciler only when the parent was cancelled"),
    _row(_O.CANCEL, OWNED, _S.CANCELLED, {_R.OWNER, _R.RECONCILER}, _E.CANCELLED,
         repeats=_BY_STATE, folds=True,
         effect="error, evidence; the owner after the kill, the reconciler after a lost lease"),
    _row(_O.TIME_OUT, LIVE, _S.TIMED_OUT, {_R.RECONCILER}, _E.TIMED_OUT,
         repeats=_BY_STATE, effect="error"),
    _row(_O.TIME_OUT, OWNED, _S.TIMED_OUT, {_R.OWNER}, _E.TIMED_OUT,
         repeats=_BY_STATE, folds=True, effect="error; past its timeout or deadline"),
    _row(_O.DEAD_LETTER, HOLDABLE, _S.DEAD_LETTERED, {_R.SCHEDULER, _R.RECONCILER},
         _E.DEAD_LETTERED, repeats=_BY_STATE, effect="the dead letter"),
    _row(_O.DEAD_LETTER, OWNED, _S.DEAD_LETTERED, {_R.OWNER, _R.RECONCILER}, _E.DEAD_LETTERED,
         repeats=_BY_STATE, folds=True, effect="the dead letter"),
    _row(_O.SIGNAL, LIVE, None, {_R.CONTROL}, _E.SIGNAL_RECEIVED,
         repeats=_BY_REQUEST,
         effect="buffered; a racing wait loses its compare-and-set and sees it"),
    _row(_O.LATE_RESULT, TERMINAL, None, {_R.WORKER, _R.BUS}, _E.RESULT_IGNORED,
         effect="annotation"),
    _row(_O.COMPENSATED, TERMINAL, None, {_R.RECONCILER, _R.WORKER}, _E.COMPENSATED,
         repeats=_BY_REQUEST, effect="annotation"),
    _row(_O.REDRIVEN, LETTERED, None, {_R.CONTROL}, _E.REDRIVEN,
         repeats=_BY_REQUEST,
         effect="annotation; an open letter once, a settled one only deliberately"),
    _row(_O.DISCARDED, LETTERED, None, {_R.CONTROL}, _E.DISCARDED,
         repeats=_BY_REQUEST, effect="annotation; an open letter"),
    _row(_O.CLEAN, TERMINAL, None, {_R.JANITOR}, _E.CLEANING, effect="retention moves"),
    _row(_O.CLEANED, TERMINAL, None, {_R.JANITOR}, _E.CLEANED,
         effect="retention moves; keys freed"),
)
# fmt: on

SUBMIT_EVENT = EventType.CREATED
"""The first event of every job; its other events come by `TABLE`."""
SUBMIT_TARGETS = (State.PENDING, State.QUEUED)
"""The two states that a submit may lead to."""


def _events(rows: Iterable[Row]) -> frozenset[EventType]:
    return frozenset(event for row in rows for event in row.events)


_LEAVING = [row for row in TABLE if row.sources & OWNED and row.target not in {None, *OWNED}]

EVENTS: dict[Operation, frozenset[EventType]] = {
    operation: _events(row for row in TABLE if row.operation is operation)
    for operation in Operation
}
"""The events that each operation may write."""
TARGETS: dict[Operation, State] = {
    row.operation: row.target for row in TABLE if row.target is not None
}
"""The state that each operation leads to; without those that keep a job's state."""
END_EVENTS: dict[State, EventType] = {
    row.target: row.events[0] for row in TABLE if row.target in TERMINAL
}
"""The event that leads to each terminal state."""
ENDS = frozenset(END_EVENTS.values())
"""The events that end a job."""
LEAVES = _events(_LEAVING)
"""The events that end an ownership: those that end a job, and those after which it waits."""
OWNER_LEAVES = _events(row for row in _LEAVING if _R.OWNER in row.roles)
"""The events by which an owner itself ends its attempt."""
TAKES = _events(row for row in TABLE if row.target in OWNED and _R.OWNER not in row.roles)
"""The events that give a job a new owner."""
BACKDATED = EVENTS[_O.START]
"""The events whose time may lie before their writing: a start may be folded into a later commit."""
ORDINARY = EVENTS[_O.START] | EVENTS[_O.COMPLETE] | EVENTS[_O.PROGRESS] | EVENTS[_O.HEARTBEAT]
"""The events of nearly every commit: without facts they change no column but those of a run."""
APPROVALS, HOLDS, DENIALS = EVENTS[_O.APPROVE], EVENTS[_O.HOLD], EVENTS[_O.DENY]
"""The events of people who approved a job, those that placed holds on it, and that denied it."""
DECISIONS = HOLDS | DENIALS | EVENTS[_O.ADMIT]
"""The events that may have what rules decided on a job after its birth."""
CLAIM_EVENT, CLAIM_TARGET = EventType.CLAIMED, TARGETS[_O.CLAIM]
"""The edge that stores apply themselves, in the claim statement."""

REPEATED_IN: dict[Operation, State] = {
    row.operation: TARGETS[row.operation] for row in TABLE if Repeats.BY_STATE in row.repeats
}
"""The state that an operation leads to, and in which a repetition of it already holds."""
REQUESTED = _events(row for row in TABLE if Repeats.BY_REQUEST in row.repeats)
"""The events that a request of a client, not of an owner, leads to: a repetition is found by its
request_id."""

STICKY = frozenset({_O.STALL, _O.RETRY, _O.RELEASE, _O.WAIT, _O.LOSE, _O.DEAD_LETTER, _O.TIME_OUT})
"""With a cancel requested these ways out become `cancel` (resolution 11).

An owner's own dead_letter and time_out stay what they are: only the reconciler's are turned.
"""


def find_row(operation: Operation, state: State, role: Role) -> Row | None:
    """Return the row for `operation` from `state` by `role`; None if the law has none."""
    return _ROWS.get((operation, state, role))


_ROWS: dict[tuple[Operation, State, Role], Row] = {
    (row.operation, source, role): row
    for row in TABLE
    for source in row.sources
    for role in row.roles
}
ROLES: dict[Operation, frozenset[Role]] = {
    operation: frozenset().union(*(row.roles for row in TABLE if row.operation is operation))
    for operation in Operation
    if operation is not Operation.SUBMIT
}
SOURCES: dict[tuple[Operation, Role], frozenset[State]] = {
    (operation, role): frozenset().union(
        *(row.sources for row in TABLE if row.operation is operation and role in row.roles)
    )
    for operation, roles in ROLES.items()
    for role in roles
}


def legal_events() -> frozenset[tuple[EventType, State | None, State]]:
    """Return every legal (event, from, to)."""
    born = {(EventType.CREATED, None, target) for target in SUBMIT_TARGETS}
    return frozenset(born) | {
        (event, source, row.targets(source))
        for row in TABLE
        for source in row.sources
        for event in row.events
    }


def moves() -> frozenset[tuple[State, State]]:
    """Return every (from, to) that one event may make."""
    return frozenset((source, target) for _, source, target in legal_events() if source is not None)


FOLDABLE = _events(row for row in TABLE if row.folds)
"""The events that may share one row update, in any order; beside these only `_PAIRS`."""
_PAIRS = frozenset(
    {
        (EventType.SIGNAL_RECEIVED, EventType.WAIT_COMPLETED),
        (EventType.APPROVED, EventType.ADMITTED),
        (EventType.UNHELD, EventType.ADMITTED),
    }
)
"""A signal and its resume; the last approval, or a lifted hold, and the admission behind it."""


def may_follow(before: EventType, after: EventType) -> bool:
    """Return whether two events of one job may share a row update, one right behind the other."""
    if before in FOLDABLE and after in FOLDABLE:
        return True
    return (before, after) in _PAIRS


def paths() -> frozenset[tuple[State, State]]:
    """Return every (from, to) that a fold of two or more events may make in one row update.

    An owner may fold start, step, progress, wait and an ending; control may fold signal + resume,
    and approve or unhold + admit.
    """
    steps = {(source, row.targets(source)) for row in TABLE if row.folds for source in row.sources}
    reached = set(_compose(steps, steps))
    while (more := reached | set(_compose(reached, steps))) != reached:
        reached = more
    return frozenset(reached | {(State.WAITING, State.QUEUED), (State.PENDING, State.QUEUED)})


def _compose(
    left: set[tuple[State, State]], right: set[tuple[State, State]]
) -> list[tuple[State, State]]:
    return [(a, d) for a, b in left for c, d in right if b == c and b not in TERMINAL]
