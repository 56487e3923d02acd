"""The judge of the targets: at the mark, beside it, and where nothing was measured."""

from __future__ import annotations

import pytest

from bench.contestants import HOLDFAST, HOLDFAST_SQLITE, STORE
from bench.figures import Measured, Measurement
from bench.targets import TARGETS, Judged, Target, Verdict, judge, verdict


def _target(**changes: object) -> Target:
    given = {"measure": "m", "must": 1.5, "stretch": 2.5, "find": lambda _: iter(()), **changes}
    return Target(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.4999, Verdict.MISSED),
        (1.5, Verdict.MET),
        (2.4999, Verdict.MET),
        (2.5, Verdict.STRETCH),
        (None, Verdict.UNKNOWN),
    ],
)
def test_at_least_the_mark_is_met(value: float | None, expected: Verdict) -> None:
    assert verdict(_target(), value) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(100.0, Verdict.MISSED), (99.9, Verdict.MET), (60.0, Verdict.MET), (59.9, Verdict.STRETCH)],
)
def test_below_the_mark_means_below_it(value: float, expected: Verdict) -> None:
    assert verdict(_target(must=100.0, stretch=60.0, below=True), value) is expected


def test_without_a_stretch_the_must_is_all() -> None:
    assert verdict(_target(stretch=None), 99.0) is Verdict.MET


def test_a_missed_stretch_is_told_where_there_is_nothing_else() -> None:
    target = _target(must=None, stretch=2.0, below=True)
    assert verdict(target, 2.0) is Verdict.SHORT
    assert verdict(target, 1.9) is Verdict.STRETCH


def test_the_worst_condition_is_judged() -> None:
    found = [("easy", 9.0), ("hard", 1.0), ("fair", 2.0)]
    judged = judge(_target(find=lambda _: iter(found)), Measured())
    assert (judged.value, judged.verdict) == (1.0, Verdict.MISSED)
    assert "hard" in judged.shown
    judged = judge(_target(find=lambda _: iter(found), below=True), Measured())
    assert judged.value == 9.0


def _one(scenario: str, variant: str, name: str, **values: float) -> Measurement:
    return Measurement(
        scenario=scenario, variant=variant, contender=name, round=0, jobs=1, values=values
    )


def _judged(measure: str, *found: Measurement) -> Judged:
    [target] = [one for one in TARGETS if one.measure == measure]
    return judge(target, Measured(found))


def test_drains_are_compared_by_state_and_with_one_process() -> None:
    found = [
        _one("drain", "100,000 analysed", HOLDFAST, rate=20.0),
        _one("drain", "100,000 analysed", "graphile-worker batched", rate=10.0),
        _one("drain", "100,000 burst", HOLDFAST, rate=20.0),
        _one("drain", "100,000 burst", "graphile-worker batched", rate=16.0),
        _one("drain", "200,000 burst", HOLDFAST, rate=20.0),
        _one("drain", "200,000 burst", "graphile-worker batched", rate=5.0),
        _one("drain", "100,000 burst, 2 processes", HOLDFAST, rate=1.0),
        _one("drain", "100,000 burst, 2 processes", "graphile-worker batched", rate=5.0),
    ]
    assert _judged("drain vs Graphile batched, analysed", *found).value == 2.0
    burst = _judged("drain vs Graphile batched, burst", *found)
    assert (burst.value, burst.verdict) == (1.25, Verdict.MISSED)


def test_a_peer_is_taken_in_its_best_mode() -> None:
    found = [
        _one("drain", "100,000 burst", HOLDFAST, rate=20.0),
        _one("drain", "100,000 burst", "pgqueuer batched", rate=10.0),
        _one("drain", "100,000 burst", "pgqueuer default", rate=1.0),
    ]
    assert _judged("drain vs PGQueuer", *found).value == 2.0


def test_latency_must_be_below_that_of_every_peer() -> None:
    found = [
        _one("latency", "idle", HOLDFAST, p50=3.0, p99=6.0),
        _one("latency", "idle", HOLDFAST_SQLITE, p50=1.0, p99=2.0),
        _one("latency", "idle", f"{HOLDFAST}@v1", p50=1.0, p99=1.0),
        _one("latency", "idle", "slow", p50=30.0, p99=60.0),
        _one("latency", "idle", "quick", p50=3.0, p99=7.0),
    ]
    named = "idle latency {} of the quickest durable peer's, PostgreSQL"
    assert _judged(named.format("p50"), *found).verdict is Verdict.MISSED
    assert _judged(named.format("p99"), *found).verdict is Verdict.MET


def test_a_bulk_submit_is_compared_with_the_fastest_peer_which_is_named() -> None:
    found = [
        _one("submit", "100,000 jobs", HOLDFAST, rate=22.0),
        _one("submit", "100,000 jobs", f"{HOLDFAST}@v1", rate=99.0),
        _one("submit", "100,000 jobs", STORE, rate=99.0),
        _one("submit", "100,000 jobs", "slow", rate=1.0),
        _one("submit", "100,000 jobs", "quick", rate=20.0),
    ]
    judged = _judged("bulk submit vs the fastest of all peers", *found)
    assert (judged.shown, judged.verdict) == ("1.10× (100,000 jobs, quick)", Verdict.MET)


