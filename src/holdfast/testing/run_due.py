"""A drain: run everything that is due, and let time pass where only time is in the way.

One job at a time, in the order in which a worker would claim them. Between two jobs it sweeps as
every worker does, so that passed leases, deadlines and timers have their effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.errors import Refused
from holdfast.flow.command import perform
from holdfast.ids import mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.lease import taken_from
from holdfast.lifecycle.record import ELSEWHERE, SLEEP, Actor, Job, JobId
from holdfast.lifecycle.states import CLAIMABLE, LIVE, OWNED, Role, State
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import ClaimRequest, Query
from holdfast.ports.store import Store
from holdfast.queries.why.why import Why, why
from holdfast.services.reconciler import Reconciler
from holdfast.testing.worker import KitWorker, NotDrained, Ran

if TYPE_CHECKING:
    from holdfast.testing.kit import Kit

FOREIGN = "holdfast.testing: no such task here"
"""The hold on jobs that nobody here can run, while others are run."""
SHOWN = 10
"""How many jobs a message names."""
PAGE = 1000
_ACTOR = Actor(Role.CONTROL, "holdfast.testing")


class Drained(Struct, frozen=True, kw_only=True):
    """What a drain did, and what it left."""

    runs: list[Ran]
    """The attempts, in order."""
    left: list[Why]
    """Jobs that have not ended, and why: they wait for a signal, are held, or not due yet."""

    @property
    def errors(self) -> list[BaseException]:
        """What handlers raised, in order."""
        return [run.error for run in self.runs if run.error is not None]


class DueJobs(Struct, frozen=True, kw_only=True):
    """What there is to do."""

    jobs: list[Job]
    """The jobs of the drained queues that have not ended."""
    paused: frozenset[str]

    @property
    def queues(self) -> tuple[str, ...]:
        """Where jobs are."""
        return tuple(sorted({job.queue for job in self.jobs}))

    @property
    def needs(self) -> frozenset[str]:
        """What any of them needs."""
        return frozenset(need for job in self.jobs for need in job.needs)


class Drain(Struct, kw_only=True):
    """One drain."""

    kit: Kit
    store: Store
    limit: int
    """How many attempts it may take."""
    queues: Sequence[str] | None = None
    jump: bool = True
    """Whether to let time pass where only time is in the way."""
    until: int | None = None
    """Let time pass up to here, whatever comes on the way."""
    patience_seconds: float = 30.0
    enough: Callable[[Ran | None], Awaitable[bool]] | None = None
    """Asked after each attempt (and at first): whether to stop."""
    runs: list[Ran] = []
    worker: KitWorker | None = None

    async def drain(self) -> Drained:
        """Run until nothing is due; NotDrained if that does not come."""
        sweeper = Reconciler(self.store, "holdfast.testing", jitter=lambda: 1.0)
        foreign: set[JobId] = set()
        try:
            if self.enough is None or not await self.enough(None):
                await self._drain(sweeper, foreign)
        finally:
            if self.worker is not None:
                await self.kit.dismiss(self.worker)
            for id_ in foreign:
                with suppress(Refused):  # it has ended meanwhile
                    await perform(self.store, id_, c.Unhold(actor=_ACTOR, hold=FOREIGN))
        return Drained(runs=self.runs, left=await self._left())

    async def _drain(self, sweeper: Reconciler, foreign: set[JobId]) -> None:
        while True:
            swept = await sweeper.sweep()
            look = await self._look(foreign)
            ran = await self._run_next(look)
            if ran is not None:
                self.runs.append(ran)
                if self.enough is not None and await self.enough(ran):
                    return
                await self._check_limit()
            elif not swept.written:
                instant = self._next_instant(look)
                if instant is None:
                    return
                await self.kit.move_clock(instant)

    async def _look(self, foreign: set[JobId]) -> DueJobs:
        """See what has not ended, and set aside what nobody here can run."""
        jobs = [job for job in await live_jobs(self.store) if self._is_ours(job)]
        strange = {job.id for job in jobs if not self.kit.knows(job)}
        for job in jobs:
            if job.id in strange - foreign and job.state in CLAIMABLE:
                await perform(self.store, job.id, c.Hold(actor=_ACTOR, hold=FOREIGN))
                foreign.add(job.id)
        paused = frozenset(
            one.name for one in await self.store.queues() if one.paused_at is not None
        )
        return DueJobs(jobs=[job for job in jobs if job.id not in strange], paused=paused)

    def _is_ours(self, job: Job) -> bool:
        return self.queues is None or job.queue in self.queues

    async def _run_next(self, look: DueJobs) -> Ran | None:
        if not look.jobs:
            return None
        if self.worker is None or self.worker.dead:
            self.worker = self.kit.hire(self.store)
        worker = self.worker
        request = ClaimRequest(
            request_id=mint_request(),
            owner=worker.name,
            queues=look.queues,
            limit=1,
            capabilities=look.needs,
        )
        claimed = await self.store.claim(request)
        return await worker.run(claimed[0], self.patience_seconds) if claimed else None

    def _next_instant(self, look: DueJobs) -> int | None:
        """Return when something happens by itself, if it is to be waited for."""
        # A lease would expire under the worker that runs: nothing is skipped then.
        if self.kit.is_busy() and self.until is None:
            return None
        now = self.kit.clock()
        anything = [at for job in look.jobs for at in self._instants(job) if at > now]
        if self.until is not None:
            target = self.until
        elif self.jump:
            certain = [at for job in look.jobs for at in self._certain(job, look) if at > now]
            target = min(certain, default=now)
        else:
            return None
        return min((at for at in anything if at <= target), default=None)

    def _certain(self, job: Job, look: DueJobs) -> list[int]:
        """List when a job continues by time alone."""
        alone = self._is_lost(job) or job.wait_for in (SLEEP, ELSEWHERE)
        if job.state in CLAIMABLE:
            alone = not job.held_by and job.queue not in look.paused
        return self._instants(job) if alone else []

    def _instants(self, job: Job) -> list[int]:
        """List when something happens to a job by itself."""
        times = [job.deadline_at]
        if job.state in CLAIMABLE or job.state is State.WAITING:
            times.append(job.run_at)
        elif self._is_lost(job):
            # A sweep finds it within a tick; a store may look at its claim a little later still.
            found = (job.lease_expires_at or 0) + SECOND
            times += [found, found + job.policy.running_lease, taken_from(job) + SECOND]
        return [at for at in times if at is not None]

    def _is_lost(self, job: Job) -> bool:
        """Return whether its worker died; False where the worker is not one of the kit's."""
        return job.state in OWNED and self.kit.is_dead(job.owner or "")

    async def _check_limit(self) -> None:
        if len(self.runs) < self.limit:
            return
        most = Counter(run.task for run in self.runs).most_common(3)
        busiest = [f"  {task}: {times} attempts" for task, times in most]
        left = [f"  {describe(one)}" for one in await self._left()]
        raise NotDrained(
            "\n".join(
                [f"there is still work after {self.limit} attempts (limit=):", *busiest]
                + ["still there:", *left[:SHOWN]]
                + ([f"  and {len(left) - SHOWN} more"] if len(left) > SHOWN else [])
            )
        )

    async def _left(self) -> list[Why]:
        jobs = [job for job in await live_jobs(self.store) if self._is_ours(job)]
        look = DueJobs(jobs=jobs, paused=frozenset())
        await self.kit.announce(self.store, look.queues, look.needs)
        return [await why(self.store, job.id) for job in jobs]


async def live_jobs(store: Store) -> list[Job]:
    """List what has not ended, oldest first."""
    query = Query(states=tuple(LIVE), limit=PAGE)
    jobs: list[Job] = []
    while True:
        page = await store.find(query)
        jobs += page.jobs
        if page.next is None:
            return jobs[::-1]
        query = Query(states=tuple(LIVE), limit=PAGE, before=page.next)


def describe(one: Why) -> str:
    """Describe a job that has not ended, in a line."""
    return f"{one.job_id} ({one.task}, {one.state}): [{one.reason.code}] {one.text}"
