"""Repair jobs that were written while the store's clock was ahead for a moment.

Within a job time never goes back: what was claimed in that moment keeps its lease, and what was
queued keeps its due time, until the clock has come there. Events are not changed; a repair is one
more event of each job, by the same law that a sweep follows.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.due import remedy
from holdfast.lifecycle.history import SETS_RUN_AT
from holdfast.lifecycle.lease import taken_from
from holdfast.lifecycle.record import Actor, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import HOLDABLE, Role
from holdfast.ports.models import WORKER_SILENCE
from holdfast.ports.store import Store
from holdfast.queries.times_ahead import TOLERANCE, find_jobs_ahead


class Repaired(Struct, kw_only=True):
    """What a repair did."""

    found: int = 0
    """Jobs with a time that only a clock that was ahead can have set."""
    taken: int = 0
    """Taken from an owner that is not alive, as after a lost lease."""
    rescheduled: int = 0
    """Made due as long from now as they were from the wrong time."""
    left: dict[JobId, str] = {}
    """Jobs that were left as they are, and why."""


async def repair_times(store: Store, name: str, *, jitter: Callable[[], float]) -> Repaired:
    """Repair, in this name, all jobs that are held back by times of a clock that was ahead."""
    repair = _Repair(store, name, jitter, await _live_workers(store))
    async for job in find_jobs_ahead(store, owned=True):
        await repair.repair(job)
    return repair.report


async def _live_workers(store: Store) -> set[str]:
    now = (await store.clock()).now
    workers = await store.workers(seen_since=now - WORKER_SILENCE)
    # One that was seen in the future was seen by the wrong clock, and not since.
    return {one.name for one in workers if one.is_live(now) and one.seen_at <= now + TOLERANCE}


class _Repair:
    """One repair: what it may use, and what it did."""

    def __init__(
        self, store: Store, name: str, jitter: Callable[[], float], live: set[str]
    ) -> None:
        self._store = store
        self._reconciler = Actor(Role.RECONCILER, name)
        self._control = Actor(Role.CONTROL, name)
        self._jitter = jitter
        self._live = live
        self.report = Repaired()

    async def repair(self, job: Job) -> None:
        """Repair one job; what cannot be repaired does not stop the others."""
        self.report.found += 1
        try:
            why_left = await self._repair_or_explain(job)
        except HoldfastError as error:
            why_left = str(error)
        if why_left is not None:
            self.report.left[job.id] = why_left

    async def _repair_or_explain(self, job: Job) -> str | None:
        """Repair one job, or return why it is left as it is."""
        if job.owned:
            if job.owner in self._live:
                return f"its owner {job.owner} is alive"
            job = await self._take_from_owner(job)
            self.report.taken += 1
        if job.finished_at is not None:
            return None
        if job.state not in HOLDABLE:
            return f"it is {job.state}, and cannot be rescheduled"
        [event, *_] = await self._store.latest_events(job.id, SETS_RUN_AT, limit=1)
        run_at = _find_run_at(job, event, (await self._store.clock()).now)
        if run_at is None:
            return "its due time may have been given as an instant; reschedule it"
        reason = "its due time was set by a clock that was ahead"
        command = c.Reschedule(actor=self._control, run_at=run_at, reason=reason)
        await perform(self._store, job.id, command)
        self.report.rescheduled += 1
        return None

    async def _take_from_owner(self, job: Job) -> Job:
        """Do what a sweep would do once the lease has passed."""
        epoch, actor = (await self._store.clock()).epoch, self._reconciler
        command = remedy(job, actor, now=taken_from(job), epoch=epoch, jitter=self._jitter)
        assert command is not None
        return await perform(self._store, job.id, command, expected_rev=job.rev)


def _find_run_at(job: Job, event: LoggedEvent, now: int) -> int | None:
    """Return when a job is due by the right clock; None if that cannot be known."""
    wait = (job.run_at or 0) - event.at
    if event.created is not None and wait:
        return None
    return now + max(wait, 0)
