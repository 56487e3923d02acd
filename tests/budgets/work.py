"""The work whose cost is counted: no-op jobs, through an app and its worker as a user gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.store import Store
from holdfast.tasks.tasks import Task


class Work:
    """One app with one task that does nothing, and so many jobs of it."""

    def __init__(self, url: str, jobs: int, *, store: Callable[[], Store] | None = None) -> None:
        """Take the place and the number; nothing is opened yet."""
        self.app = Holdfast(url, store=store)
        self.jobs = jobs
        self.begun = 0
        self._all_begun = asyncio.Event()
        self._task: Task[[int], None] = self.app.task(self._do_nothing)

    async def _do_nothing(self, number: int) -> None:
        self.begun += 1
        if self.begun == self.jobs:
            self._all_begun.set()

    async def open(self) -> None:
        """Open and close it: what is made at the first use is there."""
        async with self.app:
            pass

    async def submit(self) -> None:
        """Submit all jobs together; closed afterwards, so that all of it is counted."""
        async with self.app:
            await self.app.submit_many([self._task.prepare(n) for n in range(self.jobs)])

    async def submit_in_turn(self, batch: int) -> None:
        """Submit all jobs batch by batch, so that no two backends lay out pages at a time."""
        async with self.app:
            for first in range(0, self.jobs, batch):
                numbers = range(first, min(first + batch, self.jobs))
                await self.app.submit_many([self._task.prepare(n) for n in numbers])

    async def submit_one_by_one_at_once(self) -> None:
        """Submit each job by a call of its own, all calls at the same time."""
        async with self.app:
            await asyncio.gather(*(self._task.submit(n) for n in range(self.jobs)))

    async def drain(self) -> None:
        """Let a worker run them all; its end is the end of the last commit."""
        async with self.app.worker():
            await self._all_begun.wait()

    async def check(self) -> None:
        """Prove that every job has succeeded and is what its events say."""
        problems: list[LedgerProblem] = []
        async with self.app:
            store = await self.app.store()
            report = await verify(store, on_problem=problems.append)
            counts = await store.counts()
        assert problems == []
        assert report.jobs == self.jobs
        assert [(one.state, one.jobs) for one in counts] == [(State.SUCCEEDED, self.jobs)]
