"""The meters in short: for a log line or a person, without any exporter."""

from __future__ import annotations

from typing import Any

from holdfast.lifecycle.states import EventType
from holdfast.telemetry.meters import Histogram, Lane, Meters, summed

_ENDS = {
    "completed": EventType.SUCCEEDED,
    "retries": EventType.RETRYING,
    "failures": EventType.FAILED,
    "cancelled": EventType.CANCELLED,
    "timed_out": EventType.TIMED_OUT,
    "dlq": EventType.DEAD_LETTERED,
}


def summary(meters: Meters) -> dict[str, Any]:
    """Tell the counts of this process, and p50 and p95 of each task's waits and runs."""
    lanes: dict[str, list[Lane]] = {}
    for lane in meters.lanes():
        lanes.setdefault(lane.task, []).append(lane)
    return {
        "claims": meters.claims,
        "claim_conflicts": meters.conflicts,
        "lease_renewals": meters.renewals,
        "lease_expiries": meters.expiries,
        "in_flight": meters.in_flight,
        "tasks": {task: _task(of_task) for task, of_task in sorted(lanes.items())},
    }


def _task(lanes: list[Lane]) -> dict[str, Any]:
    counts = {name: sum(lane.events[end.code] for lane in lanes) for name, end in _ENDS.items()}
    return {
        **counts,
        "queue_wait_seconds": _quantiles(summed(lane.queue_wait for lane in lanes)),
        "run_seconds": _quantiles(summed(lane.run for lane in lanes)),
    }


def _quantiles(histogram: Histogram) -> dict[str, float | None]:
    return {"p50": histogram.quantile(0.5), "p95": histogram.quantile(0.95)}
