"""What holds of a record in each state (C1), as data: predicates here, CHECKs in both schemas.

Each rule is a predicate and the same predicate in SQL, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from holdfast.lifecycle.record import Record
from holdfast.lifecycle.states import (
    HOLDABLE,
    KNOWN,
    LETTERED,
    OWNED,
    SUCCESSFUL,
    TERMINAL,
    UNSUCCESSFUL,
    Retention,
    State,
)
from holdfast.lifecycle.times import T, Time

_S = State
_CLAIMED_ONCE = OWNED | {_S.WAITING, _S.RETRYING, _S.STALLED, _S.SUCCEEDED}
_NEVER_CLAIMED = frozenset({_S.PENDING, _S.DENIED})
_MAYBE_LOST = frozenset(
    {_S.STALLED, _S.QUEUED, _S.FAILED, _S.CANCELLED, _S.TIMED_OUT, _S.DEAD_LETTERED}
)
"""Where a job may be whose last owner was lost."""


class Invariant(Struct, frozen=True):
    """One invariant: a name, a predicate of a record, and the same predicate in SQL."""

    name: str
    holds: Callable[[Record[Time]], bool]
    sql: str
    column: str | None = None
    """The column that it is about alone, by its presence:"""
    required: frozenset[State] = frozenset()
    """in these states it must be there,"""
    allowed: frozenset[State] = KNOWN
    """and in others than these it must not."""


def _codes(states: Iterable[State]) -> str:
    return ", ".join(str(state.code) for state in sorted(states, key=lambda state: state.code))


def _present(record: Record[Time], column: str) -> bool:
    value = getattr(record, column)
    return value is not None and value != ()


def _exactly(column: str, states: frozenset[State] | set[State]) -> Invariant:
    """Require the column in these states, and in no other."""
    return Invariant(
        f"{column}_by_state",
        lambda record: _present(record, column) == (record.state in states),
        f"({column} IS NOT NULL) = (state IN ({_codes(states)}))",
        column,
        required=frozenset(states),
        allowed=frozenset(states),
    )


def _only(column: str, states: frozenset[State] | set[State]) -> Invariant:
    """Allow the column in these states alone."""
    return Invariant(
        f"{column}_only",
        lambda record: not _present(record, column) or record.state in states,
        f"{column} IS NULL OR state IN ({_codes(states)})",
        column,
        allowed=frozenset(states),
    )


def _always(column: str, states: frozenset[State] | set[State]) -> Invariant:
    """Require the column in these states."""
    return Invariant(
        f"{column}_always",
        lambda record: _present(record, column) or record.state not in states,
        f"{column} IS NOT NULL OR state NOT IN ({_codes(states)})",
        column,
        required=frozenset(states),
    )


def attempts_in(state: State) -> str:
    """Write in SQL how many attempts a job in a state may have had."""
    if state in _NEVER_CLAIMED:
        return "attempt = 0"
    return "attempt > 0" if state in _CLAIMED_ONCE else "attempt >= 0"


RULES: tuple[Invariant, ...] = (
    Invariant(
        "state_known",
        lambda record: record.state in KNOWN,
        f"state IN ({_codes(KNOWN)})",
    ),
    _exactly("owner", OWNED),
    _exactly("lease_expires_at", OWNED),
    _exactly("epoch", OWNED),
    _only("timeout_at", OWNED),
    _exactly("result_digest", SUCCESSFUL),
    _exactly("error_code", UNSUCCESSFUL),
    _exactly("finished_at", TERMINAL),
    _always("started_at", {_S.RUNNING}),
    _only("started_at", KNOWN - {_S.PENDING, _S.CLAIMED}),
    _exactly("wait_for", {_S.WAITING}),
    _always("run_at", HOLDABLE),
    _only("held_by", HOLDABLE),
    _only("cancel_requested", OWNED | TERMINAL),
    _always("letter", {_S.DEAD_LETTERED}),
    _only("letter", LETTERED),
    _only("exit_code", TERMINAL),
    _only("result_ptr", TERMINAL),
    _only("late_results", TERMINAL),
    _only("lost_owner", _MAYBE_LOST),
    Invariant(
        "retention_terminal",
        lambda record: record.retention is Retention.LIVE or record.state in TERMINAL,
        f"retention = {Retention.LIVE.code} OR state IN ({_codes(TERMINAL)})",
    ),
    Invariant(
        "attempt_by_state",
        lambda record: (
            record.attempt > 0
            if record.state in _CLAIMED_ONCE
            else record.attempt == 0 or (record.attempt > 0 and record.state not in _NEVER_CLAIMED)
        ),
        f"CASE WHEN state IN ({_codes(_NEVER_CLAIMED)}) THEN attempt = 0 "
        f"WHEN state IN ({_codes(_CLAIMED_ONCE)}) "
        "THEN attempt > 0 ELSE attempt >= 0 END",
    ),
    Invariant(
        "counters",
        lambda record: (
            record.rev >= 1
            and 0 <= record.failures <= record.attempt
            and record.releases >= 0
            and record.beats >= 0
        ),
        "rev >= 1 AND failures BETWEEN 0 AND attempt AND releases >= 0 AND beats >= 0",
    ),
    Invariant(
        "beats_owned",
        lambda record: record.beats == 0 or record.state in OWNED,
        f"beats = 0 OR state IN ({_codes(OWNED)})",
    ),
)


def broken_rules(record: Record[T]) -> list[str]:
    """Return the invariants that a record breaks."""
    return [rule.name for rule in RULES if not rule.holds(record)]
