"""Leases of the bus: renewed at half, taken back once passed, ended at their time limits.

Every bridge does this for all jobs of the bus: who comes second finds nothing left to do.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Any

from holdfast.flow.batch import CountedSweep, carry_out
from holdfast.ids import jitter
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.due import answer_missing_start
from holdfast.lifecycle.lease import is_lost, is_over_time, renewal, start_is_overdue
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Announcement, Clock
from holdfast.services.bus_bridge.cancels import Cancels
from holdfast.services.bus_bridge.settings import BridgeParts
from holdfast.services.loop import Loop
from holdfast.worker_protocol.apply_reports import apply_reports
from holdfast.worker_protocol.bus_reports import BusTimeOut
from holdfast.worker_protocol.report_commands import Report
from holdfast.worker_protocol.reports import HeartbeatReport

log = logging.getLogger(__name__)


class Leases:
    """The one who looks after what the bus owns."""

    def __init__(self, parts: BridgeParts, cancels: Cancels) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._cancels = cancels
        self._read_at: float | None = None
        """When all results that had come were read, by the monotonic clock."""

    def note_read(self, at: float) -> None:
        """Take note that every result was read that had come by then."""
        self._read_at = at

    async def adopt_lost(self) -> int:
        """Take back all leases that have passed; return how many were lost."""
        clock = await self._parts.store.clock()
        owned = await self._parts.store.owned(self._settings.owner)
        lost = [job for job in owned if is_lost(job, clock.now, clock.epoch)]
        await self.adopt(lost, clock)
        return len(lost)

    async def adopt(self, jobs: Sequence[Job], clock: Clock | None = None) -> dict[JobId, Job]:
        """Take back the leases of these jobs; return those that were."""
        if not jobs:
            return {}
        if clock is None:
            clock = await self._parts.store.clock()
        now, epoch = clock.now, clock.epoch

        async def choose(job: Job) -> Sequence[c.Command]:
            return (c.Adopt(actor=self._settings.actor, as_of=now, epoch=epoch),)

        sweep = CountedSweep()
        adopted = await carry_out(self._parts.store, jobs, choose, sweep)
        for id_, why in sweep.failed.items():
            log.warning("job %s was not taken back: %s", id_, why)
        self._parts.meters.bus.adopted += len(adopted)
        return {job.id: job for job in adopted}

    async def tend(self) -> None:
        """Do once what is due."""
        clock = await self._parts.store.clock()
        owned = await self._parts.store.owned(self._settings.owner)
        self._parts.meters.bus.in_flight = len(owned)
        await self.adopt([job for job in owned if is_lost(job, clock.now, clock.epoch)], clock)
        live = [job for job in owned if not is_lost(job, clock.now, clock.epoch)]
        ends = await self._cancels.watch(live, clock.now)
        reports: list[Report] = []
        jobs: list[Job] = []
        for job in live:
            report = ends.get(job.id) or self._find_due(job, clock.now)
            if report is not None:
                reports.append(report)
                jobs.append(job)
        for outcome in await apply_reports(self._parts.store, self._settings.owner, reports, jobs):
            if outcome.error is not None:
                # It ended or was changed meanwhile; the next look decides again.
                log.debug("a job of the bus was left for now: %s", outcome.error)
        await self._end_unstarted([job for job in live if job.id not in ends], clock.now)

    def _find_due(self, job: Job, now: int) -> Report | None:
        """Return what a job calls for: the end of a run that takes too long, or a renewed lease."""
        of: dict[str, Any] = {"internal_id": job.id, "attempt": job.attempt}
        if job.running and is_over_time(job, now) and self._may_end(job, now):
            return BusTimeOut(**of)
        if (job.lease_expires_at or 0) - now < renewal(job) // 2:
            return HeartbeatReport(**of)
        return None

    async def _end_unstarted(self, live: Sequence[Job], now: int) -> None:
        """Do the reconciler's part for jobs that no worker has started in time (A17)."""
        actor = Actor(Role.RECONCILER, self._settings.owner)

        async def choose(job: Job) -> Sequence[c.Command]:
            return (answer_missing_start(job, actor, now, jitter),)

        overdue = [job for job in live if start_is_overdue(job, now) and self._may_end(job, now)]
        await carry_out(self._parts.store, overdue, choose, CountedSweep())

    def _may_end(self, job: Job, now: int) -> bool:
        """Return whether a result that was sent in time would have been read by now.

        No while the bus is away, or what waited there is still being read; but only for as long as
        a lost owner has to return.
        """
        over = (now - min(job.timeout_at or now, job.deadline_at or now)) / SECOND
        read = self._read_at is not None and monotonic() - self._read_at <= over
        return read or over > job.policy.host_recovery / SECOND

    async def announce(self, queues: Sequence[str], capabilities: frozenset[str]) -> None:
        """Note that the bus is served, for `why`."""
        await self._parts.store.announce(
            Announcement(
                name=self._settings.owner,
                queues=tuple(queues),
                tasks=tuple(queues),
                capabilities=capabilities,
                host="bus",
                pid=0,
                concurrency=1,
            )
        )


class LeaseLoop(Loop):
    """Tends the leases again and again."""

    def __init__(self, parts: BridgeParts, leases: Leases) -> None:
        super().__init__(
            "bus-leases",
            self._tend,
            meters=parts.meters,
            first_pause_seconds=0.2,
            longest_pause_seconds=5.0,
        )
        self._leases = leases
        self._tick = parts.settings.tick_seconds

    async def _tend(self) -> float:
        await self._leases.tend()
        return self._tick
