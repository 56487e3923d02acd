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
from holdfast.lifecycle.states import EventType, State
from holdfast.telemetry.depths import Depths
from holdfast.telemetry.meters import Histogram, Lane, Meters

Sample: TypeAlias = tuple[tuple[str, ...], float | Histogram]
Read: TypeAlias = Callable[[Meters, Depths], Iterable[Sample]]


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Whose number it is."""

    PROCESS = "this process"
    STORE = "the whole store"


class Metric(Struct, frozen=True):
    """One metric. A counter's name is exported with `_total` behind it."""

    name: str
    kind: Kind
    text: str
    read: Read
    labels: tuple[str, ...] = ()
    scope: Scope = Scope.PROCESS

    @property
    def help(self) -> str:
        """What it is and whose it is: numbers of the store must not be added up over processes."""
        if self.scope is Scope.STORE:
            return f"{self.text} Of the whole store: every process tells the same, do not add up."
        return f"{self.text} Of this process."

    @property
    def exported_name(self) -> str:
        """The name that queries and alerts use."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


_LANE = ("task", "queue")


def _plain(name: str) -> Read:
    """Read a number of the meters."""
    return lambda meters, _: [((), getattr(meters, name))]


def _by_lane(value: Callable[[Lane], float | Histogram]) -> Read:
    return lambda meters, _: [((lane.task, lane.queue), value(lane)) for lane in meters.lanes()]


def _events(event: EventType) -> Read:
    """Read how often an event was written."""
    return _by_lane(lambda lane: lane.events[event.code])


def _store_errors(meters: Meters, _: Depths) -> list[Sample]:
    return [((code,), count) for code, count in list(meters.store_errors.items())]


def _sweep_age(meters: Meters, _: Depths) -> Iterator[Sample]:
    if meters.last_sweep_at is not None:
        yield (), meters.clock() - meters.last_sweep_at


def _lag(meters: Meters, _: Depths) -> Iterator[Sample]:
    """While the loop is blocked nobody measures: then its silence is the lag."""
    pulse = meters.pulses.get("loop")
    silence = 0.0 if pulse is None or not pulse.silent else pulse.age_seconds
    yield (), max(meters.loop_lag, silence)


def _pulses(meters: Meters, _: Depths) -> Iterator[Sample]:
    for pulse in list(meters.pulses.values()):
        if not pulse.stopped:
            yield (pulse.name,), 0 if pulse.silent else 1


def _requests(meters: Meters, _: Depths) -> list[Sample]:
    return [
        ((route, str(status)), count)
        for (route, status), count in list(meters.door.answers.items())
    ]


def _request_times(meters: Meters, _: Depths) -> list[Sample]:
    return [((route,), times) for route, times in list(meters.door.times.items())]


def _depths(_: Meters, depths: Depths) -> list[Sample]:
    return [((queue, state.value), jobs) for (queue, state), jobs in depths.jobs.items()]


def _letters(_: Meters, depths: Depths) -> list[Sample]:
    """Zero where a queue has none: an alert on a missing series would never fire, nor end."""
    queues = {queue for queue, _ in depths.jobs}
    return [((queue,), depths.jobs.get((queue, State.DEAD_LETTERED), 0)) for queue in queues]


def _quarantined(_: Meters, depths: Depths) -> Iterator[Sample]:
    if depths.read_at is not None:
        yield (), depths.quarantined


def _depths_age(_: Meters, depths: Depths) -> Iterator[Sample]:
    if (age := depths.age_seconds) is not None:
        yield (), age


def _build(_: Meters, __: Depths) -> Iterator[Sample]:
    yield (__version__, platform.python_version()), 1


def _counter(name: str, text: str, read: Read, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"holdfast_{name}", Kind.COUNTER, text, read, labels)


def _gauge(name: str, text: str, read: Read, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"holdfast_{name}", Kind.GAUGE, text, read, labels)


def _histogram(name: str, text: str, read: Read, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"holdfast_{name}", Kind.HISTOGRAM, text, read, labels)


def _of_store(name: str, text: str, read: Read, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"holdfast_{name}", Kind.GAUGE, text, read, labels, Scope.STORE)


CATALOGUE: tuple[Metric, ...] = (
    _counter(
        "submitted",
        "Jobs whose submit was accepted; in a transaction of the caller's, before its end.",
        _by_lane(lambda lane: lane.submitted),
        _LANE,
    ),
    _counter("claims", "Jobs claimed.", _plain("claims")),
    _counter(
        "claim_conflicts",
        "Claims and commits that met a job held or changed by somebody else.",
        _plain("conflicts"),
    ),
    _counter(
        "fenced", "Attempts that had lost their job before they could end it.", _plain("fences")
    ),
    _counter(
        "lease_renewals", "Leases renewed, by the keeper or by a heartbeat.", _plain("renewals")
    ),
    _counter(
        "lease_expiries",
        "Leases that had run out, found by this process's reconciler.",
        _plain("expiries"),
    ),
    _counter(
        "heartbeat_failures",
        "Rounds of the lease keeper that the store did not answer or accept.",
        lambda meters, _: [((), meters.keeper.heartbeat_failures)],
    ),
    _counter("started", "Attempts begun.", _events(EventType.STARTED), _LANE),
    _counter("completed", "Jobs that succeeded.", _events(EventType.SUCCEEDED), _LANE),
    _counter(
        "retries", "Attempts that failed and will be repeated.", _events(EventType.RETRYING), _LANE
    ),
    _counter("failures", "Jobs that ended failed.", _events(EventType.FAILED), _LANE),
    _counter("cancelled", "Jobs that ended cancelled.", _events(EventType.CANCELLED), _LANE),
    _counter("timed_out", "Jobs that ended timed out.", _events(EventType.TIMED_OUT), _LANE),
    _counter("dlq", "Jobs that ended as dead letters.", _events(EventType.DEAD_LETTERED), _LANE),
    _counter("released", "Jobs given back unharmed.", _events(EventType.RELEASED), _LANE),
    _counter(
        "stalled",
        "Jobs taken from an owner that was silent or did not start them.",
        _events(EventType.STALLED),
        _LANE,
    ),
    _histogram(
        "queue_wait_seconds",
        "How long a job was due before an attempt of it began.",
        _by_lane(lambda lane: lane.queue_wait),
        _LANE,
    ),
    _histogram("run_seconds", "How long an attempt ran.", _by_lane(lambda lane: lane.run), _LANE),
    _histogram("commit_batch_size", "Jobs that one commit carried.", _plain("batches")),
    _gauge("in_flight", "Attempts that run now.", _plain("in_flight")),
    _gauge("prefetched", "Jobs claimed and not begun.", _plain("prefetched")),
    _gauge("unkillable", "Handlers that run on although killed.", _plain("unkillable")),
    _counter(
        "store_errors", "Calls that the store answered with an error.", _store_errors, ("code",)
    ),
    _counter("reconciler_sweeps", "Sweeps made.", _plain("sweeps")),
    _counter("reconciler_sweep_failures", "Sweeps that failed.", _plain("sweep_failures")),
    _counter(
        "reconciler_conflicts",
        "Writes of a sweep for which somebody else came first; harmless.",
        _plain("sweep_conflicts"),
    ),
    _counter(
        "reconciler_unswept",
        "Jobs that a sweep could not judge; each one needs a person.",
        _plain("unswept"),
    ),
    _gauge("reconciler_last_sweep_age_seconds", "Time since the last sweep ended.", _sweep_age),
    _counter("cleaned", "Jobs cleaned once their term was over.", _plain("cleaned")),
    _counter("purged", "Jobs removed whole once their record's term was over.", _plain("purged")),
    _counter(
        "http_requests",
        "Requests by route and status; of status 0 those whose client went away unanswered.",
        _requests,
        ("route", "status"),
    ),
    _histogram(
        "http_request_seconds",
        "How long a request took; a stream or a long poll, as long as it was waited.",
        _request_times,
        ("route",),
    ),
    _gauge(
        "http_requests_under_way",
        "Requests that are being answered.",
        lambda meters, _: [((), meters.door.under_way)],
    ),
    _gauge("loop_lag_seconds", "How late the event loop wakes a sleeper.", _lag),
    _gauge("alive", "1 while a part of the worker shows life, else 0.", _pulses, ("part",)),
    _gauge("build_info", "1; its labels are the versions.", _build, ("version", "python")),
    _of_store("queue_jobs", "Jobs by queue and state.", _depths, ("queue", "state")),
    _of_store(
        "dlq_count",
        "Dead letters by queue, also those redriven or discarded, until they are purged.",
        _letters,
        ("queue",),
    ),
    _of_store(
        "quarantined_jobs",
        "Damaged jobs that are set aside; each one needs a person (`holdfast quarantine list`).",
        _quarantined,
    ),
    _gauge("queue_jobs_age_seconds", "Age of the last look at the store's counts.", _depths_age),
)
