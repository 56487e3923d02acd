"""Backoff with jitter, and what a loss delays. Chance is handed in, so every value can be said."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.retry import backoff, exhausted, loss_costs, release_costs, stall_delay
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import life_in

EXAMPLE = Policy(backoff_first=SECOND // 2, backoff_factor=2.0, backoff_max=60 * SECOND)
ALMOST_ONE = 1 - 2**-53


@pytest.mark.req("B10")
def test_the_seeds_example_doubles_from_half_a_second_up_to_a_minute() -> None:
    longest = [backoff(EXAMPLE, failures, ALMOST_ONE) / SECOND for failures in range(1, 11)]

    assert [round(seconds, 3) for seconds in longest] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert Policy() == EXAMPLE


@pytest.mark.req("B10")
def test_half_of_a_delay_is_certain_and_the_other_half_is_chance() -> None:
    for failures in range(1, 11):
        least, half, most = (backoff(EXAMPLE, failures, jitter) for jitter in (0, 0.5, ALMOST_ONE))
        assert least * 2 == pytest.approx(most, abs=2)
        assert half == pytest.approx(least * 1.5, abs=2)


@pytest.mark.req("B10")
@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    first=st.integers(0, 3600 * SECOND),
    factor=st.floats(1, 1e9),
    most=st.integers(0, 86400 * SECOND),
    jitter=st.floats(0, 1, exclude_max=True),
)
def test_any_backoff_rises_and_stays_within_its_maximum(
    first: int, factor: float, most: int, jitter: float
) -> None:
    policy = Policy(backoff_first=first, backoff_factor=factor, backoff_max=most)
    delays = [backoff(policy, failures, jitter) for failures in (1, 2, 3, 10, 65, 66, 1000, 10**6)]

    assert all(0 <= delay <= most for delay in delays)
    assert all(earlier <= later for earlier, later in pairwise(delays))
    assert delays[0] <= first
    assert delays[-1] >= (min(first, most) // 2) - 1


def test_a_job_is_exhausted_when_one_more_failure_is_its_last() -> None:
    record = life_in(State.RUNNING, policy=Policy(max_attempts=3)).record

    assert [exhausted(replace(record, failures=n)) for n in range(4)] == [False, False, True, True]


def test_a_release_costs_from_the_twentieth_on() -> None:
    record = life_in(State.RUNNING).record

    assert [release_costs(replace(record, releases=n)) for n in (0, 18, 19, 20)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("state", "idempotent", "failures", "releases", "costs"),
    [
        (State.RUNNING, True, 0, 0, True),
        (State.RUNNING, True, 2, 0, True),
        (State.RUNNING, False, 0, 0, True),
        (State.CLAIMED, True, 0, 0, True),
        (State.CLAIMED, True, 1, 0, False),
        (State.CLAIMED, False, 0, 0, False),
        (State.CLAIMED, False, 1, 0, False),
        (State.CLAIMED, True, 1, 18, False),
        (State.CLAIMED, True, 1, 19, True),
        (State.CLAIMED, False, 0, 19, True),
    ],
)
def test_a_loss_costs_where_the_handler_may_have_run(
    state: State, idempotent: bool, failures: int, releases: int, costs: bool
) -> None:
    record = replace(
        life_in(state, policy=Policy(idempotent=idempotent)).record,
        failures=failures,
        releases=releases,
    )

    assert loss_costs(record) is costs


def test_a_lost_job_is_due_at_once_the_first_time_and_by_backoff_after() -> None:
    record = life_in(State.RUNNING).record

    assert stall_delay(record, 1, 0.5) == 0
    assert stall_delay(record, 2, 0.5) == backoff(record.policy, 2, 0.5) == 3 * SECOND // 4
