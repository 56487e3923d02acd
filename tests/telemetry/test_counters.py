"""Meters: plain numbers that no name from outside can make grow without bound."""

from __future__ import annotations

import asyncio
import threading
import time
from uuid import UUID

import pytest

from holdfast.flow.recover import Swept
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import EventType
from holdfast.telemetry.counters import (
    DURATIONS,
    MOST_LANES,
    OTHER,
    Histogram,
    Meters,
    sum_histograms,
)
from holdfast.telemetry.liveness import measure_lag, silent


class HandClock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@pytest.mark.req("B22")
def test_a_bucket_holds_what_is_at_most_its_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.1, -3.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == pytest.approx(6.6)


@pytest.mark.req("B22")
def test_an_attempt_is_counted_where_its_histograms_would_put_it() -> None:
    meters = Meters()
    values = [0.0, -1.0, 0.001, 0.0011, 7.0, 3600.0, 90_000.0]
    wait, run = Histogram(DURATIONS), Histogram(DURATIONS)
    for value in values:
        meters.ran("mail", "default", value, value * 2)
        wait.observe(value)
        run.observe(value * 2)
    lane = meters.lane("mail", "default")
    assert (lane.queue_wait.counts, lane.queue_wait.total) == (wait.counts, wait.total)
    assert (lane.run.counts, lane.run.total) == (run.counts, run.total)


def test_an_attempt_that_never_began_has_no_run_time() -> None:
    meters = Meters()
    meters.ran("mail", "default", None, None)
    lane = meters.lane("mail", "default")
    assert not any(lane.queue_wait.counts + lane.run.counts)


@pytest.mark.req("B22")
def test_quantiles_lie_on_a_line_within_their_bucket() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert histogram.quantile(0.5) is None
    for value in (0.5, 1.5, 1.5, 3.0):
        histogram.observe(value)
    assert histogram.quantile(0.5) == pytest.approx(1.5)
    assert histogram.quantile(1.0) == pytest.approx(4.0)
    histogram.observe(1e9)
    assert histogram.quantile(0.99) == 4.0


def test_histograms_add_up() -> None:
    one, two = Histogram(DURATIONS), Histogram(DURATIONS)
    one.observe(0.2)
    two.observe(5.0)
    both = sum_histograms([one, two])
    assert sum(both.counts) == 2
    assert both.total == pytest.approx(5.2)


def test_names_beyond_the_bound_share_one_lane() -> None:
    meters = Meters()
    for number in range(MOST_LANES + 300):
        meters.written(f"task-{number}", "default", EventType.FAILED)
    lanes = {(lane.task, lane.queue): lane for lane in meters.lanes()}
    assert len(lanes) == MOST_LANES + 1
    assert lanes[OTHER, OTHER].events[EventType.FAILED.code] == 300
    assert lanes["task-7", "default"].events[EventType.FAILED.code] == 1


def test_names_that_look_alike_once_cleaned_share_one_lane() -> None:
    meters = Meters()
    meters.submitted("odd-\udc80", "default")
    meters.submitted("odd-\\udc80", "default")
    meters.submitted("x" * 5000, "default")
    meters.submitted("x" * 6000, "default", jobs=2)
    assert sorted(lane.submitted for lane in meters.lanes()) == [2, 3]
    assert all(lane.task.encode() and len(lane.task) < 300 for lane in meters.lanes())


@pytest.mark.req("B22")
def test_a_sweep_counts_what_it_took_from_dead_owners() -> None:
    meters = Meters()
    moved = {("mail", "default", EventType.STALLED): 2, ("mail", "q", EventType.DEAD_LETTERED): 1}
    failed = {JobId(UUID(int=1)): "poison"}
    meters.swept(Swept(expired=3, lost=4, failed=failed, moved=moved))
    meters.sweep_failed()
    assert (meters.sweeps, meters.expiries, meters.sweep_conflicts) == (1, 3, 4)
    assert (meters.unswept, meters.sweep_failures) == (1, 1)
    assert meters.lane("mail", "default").events[EventType.STALLED.code] == 2
    assert meters.lane("mail", "q").events[EventType.DEAD_LETTERED.code] == 1


def test_store_errors_of_any_code_are_bounded() -> None:
    meters = Meters()
    for number in range(200):
        meters.store_error(f"code-{number}")
    assert len(meters.store_errors) == 51
    assert meters.store_errors[OTHER] == 150


def test_a_part_that_shows_no_life_is_named_until_it_stops_in_order() -> None:
    clock = HandClock()
    meters = Meters(clock)
    loop = meters.pulse("loop", limit_seconds=5)
    keeper = meters.pulse("keeper", limit_seconds=60)
    clock.now += 6
    assert silent(meters.pulses.values()) == {"loop": 6.0}
    clock.now += 60
    loop.beat()
    assert silent(meters.pulses.values()) == {"keeper": 66.0}
    keeper.stop()
    assert silent(meters.pulses.values()) == {}


def test_a_sweep_that_failed_is_a_sign_of_life() -> None:
    clock = HandClock()
    meters = Meters(clock)
    meters.pulse("reconciler", limit_seconds=5)
    clock.now += 6
    meters.sweep_failed()
    assert silent(meters.pulses.values()) == {}
    clock.now += 6
    assert "reconciler" in silent(meters.pulses.values())
    meters.swept(Swept())
    assert silent(meters.pulses.values()) == {}


async def test_a_blocked_loop_is_told_as_lag() -> None:
    meters = Meters()
    pulse = meters.pulse("loop", limit_seconds=5)
    told = asyncio.Event()

    def note(seconds: float) -> None:
        meters.lagged(seconds)
        told.set()

    began = pulse.last
    measuring = asyncio.create_task(measure_lag(note, pulse, every_seconds=0.01))
    await asyncio.sleep(0)
    time.sleep(0.1)  # noqa: ASYNC251 - the fault itself
    await asyncio.wait_for(told.wait(), 10)
    measuring.cancel()
    assert meters.loop_lag > 0.05
    assert pulse.last > began


def test_lanes_can_be_listed_while_new_ones_come() -> None:
    meters = Meters()
    done = threading.Event()

    def fill() -> None:
        for number in range(3000):
            meters.submitted(f"t{number}", "q")
        done.set()

    writer = threading.Thread(target=fill)
    writer.start()
    while not done.is_set():
        meters.lanes()
    writer.join()
    assert sum(lane.submitted for lane in meters.lanes()) == 3000


def test_what_has_no_labels_is_counted_plainly() -> None:
    meters = Meters()
    meters.keeper.renewed(3)
    meters.keeper.failed()
    meters.claimed(5)
    meters.conflict()
    meters.fenced()
    meters.committed(40)
    assert (meters.keeper.renewals, meters.keeper.heartbeat_failures) == (3, 1)
    assert (meters.claims, meters.conflicts, meters.fences) == (5, 1, 1)
    assert sum(meters.batches.counts) == 1
