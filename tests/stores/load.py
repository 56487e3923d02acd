"""A load of whole lives on one store, and the proof that each of them was lived exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType
from typing import Any, Self

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import State
from holdfast.ports.models import Claimed, Committed, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import fresh, new_job, owner_of
from holdfast.testing.store_actions import all_jobs, chain, claim
from tests.stores.ledgers import assert_proven

_BATCH = 4
_LIMIT_SECONDS = 60.0


class Load:
    """Tasks that submit, claim and finish jobs without a pause; use it as a context manager.

    Every call must be answered: within a store's deadline an outage is only a wait. What was
    answered is written down, and `assert_lived_once` compares it with what is in the ledger.
    """

    def __init__(self, store: Store, *, tasks: int = 4, queue: str = "load") -> None:
        self._store = store
        self._queue = queue
        self._tasks = [asyncio.create_task(self._live(number)) for number in range(tasks)]
        self._stopping = False
        self._rounds = asyncio.Condition()
        self.rounds = 0
        self.submitted: list[JobId] = []
        self.claimed: list[tuple[JobId, int]] = []
        self.finished: list[JobId] = []

    async def __aenter__(self) -> Self:
        await self.progress(2)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping = True
        if error is not None:
            for task in self._tasks:
                task.cancel()
        async with asyncio.timeout(_LIMIT_SECONDS):
            await asyncio.gather(*self._tasks, return_exceptions=error is not None)

    async def progress(self, rounds: int) -> None:
        """Wait until so many more rounds are done: the load is really running (again)."""
        goal = self.rounds + rounds
        waiting = asyncio.create_task(self._reach(goal))
        async with asyncio.timeout(_LIMIT_SECONDS):
            done, _ = await asyncio.wait(
                [waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED
            )
        for task in done:
            await task

    async def _reach(self, goal: int) -> None:
        async with self._rounds:
            await self._rounds.wait_for(lambda: self.rounds >= goal)

    async def _live(self, number: int) -> None:
        while not self._stopping:
            await self._submit()
            await self._finish(await self._claim(number))
            async with self._rounds:
                self.rounds += 1
                self._rounds.notify_all()

    async def _submit(self) -> None:
        jobs = [new_job(queue=self._queue, **_keys(i)) for i in range(_BATCH)]
        for outcome in await self._store.submit(jobs):
            assert isinstance(outcome, Submitted), outcome
            assert outcome.created
            self.submitted.append(outcome.job.id)

    async def _claim(self, number: int) -> list[Claimed]:
        claims = await claim(self._store, self._queue, limit=_BATCH, owner=f"worker-{number}")
        self.claimed += [(one.job.id, one.job.attempt) for one in claims]
        return claims

    async def _finish(self, claims: list[Claimed]) -> None:
        changes = []
        for one in claims:
            owner = owner_of(one.job)
            changes += chain(one.job, c.Start(actor=owner), c.Complete(actor=owner, body=b"7"))
        for outcome in await self._store.commit(changes):
            assert isinstance(outcome, Committed), outcome
        self.finished += [one.job.id for one in claims]

    async def assert_lived_once(self, store: Store | None = None) -> None:
        """Every job was submitted, claimed and finished once, and nothing else is there."""
        store = store or self._store
        jobs = [job for job in await all_jobs(store) if job.queue == self._queue]
        assert sorted(job.id for job in jobs) == sorted(self.submitted)
        assert _twice(self.submitted) == _twice(self.claimed) == _twice(self.finished) == []
        done = {job.id for job in jobs if job.state is State.SUCCEEDED}
        assert done == set(self.finished)
        assert {job.state for job in jobs} <= {State.QUEUED, State.SUCCEEDED}
        assert {job.rev for job in jobs if job.id in done} <= {4}
        await assert_proven(store)


def _keys(number: int) -> dict[str, Any]:
    """Every second job has keys: with and without them is not the same path."""
    return {"request_id": fresh("request"), "job_id": fresh("job")} if number % 2 else {}


def _twice(entries: list[Any]) -> list[Any]:
    return [entry for entry, times in Counter(entries).items() if times > 1]
