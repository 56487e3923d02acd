"""Verify streams: what it holds does not grow with the ledger, nor with the damage."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

import pytest
from msgspec.structs import replace

from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import State
from holdfast.maintenance.verify import verify
from holdfast.ports.models import Clock, Count, LedgerEntry
from holdfast.ports.store import Store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import job_ids, new_job
from holdfast.testing.store_actions import job_in
from tests.stores.damage import vandal
from tests.stores.ledgers import Ledger, make_ledger, problems_of
from tests.stores.raw import ENGINES

BATCH = 100


class Endless:
    """As much of a store as verify reads: one life over and over, made as it is asked for."""

    def __init__(self, job: Job, events: list[LoggedEvent], batches: int) -> None:
        self._job = job
        self._events = events
        self._batches = batches

    async def ledger(self) -> AsyncIterator[list[LedgerEntry]]:
        for _ in range(self._batches):
            yield [self._entry() for _ in range(BATCH)]

    def _entry(self) -> LedgerEntry:
        id_ = job_ids.mint()
        return LedgerEntry(
            id=id_,
            row=replace(self._job, id=id_),
            events=[replace(event, id=id_) for event in self._events],
            keys=[],
        )

    async def clock(self) -> Clock:
        return Clock(self._job.updated_at + 1, 1)

    async def counts(self) -> list[Count]:
        jobs = self._batches * BATCH
        return [Count(self._job.tenant, self._job.queue, self._job.state, jobs)]

    async def dictionary_problems(self) -> list[str]:
        return []

    async def side_problems(self) -> list[str]:
        return []


async def _peak(job: Job, events: list[LoggedEvent], batches: int) -> int:
    problems: list[Any] = []
    tracemalloc.start()
    try:
        store = cast("Store", Endless(job, events, batches))
        report = await verify(store, on_problem=problems.append)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert problems == []
    assert report.jobs == batches * BATCH
    return peak


async def test_verify_holds_no_more_than_a_batch() -> None:
    store = SqliteStore(":memory:verify")
    await store.open()
    job = await job_in(store, State.SUCCEEDED)
    events = await store.events(job.id)
    await store.close()

    few, many = await _peak(job, events, 3), await _peak(job, events, 60)
    assert many < 1.2 * few


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return make_ledger(request, tmp_path_factory)


async def test_the_ledger_comes_in_batches_also_where_rows_are_missing(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        jobs = sorted(job.record.id for job in await _submit(store, 2000))
        lost = jobs[:1500]
        await hand.many("DELETE FROM jobs WHERE id = $1", [(id_,) for id_ in lost])
        batches = [batch async for batch in store.ledger(batch=BATCH)]
        found = [entry.id for batch in batches for entry in batch]
        assert found == jobs
        assert max(len(batch) for batch in batches) <= 8 * BATCH
        assert all(one[-1].id < two[0].id for one, two in pairwise(batches))
        assert {problem.id for problem in await problems_of(store)} >= set(lost)


async def _submit(store: Store, count: int) -> list[Any]:
    jobs = [new_job() for _ in range(count)]
    for start in range(0, count, 500):
        await store.submit(jobs[start : start + 500])
    return jobs


async def test_a_long_life_does_not_make_a_batch_of_its_neighbours(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        jobs = sorted(job.record.id for job in await _submit(store, 20))
        columns = "id, rev, at, lease_expires_at, attempt, type, state, actor"
        beats = [(id_, rev, 1, 1, 1, 5, 4, "w") for id_ in jobs for rev in range(2, 102)]
        marks = ", ".join(f"${i}" for i in range(1, 9))
        await hand.many(f"INSERT INTO beats ({columns}) VALUES ({marks})", beats)
        batches = [batch async for batch in store.ledger(batch=50)]
    assert [entry.id for batch in batches for entry in batch] == jobs
    assert max(sum(len(entry.events) for entry in batch) for batch in batches) < 600