def test_steps_and_signals_are_compared_with_another_revision_on_the_same_engine() -> None:
    for scenario in ("steps", "signals"):
        found = [
            _one(scenario, "v", HOLDFAST, rate=20.0),
            _one(scenario, "v", f"{HOLDFAST}@v1", rate=10.0),
            _one(scenario, "v", "holdfast@v1 on SQLite", rate=90.0),
        ]
        judged = _judged(f"{scenario} per second vs before, PostgreSQL", *found)
        assert (judged.shown, judged.verdict) == ("2.00× (of holdfast@v1)", Verdict.MET)


def test_a_slot_that_is_idle_while_jobs_are_due_is_a_miss() -> None:
    measure = "slots in use of 10 ms sleepers while jobs are due, SQLite"
    for share, expected in ((0.9, Verdict.MISSED), (0.99, Verdict.MET)):
        found = _one("sleepers", "v", HOLDFAST_SQLITE, occupied=share)
        assert _judged(measure, found).verdict is expected


def test_the_marks_are_those_of_the_issue() -> None:
    marks = {one.measure: (one.must, one.stretch) for one in TARGETS}
    wanted: dict[str, tuple[float | None, float | None]] = {
        "drain vs Graphile batched, analysed": (1.1, 1.4),
        "drain vs Graphile batched, burst": (1.5, 2.5),
        "drain vs PGQueuer": (2.0, 3.0),
        "drain vs pg-boss": (1.5, 2.0),
        "drain vs awa-pg": (5.0, 8.0),
        "drain vs procrastinate": (60.0, 100.0),
        "drain vs DBOS": (60.0, 100.0),
        "drain vs absurd": (25.0, 40.0),
        "bulk submit vs the fastest of all peers": (1.1, 1.4),
        "SQLite FULL drain vs huey, one process": (8.0, 12.0),
    }
    for engine in ("PostgreSQL", "SQLite"):
        wanted |= {
            f"idle latency p50 of the quickest durable peer's, {engine}": (1.0, None),
            f"idle latency p99 of the quickest durable peer's, {engine}": (1.0, None),
            f"idle latency p50, {engine}": (None, 2.5),
            f"worker vs bench-store, {engine}": (0.85, 1.0),
            f"growth 10⁴ or 10⁵ → 10⁶ jobs, {engine}": (0.85, 0.95),
            f"growth → 5·10⁶ events of history, {engine}": (0.85, 0.95),
            f"steps per second vs before, {engine}": (2.0, None),
            f"signals per second vs before, {engine}": (2.0, None),
            f"HTTP submits one by one vs empty POSTs, {engine}": (0.75, None),
            f"worker memory, {engine}": (80.0, 60.0),
        }
    assert wanted.items() <= marks.items()


def test_a_worker_is_compared_with_the_store_under_it() -> None:
    found = [
        _one("drain", "100,000 burst", HOLDFAST, rate=8.5),
        _one("drain", "100,000 burst", STORE, rate=10.0),
        _one("drain", "100,000 burst", f"{STORE}@v1", rate=100.0),
    ]
    assert _judged("worker vs bench-store, PostgreSQL", *found).verdict is Verdict.MET


def test_growth_is_judged_on_history_too() -> None:
    found = [
        _one("growth", "10,000 jobs", HOLDFAST, rate=10.0),
        _one("growth", "1,000,000 jobs", HOLDFAST, rate=9.5),
        _one("growth", "100,000 jobs on 5,000,000 events of history", HOLDFAST, rate=7.0),
    ]
    judged = _judged("growth → 5·10⁶ events of history, PostgreSQL", *found)
    assert (judged.value, judged.verdict) == (0.7, Verdict.MISSED)
    judged = _judged("growth 10⁴ or 10⁵ → 10⁶ jobs, PostgreSQL", *found)
    assert (judged.value, judged.verdict) == (0.95, Verdict.STRETCH)


def test_a_slow_start_of_the_smallest_drain_does_not_flatter_the_growth() -> None:
    found = [
        _one("growth", "10,000 jobs", HOLDFAST, rate=8.0),
        _one("growth", "100,000 jobs", HOLDFAST, rate=16.0),
        _one("growth", "1,000,000 jobs", HOLDFAST, rate=8.0),
    ]
    judged = _judged("growth 10⁴ or 10⁵ → 10⁶ jobs, PostgreSQL", *found)
    assert (judged.value, judged.verdict) == (0.5, Verdict.MISSED)
    assert "1,000,000 jobs vs 100,000" in judged.shown


def test_every_target_says_when_it_was_not_measured() -> None:
    assert {judge(target, Measured()).verdict for target in TARGETS} == {Verdict.UNKNOWN}
