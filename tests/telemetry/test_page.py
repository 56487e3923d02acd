"""docs/observability.md says what the code does: its table and its alerts name real metrics."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.telemetry.metrics import CATALOGUE, Metric, MetricKind

PAGE = (Path(__file__).parents[2] / "docs/observability.md").read_text("utf-8")


def row(metric: Metric) -> str:
    """Write a metric as the page has it."""
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return (
        f"| `{metric.exported_name}` | {metric.kind} | {labels} | {metric.scope} | {metric.text} |"
    )


def test_the_table_has_every_metric_as_the_code_has_it_and_no_other() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `holdfast_")]
    assert rows == [row(metric) for metric in CATALOGUE]


def test_queries_and_alerts_name_metrics_that_there_are() -> None:
    known = {metric.exported_name for metric in CATALOGUE}
    buckets = {
        f"{metric.name}_bucket" for metric in CATALOGUE if metric.kind is MetricKind.HISTOGRAM
    }
    used = set(re.findall(r"holdfast_\w+", PAGE))
    assert used <= known | buckets
