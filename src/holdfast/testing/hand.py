"""A worker process of a test: it runs one job at a time, and may die without a word.

It is made of a worker's own parts (the desk, the attempts, the journal). What is missing is what a
test does not need: the claiming ahead, the thread that renews leases, the rounds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from msgspec import Struct

from holdfast.context import Context
from holdfast.errors import HoldfastError
from holdfast.identity import mint_worker
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import Actor, Job, JobId
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.states import Cancel, Role, State
from holdfast.ports import Claimed, Store
from holdfast.services.attempts import Attempts
from holdfast.services.desk import Desk
from holdfast.services.failures import Failures
from holdfast.services.held import Held, hold
from holdfast.services.journal import Journal
from holdfast.services.lease_clock import lease_now
from holdfast.tasks import Task
from holdfast.telemetry import Meters
from holdfast.testing.faults import Faults, Moment
from holdfast.testing.watch import Watch

LOOK_SECONDS = 0.02
"""How often a hand looks whether the job that it runs was cancelled."""
END_SECONDS = 5.0
"""How long what was left of dead attempts may take to end with the test."""


class NotDrained(HoldfastError, AssertionError):
    """There is work that did not come to an end; the message names it and says why."""

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


class Time(Protocol):
    """Who moves the clock for everybody."""

    async def elapse(self, seconds: float) -> None:
        """Let time pass while attempts run."""


class Hand:
    """Runs jobs for a test under a name of its own."""

    def __init__(
        self, store: Store, tasks: Mapping[str, Task[Any, Any]], faults: Faults, time: Time
    ) -> None:
        """Take what to run and what is to go wrong."""
        self.name = mint_worker()
        self.loop = asyncio.get_running_loop()
        self.dead = False
        self.held: Held | None = None
        """What it runs just now."""
        self._store = store
        self._tasks = tasks
        self._faults = faults
        self._time = time
        self._news = asyncio.Event()
        self._is_dead = asyncio.Event()
        self._limbo: list[asyncio.Future[None]] = []
        self._left_behind: list[asyncio.Task[None]] = []
        meters = Meters()
        self._desk = Desk(store, self, meters)
        self._attempts = Attempts(
            self._desk,
            meters,
            concurrency=1,
            journal=Journal(store, self._desk, meters),
            failures=Failures(lambda entry: None),
            children=_NoChildren(),
            # The delays that were asked for, and the same ones in each run.
            jitter=lambda: 1.0,
            on_end=lambda held: self._news.set(),
        )
        self._writing = asyncio.create_task(self._desk.run())

    async def run(self, claimed: Claimed, patience_seconds: float) -> Ran:
        """Run a job until its attempt has ended, was parked, or its worker died."""
        task = self._tasks.get(claimed.job.task)
        actor = Actor(Role.OWNER, self.name, claimed.job.attempt)
        held = self.held = hold(claimed, actor, lease_now(), None)
        watch = Watch(_Fate(self, held), self._faults)
        held.task = None if task is None else watch.over(task)
        self._attempts.begin(held)
        try:
            await self._over(held, time.monotonic() + patience_seconds)
        finally:
            self.held = None
        if held.record.terminal and not self.dead:
            await self._after(held, watch)
        return Ran(
            id=held.record.id,
            job_id=held.record.public_id,
            task=held.record.task,
            attempt=held.record.attempt,
            state=held.record.state,
            error=watch.error,
            crashed=self.dead,
        )

    async def _after(self, held: Held, watch: Watch) -> None:
        """Come to the moment at which the outcome of a job is recorded: its worker may die."""
        died = asyncio.ensure_future(watch.come(held.record.task, Moment.AFTER, is_step=False))
        gone = asyncio.ensure_future(self._is_dead.wait())
        await asyncio.wait([died, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if died.done():
            died.result()
        else:
            self._left_behind.append(died)

    async def _over(self, held: Held, until: float) -> None:
        while not self.dead and (held in self._attempts.running or not held.gone):
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_SECONDS)
                continue
            await self._look(held)
            if time.monotonic() > until:
                raise NotDrained(
                    f"job {held.record.public_id} ({held.record.task}) still runs: its handler "
                    "waits for something that does not come, or takes longer than patience="
                )

    async def _look(self, held: Held) -> None:
        """Notice a cancel, as a worker's rounds would."""
        [job] = await self._store.get([held.claimed.job.id])
        if job is None or held.gone:
            return
        held.learn(job)
        if held.mine and job.cancel_requested is not None and held.stop_reason is None:
            hard = job.cancel_requested is Cancel.HARD
            grace = 0.0 if hard or held.task is None else held.task.cancel_grace_seconds
            self._attempts.stop(held, "cancel", grace_seconds=grace)

    def confirmed(self, held: Held) -> None:
        """Go on: what was said of a job is written (the desk's word)."""
        self._news.set()

    def lost(self, held: Held, why: str) -> None:
        """Stop a run that is somebody else's now (the desk's word)."""
        if held in self._attempts.running:
            self._attempts.stop(held, "lease_lost")
        self._news.set()

    def substituted(self, held: Held, command: c.Command, error: BaseException) -> None:
        """Go on: the job ends otherwise than its handler did (the desk's word)."""

    @property
    def busy(self) -> bool:
        """Whether it lives, and runs something."""
        return self.held is not None and not self.dead

    async def renew(self, now: int) -> None:
        """Keep the lease of what runs, and end it where its time is up: time has passed."""
        held = self.held
        if held is None or held.gone or self.dead:
            return
        self._desk.post(held, c.Heartbeat(actor=held.actor))
        await held.confirmed()
        reason = _time_up(held.record, now)
        if reason is not None and held.stop_reason is None:
            self._attempts.stop(held, reason)

    async def die(self, held: Held) -> None:
        """Die: nothing more is written or run; the handler stands still where it is."""
        # What it had said is written: whether it was must not be left to chance.
        await held.confirmed()
        self.dead = True
        self._is_dead.set()
        held.gone = True
        if held.attempt_task is not None:
            self._left_behind.append(held.attempt_task)
        for_ever = asyncio.get_running_loop().create_future()
        self._limbo.append(for_ever)
        self._news.set()
        await for_ever

    async def elapse(self, seconds: float) -> None:
        """Let time pass for everybody."""
        await self._time.elapse(seconds)

    async def close(self) -> None:
        """Let go; what was left of a dead attempt ends now, its `finally` blocks included."""
        for future in self._limbo:
            future.cancel()
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=END_SECONDS)
        for held in list(self._attempts.running):
            self._attempts.stop(held, "lease_lost")
        self._desk.close()
        if self.dead:
            self._writing.cancel()
        await asyncio.wait([self._writing], timeout=END_SECONDS)
        await self._attempts.close()


class _Fate:
    """What can happen to one attempt."""

    def __init__(self, hand: Hand, held: Held) -> None:
        self.elapse = hand.elapse
        self.die = partial(hand.die, held)


class _NoChildren:
    """Where handlers would run in processes of their own: a test runs them in its own."""

    async def run(self, task: Task[Any, Any], ctx: Context, body: bytes | None) -> Body:
        raise NotImplementedError

    async def close(self) -> None:
        """There are none."""


def _time_up(record: Job, now: int) -> str | None:
    if record.deadline_at is not None and record.deadline_at <= now:
        return "deadline"
    if record.state is State.RUNNING and record.timeout_at is not None:
        return "timeout" if record.timeout_at <= now else None
    return None
