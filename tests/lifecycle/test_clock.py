"""The store's clock as pure arithmetic: it never goes back, and follows no passing jump."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.lifecycle.clock import (
    GAP,
    MARK_EVERY,
    ClockState,
    ClockStep,
    ClockWatch,
    tend,
)
from holdfast.lifecycle.times import SECOND

HOUR = 3600 * SECOND
NOON = 1_800_000_000 * SECOND


def test_a_clock_set_back_by_an_hour_goes_on_from_its_mark() -> None:
    state, step = tend(ClockState(NOON), NOON - HOUR, steady=False) or (None, None)
    assert step == ClockStep(NOON, HOUR)
    assert state is not None
    assert state.now(NOON - HOUR) == NOON
    assert state.now(NOON - HOUR + 100 * SECOND) == NOON + 90 * SECOND


def test_the_shift_is_gone_once_the_machine_has_caught_up() -> None:
    state = ClockState(NOON, HOUR, NOON - HOUR)
    machine = NOON - HOUR + 10 * HOUR
    assert state.ahead(machine) == 0
    assert state.now(machine) == machine
    kept = tend(state, machine, steady=True)
    assert kept == (ClockState(machine, 0, NOON - HOUR), None)


def test_before_a_step_is_noticed_the_clock_stands_at_its_mark() -> None:
    assert ClockState(NOON).now(NOON - HOUR) == NOON


def test_the_mark_is_written_rarely() -> None:
    state = ClockState(NOON)
    assert tend(state, NOON + MARK_EVERY - 1, steady=True) is None
    assert tend(state, NOON + MARK_EVERY, steady=True) == (ClockState(NOON + MARK_EVERY), None)


def test_a_clock_that_is_ahead_for_a_moment_takes_the_mark_nowhere() -> None:
    state, day = ClockState(NOON), 24 * HOUR
    assert tend(state, NOON + day, steady=False) is None
    assert tend(state, NOON + day, steady=True) == (ClockState(NOON + day), None)
    assert tend(state, NOON + GAP, steady=False) == (ClockState(NOON + GAP), None)


def test_a_new_store_takes_the_first_time_it_is_given() -> None:
    assert tend(ClockState(), NOON, steady=False) == (ClockState(NOON), None)


def test_a_clock_is_steady_after_a_minute_without_a_jump() -> None:
    watch = ClockWatch()
    assert not watch.steady(NOON, 5.0)
    assert not watch.steady(NOON + 59 * SECOND, 64.0)
    assert watch.steady(NOON + 60 * SECOND, 65.0)
    assert not watch.steady(NOON + HOUR, 66.0)
    assert not watch.steady(NOON + HOUR + 50 * SECOND, 116.0)
    assert watch.steady(NOON + HOUR + 60 * SECOND, 126.0)


@given(
    st.lists(
        st.tuples(st.integers(-3 * HOUR, 2 * MARK_EVERY), st.booleans()), min_size=1, max_size=40
    )
)
def test_the_clock_never_goes_back_behind_its_mark(moves: list[tuple[int, bool]]) -> None:
    state, machine, last = ClockState(), NOON, 0
    for move, steady in moves:
        machine += move
        if (kept := tend(state, machine, steady=steady)) is not None:
            assert kept[0].now(machine) >= state.now(machine)
            state = kept[0]
        assert state.now(machine) >= last - MARK_EVERY - GAP
        assert state.mark >= last - MARK_EVERY or state.mark == 0
        last = max(last, state.mark)
        assert state.mark == last
