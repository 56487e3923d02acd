"""The ownership check: once a second a worker compares what it owns with the store.

It learns of cancel requests, gives up attempts whose lease it cannot prove, releases what it owns
and does not know, and announces the worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from msgspec import Struct

from holdfast.errors import HoldfastError, Refused, SchemaMismatch
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Announcement
from holdfast.ports.store import Store
from holdfast.telemetry import Meters
from holdfast.worker.owned_job import OwnedJobs, lease_now
from holdfast.worker.stop import Stopper
from holdfast.worker.stop_request import StopRequest

log = logging.getLogger(__name__)

LEASES_SECONDS = 0.5
ANNOUNCE_EVERY = 5
MISSING_LIMIT = 500
"""How many jobs that were taken away are looked at in one round."""
SIGHTINGS = 2
"""How often an unknown job of ours is seen before it is released: a claim's reply may be near."""


class OwnershipCheck(Struct, kw_only=True, eq=False):
    """Checks the jobs of one worker against the store, round by round."""

    store: Store
    owned: OwnedJobs
    worker: str
    announcement: Callable[[], Announcement]
    stopper: Stopper
    stop_request: StopRequest
    meters: Meters
    tick_seconds: float = 1.0
    _strays: dict[JobId, int] = {}
    _rounds: int = 0

    async def run(self) -> None:
        """Check until cancelled. Logs trouble with the store, and waits it out."""
        pulse = self.meters.pulse("patrol", limit_seconds=30 + 5 * self.tick_seconds)
        try:
            while True:
                try:
                    await self._check_owned()
                except HoldfastError as error:
                    self.meters.store_error(error.code)
                    log.warning("the store did not answer: %s", error)
                    if isinstance(error, SchemaMismatch):
                        # This version must not write under the schema that it was migrated to.
                        self.stop_request.fail(error)
                pulse.beat()
                self._rounds += 1
                await asyncio.sleep(self.tick_seconds)
        finally:
            pulse.stop()

    async def watch_leases(self) -> None:
        """Look at the leases until cancelled: apart, because a store that is away answers late."""
        while True:
            self.stopper.lose_unproven(lease_now())
            await asyncio.sleep(min(self.tick_seconds, LEASES_SECONDS))

    async def release_strays(self) -> None:
        """Release, at the end, what a claim may have brought whose reply was never read."""
        for job in await self.store.owned(self.worker):
            if job.id.int not in self.owned.by_id and job.id.int not in self.owned.left:
                await self._release(job)

    async def _check_owned(self) -> None:
        if self._rounds % ANNOUNCE_EVERY == 0:
            await self.store.announce(self.announcement())
        asked_at = time.monotonic()
        # If the store does not answer, it looks at those claims by itself some time.
        ended, self.owned.ended_claims = self.owned.ended_claims, {}
        # Most short jobs end before the first look at them: a cancel of those has a tick more.
        owned = await self.store.owned(
            self.worker, ended=ended, older_than=int(self.tick_seconds * SECOND)
        )
        await self._look_for_missing({job.id for job in owned}, asked_at - self.tick_seconds)
        unknown = [job for job in owned if not self._recognise(job)]
        if self.owned.claiming:
            # They may be what the claim under way has brought.
            unknown = []
        else:
            running = {job.claimed.id for job in self.owned.running}
            unknown = [job for job in unknown if job.id not in running]
        self._strays = {job.id: self._strays.get(job.id, 0) + 1 for job in unknown}
        for job in unknown:
            if self._strays[job.id] >= SIGHTINGS:
                await self._release(job)

    async def _look_for_missing(self, owned: set[JobId], before: float) -> None:
        """Learn what became of jobs that were claimed before and are no longer ours."""
        missing = [
            job
            for job in self.owned.by_id.values()
            if job.claimed.id not in owned and job.claimed_at < before and not job.outbox.commands
        ][:MISSING_LIMIT]
        found = await self.store.get([job.claimed.id for job in missing]) if missing else []
        for job, record in zip(missing, found, strict=True):
            if record is not None and not job.gone:
                job.learn(record)
                self.stopper.heed(job)

    def _recognise(self, record: Job) -> bool:
        job = self.owned.by_id.get(record.id.int)
        if job is None or job.actor.attempt != record.attempt:
            return record.id.int in self.owned.left
        job.learn(record)
        self.stopper.heed(job)
        return True

    async def _release(self, job: Job) -> None:
        """Release what a claim brought whose reply was never read."""
        actor = Actor(Role.OWNER, self.worker, job.attempt)
        log.warning("job %s is owned by this worker but unknown here: released", job.public_id)
        try:
            await perform(
                self.store, job.id, c.Release(actor=actor, reason="unknown to its worker")
            )
        except Refused as error:
            # Its lease expired, it was cancelled, or may not run again: a sweep will end it.
            log.warning("job %s could not be released: %s", job.public_id, error)
