"""Meters: what a process counts about its own work, in plain numbers.

No lock on the hot path: each number has one writer, the loop of the worker or, under
`Meters.keeper` and `Meters.door`, the thread of the keeper or of the server. A reader may see a
number a moment late, never a wrong one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from time import monotonic
from typing import Protocol

from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.states import BEATS, EventType
from holdfast.telemetry.liveness import Pulse

DURATIONS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
"""Upper bounds of the buckets for waits and runs: a millisecond to an hour."""
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Upper bounds of the buckets for the size of a batch."""
MOST_LANES = 500
"""Pairs of task and queue that are counted apart: clients choose the names."""
OTHER = "other"
LONGEST_LABEL = 200
EVENTS = max(event.code for event in EventType) + 1


class SweepCounts(Protocol):
    """What a sweep did, as far as it is counted."""

    @property
    def lost(self) -> int:
        """Writes that lost to another writer."""

    @property
    def failed(self) -> Sized:
        """Jobs that could not be decided."""

    @property
    def expired(self) -> int:
        """Jobs whose lease had expired, and that this sweep took from their owner."""

    @property
    def moved(self) -> Mapping[tuple[str, str, EventType], int]:
        """What was written, by task, queue and event."""


class Histogram:
    """Observations by bucket. A bucket holds what is at most its bound; the last has none."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(
        self, bounds: tuple[float, ...], counts: Sequence[int] = (), total: float = 0.0
    ) -> None:
        """Start empty, or from a copy of these counts."""
        self.bounds = bounds
        self.counts = list(counts) or [0] * (len(bounds) + 1)
        self.total = total

    def observe(self, value: float) -> None:
        """Count one value; a negative one (clocks differ) counts as zero, for sums never fall."""
        self.counts[bisect_left(self.bounds, value)] += 1
        if value > 0:
            self.total += value

    def add(self, other: Histogram) -> None:
        """Take in what another one of the same bounds holds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def quantile(self, share: float) -> float | None:
        """Estimate by a straight line within the bucket; above the last bound, that bound."""
        counts = list(self.counts)
        rank, below, floor = share * sum(counts), 0, 0.0
        if not rank:
            return None
        for bound, count in zip(self.bounds, counts, strict=False):
            if below + count >= rank:
                return floor + (bound - floor) * (rank - below) / count
            below, floor = below + count, bound
        return floor


class TaskCounts:
    """What is counted for one task on one queue."""

    __slots__ = (
        *("events", "queue", "submitted", "task"),
        *("run_total", "runs", "wait_total", "waits"),
    )

    def __init__(self, task: str, queue: str) -> None:
        self.task = task
        self.queue = queue
        self.submitted = 0
        self.events = [0] * EVENTS
        """By the event's code: what an attempt or a sweep wrote."""
        self.waits = [0] * (len(DURATIONS) + 1)
        self.wait_total = 0.0
        self.runs = [0] * (len(DURATIONS) + 1)
        self.run_total = 0.0

    def ran(self, queue_wait_seconds: float | None, run_seconds: float | None) -> None:
        """Note how long a job was due before it started, and how long this attempt ran."""
        # `Histogram.observe` twice, written out: the calls would cost a quarter of this method.
        if queue_wait_seconds is not None:
            self.waits[bisect_left(DURATIONS, queue_wait_seconds)] += 1
            if queue_wait_seconds > 0:
                self.wait_total += queue_wait_seconds
        if run_seconds is not None:
            self.runs[bisect_left(DURATIONS, run_seconds)] += 1
            if run_seconds > 0:
                self.run_total += run_seconds

    def written(self, kind: type[Command]) -> int:
        """Return how often such a command was written."""
        return sum(self.events[event.code] for event in kind.events())

    @property
    def queue_wait(self) -> Histogram:
        """How long its jobs were due before they started, as of now."""
        return Histogram(DURATIONS, self.waits, self.wait_total)

    @property
    def run(self) -> Histogram:
        """How long its attempts ran, as of now."""
        return Histogram(DURATIONS, self.runs, self.run_total)


