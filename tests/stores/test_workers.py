"""Workers that nobody has seen for a week are forgotten, a few at a time, by whoever announces."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.ports.models import WORKER_MEMORY
from holdfast.ports.store import Store
from holdfast.stores.side_tables import FORGET_BATCH
from holdfast.testing.factories import announcement
from tests.stores.ledgers import Ledger, make_ledger, problems_of
from tests.stores.raw import ENGINES, POSTGRES


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """An empty ledger on either engine."""
    return make_ledger(request, tmp_path_factory)


async def announce(store: Store, *names: str) -> None:
    await asyncio.gather(*(store.announce(announcement(name=name)) for name in names))


async def age(ledger: Ledger, micros: int) -> None:
    """Let all workers have been seen so much earlier."""
    async with ledger.raw() as raw:
        await raw.rows("UPDATE workers SET seen_at = seen_at - $1", micros)
        await raw.rows("COMMIT")
        await raw.rows("BEGIN")


async def names(store: Store) -> list[str]:
    return sorted(one.name for one in await store.workers())


async def test_workers_not_seen_for_a_week_are_forgotten(ledger: Ledger) -> None:
    async with ledger.store() as store:
        await announce(store, "silent", "ended")
        await store.retire("ended")
        await age(ledger, 2)
        await announce(store, "recent")
        await age(ledger, WORKER_MEMORY - 60_000_000)
        await announce(store, "new")
        assert await names(store) == ["ended", "new", "recent", "silent"]
        await age(ledger, 120_000_000)
        await announce(store, "new")

        assert await names(store) == ["new"]


async def test_a_worker_that_slept_for_longer_than_that_is_still_itself(ledger: Ledger) -> None:
    async with ledger.store() as store:
        await announce(store, "sleeper")
        [before] = await store.workers()
        await age(ledger, 2 * WORKER_MEMORY)
        await announce(store, "sleeper")
        [after] = await store.workers()

        assert after.started_at == before.started_at
        assert after.seen_at > before.seen_at


async def test_forgetting_is_bounded_and_goes_on(ledger: Ledger) -> None:
    old = [f"old-{n}" for n in range(FORGET_BATCH + 10)]
    async with ledger.store() as store:
        await announce(store, *old)
        await age(ledger, WORKER_MEMORY + 1)
        await announce(store, "new")
        assert len(await names(store)) == 11
        await announce(store, "new")

        assert await names(store) == ["new"]


async def test_nobody_waits_for_another_who_forgets(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    ledger = make_ledger(request, tmp_path_factory, POSTGRES)
    async with ledger.store() as store:
        await announce(store, "old")
        await age(ledger, WORKER_MEMORY + 1)
        async with ledger.raw() as raw:
            await raw.rows("DELETE FROM workers WHERE name = 'old'")
            await asyncio.wait_for(announce(store, "new"), 5)

        assert await names(store) == ["new", "old"]


async def test_many_that_forget_at_once_neither_fail_nor_forget_each_other(ledger: Ledger) -> None:
    sleepers = [f"sleeper-{n}" for n in range(20)]
    async with ledger.store() as store, ledger.store() as other:
        await announce(store, *sleepers, *(f"old-{n}" for n in range(40)))
        await age(ledger, WORKER_MEMORY + 1)
        for _ in range(3):
            await asyncio.gather(announce(store, *sleepers[:12]), announce(other, *sleepers[8:]))

        assert await names(store) == sorted(sleepers)
        assert await problems_of(store) == []
