"""Repair jobs that were written while the store's clock was ahead for a moment.

Within a job time never goes back: what was claimed in that moment keeps its lease, and what was
queued keeps its due time, until the clock has come there. Events are not changed; a repair is one
more event of each job, by the same law that a sweep follows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.flow.perform import perform
from holdfast.flow.recover import remedy
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import Actor, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import CLAIMABLE, OWNED, EventType, Role, State
from holdfast.lifecycle.times import SECOND
from holdfast.ports import WORKER_SILENCE, Due, EventQuery, Query, Store

TOLERANCE = 60 * SECOND
"""What is ahead by less is a matter of a minute, and repairs itself."""
PAGE = 1000
LOOK = 20_000
"""How many jobs one page of the list of owned ones looks at."""
_E = EventType
SETS_RUN_AT = (
    _E.CREATED,
    _E.RESCHEDULED,
    _E.RETRYING,
    _E.STALLED,
    _E.RELEASED,
    _E.REQUEUED,
    _E.WAIT_COMPLETED,
)
TYPES = (*SETS_RUN_AT, _E.CLAIMED, _E.ADOPTED, _E.STARTED, _E.WAITING)
"""Events that set a due time or a lease."""


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
    """Repair all jobs that are held back by times of a clock that was ahead, in somebody's name."""
    repair = _Repair(store, name, jitter, await _live_workers(store))
    async for job in jobs_ahead(store, owned=True):
        await repair.repair(job)
    return repair.report


async def jobs_ahead(store: Store, *, owned: bool = False) -> AsyncIterator[Job]:
    """List jobs with a lease or due time that only a clock that was ahead can have set.

    By their events; with `owned` also by a look at all jobs for those that have an owner, of which
    only a heartbeat was written in that moment.
    """
    now = (await store.clock()).now
    seen: set[JobId] = set()
    for type_ in TYPES:
        async for id_ in _events_ahead(store, type_, now + TOLERANCE):
            if id_ not in seen:
                seen.add(id_)
                [job] = await store.get([id_])
                if job is not None and is_ahead(job, now):
                    yield job
    if owned:
        async for job in _owned(store):
            if job.id not in seen and is_ahead(job, now):
                yield job


def is_ahead(job: Job, now: int) -> bool:
    """Whether a job's lease or due time can only come from a clock that was ahead."""
    if job.finished_at is not None or job.updated_at <= now + TOLERANCE:
        return False
    if job.state in OWNED:
        grant = max(job.policy.lease, job.policy.running_lease)
        return (job.lease_expires_at or 0) > now + grant + TOLERANCE
    return (job.run_at or 0) > now + TOLERANCE


async def _events_ahead(store: Store, type_: EventType, since: int) -> AsyncIterator[JobId]:
    while True:
        events = await store.find_events(EventQuery(type=type_.code, since=since, limit=PAGE))
        for event in events:
            yield event.id
        if len(events) < PAGE or events[-1].at == since:
            return
        since = events[-1].at


async def _owned(store: Store) -> AsyncIterator[Job]:
    before: JobId | None = None
    while True:
        page = await store.find(Query(states=tuple(OWNED), before=before, limit=PAGE, look=LOOK))
        for job in page.jobs:
            yield job
        if page.next is None:
            return
        before = page.next


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
            why_left = await self._repair(job)
        except HoldfastError as error:
            why_left = str(error)
        if why_left is not None:
            self.report.left[job.id] = why_left

    async def _repair(self, job: Job) -> str | None:
        """Repair one job, or return why it is left as it is."""
        if job.state in OWNED:
            if job.owner in self._live:
                return f"its owner {job.owner} is alive"
            job = await self._take(job)
            self.report.taken += 1
        if job.finished_at is not None:
            return None
        if job.state not in (*CLAIMABLE, State.PENDING):
            return f"it is {job.state}, and cannot be rescheduled"
        [event, *_] = await self._store.latest_events(job.id, SETS_RUN_AT, limit=1)
        run_at = _run_at(job, event, (await self._store.clock()).now)
        if run_at is None:
            return "its due time may have been given as an instant; reschedule it"
        reason = "its due time was set by a clock that was ahead"
        command = c.Reschedule(actor=self._control, run_at=run_at, reason=reason)
        await perform(self._store, job.id, command)
        self.report.rescheduled += 1
        return None

    async def _take(self, job: Job) -> Job:
        """Do what a sweep would do once the lease has passed."""
        clock = await self._store.clock()
        passed = (job.lease_expires_at or 0) + job.policy.host_recovery
        due = Due(now=passed, epoch=clock.epoch, jobs=[job])
        command = remedy(job, due, self._reconciler, self._jitter)
        assert command is not None
        return await perform(self._store, job.id, command, expected_rev=job.rev)


def _run_at(job: Job, event: LoggedEvent, now: int) -> int | None:
    """Return when a job is due by the right clock; None if that cannot be known."""
    wait = (job.run_at or 0) - event.at
    if event.type is _E.CREATED and wait:
        return None
    return now + max(wait, 0)
