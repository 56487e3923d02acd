"""The worker: claims jobs, runs them, and writes what came of them, as one pipeline.

Claims, handlers and commits overlap: while a commit is under way handlers run and the next claim
fetches. What it holds is renewed by a keeper in a thread of its own. It keeps nothing that the
store does not know: killed at any moment, its jobs are found by any reconciler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Self

from holdfast.errors import (
    HoldfastError,
    LeaseConflictError,
    SchemaMismatch,
    StoreReplaced,
    StoreUnavailable,
)
from holdfast.flow.children import tend
from holdfast.flow.finish import after_shutdown
from holdfast.flow.redaction import Redact, redacting
from holdfast.identity import jitter, mint_request, mint_worker
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.family import KIN, awaits_children
from holdfast.lifecycle.job import Actor, Job, JobId
from holdfast.lifecycle.retry import release_costs
from holdfast.lifecycle.routes import offer
from holdfast.lifecycle.states import Cancel, Role
from holdfast.points import reach
from holdfast.ports import Announcement, Claimed, ClaimRequest, Store
from holdfast.services.attempts import Attempts, Children
from holdfast.services.desk import BATCH, Desk
from holdfast.services.failures import Failures, Hook
from holdfast.services.fork_guard import allow_fork, forbid_fork
from holdfast.services.held import Held, hold
from holdfast.services.journal import Journal
from holdfast.services.keeper import Keeper
from holdfast.services.lease_clock import lease_now
from holdfast.services.logbook import Logbook
from holdfast.services.patrol import Patrol
from holdfast.services.prefetch import Prefetch
from holdfast.services.reconciler import Reconciler
from holdfast.tasks import Task
from holdfast.telemetry import Meters
from holdfast.telemetry.pulse import measure_lag

log = logging.getLogger(__name__)

CLAIM_LIMIT = 500
UNCONFIRMED_LIMIT = 4 * BATCH
"""Ended attempts whose end is not written yet; beyond that no more is claimed."""
POLL_SECONDS = 0.5
"""How long a worker waits for news of work; a job that becomes due by its time brings none."""
REPEAT_SECONDS = 5.0
"""For how long a claim whose outcome is unknown is repeated under its request_id."""
GRACE_SECONDS = 30.0
KILL_LIMIT_SECONDS = 4.0
WRITE_LIMIT_SECONDS = 10.0
"""How long after its grace a worker tries to write what its jobs ended with, the kills included."""
LET_GO_SECONDS = 5.0
"""How long it then waits for threads and connections that may be stuck in a store that is away."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0


