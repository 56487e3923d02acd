"""Waiting for jobs to end or move: one look at the store for all, ever more seldom for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.errors import NoSuchJob, ResultTimeout
from holdfast.lifecycle.job import Job, JobId
from holdfast.ports import Store

FIRST_SECONDS = 0.005
LONGEST_SECONDS = 0.5
"""Between two looks at one job: at first, and after it has been waited for for a while."""
TOGETHER_SECONDS = 0.05
"""Longer pauses end at multiples of this, so that many who wait are looked after together."""
LOOK_JOBS = 500


class Waiter:
    """Somebody who waits for a job to be as they want it."""

    __slots__ = ("due", "enough", "future", "id", "pause", "seen")

    def __init__(
        self, id: JobId, enough: Callable[[Job], bool], future: asyncio.Future[Job], now: float
    ) -> None:
        """Wait from now on; the first look is at once."""
        self.id = id
        self.enough = enough
        self.future = future
        self.due = now
        self.pause = FIRST_SECONDS
        self.seen: Job | None = None

    def hear(self, job: Job | None, now: float) -> None:
        """Take the answer of a look."""
        if self.future.done():
            return
        if job is None:
            self.future.set_exception(NoSuchJob(f"no job {self.id}", job_id=str(self.id)))
        elif self.enough(job):
            self.future.set_result(job)
        else:
            self.seen = job
            self.due = now + self.pause
            if self.pause > TOGETHER_SECONDS:
                self.due -= self.due % TOGETHER_SECONDS
            self.pause = min(self.pause * 2, LONGEST_SECONDS)


class Watching:
    """Looks at jobs for those who wait for them, on one event loop."""

    def __init__(self, store: Store) -> None:
        """Take the store; nobody waits yet."""
        self._store = store
        self._waiting: set[Waiter] = set()
        self._looking: asyncio.Task[None] | None = None
        self._came = asyncio.Event()

    async def ended(self, id: JobId, timeout_seconds: float | None) -> Job:
        """Wait until a job has ended; ResultTimeout if that takes longer."""
        waiter = self._waiter(id, lambda job: job.terminal)
        try:
            return await self._seen(waiter, timeout_seconds)
        except TimeoutError as error:
            raise _timed_out(waiter, timeout_seconds) from error

    async def moved(self, id: JobId, rev: int, timeout_seconds: float) -> Job | None:
        """Wait until a job is beyond a revision; None if that takes longer."""
        waiter = self._waiter(id, lambda job: job.rev > rev)
        try:
            return await self._seen(waiter, timeout_seconds)
        except TimeoutError:
            return None

    def _waiter(self, id: JobId, enough: Callable[[Job], bool]) -> Waiter:
        loop = asyncio.get_running_loop()
        return Waiter(id, enough, loop.create_future(), loop.time())

    async def _seen(self, waiter: Waiter, timeout_seconds: float | None) -> Job:
        self._waiting.add(waiter)
        self._came.set()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_on())
        try:
            async with asyncio.timeout(timeout_seconds):
                return await waiter.future
        finally:
            self._waiting.discard(waiter)

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                self._came.clear()
                now = loop.time()
                await self._look([waiter for waiter in self._waiting if waiter.due <= now])
                await self._rest(min((w.due for w in self._waiting), default=now) - loop.time())
        finally:
            self._looking = None

    async def _look(self, due: Sequence[Waiter]) -> None:
        for begin in range(0, len(due), LOOK_JOBS):
            part = due[begin : begin + LOOK_JOBS]
            try:
                jobs = await self._store.get([waiter.id for waiter in part])
            except Exception as error:  # noqa: BLE001  whoever waits is told
                self._fail(part, error)
                continue
            now = asyncio.get_running_loop().time()
            for waiter, job in zip(part, jobs, strict=True):
                waiter.hear(job, now)
            # Answered at once, not only when its caller gets its turn.
            self._waiting.difference_update(w for w in part if w.future.done())

    def _fail(self, waiters: Sequence[Waiter], error: Exception) -> None:
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        self._waiting.difference_update(waiters)

    async def _rest(self, seconds: float) -> None:
        """Rest until the next look is due, or somebody comes to wait."""
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._came.wait()
        except TimeoutError:
            return


def _timed_out(waiter: Waiter, timeout_seconds: float | None) -> ResultTimeout:
    job_id = waiter.seen.public_id if waiter.seen else str(waiter.id)
    state = f" is {waiter.seen.state} and" if waiter.seen else ""
    return ResultTimeout(
        f"job {job_id}{state} has not ended within {timeout_seconds:g} s", job_id=job_id
    )
