"""A key that a transaction holds which has not ended: whoever wants it waits, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast.errors import KeyBusy, StoreUnavailable
from holdfast.flow.submit import submit_error
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import NewJob
from holdfast.operations.batches import BatchedStore
from holdfast.ports.models import Committed, SubmitRefused, Submitted
from holdfast.stores.postgres.caller_transaction import enlist_sql, enlist_text
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import CONTROL, new_job
from holdfast.testing.store_actions import all_jobs, change, running_job, submit_one
from tests.stores.ledgers import assert_proven, postgres_store, somebody_waits_for
from tests.support.postgres import PostgresCluster


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with postgres_store(postgres_url) as store:
        # The policy is written down: what waits from here on waits for a key.
        await submit_one(store)
        yield store
        await assert_proven(store)


@asynccontextmanager
async def open_transaction(url: str, *jobs: NewJob) -> AsyncIterator[Any]:
    """An app's transaction that has submitted these jobs and is not committed."""
    raw = await asyncpg.connect(url, server_settings={"application_name": "the slow app"})
    transaction = raw.transaction()
    await transaction.start()
    await raw.fetchval(enlist_sql("$1"), enlist_text(jobs))
    try:
        yield transaction
    finally:
        await raw.close()


def order(number: int = 7) -> NewJob:
    return new_job(job_id=f"order-{number}", body=b"7")


@pytest.mark.req("A1")
async def test_a_key_in_an_open_transaction_holds_up_no_other_job_of_the_batch(
    postgres_url: str, store: PostgresStore
) -> None:
    async with open_transaction(postgres_url, order()):
        batch = [new_job(job_id=f"other-{number}") for number in range(20)]
        outcomes = await store.submit([*batch[:10], order(), *batch[10:]])
    refused = outcomes.pop(10)
    assert [type(one) for one in outcomes] == [Submitted] * 20
    assert isinstance(refused, SubmitRefused)
    assert refused.code == "key_busy"
    assert "'order-7'" in refused.message
    assert "the slow app" in refused.message


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_single_submit_waits_for_the_end_of_the_transaction_that_holds_its_key(
    postgres_cluster: PostgresCluster,
    postgres_url: str,
    store: PostgresStore,
    end: str,
    pooled: bool,
) -> None:
    async with (
        postgres_store(postgres_url, pooled=pooled) as waiting,
        open_transaction(postgres_url, order()) as transaction,
    ):
        submit = asyncio.create_task(waiting.submit([order()]))
        await somebody_waits_for(transaction._connection, postgres_cluster)
        await getattr(transaction, end)()
        [outcome] = await submit
    assert isinstance(outcome, Submitted)
    assert outcome.created is (end == "rollback")
    assert len(await all_jobs(store)) == 2


async def test_a_single_submit_gives_up_at_the_deadline(
    postgres_url: str, store: PostgresStore
) -> None:
    async with (
        postgres_store(postgres_url, deadline_seconds=0.2) as brief,
        open_transaction(postgres_url, order()),
    ):
        [outcome] = await brief.submit([order()])
        [at_once] = await store.submit([order()], await_keys=False)
        with pytest.raises(KeyBusy) as caught:
            raise submit_error((await BatchedStore(brief).submit([order()]))[0])  # type: ignore[arg-type]
    for one in (outcome, at_once):
        assert isinstance(one, SubmitRefused)
        assert one.code == caught.value.code == "key_busy"


async def test_submits_gathered_beside_a_busy_key_are_acknowledged_while_it_waits(
    postgres_url: str, store: PostgresStore
) -> None:
    together = BatchedStore(store)
    async with open_transaction(postgres_url, order()) as transaction:
        waits = [asyncio.create_task(together.submit([order()])) for _ in range(3)]
        strangers = [new_job(tenant=f"t{number}") for number in range(10)]
        keyed = [new_job(request_id=f"r{number}") for number in range(10)]
        answers = await asyncio.gather(*(together.submit([job]) for job in [*strangers, *keyed]))
        assert [type(one) for [one] in answers] == [Submitted] * 20
        # And so are those who come later, with the same key under way.
        again = asyncio.create_task(together.submit([order(), new_job()]))
        [later] = await together.submit([new_job(request_id="later")])
        assert isinstance(later, Submitted)
        assert not any(task.done() for task in (*waits, again))
        await transaction.rollback()
        outcomes = [*await asyncio.gather(*waits), [(await again)[0]]]
    assert len({one.job.id for [one] in outcomes if isinstance(one, Submitted)}) == 1
    assert len(await all_jobs(store)) == 1 + 20 + 1 + 1 + 1


async def test_many_waiters_for_busy_keys_leave_connections_to_everybody_else(
    postgres_url: str, store: PostgresStore
) -> None:
    together = BatchedStore(store)
    orders = [order(number) for number in range(12)]
    async with open_transaction(postgres_url, *orders):
        waits = [asyncio.create_task(together.submit([order(n)])) for n in range(12)]
        for _ in range(5):
            await store.clock()
            [stranger] = await together.submit([new_job()])
            assert isinstance(stranger, Submitted)
        assert not any(task.done() for task in waits)
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def test_a_read_finds_a_connection_while_commits_wait_for_a_lock(
    postgres_cluster: PostgresCluster, postgres_url: str, store: PostgresStore
) -> None:
    jobs = [await running_job(store) for _ in range(8)]
    raw = await asyncpg.connect(postgres_url)
    async with raw.transaction():
        await raw.execute("SELECT 1 FROM holdfast.jobs FOR UPDATE")
        signal = c.SignalJob(actor=CONTROL, name="go")
        commits = [asyncio.create_task(store.commit([change(job, signal)])) for job in jobs]
        await somebody_waits_for(raw, postgres_cluster)
        assert await store.get([jobs[0].id]) == [jobs[0]]
        assert not any(task.done() for task in commits)
    await raw.close()
    assert [type(one) for [one] in await asyncio.gather(*commits)] == [Committed] * 8


async def test_a_wait_for_a_lock_is_bounded_by_the_server(
    postgres_url: str, store: PostgresStore
) -> None:
    async with postgres_store(postgres_url, attempt_seconds=10.0) as ordinary:
        [(shown,)] = await ordinary._session.fetch("SHOW lock_timeout")
    assert shown == "1s"


@pytest.mark.parametrize("wishes", [{}, {"job_id": "order-8"}], ids=["no key", "a key"])
async def test_a_locked_table_is_not_reported_as_a_busy_key(
    postgres_url: str, store: PostgresStore, wishes: dict[str, Any]
) -> None:
    raw = await asyncpg.connect(postgres_url)
    async with (
        postgres_store(postgres_url, attempt_seconds=0.4, deadline_seconds=1.0) as waiting,
        raw.transaction(),
    ):
        await raw.execute("LOCK TABLE holdfast.jobs IN SHARE MODE")
        with pytest.raises(StoreUnavailable, match="another transaction held a lock"):
            await waiting.submit([new_job(**wishes), new_job()])
    await raw.close()
