"""Wake-ups over LISTEN: a dead line is found out, and hints arrive again after an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.ports.store import Store
from holdfast.stores.postgres import wakeup
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.store_actions import claimed_ids, submit_one
from tests.stores.ledgers import postgres_store
from tests.support.postgres import PostgresCluster
from tests.support.proxy import FaultProxy

LONG = 60.0
"""Longer than a test may take: whoever waits so long and wakes was woken."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a silent line often, and do not wait long for its answer."""
    monkeypatch.setattr(wakeup, "PING_SECONDS", 0.2)
    monkeypatch.setattr(wakeup, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(wakeup, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(wakeup, "POLL_SECONDS", 0.05)


@pytest.fixture
def proxy(postgres_cluster: PostgresCluster) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres_cluster.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultProxy, postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with postgres_store(proxy.url(postgres_url)) as store:
        await listens(store)
        yield store


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with postgres_store(postgres_url) as store:
        yield store


async def listens(store: Store) -> None:
    """Return once the store is sure that it would hear: a silence is then told as no work."""
    async with asyncio.timeout(20):
        while await store.wake_up(["nowhere"], limit_seconds=0.01):
            # Whoever is woken looks, as a worker does: a hint counts until then.
            assert await claimed_ids(store, "nowhere") == []


async def waiting(store: Store) -> asyncio.Task[bool]:
    task = asyncio.create_task(store.wake_up(["default"], limit_seconds=LONG))
    await asyncio.sleep(0)
    return task


async def woken(task: asyncio.Task[bool]) -> bool:
    async with asyncio.timeout(10):
        return await task


async def test_a_submit_elsewhere_wakes_who_waits(store: Store, other: Store) -> None:
    task = await waiting(store)
    await submit_one(other, queue="another")
    assert not task.done()
    await submit_one(other)
    assert await woken(task)


async def test_who_submits_and_leaves_at_once_wakes_who_waits(
    store: Store, postgres_url: str
) -> None:
    task = await waiting(store)
    async with postgres_store(postgres_url) as brief:
        await submit_one(brief)
    assert await woken(task)


async def test_nobody_waits_long_to_leave_when_a_hint_cannot_be_sent(
    proxy: FaultProxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "ANSWER_SECONDS", LONG)
    monkeypatch.setattr(wakeup, "FAREWELL_SECONDS", 0.1)
    hints = wakeup.WakeUp(proxy.url(postgres_url))
    frozen = proxy.freeze()
    hints.hint(["default"])
    async with asyncio.timeout(10):
        await hints.close()
    assert frozen.bitten


async def test_a_queue_whose_name_needs_quoting_is_told(store: Store, other: Store) -> None:
    queue = "it's \\ a 'queue'; --"
    task = asyncio.create_task(store.wake_up([queue], limit_seconds=LONG))
    await asyncio.sleep(0)
    await submit_one(other, queue=queue)
    assert await woken(task)


async def test_who_was_found_to_listen_is_told_for_long_and_nobody_else_looked_for(
    store: Store, other: PostgresStore
) -> None:
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)
    asked = other._wake._asked_at
    await asyncio.sleep(2 * wakeup.ASK_SECONDS)
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)
    assert other._wake._asked_at == asked


async def test_silence_on_a_sound_line_is_no_hint(store: Store) -> None:
    assert not await store.wake_up(["default"], limit_seconds=0.5)


async def test_a_half_open_line_is_found_out_and_its_waiters_look_for_themselves(
    proxy: FaultProxy, store: Store, other: Store
) -> None:
    task = await waiting(store)
    frozen = proxy.freeze()
    await submit_one(other)
    assert await woken(task)
    assert frozen.bitten

    # Until the line is back, a wait is short and says "look".
    assert await store.wake_up(["default"], limit_seconds=LONG)
    proxy.thaw()
    await listens(store)
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)


async def test_wake_ups_work_again_after_a_restart(
    postgres_cluster: PostgresCluster, store: Store, other: Store
) -> None:
    task = await waiting(store)
    await asyncio.to_thread(postgres_cluster.restart, "immediate")
    assert await woken(task)

    await listens(store)
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)


async def test_a_hint_that_could_not_be_sent_costs_no_submit(
    postgres_cluster: PostgresCluster, postgres_url: str, other: Store
) -> None:
    await submit_one(other)
    await asyncio.to_thread(postgres_cluster.kill_backends, postgres_url)
    await submit_one(other)
    async with postgres_store(postgres_url) as store:
        await listens(store)
        task = await waiting(store)
        await submit_one(other)
        assert await woken(task)


async def test_without_a_direct_line_a_wait_is_a_poll(postgres_url: str) -> None:
    async with postgres_store(postgres_url, pooled=True) as store:
        assert await woken(await waiting(store))