class KeeperMeters:
    """What the lease keeper counts, in its own thread."""

    __slots__ = ("heartbeat_failures", "renewals")

    def __init__(self) -> None:
        self.renewals = 0
        self.heartbeat_failures = 0

    def renewed(self, leases: int) -> None:
        """Count leases that were renewed; those renewed by the loop are `Meters.written`."""
        self.renewals += leases

    def failed(self) -> None:
        """Count a round of renewals that the store did not answer or did not accept."""
        self.heartbeat_failures += 1


class DoorMeters:
    """What a server counts of its requests, on its own loop."""

    __slots__ = ("answers", "times", "under_way")

    def __init__(self) -> None:
        self.answers: dict[tuple[str, int], int] = {}
        self.times: dict[str, Histogram] = {}
        self.under_way = 0
        """Requests that are being answered now; set by the server."""

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer. `route` is one of ours: what a client asked for is not a label."""
        self.answers[route, status] = self.answers.get((route, status), 0) + 1
        times = self.times.get(route)
        if times is None:
            times = self.times[route] = Histogram(DURATIONS)
        times.observe(seconds)


class BusMeters:
    """What a bridge counts of its bus, on its own loop."""

    __slots__ = (
        *("adopted", "applied", "in_flight", "published"),
        *("received", "refused", "sent"),
    )

    def __init__(self) -> None:
        self.received: dict[str, int] = {}
        self.refused: dict[tuple[str, str], int] = {}
        self.applied: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.published = 0
        """Results, dead letters and alerts about ended jobs."""
        self.adopted = 0
        self.in_flight = 0
        """Jobs that the bus owns, as of the last look; set by the bridge."""

    def receive(self, channel: str, packets: int) -> None:
        """Count packets that came in on a channel."""
        self.received[channel] = self.received.get(channel, 0) + packets

    def refuse(self, channel: str, reason: str) -> str:
        """Count a packet that was refused; return the reason it is counted under."""
        key = (channel, reason)
        if key not in self.refused and len(self.refused) >= 200:
            key = (channel, OTHER)
        self.refused[key] = self.refused.get(key, 0) + 1
        return key[1]

    def apply(self, channel: str) -> None:
        """Count a packet that changed a job."""
        self.applied[channel] = self.applied.get(channel, 0) + 1

    def send(self, delivery: str, jobs: int) -> None:
        """Count jobs that were sent to their topic, by what became of that."""
        self.sent[delivery] = self.sent.get(delivery, 0) + jobs


class Meters:
    """What one process counts. Called by the worker's loop, except for `keeper` and `door`."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.keeper = KeeperMeters()
        self.door = DoorMeters()
        self.bus = BusMeters()
        self.pulses: dict[str, Pulse] = {}
        self.in_flight = 0
        """Attempts that run now; set by the worker, like the two below."""
        self.prefetched = 0
        """Jobs that are claimed and not started."""
        self.unkillable = 0
        """Handlers that run on although they were killed."""
        self.claims = 0
        self.conflicts = 0
        self.fences = 0
        self.batches = Histogram(SIZES)
        self.store_errors: dict[str, int] = {}
        self.sweeps = 0
        self.sweep_failures = 0
        self.sweep_conflicts = 0
        self.unswept = 0
        self.expiries = 0
        self.purged = 0
        """Jobs that the janitor removed whole; set by it."""
        self.cleaned = 0
        """Jobs that the janitor cleaned; set by it."""
        self.policy_stale = 0
        """1 while the watched policy file is broken; set by its watch, like the number below."""
        self.policy_failures = 0
        self.last_sweep_at: float | None = None
        self.loop_lag = 0.0
        self._lanes: dict[tuple[str, str], TaskCounts] = {}

    def claimed(self, jobs: int) -> None:
        """Count jobs that a claim brought."""
        self.claims += jobs

    def conflict(self) -> None:
        """Count a claim that the store refused because its jobs have another owner."""
        self.conflicts += 1

    def fenced(self) -> None:
        """Count an attempt that had lost its job, so that its write was refused."""
        self.fences += 1

    def submitted(self, task: str, queue: str, jobs: int = 1) -> None:
        """Count accepted submits; one that found its job already there is none."""
        self.lane(task, queue).submitted += jobs

    def written(self, task: str, queue: str, *events: EventType, times: int = 1) -> None:
        """Count events of an attempt, or of many alike, once they are committed."""
        try:
            lane = self._lanes[task, queue]
        except KeyError:
            lane = self._new_lane(task, queue)
        for event in events:
            lane.events[event.code] += times

    def ran(
        self, task: str, queue: str, queue_wait_seconds: float | None, run_seconds: float | None
    ) -> None:
        """Note how long a job was due before it started, and how long this attempt ran."""
        self.lane(task, queue).ran(queue_wait_seconds, run_seconds)

    def committed(self, changes: int) -> None:
        """Count one commit, by how many changes it carried."""
        self.batches.observe(changes)

    def store_error(self, code: str = "store_error") -> None:
        """Count a call that the store answered with an error of this code."""
        code = code if code in self.store_errors or len(self.store_errors) < 50 else OTHER
        self.store_errors[code] = self.store_errors.get(code, 0) + 1

    def swept(self, report: SweepCounts) -> None:
        """Count one sweep of the reconciler, and what it wrote."""
        self._sweep_ended()
        self.sweeps += 1
        self.expiries += report.expired
        self.sweep_conflicts += report.lost
        self.unswept += len(report.failed)
        for (task, queue, event), jobs in report.moved.items():
            self.lane(task, queue).events[event.code] += jobs

    def sweep_failed(self) -> None:
        """Count a sweep that could not be made. The reconciler lives: its database does not."""
        self.sweep_failures += 1
        if pulse := self.pulses.get("reconciler"):
            pulse.beat()

    def _sweep_ended(self) -> None:
        self.last_sweep_at = self.clock()
        if pulse := self.pulses.get("reconciler"):
            pulse.beat()

    def lagged(self, seconds: float) -> None:
        """Note how late the loop woke a task; see `liveness.measure_lag`."""
        self.loop_lag = seconds

    def pulse(self, name: str, *, limit_seconds: float) -> Pulse:
        """Watch a part that must show life within the limit, until its `stop`."""
        pulse = self.pulses[name] = Pulse(name, limit_seconds, self.clock)
        return pulse

    def lane(self, task: str, queue: str) -> TaskCounts:
        """Find where a task's numbers on a queue are kept; beyond the bound, the shared lane."""
        lane = self._lanes.get((task, queue))
        return lane if lane is not None else self._new_lane(task, queue)

    def _new_lane(self, task: str, queue: str) -> TaskCounts:
        labels = label(task), label(queue)
        if labels not in self._lanes and len(self._lanes) >= MOST_LANES:
            labels = OTHER, OTHER
        # By its labels alone, so that no two lanes are ever exported under one name.
        return self._lanes.setdefault(labels, TaskCounts(*labels))

    @property
    def renewals(self) -> int:
        """Leases renewed: by the keeper, and by heartbeats that the loop wrote."""
        by_loop = sum(lane.events[beat.code] for lane in self.lanes() for beat in BEATS)
        return self.keeper.renewals + by_loop

    def lanes(self) -> list[TaskCounts]:
        """List the lanes; safe from any thread."""
        return list(self._lanes.values())


def sum_histograms(
    histograms: Iterable[Histogram], bounds: tuple[float, ...] = DURATIONS
) -> Histogram:
    """Add histograms up."""
    total = Histogram(bounds)
    for histogram in histograms:
        total.add(histogram)
    return total


def label(text: str) -> str:
    """Cut a name to size, and make it text that can be encoded: a scrape must not fail by it."""
    return text[:LONGEST_LABEL].encode("utf-8", "backslashreplace").decode()
