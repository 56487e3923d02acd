"""The catalogue: every metric by name, with its help, its labels and where it is read from.

The one list. The export renders it, the table in docs/observability.md is generated from it, and a
test holds it against requirement B22.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from holdfast import __version__
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.transitions import TARGETS
from holdfast.telemetry.counters import Histogram, Meters, TaskCounts
from holdfast.telemetry.queue_depths import Depths

Sample: TypeAlias = tuple[tuple[str, ...], float | Histogram]
Read: TypeAlias = Callable[[Meters, Depths], Iterable[Sample]]


class MetricKind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricScope(StrEnum):
    """Whose number it is."""

    PROCESS = "this process"
    STORE = "the whole store"


class Metric(Struct, frozen=True):
    """One metric. A counter's name is exported with `_total` behind it."""

    name: str
    kind: MetricKind
    text: str
    read: Read
    labels: tuple[str, ...] = ()
    scope: MetricScope = MetricScope.PROCESS

    @property
    def help(self) -> str:
        """The help text, with its scope: numbers of the store must not be summed over processes."""
        if self.scope is MetricScope.STORE:
            return f"{self.text} Covers the whole store: do not sum it over processes."
        return f"{self.text} Covers this process."

    @property
    def exported_name(self) -> str:
        """The name that queries and alerts use."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


_LANE = ("task", "queue")


def _plain(name: str) -> Read:
    """Read a number of the meters."""
    return lambda meters, _: [((), getattr(meters, name))]


def _by_lane(value: Callable[[TaskCounts], float | Histogram]) -> Read:
    return lambda meters, _: [((lane.task, lane.queue), value(lane)) for lane in meters.lanes()]


def _written(kind: type[c.Command]) -> Read:
    """Read how often a command was written."""
    return _by_lane(lambda lane: lane.written(kind))


def _store_errors(meters: Meters, _: Depths) -> list[Sample]:
    return [((code,), count) for code, count in list(meters.store_errors.items())]


def _sweep_age(meters: Meters, _: Depths) -> Iterator[Sample]:
    if meters.last_sweep_at is not None:
        yield (), meters.clock() - meters.last_sweep_at


def _sample_lag(meters: Meters, _: Depths) -> Iterator[Sample]:
    """While the loop is blocked nobody measures: then its silence is the lag."""
    pulse = meters.pulses.get("loop")
    silence = 0.0 if pulse is None or not pulse.silent else pulse.age_seconds
    yield (), max(meters.loop_lag, silence)


def _pulses(meters: Meters, _: Depths) -> Iterator[Sample]:
    for pulse in list(meters.pulses.values()):
        if not pulse.stopped:
            yield (pulse.name,), 0 if pulse.silent else 1


def _sample_requests(meters: Meters, _: Depths) -> list[Sample]:
    return [
        ((route, str(status)), count)
        for (route, status), count in list(meters.door.answers.items())
    ]


def _request_times(meters: Meters, _: Depths) -> list[Sample]:
    return [((route,), times) for route, times in list(meters.door.times.items())]


def _received(meters: Meters, _: Depths) -> list[Sample]:
    return [((channel,), count) for channel, count in list(meters.bus.received.items())]


def _refused(meters: Meters, _: Depths) -> list[Sample]:
    return [(key, count) for key, count in list(meters.bus.refused.items())]


def _sent(meters: Meters, _: Depths) -> list[Sample]:
    return [((delivery,), count) for delivery, count in list(meters.bus.sent.items())]


def _depths(_: Meters, depths: Depths) -> list[Sample]:
    return [((queue, state.value), jobs) for (queue, state), jobs in depths.jobs.items()]


def _letters(_: Meters, depths: Depths) -> list[Sample]:
    """Zero where a queue has none: an alert on a missing series would never fire, nor end."""
    queues, dead = {queue for queue, _ in depths.jobs}, TARGETS[c.DeadLetter.operation]
    return [((queue,), depths.jobs.get((queue, dead), 0)) for queue in queues]


def _quarantined(_: Meters, depths: Depths) -> Iterator[Sample]:
    if depths.read_at is not None:
        yield (), depths.quarantined


def _depths_age(_: Meters, depths: Depths) -> Iterator[Sample]:
    if (age := depths.age_seconds) is not None:
        yield (), age


def _build(_: Meters, __: Depths) -> Iterator[Sample]:
    yield (__version__, platform.python_version()), 1


def _counter(name: str, text: str, read: Read, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"holdfast_{name}", MetricKind.COUNTER, text, read, labels)


def _gauge(name: str, text: str, read: Read, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"holdfast_{name}", MetricKind.GAUGE, text, read, labels)


def _histogram(name: str, text: str, read: Read, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"holdfast_{name}", MetricKind.HISTOGRAM, text, read, labels)


def _of_store(name: str, text: str, read: Read, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"holdfast_{name}", MetricKind.GAUGE, text, read, labels, MetricScope.STORE)


CATALOGUE: tuple[Metric, ...] = (
    _counter(
        "submitted",
        "Jobs whose submit was accepted; in a caller's transaction, counted before its commit.",
        _by_lane(lambda lane: lane.submitted),
        _LANE,
    ),
    _counter("claims", "Jobs claimed.", _plain("claims")),
    _counter(
        "claim_conflicts",
        "Claims and commits that found a job locked or changed by another process.",
        _plain("conflicts"),
    ),
    _counter(
        "fenced", "Attempts that lost their job before they could finish it.", _plain("fences")
    ),
    _counter(
        "lease_renewals", "Leases renewed, by the keeper or by a heartbeat.", _plain("renewals")
    ),
    _counter(
        "lease_expiries",
        "Expired leases that this process's reconciler found.",
        _plain("expiries"),
    ),
    _counter(
        "heartbeat_failures",
        "Renewals that the store did not answer or accept.",
        lambda meters, _: [((), meters.keeper.heartbeat_failures)],
    ),
    _counter("started", "Attempts started.", _written(c.Start), _LANE),
    _counter("completed", "Jobs that succeeded.", _written(c.Complete), _LANE),
    _counter("retries", "Attempts that failed and will be retried.", _written(c.Retry), _LANE),
    _counter("failures", "Jobs that ended failed.", _written(c.Fail), _LANE),
    _counter("cancelled", "Jobs that ended cancelled.", _written(c.Cancel), _LANE),
    _counter("timed_out", "Jobs that ended timed out.", _written(c.TimeOut), _LANE),
    _counter("dlq", "Jobs that ended as dead letters.", _written(c.DeadLetter), _LANE),
    _counter("released", "Jobs released without a failure.", _written(c.Release), _LANE),
    _counter(
        "stalled",
        "Jobs recovered from an owner that was silent or did not start them.",
        _written(c.Stall),
        _LANE,
    ),
    _histogram(
        "queue_wait_seconds",
        "Time from when a job was due to the start of its attempt.",
        _by_lane(lambda lane: lane.queue_wait),
        _LANE,
    ),
    _histogram("run_seconds", "Run time of an attempt.", _by_lane(lambda lane: lane.run), _LANE),
    _histogram("commit_batch_size", "Jobs per commit.", _plain("batches")),
    _gauge("in_flight", "Attempts that are running.", _plain("in_flight")),
    _gauge("prefetched", "Jobs claimed and not started.", _plain("prefetched")),
    _gauge("unkillable", "Handlers that still run after a kill.", _plain("unkillable")),
    _counter(
        "store_errors", "Calls that the store answered with an error.", _store_errors, ("code",)
    ),
    _counter("reconciler_sweeps", "Sweeps run.", _plain("sweeps")),
    _counter("reconciler_sweep_failures", "Sweeps that failed.", _plain("sweep_failures")),
    _counter(
        "reconciler_conflicts",
        "Writes of a sweep that lost to another writer; harmless.",
        _plain("sweep_conflicts"),
    ),
    _counter(
        "reconciler_unswept",
        "Jobs that a sweep could not handle; each one needs a person.",
        _plain("unswept"),
    ),
    _gauge("reconciler_last_sweep_age_seconds", "Time since the last sweep ended.", _sweep_age),
    _counter("cleaned", "Jobs cleaned after their retention.", _plain("cleaned")),
    _counter("purged", "Jobs purged after the retention of their record.", _plain("purged")),
    _gauge("policy_stale", "1 while the watched policy file is broken.", _plain("policy_stale")),
    _counter(
        "policy_failures",
        "Changes of the policy file that could not be applied.",
        _plain("policy_failures"),
    ),
    _counter(
        "http_requests",
        "Requests by route and status; status 0 if the client left before the answer.",
        _sample_requests,
        ("route", "status"),
    ),
    _histogram(
        "http_request_seconds",
        "Duration of a request; for a stream or a long poll, including the wait.",
        _request_times,
        ("route",),
    ),
    _gauge(
        "http_requests_under_way",
        "Requests in progress.",
        lambda meters, _: [((), meters.door.under_way)],
    ),
    _counter("bus_received", "Packets that came in on a bus.", _received, ("channel",)),
    _counter(
        "bus_refused",
        "Packets on a bus that were refused, late or repeated.",
        _refused,
        ("channel", "reason"),
    ),
    _counter(
        "bus_sent", "Jobs sent to their topic on a bus, by what became of that.", _sent, ("found",)
    ),
    _counter(
        "bus_published",
        "Results that no worker sent, dead letters and alerts published on a bus.",
        lambda meters, _: [((), meters.bus.published)],
    ),
    _counter(
        "bus_adopted",
        "Jobs of a bus whose lease had passed, and that it took back.",
        lambda meters, _: [((), meters.bus.adopted)],
    ),
    _gauge(
        "bus_in_flight",
        "Jobs that are out on a bus.",
        lambda meters, _: [((), meters.bus.in_flight)],
    ),
    _gauge("loop_lag_seconds", "Delay of the event loop when it wakes a task.", _sample_lag),
    _gauge("alive", "1 while a part of the worker reports activity, else 0.", _pulses, ("part",)),
    _gauge("build_info", "1; its labels are the versions.", _build, ("version", "python")),
    _of_store("queue_jobs", "Jobs by queue and state.", _depths, ("queue", "state")),
    _of_store(
        "dlq_count",
        "Dead letters by queue, including redriven and discarded ones, until they are purged.",
        _letters,
        ("queue",),
    ),
    _of_store(
        "quarantined_jobs",
        "Damaged jobs that are set aside; each one needs a person (`holdfast quarantine list`).",
        _quarantined,
    ),
    _gauge("queue_jobs_age_seconds", "Age of the last reading of the store's counts.", _depths_age),
)
