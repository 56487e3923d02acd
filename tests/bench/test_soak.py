"""When a soak is called flat, and that the real thing runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from bench.soak import soak, table
from bench.soak_app import app
from bench.soak_verdict import Window, judge, kept_up

CALM = Window(
    seconds=0,
    pinned=False,
    throughput=1000,
    waiting=10,
    p50_ms=3,
    p99_ms=12,
    bytes_per_job=1600,
    index_bytes_per_job=400,
    wal_bytes_per_job=2400,
    dead_jobs=50_000,
    dead_claims=2_000,
    server_micros_per_job=300,
    worker_micros_per_job=200,
    rss_bytes=60_000_000,
)


def windows(count: int = 31, **late: Any) -> list[Window]:
    """A calm soak; what is given is so in its last third."""
    third = (count - 1) // 3
    return [
        replace(CALM, pinned=third < number <= 2 * third, **(late if number > 2 * third else {}))
        for number in range(count)
    ]


def drifted(soaked: list[Window]) -> list[str]:
    return [verdict.measure for verdict in judge(soaked) if not verdict.flat]


def test_a_calm_soak_is_flat() -> None:
    assert drifted(windows()) == []


@pytest.mark.parametrize(
    ("late", "measure"),
    [
        ({"throughput": 940}, "throughput/s"),
        ({"p50_ms": 9}, "submit→start p50 ms"),
        ({"p99_ms": 40}, "submit→start p99 ms"),
        ({"bytes_per_job": 1900}, "table and index bytes/job"),
        ({"index_bytes_per_job": 500}, "index bytes/job"),
        ({"wal_bytes_per_job": 3100}, "WAL bytes/job"),
        ({"dead_jobs": 111_000}, "dead rows of jobs"),
        ({"dead_claims": 15_000}, "dead rows of claims"),
        ({"server_micros_per_job": 380}, "server CPU µs/job"),
        ({"worker_micros_per_job": 260}, "worker CPU µs/job"),
        ({"rss_bytes": 80_000_000}, "worker RSS MB"),
    ],
)
def test_what_drifts_is_named(late: dict[str, Any], measure: str) -> None:
    assert drifted(windows(**late)) == [measure]


@pytest.mark.parametrize(
    "late",
    [
        {"throughput": 960},
        {"p50_ms": 7},
        {"p99_ms": 30},
        {"bytes_per_job": 1000},
        {"dead_jobs": 109_000},
        {"dead_claims": 13_000},
        {"server_micros_per_job": 370},
        {"worker_micros_per_job": 150},
        {"rss_bytes": 65_000_000},
    ],
)
def test_what_stays_within_its_tolerance_or_gets_better_is_flat(late: dict[str, Any]) -> None:
    assert drifted(windows(**late)) == []


def test_the_first_window_is_not_judged() -> None:
    soaked = windows()
    soaked[0] = replace(CALM, throughput=5_000, p99_ms=0)
    assert drifted(soaked) == []


def test_a_pinned_snapshot_may_cost_space_but_no_throughput() -> None:
    swollen = [
        replace(one, dead_jobs=900_000, p99_ms=500) if one.pinned else one for one in windows()
    ]
    assert drifted(swollen) == []
    slow = [replace(one, throughput=850) if one.pinned else one for one in windows()]
    assert drifted(slow) == ["throughput/s, xmin pinned"]


def test_too_few_windows_are_not_judged() -> None:
    with pytest.raises(ValueError, match="too few"):
        judge([CALM] * 3)


def test_a_backlog_at_the_end_says_that_the_worker_did_not_keep_up() -> None:
    assert kept_up([CALM, replace(CALM, waiting=1_900)], rate=1000).flat
    assert not kept_up([CALM, replace(CALM, waiting=2_100)], rate=1000).flat


@pytest.fixture
def app_elsewhere() -> Iterator[None]:
    """Give the soak's app its own address back."""
    url = app.url
    yield
    app.use(url)


@pytest.mark.live
@pytest.mark.usefixtures("app_elsewhere")
def test_a_short_soak_runs_and_verifies(postgres_url: str) -> None:
    result = asyncio.run(soak(postgres_url, minutes=5 / 60, rate=20, count=5))
    assert result.verified
    assert len(result.windows) == 5
    assert [window.pinned for window in result.windows] == [False, False, True, False, False]
    assert sum(window.throughput for window in result.windows) > 0
    assert all(window.rss_bytes > 0 for window in result.windows)
    assert sum(window.server_micros_per_job for window in result.windows) > 0
    assert sum(window.worker_micros_per_job for window in result.windows) > 0
    for verdict in result.verdicts:
        assert verdict.measure in table(result)
