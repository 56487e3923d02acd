"""Every history that Holdfast can produce, rendered in a dialect, is legal in its seed.

The judge (`seed_rules`) is written by hand; it is shown here that it catches broken dialects.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from holdfast.lifecycle.dialects import DIALECTS, Dialect
from holdfast.lifecycle.states import EventType, Retention, State
from tests.lifecycle import seed_rules
from tests.lifecycle.histories import History, histories, random_histories
from tests.lifecycle.seed_rules import legal_in_seed

KEYS = tuple(DIALECTS)
A, B, C, D, E = DIALECTS.values()
MANY = 4000


@cache
def many_lives() -> tuple[History, ...]:
    return tuple(random_histories(MANY, seed=7))


def seen_edges(key: str) -> set[tuple[str | None, str]]:
    dialect = DIALECTS[key]
    lines = (line for history in many_lives() for line in dialect.history(history.events))
    return {(line.from_state, line.state) for line in lines}


@pytest.mark.req("A11")
def test_every_edge_of_a_is_lived_and_no_other() -> None:
    assert seen_edges("A") == seed_rules.A_EDGES


@pytest.mark.req("B1")
def test_every_edge_of_b_is_lived_and_no_other_but_the_next_attempt() -> None:
    moved = {(source, target) for source, target in seen_edges("B") if source != target}
    assert moved == seed_rules.B_EDGES | seed_rules.B_NEXT_ATTEMPT


@pytest.mark.req("B17")
def test_every_event_type_of_b_is_lived_and_no_other() -> None:
    names = {line.event for history in many_lives() for line in B.history(history.events)}
    assert names == {*seed_rules.B_EVENTS, *seed_rules.B_ASIDE}


@pytest.mark.req("C2")
def test_every_edge_of_c_is_lived_and_no_other_but_closing_writes() -> None:
    allowed = set().union(*seed_rules.C_EDGES.values()) | seed_rules.C_CLOSING
    assert seen_edges("C") == allowed


def test_every_edge_of_d_is_lived_and_no_other_but_those_without_exit_code() -> None:
    # A container found exited while starting is adopted first, so it is shown as running between.
    never = {("starting", "completed")}
    allowed = seed_rules.D_EDGES | seed_rules.D_WITHOUT_EXIT_CODE
    assert seen_edges("D") == allowed - never


@pytest.mark.req("E3")
def test_every_event_of_e_is_lived_and_no_other() -> None:
    lines = [line for history in many_lives() for line in E.history(history.events)]
    assert {line.event for line in lines} == {"job_created", *seed_rules.E_EVENTS}
    assert {line.state for line in lines} == {
        *("Queued", "Leased", "Running", "Waiting", "Retrying", "Completed", "Failed", "Cancelled")
    }


def problems(dialect: Dialect, history: History) -> list[str]:
    return legal_in_seed(dialect.key, dialect.history(history.events))


@pytest.mark.req("A11", "B1", "C2", "E3")
@settings(max_examples=300, deadline=None)
@given(histories())
def test_every_history_is_legal_in_every_seed(history: History) -> None:
    for dialect in DIALECTS.values():
        assert problems(dialect, history) == []
        last = dialect.history(history.events)[-1]
        assert last.state == dialect.state(history.job, history.events)


@pytest.mark.req("A11", "B1", "C2", "E3")
@pytest.mark.parametrize("key", KEYS)
def test_many_evenly_drawn_histories_are_legal_in_every_seed(key: str) -> None:
    for history in many_lives():
        assert problems(DIALECTS[key], history) == []


def without(words: Mapping[Any, str], *left_out: Any) -> dict[Any, str]:
    return {key: word for key, word in words.items() if key not in left_out}


BROKEN: dict[str, tuple[Dialect, dict[str, Any]]] = {
    "A shows no implied steps": (A, {"implied": {}}),
    "A goes back": (A, {"forward": False, "states": {**A.states, State.STALLED: "SCHEDULED"}}),
    "A times out what was never dispatched": (A, {"endings": A.endings[1:]}),
    "A fails what was never dispatched": (A, {"endings": A.endings[:1]}),
    "A denies a cancelled job": (A, {"states": {**A.states, State.CANCELLED: "DENIED"}}),
    "B fails what was lost before it ran": (B, {"endings": ()}),
    "B goes back within an attempt": (B, {"counts_next": False}),
    "B has a reason that is none": (B, {"errors": {}}),
    "B runs what is claimed": (B, {"states": {**B.states, State.CLAIMED: "running"}}),
    "B forgets an event": (B, {"arrivals": without(B.arrivals, "running")}),
    "C queues a waiting job": (C, {"states": {**C.states, State.WAITING: "queued"}}),
    "C has a name of its own": (C, {"arrivals": without(C.arrivals, "running")}),
    "C calls a renewal a claim": (C, {"names": {**C.names, EventType.LEASE_RENEWED: "claimed"}}),
    "C counts the next attempt": (C, {"counts_next": True}),
    "D goes back": (D, {"forward": False, "states": {**D.states, State.RETRYING: "pending"}}),
    "D times out what never started": (D, {"endings": ()}),
    "D has an exit code of what never ran": (D, {"extra": frozenset()}),
    "D cleans before it is cleaning": (D, {"retention": {Retention.CLEANED: "cleaned"}}),
    "E waits in its queue": (E, {"states": {**E.states, State.STALLED: "Waiting"}}),
    "E forgets an event": (E, {"arrivals": without(E.arrivals, "Waiting")}),
    "E completes what failed": (E, {"states": {**E.states, State.FAILED: "Completed"}}),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_a_broken_dialect_is_caught(defect: str) -> None:
    dialect, changes = BROKEN[defect]
    broken = replace(dialect, **changes)
    assert any(problems(broken, history) for history in many_lives())


def test_every_dialect_was_broken_in_some_way() -> None:
    assert {dialect.key for dialect, _ in BROKEN.values()} == set(KEYS)


def forgotten(history: History) -> bool:
    """Whether the record alone no longer says what a dialect asks for."""
    job = history.job
    ran_before = job.started_at is None and any(
        event.to_state is State.RUNNING for event in history.events
    )
    lost = [event for event in history.events if event.to_state is State.FAILED]
    return (
        ran_before
        or job.state is State.DEAD_LETTERED
        or bool(lost and lost[0].from_state is State.STALLED)
    )


def test_the_record_alone_tells_the_same_state_unless_it_forgot() -> None:
    compared = 0
    for history in many_lives():
        if not forgotten(history):
            compared += 1
            for dialect in DIALECTS.values():
                told = dialect.state(history.job, history.events)
                assert dialect.state(history.job) == told
    assert compared > MANY / 2
