"""PostgreSQL goes away and comes back: callers wait until their deadline, then they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from holdfast.errors import StoreUnavailable
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import State
from holdfast.ports.models import Committed, Submitted
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import CONTROL, new_job, owner_of
from holdfast.testing.store_actions import (
    all_jobs,
    change,
    claim,
    claim_one,
    claimed_job,
    do,
    running_job,
    stored,
    submit_one,
)
from tests.crashes.waiting import until
from tests.stores.ledgers import assert_proven, postgres_store, somebody_waits_for
from tests.stores.load import Load
from tests.support.postgres import PostgresCluster, database_of
from tests.support.proxy import FaultProxy

BRIEF = {"deadline_seconds": 0.5, "attempt_seconds": 0.5}
"""For callers that are to be told soon."""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with postgres_store(postgres_url) as store:
        yield store


@pytest.fixture
def proxy(postgres_cluster: PostgresCluster) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres_cluster.port) as proxy:
        yield proxy


async def still_waits(task: asyncio.Task[Any], seconds: float = 0.3) -> bool:
    """Whether a call is unanswered after a while."""
    done, _ = await asyncio.wait([task], timeout=seconds)
    return not done


async def running_with_child(store: Store) -> tuple[Any, Any]:
    """A running job, and a change that ends it with a linked retry: one transaction, two jobs."""
    job = await running_job(store)
    child = new_job(parent_id=job.id, request_id="the child's own")
    return job, change(job, c.Fail(actor=owner_of(job), error_code="boom", submits=(child,)))


@pytest.mark.req("B4", "E2")
async def test_killed_backends_lose_nothing_and_nobody_notices(
    postgres_cluster: PostgresCluster, postgres_url: str, store: PostgresStore
) -> None:
    async with Load(store) as load:
        for _ in range(8):
            assert await asyncio.to_thread(postgres_cluster.kill_backends, postgres_url) > 0
            await load.progress(3)
    await load.assert_lived_once()


@pytest.mark.req("B4", "E2")
async def test_a_crash_of_the_server_under_load_is_only_a_wait(
    postgres_cluster: PostgresCluster, store: PostgresStore
) -> None:
    async with Load(store) as load:
        for _ in range(2):
            await asyncio.to_thread(postgres_cluster.restart, "immediate")
            await load.progress(8)
    await load.assert_lived_once()


async def test_a_server_that_is_down_for_a_while_is_waited_for(
    postgres_cluster: PostgresCluster, store: PostgresStore
) -> None:
    job = await claimed_job(store)
    await asyncio.to_thread(postgres_cluster.stop, "fast")
    submit = asyncio.create_task(submit_one(store))
    start = asyncio.create_task(do(store, job, c.Start(actor=owner_of(job))))
    read = asyncio.create_task(stored(store, job.id))
    assert await still_waits(submit)
    assert not start.done()
    assert not read.done()

    await asyncio.to_thread(postgres_cluster.start)

    assert (await submit).state is State.QUEUED
    assert (await start).state is State.RUNNING
    assert (await read).id == job.id
    await assert_proven(store)


async def test_beyond_the_deadline_every_caller_is_told_and_nothing_is_written(
    postgres_cluster: PostgresCluster, postgres_url: str, store: PostgresStore
) -> None:
    job = await claimed_job(store)
    new = new_job(request_id="again")
    async with postgres_store(postgres_url, **BRIEF) as brief:
        await asyncio.to_thread(postgres_cluster.stop, "fast")
        for call in (
            brief.submit([new]),
            claim(brief),
            brief.commit([change(job, c.Start(actor=owner_of(job)))]),
            brief.get([job.id]),
        ):
            with pytest.raises(StoreUnavailable, match="tries"):
                await call
        await asyncio.to_thread(postgres_cluster.start)

        assert await all_jobs(store) == [job]
        [outcome] = await brief.submit([new])
        assert isinstance(outcome, Submitted)
        assert outcome.created
    await assert_proven(store)


async def test_a_transaction_that_is_cut_in_the_middle_leaves_nothing_behind(
    proxy: FaultProxy, postgres_url: str, store: PostgresStore
) -> None:
    job, fail = await running_with_child(store)
    async with postgres_store(proxy.url(postgres_url), **BRIEF) as brief:
        await brief.clock()
        # The row is updated, the child's key taken; then the line is dead for good.
        cut = proxy.drop_request(b"INSERT INTO jobs")
        proxy.refuse()
        with pytest.raises(StoreUnavailable):
            await brief.commit([fail])
        assert cut.bitten
        assert await all_jobs(store) == [job]

        proxy.accept()
        [outcome] = await brief.commit([fail])
        assert isinstance(outcome, Committed)
    assert len(await all_jobs(store)) == 2
    await assert_proven(store)


async def test_a_standby_takes_over_with_all_that_was_acknowledged() -> None:
    with PostgresCluster({"fsync": "off"}) as primary:
        url = primary.create_database("ledger")
        await migrate(url)
        with primary.make_standby() as standby, FaultProxy("127.0.0.1", primary.port) as proxy:
            async with postgres_store(proxy.url(url)) as store, Load(store) as load:
                await asyncio.to_thread(primary.stop, "immediate")
                # It answers, but does not write yet: the address moved before the promotion.
                proxy.retarget("127.0.0.1", standby.port)
                read = asyncio.create_task(store.clock())
                # What the primary had answered before it stopped may still be on its way.
                assert await still_waits(read, 0.5)
                before = load.rounds
                assert await still_waits(read, 0.5)
                assert load.rounds == before
                await asyncio.to_thread(standby.promote)
                await load.progress(8)
                await read
            async with postgres_store(proxy.url(url)) as store:
                await load.assert_lived_once(store)


async def test_a_read_only_server_is_left_for_the_one_that_writes(
    postgres_cluster: PostgresCluster, postgres_url: str, store: PostgresStore
) -> None:
    # As a standby does: a session that began here stays read-only, a new one is not.
    name = database_of(postgres_url)
    postgres_cluster.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    postgres_cluster.kill_backends(postgres_url)
    submit = asyncio.create_task(submit_one(store))
    assert await still_waits(submit)

    postgres_cluster.sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")

    assert (await submit).rev == 1
    await assert_proven(store)


async def test_a_half_open_connection_is_noticed_and_left(
    proxy: FaultProxy, postgres_url: str, store: PostgresStore
) -> None:
    job, fail = await running_with_child(store)
    async with postgres_store(proxy.url(postgres_url), attempt_seconds=0.4) as cut_off:
        await cut_off.clock()
        frozen = proxy.freeze()
        commit = asyncio.create_task(cut_off.commit([fail]))
        # One piece is the statement, the next ones are attempts to get away from it.
        while frozen.count < 3:
            assert await still_waits(commit, 0.05)
        # What was held back now arrives too, after its sender has given it up.
        proxy.thaw()
        [outcome] = await commit
        assert isinstance(outcome, Committed)
    assert len(await all_jobs(store)) == 2
    assert len(await store.events(job.id)) == 4
    await assert_proven(store)


async def test_callers_of_a_silent_server_are_told_by_the_deadline(
    proxy: FaultProxy, postgres_url: str
) -> None:
    async with postgres_store(proxy.url(postgres_url), **BRIEF) as brief:
        await brief.clock()
        proxy.freeze()
        began = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailable):
            await submit_one(brief)
        assert asyncio.get_running_loop().time() - began < 4


async def test_a_transaction_whose_client_fell_silent_gives_its_locks_back(
    postgres_cluster: PostgresCluster, proxy: FaultProxy, postgres_url: str, store: PostgresStore
) -> None:
    job, fail = await running_with_child(store)
    raw = await asyncpg.connect(postgres_url)
    in_the_way = raw.transaction()
    await in_the_way.start()
    [blocked] = fail.submits
    await raw.execute(
        "INSERT INTO keys VALUES ('default', 2, $1, $2, '')", "the child's own", blocked.record.id
    )
    async with postgres_store(proxy.url(postgres_url), **BRIEF | {"attempt_seconds": 1.0}) as mute:
        await mute.clock()
        commit = asyncio.create_task(mute.commit([fail]))
        await somebody_waits_for(raw, postgres_cluster)
        # Its row is locked. From here on the server hears nothing more of it.
        proxy.freeze()
        await in_the_way.rollback()

        cancelled = await do(store, job, c.RequestCancel(actor=CONTROL))
        assert cancelled.cancel_requested is not None
        with pytest.raises(StoreUnavailable):
            await commit
        proxy.thaw()
    await raw.close()
    await assert_proven(store)


async def test_work_goes_on_through_a_restart_that_a_claim_meets(
    postgres_cluster: PostgresCluster, store: PostgresStore
) -> None:
    job = await submit_one(store)
    await asyncio.to_thread(postgres_cluster.restart, "immediate")
    claimed = await claim_one(store)
    assert (claimed.job.id, claimed.job.attempt) == (job.id, 1)
    await assert_proven(store)


async def test_an_outage_is_one_log_line_at_once_and_its_end_another(
    proxy: FaultProxy, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name.endswith("outage")]

    async with (
        postgres_store(proxy.url(postgres_url)) as one,
        postgres_store(proxy.url(postgres_url)) as two,
    ):
        await asyncio.gather(one.clock(), two.clock())
        proxy.refuse()
        proxy.cut()
        calls = [asyncio.create_task(store.clock()) for store in (one, two, one, two)]
        await until(lambda: bool(logged()), "the outage to be logged")
        assert not any(call.done() for call in calls), "long before callers are told"
        proxy.accept()
        await asyncio.gather(*calls)
    went, came = logged()
    assert "does not answer, retrying: " in went
    assert "answers again after " in came
    assert "postgres:" not in went + came, "no password, and no user"
