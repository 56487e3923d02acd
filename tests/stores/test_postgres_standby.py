"""A synchronous standby: nothing is acknowledged that a failover could lose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.lifecycle import commands as c
from holdfast.ports.models import Claimed, ClaimRequest, Committed, Lost, Submitted
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import fresh, new_job, owner_of
from holdfast.testing.store_actions import all_jobs, change, claimed_job, submit_one
from tests.stores.ledgers import assert_proven, postgres_store
from tests.stores.standby import MANY_TRIES, ONE_TRY, TWO_TRIES, interrupt_wait, standby_away
from tests.support.postgres import PostgresCluster

Write: TypeAlias = Callable[[Store], Awaitable[list[Any]]]


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresCluster]:
    """A server that can be told to wait for a standby that is away."""
    with PostgresCluster({"fsync": "off"}) as cluster:
        yield cluster


@pytest.fixture
async def url(primary: PostgresCluster) -> AsyncIterator[str]:
    url = primary.create_database()
    await migrate(url)
    yield url
    primary.drop_database(url)


async def _submit(store: Store) -> Write:
    # Its policy is written down first, by a commit of its own.
    await submit_one(store, queue="others")
    job = new_job()
    return lambda store: store.submit([job])


async def _submit_with_key(store: Store) -> Write:
    await submit_one(store, queue="others")
    job = new_job(request_id=fresh("request"))
    return lambda store: store.submit([job])


async def _claim(store: Store) -> Write:
    await submit_one(store)
    request = ClaimRequest(request_id=fresh("claim"), owner="w", queues=("default",), limit=1)
    return lambda store: store.claim(request)


async def _commit(store: Store) -> Write:
    job = await claimed_job(store)
    started = change(job, c.Start(actor=owner_of(job), request_id=fresh("request")))
    return lambda store: store.commit([started])


async def _commit_with_child(store: Store) -> Write:
    job = await claimed_job(store)
    child = new_job(parent_id=job.id, request_id=fresh("child"))
    dead = c.DeadLetter(
        actor=owner_of(job),
        error_code="parse_error",
        stage="input",
        request_id=fresh("request"),
        submits=(child,),
    )
    return lambda store: store.commit([change(job, dead)])


async def _pause(store: Store) -> Write:
    async def pause(store: Store) -> list[Any]:
        return [await store.pause("default", actor="somebody")]

    return pause


writes = pytest.mark.parametrize(
    "make",
    [
        pytest.param(_submit, id="submit"),
        pytest.param(_submit_with_key, id="submit-with-key"),
        pytest.param(_claim, id="claim"),
        pytest.param(_commit, id="commit"),
        pytest.param(_commit_with_child, id="commit-with-child"),
        pytest.param(_pause, id="pause"),
    ],
)


@pytest.mark.req("B4", "E2")
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@writes
async def test_a_write_whose_wait_for_the_standby_was_cancelled_is_not_acknowledged(
    primary: PostgresCluster, url: str, make: Callable[[Store], Awaitable[Write]], pooled: bool
) -> None:
    async with (
        postgres_store(url) as store,
        postgres_store(url, pooled=pooled, **ONE_TRY) as impatient,
    ):
        write = await make(store)
        await impatient.clock()
        async with standby_away(primary):
            task = asyncio.ensure_future(write(impatient))
            await interrupt_wait(primary, "pg_cancel_backend")
            with pytest.raises(StoreUnavailable, match="standby"):
                await task
        [outcome] = await write(store)
        assert not isinstance(outcome, Lost)
        await assert_proven(store)


@pytest.mark.req("B4", "E2")
@writes
async def test_a_write_whose_connection_was_cut_is_not_acknowledged_before_the_standby_has_it(
    primary: PostgresCluster, url: str, make: Callable[[Store], Awaitable[Write]]
) -> None:
    async with postgres_store(url) as store, postgres_store(url, **TWO_TRIES) as brief:
        write = await make(store)
        await brief.clock()
        async with standby_away(primary):
            task = asyncio.ensure_future(write(brief))
            await interrupt_wait(primary, "pg_terminate_backend")
            with pytest.raises(StoreUnavailable):
                await task
        await write(store)
        await assert_proven(store)


@pytest.mark.req("B4", "E2")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(_submit, id="submit"),
        pytest.param(_submit_with_key, id="submit-with-key"),
        pytest.param(_claim, id="claim"),
        pytest.param(_commit, id="commit"),
    ],
)
async def test_a_repeated_write_is_not_acknowledged_while_the_standby_lacks_the_first(
    primary: PostgresCluster, url: str, make: Callable[[Store], Awaitable[Write]]
) -> None:
    async with postgres_store(url) as store, postgres_store(url, **ONE_TRY) as impatient:
        write = await make(store)
        await impatient.clock()
        async with standby_away(primary):
            task = asyncio.ensure_future(write(impatient))
            await interrupt_wait(primary, "pg_cancel_backend")
            with pytest.raises(StoreUnavailable):
                await task
            # Another process repeats it: the row is there, and only there.
            async with postgres_store(url, **TWO_TRIES) as another:
                with pytest.raises(StoreUnavailable):
                    await write(another)
        [outcome] = await write(store)
        assert isinstance(outcome, Submitted | Claimed | Committed)
        await assert_proven(store)


@pytest.mark.req("B4", "E2")
@writes
async def test_a_write_that_meets_the_locks_of_its_own_first_try_has_an_unknown_outcome(
    primary: PostgresCluster, url: str, make: Callable[[Store], Awaitable[Write]]
) -> None:
    async with postgres_store(url) as store, postgres_store(url, **MANY_TRIES) as slow:
        write = await make(store)
        await slow.clock()
        async with standby_away(primary):
            with pytest.raises(StoreUnavailable):
                await write(slow)
        # It was written all the same, and is found by whoever repeats it.
        [outcome] = await write(store)
        assert not isinstance(outcome, Lost)
        await assert_proven(store)


async def test_a_read_does_not_wait_for_the_standby(primary: PostgresCluster, url: str) -> None:
    async with postgres_store(url, **ONE_TRY) as store:
        job = await submit_one(store)
        async with standby_away(primary):
            assert await store.get([job.id]) == [job]


@pytest.mark.req("B4", "E2")
@pytest.mark.parametrize("function", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_failover_loses_nothing_that_was_acknowledged_while_the_standby_was_away(
    function: str,
) -> None:
    with PostgresCluster({"fsync": "off"}) as primary:
        url = primary.create_database("ledger")
        await migrate(url)
        with primary.make_standby() as standby:
            acknowledged = []
            async with postgres_store(url, **TWO_TRIES) as store:
                acknowledged.append((await submit_one(store)).id)
                await asyncio.to_thread(standby.stop, "immediate")
                second = new_job(request_id="order-2")
                task = asyncio.create_task(_acknowledged(store, second))
                await interrupt_wait(primary, function)
                acknowledged += await task
                acknowledged += await _acknowledged(store, new_job(request_id="order-2"))
            await asyncio.to_thread(primary.stop, "immediate")
            await asyncio.to_thread(standby.start)
            await asyncio.to_thread(standby.promote)
            async with postgres_store(standby.url("ledger")) as after:
                kept = {job.id for job in await all_jobs(after)}
            assert set(acknowledged) <= kept


async def _acknowledged(store: PostgresStore, job: Any) -> list[Any]:
    try:
        [outcome] = await store.submit([job])
    except StoreUnavailable:
        return []
    assert isinstance(outcome, Submitted)
    return [outcome.job.id]