class Worker:
    """Runs jobs of some queues until it is stopped. `async with`, or `run`."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, Task[Any, Any]],
        *,
        keeper_store: Store,
        children: Children,
        queues: Sequence[str] = ("default",),
        concurrency: int = 20,
        capabilities: frozenset[str] = frozenset(),
        grace_seconds: float = GRACE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        tick_seconds: float = 1.0,
        reconcile: bool = True,
        meters: Meters | None = None,
        exits: bool = False,
        on_failure: Sequence[Hook] = (),
        redact: Redact | None = None,
    ) -> None:
        """Take the settings; entering or `run` begins.

        The two stores are opened and closed here: one for the loop, one for the keeper's thread.
        `exits`: the process ends with this worker, and with it what cannot be killed otherwise.
        `on_failure` are called for each failed or lost attempt, in a thread of their own; `redact`
        removes secrets from what is stored or logged of errors.
        """
        self.name = mint_worker()
        self._first = Actor(Role.OWNER, self.name, 1)
        self.meters = meters or Meters()
        self.died: BaseException | None = None
        """What a part of the worker died of."""
        self.failed: BaseException | None = None
        """What ended the worker, if anything but `stop` did."""
        self._store = store
        self._keeper_store = keeper_store
        self._tasks = tasks
        self._offered: tuple[str, ...] = ()
        self._children = children
        self._queues = tuple(queues)
        self._concurrency = concurrency
        self._capabilities = capabilities
        self._grace = grace_seconds
        self._grace_ends_at = inf
        self._poll = poll_seconds
        self._tick = tick_seconds
        self._reconciles = reconcile
        self._exits = exits
        self._on_failure = tuple(on_failure)
        self._redact = redact
        self._held: dict[JobId, Held] = {}
        self._buffer: deque[Held] = deque()
        self._prefetch = Prefetch(concurrency)
        self._claiming = False
        self._stuck = False
        self._ending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin; a database that does not answer yet is waited for."""
        await self._open()
        self._loop = asyncio.get_running_loop()
        with redacting(self._redact):
            self._begin()
        forbid_fork(self)
        return self

    def _begin(self) -> None:
        """Start all parts; what they start in turn redacts as they do."""
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._families = asyncio.Event()
        self._desk = Desk(self._store, self, self.meters)
        self._logbook = Logbook(self._store)
        self._failures = Failures(self._logbook.write, self._on_failure)
        self._attempts = Attempts(
            self._desk,
            self.meters,
            concurrency=self._concurrency,
            journal=Journal(self._store, self._desk, self.meters),
            failures=self._failures,
            children=self._children,
            keep_log=self._logbook.write,
            jitter=jitter,
            on_end=self._ended,
            follow=self._next,
            on_free=self._fill,
        )
        self._keeper = Keeper(
            self._keeper_store,
            lambda: list(self._held.values()),
            self.meters,
            on_news=lambda held: self._attempts.soon(self._news, held),
        )
        self._keeper.start()
        self._begin_loops()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop, finish or give back what is held, and let go; raises what a part died of."""
        self.stop()
        await self._end()
        if kind is None and self.died is not None:
            raise self.died

    async def run(self) -> None:
        """Work until stopped; raises what ended it otherwise."""
        async with self:
            await self.stopped()
        if self.failed is not None:
            raise self.failed

    async def _end(self) -> None:
        """Shut down once, whoever asks for it first."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._shut_down())
        await asyncio.shield(self._ending)

    def stop(self) -> None:
        """Claim no more; what runs is finished or given back within the grace."""
        self._end_grace(time.monotonic() + self._grace)

    def hurry(self) -> None:
        """End the grace of a worker that is stopping."""
        self._end_grace(time.monotonic())

    def _end_grace(self, at: float) -> None:
        self._grace_ends_at = min(self._grace_ends_at, at)
        self._stopping.set()
        self._changed.set()

    async def stopped(self) -> None:
        """Wait until somebody stopped it, or a part of it died."""
        await self._stopping.wait()

    async def _open(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._store.open()
                # Before it claims anything: whoever sees it work can submit by name.
                await self._store.publish_terms([task.published for task in self._tasks.values()])
                return
            except StoreUnavailable as error:
                log.warning("the store does not answer yet, will try again: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _begin_loops(self) -> None:
        self._writing = self._loop.create_task(self._guard(self._desk.run()))
        self._fetching = self._loop.create_task(self._guard(self._fetch()))
        self._patrol = Patrol(
            self._store,
            self._announcement(),
            self._held,
            self.meters,
            on_news=self._news,
            on_unproven=self._unproven,
            may_be_ours=self._may_be_ours,
            on_mismatch=self._outdated,
            tick_seconds=self._tick,
        )
        loops: list[Coroutine[Any, Any, None]] = [
            self._patrol.run(),
            self._patrol.watch_leases(),
            self._tend(),
            self._logbook.run(),
            self._watch_keeper(),
            self._share(),
            measure_lag(
                self.meters.lagged, self.meters.pulse("loop", limit_seconds=30), every_seconds=0.5
            ),
        ]
        if self._reconciles:
            loops.append(
                Reconciler(
                    self._store,
                    self.name,
                    jitter=jitter,
                    tick_seconds=self._tick,
                    meters=self.meters,
                ).run()
            )
        self._rounds = [self._loop.create_task(self._guard(each)) for each in loops]

    def _announcement(self) -> Announcement:
        return Announcement(
            name=self.name,
            queues=self._queues,
            capabilities=self._capabilities,
            tasks=self._offers(),
            host=socket.gethostname(),
            pid=os.getpid(),
            concurrency=self._concurrency,
        )

    def _outdated(self, error: SchemaMismatch) -> None:
        """Stop: the store was migrated to a schema that this version must not write under."""
        if not self._stopping.is_set():
            log.error("the worker claims no more and ends: %s", error)
            self.failed = self.failed or error
            self.stop()

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the worker end, and not run on lamely, when one of its loops dies."""
        try:
            await work
        except Exception as error:
            log.critical("a part of the worker died, it stops", exc_info=True)
            self.died = self.died or error
            self.failed = self.failed or error
            self.stop()
            # At once: a keeper that goes on would keep jobs whose ends nobody writes any more.
            if self._ending is None:
                self._ending = self._loop.create_task(self._shut_down())

    async def _watch_keeper(self) -> None:
        while self._keeper.failed is None:  # noqa: ASYNC110  another thread's
            await asyncio.sleep(self._tick)
        raise HoldfastError(f"the lease keeper died: {self._keeper.failed!r}")

    # Claiming.

    async def _fetch(self) -> None:
        """Claim as much as there is room for, again and again."""
        while not self._stopping.is_set():
            room = self._room()
            if room <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            claimed, asked_at = await self._claim(room)
            reach("claim.answered")
            self._take(claimed, asked_at)
            if len(claimed) < room:
                await self._await_work()

    def _room(self) -> int:
        """Say how many jobs to ask for now."""
        running, waiting = len(self._attempts.running), len(self._buffer)
        if len(self._held) - running - waiting > UNCONFIRMED_LIMIT:
            return 0
        free = self._concurrency - running - waiting
        ahead = self._prefetch.allowance(self._oldest_seconds())
        # Top up in large bites: while nobody is idle, half a buffer is enough to go on with.
        if free <= 0 and waiting > ahead // 2:
            return 0
        return min(free + ahead, CLAIM_LIMIT)

    def _oldest_seconds(self) -> float:
        begun = min((held.begun_at for held in self._attempts.running if held.begun_at), default=0)
        return time.monotonic() - begun if begun else 0.0

    async def _share(self) -> None:
        """Give back, now and then, what waits behind jobs that turned out long: others may be idle.

        It was claimed when all jobs seemed short. One whose release would cost a try is kept.
        """
        while True:
            await asyncio.sleep(self._tick)
            surplus = len(self._buffer) - self._prefetch.allowance(self._oldest_seconds())
            last = list(self._buffer)[len(self._buffer) - max(surplus, 0) :]
            for held in [held for held in last if not release_costs(held.record)]:
                self._buffer.remove(held)
                self._desk.post(held, c.Release(actor=held.actor, reason="waited for a free slot"))

    async def _claim(self, limit: int) -> tuple[list[Claimed], float]:
        """Claim; tells what came and when it was asked for.

        While it is unknown whether a request worked it is repeated; not for long, though: its
        leases run, and what it may have brought is given back by the patrol.
        """
        request, asked_at = self._request(limit), lease_now()
        pause = FIRST_PAUSE_SECONDS
        self._claiming = True
        try:
            while True:
                reach("claim.sending")
                try:
                    return await self._store.claim(request), asked_at
                except LeaseConflictError:
                    self.meters.conflict()
                    return [], asked_at
                except StoreReplaced:
                    # No further try can succeed: only a new process opens the right file.
                    raise
                except HoldfastError as error:
                    self.meters.store_error(error.code)
                    log.warning("claim failed, will try again: %s", error)
                if await self._rest(pause):
                    return [], asked_at
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                if lease_now() - asked_at > REPEAT_SECONDS:
                    request, asked_at = self._request(limit), lease_now()
        finally:
            self._claiming = False

    def _request(self, limit: int) -> ClaimRequest:
        return ClaimRequest(
            request_id=mint_request(),
            owner=self.name,
            queues=self._queues,
            limit=limit,
            tasks=self._offers(),
            capabilities=self._capabilities,
        )

    def _offers(self) -> tuple[str, ...]:
        """Return the tasks that this worker has; an app may register more while it runs."""
        if len(self._offered) != len(self._tasks):
            self._offered = tuple(
                sorted(offer(task.name, task.version) for task in self._tasks.values())
            )
        return self._offered

    async def _rest(self, seconds: float) -> bool:
        """Wait a while; tells whether the worker is to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()

    def _take(self, claimed: Sequence[Claimed], asked_at: float) -> None:
        self.meters.claimed(len(claimed))
        for one in claimed:
            held = hold(one, self._actor(one.job.attempt), asked_at, self._task_of(one.job))
            if (older := self._held.get(one.job.id)) is not None:
                self._let_go_of_older(older, held)
            self._held[one.job.id] = held
            self._buffer.append(held)
        if claimed:
            policies = {id(one.job.policy): one.job.policy for one in claimed}.values()
            shortest = min(min(policy.lease, policy.running_lease) for policy in policies)
            self._keeper.attend(shortest / 1e6)
        self._fill()

    def _task_of(self, job: Job) -> Task[Any, Any] | None:
        """Return the task of a job, if this worker has it in the job's version."""
        task = self._tasks.get(job.task)
        fits = task is not None and job.task_version in (None, task.version)
        return task if fits else None

    def _actor(self, attempt: int) -> Actor:
        """Name this worker as the owner of an attempt; most are the first of their job."""
        return self._first if attempt == 1 else Actor(Role.OWNER, self.name, attempt)

    def _let_go_of_older(self, older: Held, held: Held) -> None:
        """Say nothing more of an earlier attempt of a job: it would be in this one's way."""
        if older in self._attempts.running:
            self.lost(older, f"it was claimed again, as attempt {held.record.attempt}")
        else:
            # Its end landed and the reply was lost, or its lease passed before it could be written.
            self._forget(older)

    async def _await_work(self) -> None:
        """Wait for news of work, for the poll's time, or until the worker stops."""
        news = self._loop.create_task(
            self._store.wake_up(self._queues, limit_seconds=self._poll * (1 + jitter() / 4))
        )
        stopping = self._loop.create_task(self._stopping.wait())
        try:
            await asyncio.wait([news, stopping], return_when=asyncio.FIRST_COMPLETED)
            if news.done() and news.exception() is not None:
                log.warning("no news from the store: %s", news.exception())
                await self._rest(self._poll)
        finally:
            news.cancel()
            stopping.cancel()

    # Running.

    def _fill(self) -> None:
        """Run what waits, as far as there are free slots."""
        while (held := self._next()) is not None:
            self._attempts.begin(held)
        self.meters.in_flight = len(self._attempts.running)
        self.meters.prefetched = len(self._buffer)

    def _next(self) -> Held | None:
        """Tell what to run now, of what waits; None where nothing is, or all slots are taken."""
        buffer, running = self._buffer, self._attempts.running
        while buffer and (len(running) < self._concurrency or self._stopping.is_set()):
            held = buffer.popleft()
            if not held.gone and self._may_begin(held):
                return held
        return None

    def _may_begin(self, held: Held) -> bool:
        """Whether a job may still be run; what is said of it instead is posted."""
        if held.proven_until <= lease_now():
            self.lost(held, "its lease was over before it could be begun")
        elif held.record.cancel_requested is not None:
            self._desk.post(held, c.Cancel(actor=held.actor))
        elif self._stopping.is_set():
            self._give_back(held)
        else:
            return True
        return False

    def _ended(self, held: Held) -> None:
        """Go on after an attempt: its slot is free, though its end is not written yet."""
        if held.begun_at:
            ran = time.monotonic() - held.begun_at
            self._prefetch.measured(ran)
            job = held.claimed.job
            waited = (job.updated_at - (job.run_at or job.updated_at)) / 1e6
            self.meters.ran(job.task, job.queue, waited, ran)
        if held.unkillable:
            self.meters.unkillable -= 1
        self._changed.set()

    def confirmed(self, held: Held) -> None:
        """Take note that all of a job's commands are written (the desk's word)."""
        if held.gone:
            record = held.record
            if record.link_kind in KIN or awaits_children(record.wait_for):
                # Sweeps would do it too: this only spares the parent their tick.
                self._families.set()
            self._forget(held)

    async def _tend(self) -> None:
        """Look at families soon after something of them ended or began to wait: once for many."""
        actor = Actor(Role.RECONCILER, self.name)
        while not self._stopping.is_set():
            await self._families.wait()
            self._families.clear()
            try:
                await tend(self._store, actor)
            except HoldfastError as error:
                log.warning("families were not tended, a sweep will: %s", error)

    def lost(self, held: Held, why: str) -> None:
        """Take note that a job is somebody else's, or nobody's (the desk's word)."""
        self._failures.lost(held, why)
        self.meters.fenced()
        self._desk.drop(held)
        self._forget(held)
        if held in self._attempts.running:
            self._attempts.stop(held, "lease_lost")

    def substituted(self, held: Held, command: c.Command, error: BaseException) -> None:
        """Report that a job ends otherwise than its handler did (the desk's word)."""
        self._failures.ended(held, command, error)

    def _forget(self, held: Held) -> None:
        held.gone = True
        if self._held.get(held.claimed.job.id) is held:
            del self._held[held.claimed.job.id]
        reach("finish.acknowledged")
        self._changed.set()

    def _news(self, held: Held) -> None:
        """React to a record that somebody else has changed."""
        if held.gone:
            return
        if not held.mine:
            # The desk settles what is posted: it may be our own end that we see.
            if not held.commands:
                self.lost(held, f"it is {held.record.state}, attempt {held.record.attempt}")
        elif held.record.cancel_requested is not None:
            self._cancel(held, hard=held.record.cancel_requested is Cancel.HARD)

    def _cancel(self, held: Held, *, hard: bool) -> None:
        if held in self._attempts.running:
            if held.stop_reason is None or (hard and not held.killed_at):
                task = held.task
                grace = 0.0 if hard or task is None else task.cancel_grace_seconds
                self._attempts.stop(held, "cancel", grace_seconds=grace)
        elif held in self._buffer:
            self._buffer.remove(held)
            self._desk.post(held, c.Cancel(actor=held.actor))

    def _unproven(self, held: Held) -> None:
        """Stop an attempt whose lease may have passed; one that ended is the store's to judge."""
        if held in self._attempts.running or held in self._buffer:
            self.lost(held, "its lease could not be renewed in time")

    def _may_be_ours(self) -> Callable[[JobId], bool]:
        if self._claiming:
            return lambda _: True
        return {held.claimed.job.id for held in self._attempts.running}.__contains__

    # Ending.

    async def _shut_down(self) -> None:
        """End soon after the grace at the latest, whether or not the store answers meanwhile."""
        try:
            await self._finish()
        finally:
            allow_fork(self)

    async def _finish(self) -> None:
        self._fill()
        await self._until(lambda: self._fetching.done() and self._idle())
        # What it may have claimed is found by its owner's name, or when the lease has passed.
        self._fetching.cancel()
        for held in list(self._attempts.running):
            self._attempts.stop(held, "shutdown")
        await self._until(self._idle, KILL_LIMIT_SECONDS)
        self._leave_behind()
        self._desk.close()
        await self._until(self._writing.done, WRITE_LIMIT_SECONDS)
        await self._say_goodbye()
        await self._let_go()

    def _idle(self) -> bool:
        return not self._attempts.running

    async def _until(self, done: Callable[[], bool], seconds: float = 0.0) -> None:
        """Wait until something holds, or for the grace and so many seconds more."""
        while not done() and (left := self._left(seconds)) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(0.05, left))

    def _left(self, seconds: float) -> float:
        """Say how long the grace and so many seconds more last: a second signal cuts it short."""
        return self._grace_ends_at + seconds - time.monotonic()

    def _give_back(self, held: Held) -> None:
        self._end_at_shutdown(held, started=False)

    def _end_at_shutdown(self, held: Held, *, started: bool) -> None:
        command = after_shutdown(held.record, held.actor, started=started)
        self._desk.post(held, command)
        self._failures.ended(held, command, None)

    def _leave_behind(self) -> None:
        """Give back what could not be killed, if the process is about to end and kill it."""
        for held in self._attempts.running:
            log.error("job %s runs on at the end of its worker", held.record.public_id)
            self._fail("a handler could not be killed")
            if self._exits and not held.gone:
                self._end_at_shutdown(held, started=True)

    async def _say_goodbye(self) -> None:
        """Give back what it may own and not know of, and sign off; tell it where that fails."""
        if not self._writing.done():
            trouble = self._desk.trouble or "the store does not answer"
            self._fail(f"{len(self._held)} jobs' ends could not be written: {trouble}")
            return
        try:
            async with asyncio.timeout(self._left(WRITE_LIMIT_SECONDS)):
                await self._logbook.flush()
                if not self._attempts.running:
                    await self._patrol.give_back_strays()
                await self._store.retire(self.name)
        except (HoldfastError, TimeoutError) as error:
            self._fail(f"the store could not be told of the worker's end: {error!r}")

    def _fail(self, why: str) -> None:
        self.failed = self.failed or HoldfastError(why)

    async def _let_go(self) -> None:
        """Let all parts end; one that is stuck in a store that is away is left behind."""
        parts = (self._fetching, self._writing, *self._rounds)
        for task in parts:
            task.cancel()
        closing = self._loop.create_task(self._close(parts))
        await asyncio.wait([closing], timeout=LET_GO_SECONDS)
        self._stuck = not closing.done()
        if not self._stuck:
            await closing

    async def _close(self, parts: Sequence[asyncio.Task[None]]) -> None:
        self._keeper.stop()
        await asyncio.gather(*parts, return_exceptions=True)
        await self._attempts.close()
        await asyncio.to_thread(self._failures.close)
        await self._keeper.ended()
        await self._store.close()

    @property
    def left_running(self) -> bool:
        """Whether, after its end, something runs on: a handler, or a thread stuck in the store."""
        return self._stuck or bool(self._attempts.running)
