"""A rebuild beside somebody who writes: no stale row, no job that meets its own old event."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.maintenance.rebuild import TRIES, rebuild
from holdfast.ports.models import LedgerEntry
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, running_job, stored
from tests.stores.damage import vandal
from tests.stores.ledgers import Ledger, assert_proven, make_ledger
from tests.stores.raw import ENGINES


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return make_ledger(request, tmp_path_factory)


class Beside:
    """A store on which somebody writes after each read of the ledger."""

    def __init__(self, store: Store, write: Callable[[], Awaitable[Any]]) -> None:
        self._store, self._write = store, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def ledger(self, **wishes: Any) -> AsyncIterator[list[LedgerEntry]]:
        async for batch in self._store.ledger(**wishes):
            await self._write()
            yield batch


async def test_a_rebuild_beside_a_worker_leaves_no_stale_row(ledger: Ledger) -> None:
    async with ledger.store() as store:
        job = await running_job(store)
        steps = iter(range(2))

        async def work() -> None:
            """Record a step; after two of them the handler takes its time."""
            if (number := next(steps, None)) is not None:
                await _step(store, job, f"step {number}")

        report = await rebuild(Beside(store, work))
        assert (report.jobs, report.busy, report.skipped) == (1, [], [])
        await assert_proven(store)
        # The next write meets no event of its own.
        now = await stored(store, job.id)
        await do(store, now, c.Complete(actor=owner_of(now), body=b"1"))
        await assert_proven(store)


async def test_a_job_that_is_written_again_and_again_is_left_as_it_is_and_named(
    ledger: Ledger,
) -> None:
    async with ledger.store() as store:
        job = await running_job(store)
        written = 0

        async def work() -> None:
            nonlocal written
            written += 1
            await _step(store, job, f"step {written}")

        report = await rebuild(Beside(store, work))
        assert (report.busy, written) == ([job.id], TRIES + 1)
        await assert_proven(store)


async def test_a_damaged_row_that_moved_on_is_rebuilt_at_its_new_revision(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        job = await running_job(store)
        await hand.rows("UPDATE jobs SET task = 'other' WHERE id = $1", job.id)
        writes = iter([True])

        async def work() -> None:
            if next(writes, False):
                await _step(store, job, "step")

        report = await rebuild(Beside(store, work))
        assert (report.changed, report.busy) == (1, [])
        assert (await stored(store, job.id)).task == job.task
        await assert_proven(store)


async def _step(store: Store, job: Job, name: str) -> None:
    now = await stored(store, job.id)
    await do(store, now, c.Step(actor=owner_of(now), name=name))
