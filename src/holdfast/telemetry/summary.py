"""The meters in short: for a log line or a person, without any exporter."""

from __future__ import annotations

from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.telemetry.counters import Histogram, Meters, TaskCounts, sum_histograms

_ENDS: dict[str, type[c.Command]] = {
    "completed": c.Complete,
    "retries": c.Retry,
    "failures": c.Fail,
    "cancelled": c.Cancel,
    "timed_out": c.TimeOut,
    "dlq": c.DeadLetter,
}


def summary(meters: Meters) -> dict[str, Any]:
    """Return the counts of this process, and p50 and p95 of each task's waits and runs."""
    lanes: dict[str, list[TaskCounts]] = {}
    for lane in meters.lanes():
        lanes.setdefault(lane.task, []).append(lane)
    return {
        "claims": meters.claims,
        "claim_conflicts": meters.conflicts,
        "lease_renewals": meters.renewals,
        "lease_expiries": meters.expiries,
        "in_flight": meters.in_flight,
        "tasks": {task: _summarize_task(of_task) for task, of_task in sorted(lanes.items())},
    }


def _summarize_task(lanes: list[TaskCounts]) -> dict[str, Any]:
    counts = {name: sum(lane.written(end) for lane in lanes) for name, end in _ENDS.items()}
    return {
        **counts,
        "queue_wait_seconds": _quantiles(sum_histograms(lane.queue_wait for lane in lanes)),
        "run_seconds": _quantiles(sum_histograms(lane.run for lane in lanes)),
    }


def _quantiles(histogram: Histogram) -> dict[str, float | None]:
    return {"p50": histogram.quantile(0.5), "p95": histogram.quantile(0.95)}
