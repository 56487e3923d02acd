"""The patrol: once a second a worker compares what it holds with what the store says.

It learns of cancel requests, stops attempts whose lease it cannot prove, gives back what it owns
and does not hold, and says that it lives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from holdfast.errors import HoldfastError, Refused, SchemaMismatch
from holdfast.flow.perform import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import Actor, Job, JobId
from holdfast.lifecycle.states import Role
from holdfast.ports import Announcement, Store
from holdfast.services.held import Held
from holdfast.services.lease_clock import lease_now
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
LEASES_SECONDS = 0.5
ANNOUNCE_EVERY = 5
MISSING_LIMIT = 500
"""How many jobs that were taken away are looked at in one round."""
SIGHTINGS = 2
"""How often an unknown job of ours is seen before it is given back: a claim's reply may be near."""


class Patrol:
    """One worker's rounds."""

    def __init__(
        self,
        store: Store,
        announcement: Announcement,
        held: dict[JobId, Held],
        meters: Meters,
        *,
        on_news: Callable[[Held], None],
        on_unproven: Callable[[Held], None],
        may_be_ours: Callable[[], Callable[[JobId], bool]],
        on_mismatch: Callable[[SchemaMismatch], None],
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        """Watch over `held`; the rest says whom to tell of what.

        `may_be_ours` gives a test for jobs that are not held, and are on their way here or running.
        """
        self._store = store
        self._announcement = announcement
        self._held = held
        self._meters = meters
        self._on_news = on_news
        self._on_unproven = on_unproven
        self._may_be_ours = may_be_ours
        self._on_mismatch = on_mismatch
        self._tick = tick_seconds
        self._strays: dict[JobId, int] = {}
        self._rounds = 0

    async def run(self) -> None:
        """Go round until cancelled. Trouble with the store is told and waited out."""
        pulse = self._meters.pulse("patrol", limit_seconds=30 + 5 * self._tick)
        try:
            while True:
                try:
                    await self._ask_store()
                except HoldfastError as error:
                    self._meters.store_error(error.code)
                    log.warning("the store could not be asked: %s", error)
                    if isinstance(error, SchemaMismatch):
                        self._on_mismatch(error)
                pulse.beat()
                self._rounds += 1
                await asyncio.sleep(self._tick)
        finally:
            pulse.stop()

    async def watch_leases(self) -> None:
        """Look at the leases until cancelled: apart, because a store that is away answers late."""
        while True:
            self._check_leases()
            await asyncio.sleep(min(self._tick, LEASES_SECONDS))

    async def give_back_strays(self) -> None:
        """Release, at the end, what a claim may have brought whose reply was never read."""
        for job in await self._store.owned(self._announcement.name):
            if job.id not in self._held:
                await self._give_back(job)

    def _check_leases(self) -> None:
        """Give up what may be somebody else's by now: the keeper could not renew it in time."""
        now = lease_now()
        for held in list(self._held.values()):
            if held.proven_until <= now:
                self._on_unproven(held)

    async def _ask_store(self) -> None:
        if self._rounds % ANNOUNCE_EVERY == 0:
            await self._store.announce(self._announcement)
        asked_at = time.monotonic()
        owned = await self._store.owned(self._announcement.name)
        await self._look_for_missing({job.id for job in owned}, asked_at)
        may_be_ours = self._may_be_ours()
        unknown = [job for job in owned if not self._recognise(job) and not may_be_ours(job.id)]
        self._strays = {job.id: self._strays.get(job.id, 0) + 1 for job in unknown}
        for job in unknown:
            if self._strays[job.id] >= SIGHTINGS:
                await self._give_back(job)

    async def _look_for_missing(self, owned: set[JobId], asked_at: float) -> None:
        """Learn what became of jobs that are held here and no longer ours in the store."""
        missing = [
            id_
            for id_, held in self._held.items()
            if id_ not in owned and held.claimed_at < asked_at and not held.commands
        ][:MISSING_LIMIT]
        found = await self._store.get(missing) if missing else []
        for id_, job in zip(missing, found, strict=True):
            if job is not None and (held := self._held.get(id_)) is not None:
                held.learn(job)
                self._on_news(held)

    def _recognise(self, job: Job) -> bool:
        held = self._held.get(job.id)
        if held is None or held.actor.attempt != job.attempt:
            return False
        held.learn(job)
        self._on_news(held)
        return True

    async def _give_back(self, job: Job) -> None:
        """Release what a claim brought whose reply was never read."""
        actor = Actor(Role.OWNER, self._announcement.name, job.attempt)
        log.warning("job %s is held in our name and unknown here: released", job.public_id)
        try:
            await perform(
                self._store, job.id, c.Release(actor=actor, reason="unknown to its worker")
            )
        except Refused as error:
            # It ran out, was cancelled, or may not run again: a sweep will end it.
            log.warning("job %s could not be released: %s", job.public_id, error)
