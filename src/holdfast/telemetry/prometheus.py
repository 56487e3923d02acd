"""The catalogue as Prometheus wants it: rendered from the meters when it is scraped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from holdfast.telemetry.counters import Histogram, Meters
from holdfast.telemetry.metrics import CATALOGUE, Metric, MetricKind
from holdfast.telemetry.queue_depths import Depths


class MetersCollector(Collector):
    """Renders one process's meters. Give it to any registry, an application's own included."""

    def __init__(self, meters: Meters, depths: Depths | None = None) -> None:
        self._meters = meters
        self._depths = depths or Depths(meters)

    def collect(self) -> Iterator[Family]:
        """Render every metric. It reads numbers and calls nobody."""
        for metric in CATALOGUE:
            yield self._build_family(metric)

    def _build_family(self, metric: Metric) -> Family:
        family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
        for labels, value in metric.read(self._meters, self._depths):
            _add_sample(family, labels, value)
        return family


_Families: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: dict[MetricKind, type[_Families]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.HISTOGRAM: HistogramMetricFamily,
}


def _add_sample(family: _Families, labels: tuple[str, ...], value: float | Histogram) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        family.add_metric(labels, buckets=_buckets(value), sum_value=value.total)
    else:
        assert not isinstance(value, Histogram)
        family.add_metric(labels, value)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Sum the buckets up, as the format has them."""
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(list(histogram.counts)), strict=True))


def make_registry(meters: Meters, depths: Depths | None = None) -> CollectorRegistry:
    """Make a registry of these meters alone."""
    made = CollectorRegistry()
    made.register(MetersCollector(meters, depths))
    return made
