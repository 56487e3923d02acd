"""A worker process of a test: it runs one job at a time, and may die without a word.

It is made of a worker's own parts (the committer, the executor, durable calls). What is missing is
what a test does not need: the claiming ahead, the thread that renews leases, the ownership check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.ids import mint_worker
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import Kind, Role, State
from holdfast.ports.models import Claimed
from holdfast.ports.store import Store
from holdfast.runners.function import FunctionRunner
from holdfast.tasks.tasks import Task
from holdfast.telemetry import Meters
from holdfast.testing.fault_hooks import Watch
from holdfast.testing.faults import Faults, Moment
from holdfast.worker.committer import Committer
from holdfast.worker.durable_calls import DurableCalls
from holdfast.worker.executor import Executor
from holdfast.worker.failures import Failures
from holdfast.worker.outbox import CommitQueue
from holdfast.worker.owned_job import OwnedJob, OwnedJobs, lease_now, own
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.run import HandlerCalls, StopReason
from holdfast.worker.runner_table import RunnerTable
from holdfast.worker.stop import Stopper
from holdfast.worker.stop_request import StopRequest

LOOK_SECONDS = 0.02
"""How often to look whether the job that runs was cancelled."""
END_SECONDS = 5.0
"""How long what was left of dead attempts may take to end with the test."""


class NotDrained(HoldfastError, AssertionError):
    """There is work that did not come to an end; the message names it and the reason."""

    code = "not_drained"


class Ran(Struct, frozen=True, kw_only=True):
    """An attempt that was run."""

    id: JobId
    job_id: str
    task: str
    attempt: int
    state: State
    """Where it left its job."""
    error: BaseException | None = None
    """What the handler raised."""
    crashed: bool = False
    """Its worker died: the job is as it was when that happened."""


class KitWorker:
    """Runs jobs for a test under a name of its own."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Task[Any, Any]],
        faults: Faults,
        elapse: Callable[[float], Awaitable[None]],
    ) -> None:
        """Run `tasks` with these faults; `elapse` lets time pass while attempts run."""
        self.name = mint_worker()
        self.loop = asyncio.get_running_loop()
        self.dead = False
        self.job: OwnedJob | None = None
        """What it runs now."""
        self._store = store
        self._tasks = tasks
        self._watched: dict[str, Task[Any, Any]] = {}
        self._faults = faults
        self._elapse = elapse
        self._is_dead = asyncio.Event()
        self._limbo: list[asyncio.Future[None]] = []
        self._left_behind: list[asyncio.Task[None]] = []
        meters, failures = Meters(), Failures(lambda entry: None)
        self._owned, self._commands = OwnedJobs(), CommitQueue()
        self._stopper = Stopper(
            owned=self._owned, commands=self._commands, meters=meters, failures=failures
        )
        self._committer = Committer(
            store=store,
            owned=self._owned,
            commands=self._commands,
            stopper=self._stopper,
            meters=meters,
            failures=failures,
        )
        durable_calls = DurableCalls(store, self._commands, meters)
        # In this process, whatever its isolation.
        self._runner = FunctionRunner(self._watched, threads=1)
        self._executor = Executor(
            owned=self._owned,
            commands=self._commands,
            runners=RunnerTable({Kind.FUNCTION: [self._runner]}),
            concurrency=1,
            stopper=self._stopper,
            stop_request=StopRequest(0.0, self._owned.changed),
            durable_calls=durable_calls,
            handler_calls=HandlerCalls(self._commands, durable_calls, lambda entry: None),
            prefetch=Prefetch(1),
            meters=meters,
            failures=failures,
            # The delays that were asked for, and the same ones in each run.
            jitter=lambda: 1.0,
        )
        self._committing = asyncio.create_task(self._committer.run())

    async def run(self, claimed: Claimed, patience_seconds: float) -> Ran:
        """Run a job until its attempt has ended or was suspended, or its worker died."""
        name, actor = claimed.job.task, Actor(Role.OWNER, self.name, claimed.job.attempt)
        job = self.job = own(claimed, actor, lease_now())
        watch = Watch(self._faults, elapse=self._elapse, die=partial(self.die, job))
        if name in self._tasks:
            self._watched[name] = watch.over(self._tasks[name])
        self._executor.start(job)
        try:
            await self._ended(job, time.monotonic() + patience_seconds)
        finally:
            self.job = None
        if job.record.terminal and not self.dead:
            await self._after(job, watch)
        return Ran(
            id=job.record.id,
            job_id=job.record.public_id,
            task=job.record.task,
            attempt=job.record.attempt,
            state=job.record.state,
            error=watch.error,
            crashed=self.dead,
        )

    async def _after(self, job: OwnedJob, watch: Watch) -> None:
        """Carry out what is planned for the time after a job's outcome is recorded."""
        died = asyncio.ensure_future(watch.come(job.record.task, Moment.AFTER, is_step=False))
        gone = asyncio.ensure_future(self._is_dead.wait())
        await asyncio.wait([died, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if died.done():
            died.result()
        else:
            self._left_behind.append(died)

    async def _ended(self, job: OwnedJob, until: float) -> None:
        """Wait until an attempt has ended and that is written, or the worker is dead."""
        changed = self._owned.changed
        while not self.dead and (job.run is not None or not job.gone):
            changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), LOOK_SECONDS)
                continue
            await self._look(job)
            if time.monotonic() > until:
                raise NotDrained(
                    f"job {job.record.public_id} ({job.record.task}) still runs: its handler "
                    "waits for something that does not happen, or takes longer than patience="
                )

    async def _look(self, job: OwnedJob) -> None:
        """Notice a cancel, as a worker's ownership check would."""
        [record] = await self._store.get([job.claimed.id])
        if record is not None:
            job.learn(record)
            self._stopper.heed(job)

    @property
    def busy(self) -> bool:
        """Whether it lives, and runs something."""
        return self.job is not None and not self.dead

    async def renew(self, now: int) -> None:
        """Keep the lease of what runs, and end it where its time is up: time has passed."""
        job = self.job
        if job is None or job.gone or self.dead:
            return
        self._commands.post(job, c.Heartbeat(actor=job.actor))
        await job.outbox.emptied()
        reason = _time_up(job.record, now)
        if reason is not None and job.run is not None and job.run.stop_reason is None:
            self._stopper.stop(job.run, reason)

    async def die(self, job: OwnedJob) -> None:
        """Die: nothing more is written or run; the handler stands still where it is."""
        # What it had posted is written: whether it was must not be left to chance.
        await job.outbox.emptied()
        self.dead = True
        self._is_dead.set()
        job.gone = True
        if job.run is not None and job.run.task is not None:
            self._left_behind.append(job.run.task)
        for_ever = asyncio.get_running_loop().create_future()
        self._limbo.append(for_ever)
        self._owned.changed.set()
        await for_ever

    async def close(self) -> None:
        """Stop; what was left of a dead attempt ends now, its `finally` blocks included."""
        for future in self._limbo:
            future.cancel()
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=END_SECONDS)
        for job in list(self._owned.running):
            if job.run is not None:
                self._stopper.stop(job.run, "lease_lost")
        self._committer.close()
        if self.dead:
            self._committing.cancel()
        await asyncio.wait([self._committing], timeout=END_SECONDS)
        self._stopper.close()
        await self._runner.close()


def _time_up(record: Job, now: int) -> StopReason | None:
    if record.deadline_at is not None and record.deadline_at <= now:
        return "deadline"
    if record.state is State.RUNNING and record.timeout_at is not None:
        return "timeout" if record.timeout_at <= now else None
    return None
