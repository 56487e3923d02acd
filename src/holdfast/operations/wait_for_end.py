"""Wait for jobs to end or change: one read of the store for all of them, at growing intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.errors import NoSuchJob
from holdfast.lifecycle.record import Job, JobId
from holdfast.ports.store import Store

FIRST_SECONDS = 0.005
LONGEST_SECONDS = 0.5
"""Between two reads of one job: at first, and after a while."""
TOGETHER_SECONDS = 0.05
"""Longer pauses end at multiples of this, so that many jobs are read together."""
READ_JOBS = 500


class Waiter:
    """One caller that waits for a job to fulfil a condition."""

    __slots__ = ("due", "enough", "future", "id", "pause")

    def __init__(
        self, id: JobId, enough: Callable[[Job], bool], future: asyncio.Future[Job], now: float
    ) -> None:
        """Wait from now on; the first read is at once."""
        self.id = id
        self.enough = enough
        self.future = future
        self.due = now
        self.pause = FIRST_SECONDS

    def check(self, job: Job | None, now: float) -> None:
        """Compare a job that was read with the condition."""
        if self.future.done():
            return
        if job is None:
            self.future.set_exception(NoSuchJob(f"no job {self.id}", job_id=str(self.id)))
        elif self.enough(job):
            self.future.set_result(job)
        else:
            self.due = now + self.pause
            if self.pause > TOGETHER_SECONDS:
                self.due -= self.due % TOGETHER_SECONDS
            self.pause = min(self.pause * 2, LONGEST_SECONDS)


class JobWatcher:
    """Reads jobs for all that wait for them on one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: set[Waiter] = set()
        self._reading: asyncio.Task[None] | None = None
        self._came = asyncio.Event()

    async def ended(self, id: JobId, timeout_seconds: float) -> Job | None:
        """Wait until a job has ended; None if that takes longer."""
        return await self._wait(id, lambda job: job.terminal, timeout_seconds)

    async def moved(self, id: JobId, rev: int, timeout_seconds: float) -> Job | None:
        """Wait until a job is beyond a revision; None if that takes longer."""
        return await self._wait(id, lambda job: job.rev > rev, timeout_seconds)

    async def _wait(
        self, id: JobId, enough: Callable[[Job], bool], timeout_seconds: float
    ) -> Job | None:
        loop = asyncio.get_running_loop()
        waiter = Waiter(id, enough, loop.create_future(), loop.time())
        self._waiting.add(waiter)
        self._came.set()
        if self._reading is None:
            self._reading = loop.create_task(self._read_on())
        try:
            async with asyncio.timeout(timeout_seconds):
                return await waiter.future
        except TimeoutError:
            return None
        finally:
            self._waiting.discard(waiter)

    async def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                self._came.clear()
                now = loop.time()
                await self._read_due([waiter for waiter in self._waiting if waiter.due <= now])
                await self._rest(min((w.due for w in self._waiting), default=now) - loop.time())
        finally:
            self._reading = None

    async def _read_due(self, due: Sequence[Waiter]) -> None:
        for start in range(0, len(due), READ_JOBS):
            part = due[start : start + READ_JOBS]
            try:
                jobs = await self._store.get([waiter.id for waiter in part])
            except Exception as error:  # noqa: BLE001  each waiting caller gets it
                self._fail_waiters(part, error)
                continue
            now = asyncio.get_running_loop().time()
            for waiter, job in zip(part, jobs, strict=True):
                waiter.check(job, now)
            # Answered at once, not only when its caller gets its turn.
            self._waiting.difference_update(w for w in part if w.future.done())

    def _fail_waiters(self, waiters: Sequence[Waiter], error: Exception) -> None:
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._waiting.difference_update(waiters)

    async def _rest(self, seconds: float) -> None:
        """Rest until the next read is due, or a new caller waits."""
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._came.wait()
        except TimeoutError:
            return
