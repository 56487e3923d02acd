"""What each state demands of a record (C1), from a table written by hand; in Python and in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from holdfast.lifecycle.invariants import RULES, Invariant, broken_rules
from holdfast.lifecycle.record import Job, Signal
from holdfast.lifecycle.states import CancelMode, Coded, Letter, Retention, State
from tests.lifecycle.factories import life_in
from tests.lifecycle.test_matrix import read, states_of

DEMANDS = """
column           | needed in           | allowed in
owner            | owned               | owned
lease_expires_at | owned               | owned
epoch            | owned               | owned
timeout_at       |                     | owned
result_digest    | succeeded           | succeeded
error_code       | unsuccessful        | unsuccessful
finished_at      | ended               | ended
started_at       | running             | queued running waiting retrying stalled ended
wait_for         | waiting             | waiting
run_at           | pending due         | pending due owned waiting ended
held_by          |                     | pending due
cancel_requested |                     | owned ended
letter           | dead_lettered       | letter
exit_code        |                     | ended
result_ptr       |                     | ended
late_results     |                     | ended
lost_owner       |                     | queued stalled failed cancelled timed_out dead_lettered
"""
UNSUCCESSFUL = "failed cancelled timed_out denied dead_lettered"
SOMETHING: dict[str, Any] = {
    "owner": "w7",
    "result_digest": b"digest",
    "error_code": "boom",
    "wait_for": "go",
    "held_by": ("upload",),
    "cancel_requested": CancelMode.SOFT,
    "letter": Letter.OPEN,
    "result_ptr": "s3://r",
    "late_results": ("1:w1",),
    "lost_owner": "w1",
}
STATES = [state for state in State if state is not State.UNKNOWN]


def demanded(column: str) -> tuple[set[str], set[str]]:
    row = next(row for row in read(DEMANDS) if row["column"] == column)
    needed = row["needed in"].replace("unsuccessful", UNSUCCESSFUL)
    allowed = row["allowed in"].replace("unsuccessful", UNSUCCESSFUL)
    return states_of(needed), states_of(allowed)


@pytest.mark.req("C1")
@pytest.mark.parametrize("column", [row["column"] for row in read(DEMANDS)])
def test_a_column_is_there_where_it_is_needed_and_only_where_it_is_allowed(column: str) -> None:
    needed, allowed = demanded(column)
    empty = () if column in ("held_by", "late_results") else None
    for state in STATES:
        record = life_in(state).record
        assert broken_rules(record) == []
        present = replace(record, **{column: SOMETHING.get(column, 1)})
        absent = replace(record, **{column: empty})

        assert bool(broken_rules(present)) is (state not in allowed), state
        assert bool(broken_rules(absent)) is (state in needed), state


@pytest.mark.req("C1", "C7")
@pytest.mark.parametrize("state", STATES)
def test_a_state_tells_whether_there_was_an_attempt(state: State) -> None:
    record = life_in(state).record
    never = replace(record, attempt=0, failures=0)
    once = replace(record, attempt=1)
    claimed_once = {"claimed", "running", "waiting", "retrying", "stalled", "succeeded"}

    assert ("attempt_by_state" in broken_rules(never)) is (state in claimed_once)
    assert ("attempt_by_state" in broken_rules(once)) is (state in {"pending", "denied"})


@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ({"rev": 0}, "counters"),
        ({"failures": -1}, "counters"),
        ({"failures": 2}, "counters"),
        ({"releases": -1}, "counters"),
        ({"beats": -1}, "counters"),
        ({"retention": Retention.CLEANING}, "retention_terminal"),
        ({"retention": Retention.CLEANED}, "retention_terminal"),
        ({"state": State.UNKNOWN}, "state_known"),
    ],
)
def test_a_counter_or_a_second_axis_that_cannot_be_is_named(
    columns: dict[str, Any], rule: str
) -> None:
    assert rule in broken_rules(replace(life_in(State.RUNNING).record, **columns))


def test_heartbeats_are_counted_only_while_somebody_owns_the_job() -> None:
    for state in STATES:
        record = replace(life_in(state).record, beats=1)
        assert ("beats_owned" in broken_rules(record)) is (state not in {"claimed", "running"})


COLUMNS = [row["column"] for row in read(DEMANDS)]
NUMBERS = ("rev", "attempt", "failures", "releases", "beats", "retention", "state")


def sample() -> Iterator[Job]:
    """Records of all states, with each column there, not there, and wrong."""
    for state in (*STATES, State.UNKNOWN):
        record = life_in(state if state in STATES else State.RUNNING).record
        record = replace(record, state=state)
        yield record
        for column in COLUMNS:
            empty = () if column in ("held_by", "late_results") else None
            yield replace(record, **{column: SOMETHING.get(column, 1)})
            yield replace(record, **{column: empty})
        for number in ("rev", "attempt", "failures", "releases", "beats"):
            for value in (-1, 0, 1, 2):
                yield replace(record, **{number: value})
        for retention in Retention:
            yield replace(record, retention=retention)


def stored(value: Any) -> Any:
    """Write a column as a store does: words by their codes, nothing and empty lists as NULL."""
    if isinstance(value, Coded):
        return value.code
    if isinstance(value, tuple):
        return repr(value) if value else None
    return value


def passes_check(database: apsw.Connection, rule: Invariant, record: Job) -> bool:
    """Ask SQLite; a CHECK that yields NULL lets a row through."""
    names = (*COLUMNS, *NUMBERS)
    columns = ", ".join(f"? AS {name}" for name in names)
    values = [stored(getattr(record, name)) for name in names]
    verdict = database.execute(f"SELECT {rule.sql} FROM (SELECT {columns})", values).get
    return verdict is None or bool(verdict)


@pytest.mark.req("C1")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_judges_in_sql_as_it_judges_in_python(rule: Invariant) -> None:
    database = apsw.Connection(":memory:")
    verdicts = set()
    for record in sample():
        verdict = rule.holds(record)
        verdicts.add(verdict)
        assert passes_check(database, rule, record) is verdict, record

    assert verdicts == {True, False}


def test_pending_signals_stand_outside_the_rules() -> None:
    record = replace(life_in(State.SUCCEEDED).record, signals=(Signal("go", 2),))

    assert broken_rules(record) == []
