"""The claimer: takes due jobs from the store, as many as the worker can run soon."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from msgspec import Struct

from holdfast.crash_points import reach
from holdfast.errors import HoldfastError, LeaseConflictError, StoreReplaced
from holdfast.flow.claim import make_claim_request
from holdfast.ids import jitter
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.retry import release_costs
from holdfast.lifecycle.states import Role
from holdfast.ports.models import Announcement, Capacity, Claimed, ClaimRequest
from holdfast.ports.store import Store
from holdfast.telemetry import Meters
from holdfast.worker.outbox import BATCH, CommitQueue
from holdfast.worker.owned_job import OwnedJob, OwnedJobs, lease_now, own_all
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.runner_table import RunnerTable
from holdfast.worker.stop import Stopper
from holdfast.worker.stop_request import StopRequest

log = logging.getLogger(__name__)

CLAIM_LIMIT = 2000
UNCONFIRMED_LIMIT = 4 * BATCH
"""Ended attempts whose end is not written yet; beyond that no more is claimed."""
POLL_SECONDS = 0.5
"""How long to wait for a notice of work; a job that becomes due by its time brings none."""
REPEAT_SECONDS = 5.0
"""For how long a claim whose outcome is unknown is repeated under its request_id."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0


class Claimer(Struct, kw_only=True, eq=False):
    """Claims jobs for one worker into `OwnedJobs.waiting`; on its event loop."""

    store: Store
    owned: OwnedJobs
    commands: CommitQueue
    worker: Announcement
    runners: RunnerTable
    stopper: Stopper
    stop_request: StopRequest
    prefetch: Prefetch
    meters: Meters
    poll_seconds: float
    repeat_seconds: float = REPEAT_SECONDS

    async def room(self) -> int:
        """Wait until there is room for jobs, and return for how many; 0 once the worker stops."""
        while not self.stop_request.requested.is_set():
            if (room := self._count_room()) > 0:
                return room
            self.owned.changed.clear()
            await self.owned.changed.wait()
        return 0

    def _count_room(self) -> int:
        if self.owned.unconfirmed > UNCONFIRMED_LIMIT:
            return 0
        waiting = len(self.owned.waiting)
        free = self.worker.concurrency - self.owned.slots_taken - waiting
        ahead = self.prefetch.allowance(self._oldest_seconds())
        # Top up in large bites: while no slot is idle, half a buffer is enough.
        if free <= 0 and waiting > ahead // 2:
            return 0
        return min(free + ahead, CLAIM_LIMIT)

    def _oldest_seconds(self) -> float:
        running = self.owned.running - self.owned.in_room
        started = min((job.started_at for job in running if job.started_at), default=0)
        return time.monotonic() - started if started else 0.0

    async def claim(self, limit: int) -> Sequence[Claimed]:
        """Claim jobs; they wait in `OwnedJobs` then."""
        self.owned.claiming += 1
        try:
            claimed, request, asked_at = await self._claim(limit)
        finally:
            self.owned.claiming -= 1
        reach("claim.answered")
        self.meters.claimed(len(claimed))
        for job in own_all(claimed, self._make_actor, asked_at, request.request_id):
            self._take_ownership(job)
        return claimed

    def _make_actor(self, attempt: int) -> Actor:
        return Actor(Role.OWNER, self.worker.name, attempt)

    async def _claim(self, limit: int) -> tuple[list[Claimed], ClaimRequest, float]:
        """Claim; returns the jobs, the request that brought them, and when that was sent.

        While it is unknown whether a request worked it is repeated; not for long, though: its
        leases run, and what it may have brought is released by the ownership check.
        """
        request, asked_at = self._make_request(limit), lease_now()
        pause = FIRST_PAUSE_SECONDS
        while True:
            reach("claim.sending")
            try:
                return await self.store.claim(request), request, asked_at
            except LeaseConflictError:
                self.meters.conflict()
                return [], request, asked_at
            except StoreReplaced:
                # No further try can succeed: only a new process opens the right file.
                raise
            except HoldfastError as error:
                self.meters.store_error(error.code)
                log.warning("claim failed, will try again: %s", error)
            if await self.stop_request.wait(pause):
                return [], request, asked_at
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            if lease_now() - asked_at > self.repeat_seconds:
                request, asked_at = self._make_request(limit), lease_now()

    def _make_request(self, limit: int, capacity: Capacity | None = None) -> ClaimRequest:
        return make_claim_request(
            self.worker.name,
            limit,
            queues=self.worker.queues,
            tasks=self.runners.offers(),
            capabilities=self.worker.capabilities,
            capacity=capacity,
        )

    def _take_ownership(self, job: OwnedJob) -> None:
        older = self.owned.by_id.get(job.claimed.id.int)
        if older is not None:
            self._let_go_of_older(older, job)
        self._add(job)

    def _add(self, job: OwnedJob) -> None:
        self.owned.add(job)

    def _let_go_of_older(self, older: OwnedJob, job: OwnedJob) -> None:
        """Write nothing more for an earlier attempt of a job: it would be in this one's way."""
        if older.run is not None:
            self.stopper.lose(older, f"it was claimed again, as attempt {job.record.attempt}")
        else:
            # Its end landed and the reply was lost, or its lease passed before it could be written.
            self.owned.forget(older)

    async def wait_for_work(self) -> None:
        """Wait for a notice of work, for the poll's time, or until the worker stops."""
        limit_seconds = self.poll_seconds * (1 + jitter() / 4)
        try:
            # Not by a task for each of the two: that costs turns of the loop before the claim.
            async with self.stop_request.cutting_short():
                await self.store.wake_up(self.worker.queues, limit_seconds=limit_seconds)
        except Exception as error:  # noqa: BLE001  without notices, the poll finds the work
            log.warning("no notifications from the store: %s", error)
            await self.stop_request.wait(self.poll_seconds)

    async def release_surplus(self, every_seconds: float) -> None:
        """Release, from time to time, what waits behind jobs that turned out long.

        It was claimed when all jobs seemed short, and other workers may be idle. A job whose
        release would cost a try is kept.
        """
        waiting = self.owned.waiting
        while True:
            await asyncio.sleep(every_seconds)
            surplus = len(waiting) - self.prefetch.allowance(self._oldest_seconds())
            last = list(waiting)[len(waiting) - max(surplus, 0) :]
            for job in [job for job in last if not release_costs(job.like)]:
                waiting.remove(job)
                self.commands.post(job, c.Release(actor=job.actor, reason="waited for a free slot"))
