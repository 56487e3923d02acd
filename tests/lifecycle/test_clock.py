"""The store's clock as pure arithmetic: it never goes back, and follows no passing jump."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.lifecycle.clock import (
    GAP,
    MARK_EVERY,
    RESERVE,
    SLACK,
    ClockState,
    ClockStep,
    ClockWatch,
    agreed,
    tend,
)
from holdfast.lifecycle.times import SECOND

HOUR = 3600 * SECOND
NOON = 1_800_000_000 * SECOND


def test_a_clock_set_back_by_an_hour_goes_on_from_what_it_had_reserved() -> None:
    state, step = tend(ClockState(NOON), NOON - HOUR, steady=False) or (None, None)
    assert step == ClockStep(NOON + RESERVE, HOUR)
    assert state is not None
    assert state.now(NOON - HOUR) == NOON + RESERVE
    assert state.now(NOON - HOUR + 100 * SECOND) == NOON + RESERVE + 90 * SECOND


def test_a_clock_that_only_lags_behind_others_goes_on_from_their_mark() -> None:
    state, step = tend(ClockState(NOON), NOON - HOUR, steady=False, lags=True) or (None, None)
    assert step == ClockStep(NOON, HOUR)
    assert state is not None
    assert state.now(NOON - HOUR) == NOON


def test_a_clock_that_is_set_right_again_is_followed_at_once() -> None:
    state, _ = tend(ClockState(NOON), NOON - HOUR, steady=False) or (None, None)
    assert state is not None
    right = NOON + RESERVE + 10 * SECOND
    assert state.now(right) == right
    assert tend(state, right, steady=False) == (ClockState(right, 0, NOON - HOUR), None)


def test_a_process_takes_the_shift_that_others_have_kept_where_it_leads_to_their_mark() -> None:
    own, machine = ClockState(NOON), NOON - HOUR + SECOND
    kept = ClockState(NOON, HOUR, NOON - HOUR)
    assert agreed(own, kept, machine) == kept
    # Not where its own clock is right, and not where the shift leads elsewhere.
    assert agreed(own, kept, NOON).shift == 0
    for shift in (3 * HOUR, HOUR // 2):
        assert agreed(own, ClockState(NOON, shift, NOON - HOUR), machine) == own


def test_the_shift_is_gone_once_the_machine_has_caught_up() -> None:
    state = ClockState(NOON, HOUR, NOON - HOUR)
    machine = NOON - HOUR + 10 * HOUR
    assert state.ahead(machine) == 0
    assert state.now(machine) == machine
    kept = tend(state, machine, steady=True)
    assert kept == (ClockState(machine, 0, NOON - HOUR), None)


def test_before_a_step_is_noticed_the_clock_stands_at_the_end_of_what_it_had_reserved() -> None:
    assert ClockState(NOON).now(NOON - HOUR) == NOON + RESERVE


def test_a_clock_that_is_behind_its_mark_by_a_moment_stands_at_it() -> None:
    assert ClockState(NOON).now(NOON - SLACK) == NOON


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


def test_a_watch_tells_whether_its_clock_was_set_back() -> None:
    watch = ClockWatch()
    assert watch.was_set_back(NOON), "nobody knows before the first look"
    watch.steady(NOON, 5.0)
    assert not watch.was_set_back(NOON)
    assert watch.was_set_back(NOON - 1)


BACK = st.integers(RESERVE + SLACK, 3 * HOUR)
"""Steps back that reach behind what is reserved."""


@given(st.lists(st.tuples(st.integers(0, MARK_EVERY), st.none() | BACK, st.booleans())))
def test_the_clock_never_goes_back(moves: list[tuple[int, int | None, bool]]) -> None:
    state, machine, last = ClockState(), NOON, 0

    def look(machine: int) -> None:
        nonlocal last
        assert state.now(machine) >= last
        last = state.now(machine)

    for passed, back, steady in moves:
        # A sweep, some time, and perhaps a step back before the next sweep.
        state = (tend(state, machine, steady=steady) or (state, None))[0]
        look(machine)
        machine += passed
        look(machine)
        if back is not None:
            machine -= back
            look(machine)


@given(st.integers(0, MARK_EVERY), st.integers(0, RESERVE + SLACK))
def test_a_step_too_small_to_be_noticed_repeats_no_more_than_is_reserved(
    passed: int, back: int
) -> None:
    state = ClockState(NOON)
    before = state.now(NOON + passed)
    after = state.now(NOON + passed - back)
    assert after >= before - RESERVE
    noticed = tend(state, NOON + passed - back, steady=True)
    assert (noticed or (state,))[0].now(NOON + passed - back) >= after
