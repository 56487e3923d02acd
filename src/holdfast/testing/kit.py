"""The test kit: an app on a database of the test's own, whose jobs run when the test runs them.

    async with Kit(app) as kit:
        job = await charge.submit(order=7)
        await kit.drain()
        assert await job.result() == "paid"

Jobs are claimed, run and committed by a worker's own parts; only the clock is the test's.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self, TypeVar

from holdfast.app.app import Holdfast
from holdfast.durations import Span, span_micros, span_seconds
from holdfast.errors import HoldfastError
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.routes import offer
from holdfast.lifecycle.states import State
from holdfast.ports.models import Announcement
from holdfast.ports.store import Store
from holdfast.queries.why.why import why
from holdfast.tasks.handles import JobHandle
from holdfast.testing.clock import VirtualClock
from holdfast.testing.databases import place_of
from holdfast.testing.faults import Faults, Moment
from holdfast.testing.invariants import assert_invariants
from holdfast.testing.run_due import Drain, Drained, describe
from holdfast.testing.worker import KitWorker, NotDrained, Ran

LIMIT = 1000
"""How many attempts one drain may take."""
NAME = "holdfast.testing"
T = TypeVar("T")


class Kit:
    """An app under test: `async with Kit(app) as kit:`, or `with` where there is no event loop.

    Without a `url` its jobs live in memory; on PostgreSQL in an empty database of the test's own.
    At its end every job is derived again from its events and compared.
    """

    def __init__(
        self,
        app: Holdfast,
        *,
        url: str | None = None,
        start: datetime | None = None,
        inline: bool = False,
        faults: Faults | None = None,
    ) -> None:
        """Test an app that is not open; `start` is the time at which the test starts."""
        self.app = app
        self.clock = VirtualClock(start)
        self.faults = faults or Faults()
        self._inline = inline
        self._place = place_of(url, self.clock)
        self._workers: list[KitWorker] = []
        self._kept: Any = None

    # -- start and end

    async def __aenter__(self) -> Self:
        """Put the app on the test's database."""
        self.install()
        try:
            await self._place.prepare()
            await self.app.store()
        except BaseException:
            self.uninstall()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Check that the ledger is sound and all planned faults came, and put the app back."""
        try:
            await self._end(check=kind is None)
        finally:
            await self.app.close()
            await self._place.restore()
            self.uninstall()

    def __enter__(self) -> Self:
        """Put the app on the test's database, in a thread without an event loop."""
        self.install()
        try:
            self.run(self._place.prepare())
        except BaseException:
            self.uninstall()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Check and put the app back; see `__aexit__`."""
        try:
            self.run(self._end(check=kind is None))
            self.run(self._place.restore())
        finally:
            self.app.close_sync()
            self.uninstall()

    def install(self) -> None:
        """Put the app on the test's database; it is opened when it is first used."""
        if self.app.rehearsal is not None:
            raise HoldfastError(f"{self.app!r} is under test already: one Kit at a time")
        self._kept = self.app.url, self.app.make_store
        self.app.use(self._place.url, store=self._place.make_store)
        self.app.rehearsal = _Rehearsal(self)

    def uninstall(self) -> None:
        """Put the app back where it was."""
        self.app.rehearsal = None
        self.app.url, self.app.make_store = self._kept

    async def _end(self, *, check: bool) -> None:
        for worker in self._workers:
            await _on_its_loop(worker, worker.close())
        self._workers.clear()
        if check:
            self._check_faults()
            await assert_invariants(await self.app.store())

    def _check_faults(self) -> None:
        if unmet := self.faults.unmet():
            came = ", ".join(sorted(self.faults.reached)) or "none"
            raise AssertionError(
                f"faults that never happened: {'; '.join(unmet)}. Steps and tasks that ran: {came}"
            )

    # -- running

    async def drain(
        self,
        *,
        limit: int = LIMIT,
        queues: Sequence[str] | None = None,
        jump: bool = True,
        patience: Span = "30s",
    ) -> Drained:
        """Run everything that is due until nothing is; return what ran and what is left.

        Where only time is in the way (a delay, a backoff, a sleep, the lease of a worker that
        died) the clock jumps there, unless `jump` is False. The timeout of a wait for a signal is
        not jumped to, since the signal may come first: see `advance`. `limit` is how many attempts
        it may take, `patience` how long one may really last. Jobs of tasks that are not registered
        here are left alone.
        """
        return await self._drain(
            limit=limit, queues=queues, jump=jump, patience_seconds=span_seconds(patience)
        )

    async def advance(self, span: Span, *, limit: int = LIMIT) -> Drained:
        """Let time pass: whatever becomes due on the way is run at its time."""
        until = self.clock() + span_micros(span)
        drained = await self._drain(limit=limit, until=until)
        await self.move_clock(until)
        return drained

    async def skip(self, span: Span) -> None:
        """Let time pass while nobody works, as in an outage; what fell due runs at next drain."""
        await self.move_clock(self.clock() + span_micros(span))

    @contextmanager
    def inline(self, on: bool = True) -> Iterator[None]:
        """Run jobs where they are submitted; what a handler raises, `submit` raises."""
        before, self._inline = self._inline, on
        try:
            yield
        finally:
            self._inline = before

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something in a test that is not a coroutine: `kit.run(kit.drain())`."""
        return self.app.run_sync(work, "it")

    async def _drain(self, **how: Any) -> Drained:
        return await Drain(kit=self, store=await self.app.store(), **how).drain()

    async def _run_inline(self, job: JobHandle[Any]) -> None:
        store = await self.app.store()

        async def enough(ran: Ran | None) -> bool:
            if ran is not None and ran.id == job.record.id and isinstance(ran.error, Exception):
                raise ran.error
            return await _has_ended(store, job.record.id)

        await self._drain(limit=LIMIT, enough=enough)
        await job.refresh()
        if job.record.terminal and job.state is not State.SUCCEEDED:
            await job.result()

    async def _run_until_ended(self, id: JobId) -> None:
        """Run what is due until a job has ended: a caller waits for it."""
        store = await self.app.store()

        async def enough(_: Ran | None) -> bool:
            return await _has_ended(store, id)

        await self._drain(limit=LIMIT, enough=enough)
        if await _has_ended(store, id) or self.is_busy() or await self._has_company(store):
            return
        raise NotDrained(
            "a caller waits for a job that does not end by itself: "
            + describe(await why(store, id)),
            job_id=str(id),
        )

    async def _has_company(self, store: Store) -> bool:
        workers = await store.workers()
        return any(one.is_live(self.clock()) and one.name != NAME for one in workers)

    # -- what goes wrong

    def crash_before(self, name: str, *, times: int = 1) -> None:
        """Let the worker die before a step, or a task's handler, starts."""
        self.faults.crash(name, moment=Moment.BEFORE, times=times)

    def crash_during(self, name: str, *, times: int = 1) -> None:
        """Let the worker die when a step, or a handler, has done its work and not recorded it."""
        self.faults.crash(name, moment=Moment.DURING, times=times)

    def crash_after(self, name: str, *, times: int = 1) -> None:
        """Let the worker die when a step, or the outcome of a task's job, has been recorded."""
        self.faults.crash(name, moment=Moment.AFTER, times=times)

    # -- for a drain

    def knows(self, job: Job) -> bool:
        """Return whether a job's task is registered here, in its version."""
        task = self.app.tasks.get(job.task)
        return task is not None and job.task_version in (None, task.version)

    def hire(self, store: Store) -> KitWorker:
        """Return another worker."""
        self._workers.append(KitWorker(store, self.app.tasks, self.faults, self.elapse))
        return self._workers[-1]

    async def dismiss(self, worker: KitWorker) -> None:
        """Let a worker go; one that died is kept until the test has ended."""
        if not worker.dead:
            self._workers.remove(worker)
            await worker.close()

    def is_dead(self, owner: str) -> bool:
        """Return whether a worker was made to die."""
        return any(worker.dead and worker.name == owner for worker in self._workers)

    def is_busy(self) -> bool:
        """Return whether something runs just now."""
        return any(worker.busy for worker in self._workers)

    async def elapse(self, seconds: float) -> None:
        """Let time pass while attempts run: their leases are renewed."""
        await self.move_clock(self.clock() + span_micros(seconds))

    async def move_clock(self, micros: int) -> None:
        """Make it later; no lease expires under a worker that runs a job."""
        while (left := micros - self.clock()) > 0:
            # The shortest: a start that is being written has another lease than the claim.
            jobs = [worker.job for worker in self._workers if worker.job]
            leases = [int(one.shortest_lease_seconds * 5e5) for one in jobs]
            await self._place.move_clock(self.clock() + min([left, *leases]))
            for worker in self._workers:
                await _on_its_loop(worker, worker.renew(self.clock()))

    async def announce(self, store: Store, queues: Sequence[str], needs: Iterable[str]) -> None:
        """Announce a worker, so that `why` knows of one."""
        await store.announce(
            Announcement(
                name=NAME,
                queues=tuple(queues) or ("default",),
                capabilities=frozenset(needs),
                tasks=tuple(
                    sorted(offer(one.name, one.version) for one in self.app.tasks.values())
                ),
                host=socket.gethostname(),
                pid=os.getpid(),
                concurrency=1,
            )
        )


class _Rehearsal:
    """What an app under test asks of its kit."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit

    async def submitted(self, jobs: Sequence[JobHandle[Any]]) -> None:
        for job in jobs:
            if self.kit._inline and job.created:
                await self.kit._run_inline(job)

    async def awaited(self, id: JobId) -> None:
        await self.kit._run_until_ended(id)


def kit_of(app: Holdfast) -> Kit:
    """Find the kit under which an app is."""
    if not isinstance(app.rehearsal, _Rehearsal):
        raise HoldfastError(f"{app!r} is not under test: use `async with Kit(app):`")
    return app.rehearsal.kit


async def drain(app: Holdfast, **how: Any) -> Drained:
    """Run everything that is due; see `Kit.drain`."""
    return await kit_of(app).drain(**how)


async def _has_ended(store: Store, id: JobId) -> bool:
    [job] = await store.get([id])
    return job is None or job.terminal


async def _on_its_loop(worker: KitWorker, work: Coroutine[Any, Any, None]) -> None:
    """Run something on a worker's loop, which may be that of the app's bridge."""
    if worker.loop is asyncio.get_running_loop():
        await work
    elif worker.loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, worker.loop))
    else:
        work.close()
