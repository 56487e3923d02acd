"""Writers in each other's way: all lock in one order, and what gives way is done again whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.ports.models import Committed, Lost
from holdfast.ports.store import Store
from holdfast.stores.postgres import claim as claim_module
from holdfast.stores.postgres import connections
from holdfast.stores.postgres.claim import claim_locked
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import CONTROL, new_job, owner_of
from holdfast.testing.store_actions import (
    all_jobs,
    change,
    claim,
    claim_one,
    running_job,
    submit_one,
)
from tests.stores.ledgers import assert_proven, postgres_store, somebody_waits_for
from tests.stores.load import Load
from tests.support.postgres import PostgresCluster, database_of
from tests.support.waiting import wait_until

FAIL_ONCE = """
CREATE SEQUENCE tries;
CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') = 1 THEN
        RAISE EXCEPTION 'could not serialize access' USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NULL;
END $$;
"""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with postgres_store(postgres_url) as store:
        yield store
        await assert_proven(store)


@asynccontextmanager
async def locked(url: str, job: Job) -> AsyncIterator[Any]:
    """A stranger's transaction that holds a job's row until the end of the block."""
    raw = await asyncpg.connect(url, server_settings={"deadlock_timeout": "60s"})
    try:
        async with raw.transaction():
            await lock(raw, job)
            yield raw
    finally:
        await raw.close()


async def lock(raw: Any, job: Job, how: str = "") -> None:
    await raw.execute(f"SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE {how}", job.id)


def statistic(cluster: PostgresCluster, url: str, column: str) -> int:
    """What PostgreSQL counted in a database; backends report at the latest when they end."""
    name = database_of(url)
    others = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'"
    wait_until(lambda: cluster.sql(others) == "0", "the store's backends to end")
    return int(cluster.sql(f"SELECT {column} FROM pg_stat_database WHERE datname = '{name}'"))


async def test_a_batch_locks_its_rows_in_the_order_of_their_ids(
    postgres_cluster: PostgresCluster, postgres_url: str, store: PostgresStore
) -> None:
    jobs = sorted([await running_job(store) for _ in range(3)], key=lambda job: job.id)
    first, *rest = jobs
    async with locked(postgres_url, first) as raw:
        beats = [change(job, c.Heartbeat(actor=owner_of(job))) for job in reversed(jobs)]
        commit = asyncio.create_task(store.commit(beats))
        await somebody_waits_for(raw, postgres_cluster)
        for job in rest:
            await lock(raw, job, "NOWAIT")
    assert [type(one) for one in await commit] == [Committed] * 3


async def test_batches_that_share_jobs_never_deadlock(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    async with postgres_store(postgres_url) as store:
        jobs = [await running_job(store) for _ in range(20)]
        await asyncio.gather(*(_signal_all(store, jobs, number) for number in range(4)))
        await assert_proven(store)
    assert statistic(postgres_cluster, postgres_url, "deadlocks") == 0


async def _signal_all(store: Store, jobs: list[Job], number: int) -> None:
    """Send ten signals to all jobs, forwards or backwards; who comes second loses."""
    for name in range(10):
        now = [job for job in await store.get([job.id for job in jobs]) if job is not None]
        turned = now if number % 2 else now[::-1]
        changes = [change(job, c.SignalJob(actor=CONTROL, name=str(name))) for job in turned]
        for outcome in await store.commit(changes):
            assert isinstance(outcome, Committed | Lost)


async def test_a_deadlock_is_survived_and_the_batch_written_whole(
    postgres_cluster: PostgresCluster, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than PostgreSQL takes to look for a circle: else our statement gives way before.
    monkeypatch.setattr(connections, "LOCK_SECONDS", 10.0)
    # The stranger waits for ever; so it is our statement that PostgreSQL sacrifices. It looks but
    # once, so long after it began to wait: by then the stranger must have closed the circle.
    name = database_of(postgres_url)
    postgres_cluster.sql(f"ALTER DATABASE {name} SET deadlock_timeout = '2s'")
    async with postgres_store(postgres_url, attempt_seconds=30.0) as store:
        first, second = sorted([await running_job(store) for _ in range(2)], key=lambda j: j.id)
        beats = [change(job, c.Heartbeat(actor=owner_of(job))) for job in (first, second)]
        async with locked(postgres_url, second) as raw:
            commit = asyncio.create_task(store.commit(beats))
            await somebody_waits_for(raw, postgres_cluster)
            await lock(raw, first)
        assert [type(one) for one in await commit] == [Committed] * 2
        for job in (first, second):
            assert [event.rev for event in await store.events(job.id)] == [1, 2, 3, 4]
        await assert_proven(store)
    assert statistic(postgres_cluster, postgres_url, "deadlocks") == 1


async def _submit(store: Store) -> None:
    await submit_one(store, job_id="given")


async def _claim(store: Store) -> None:
    await claim_one(store)


async def _commit_with_child(store: Store) -> None:
    job = (await claim_one(store)).job
    child = new_job(parent_id=job.id, queue="children", request_id="child")
    dead = c.DeadLetter(
        actor=owner_of(job), error_code="parse_error", stage="input", submits=(child,)
    )
    [outcome] = await store.commit([change(job, dead)])
    assert isinstance(outcome, Committed)


@pytest.mark.parametrize(
    ("write", "when", "jobs"),
    [
        pytest.param(_submit, "INSERT ON jobs", 2, id="submit"),
        pytest.param(_submit, "INSERT ON events", 2, id="submit-event"),
        pytest.param(_claim, "INSERT ON claims", 1, id="claim"),
        pytest.param(_commit_with_child, "UPDATE ON jobs", 2, id="commit"),
        pytest.param(_commit_with_child, "INSERT ON keys", 2, id="commit-child"),
    ],
)
async def test_a_serialization_failure_is_tried_again_whole(
    postgres_url: str,
    store: PostgresStore,
    write: Callable[[Store], Awaitable[None]],
    when: str,
    jobs: int,
) -> None:
    await submit_one(store)
    raw = await asyncpg.connect(postgres_url)
    await raw.execute(FAIL_ONCE)
    await raw.execute(
        f"CREATE TRIGGER fail_once AFTER {when} FOR EACH STATEMENT EXECUTE FUNCTION fail_once()"
    )
    await write(store)
    assert await raw.fetchval("SELECT last_value FROM tries") > 1
    await raw.close()
    assert len(await all_jobs(store)) == jobs


async def test_a_database_that_isolates_more_strictly_by_default_makes_nobody_fail(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    name = database_of(postgres_url)
    postgres_cluster.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable")
    async with postgres_store(postgres_url, deadline_seconds=10) as store:
        for round_ in range(5):
            outcomes = await asyncio.gather(
                *(store.submit([new_job(job_id=f"key-{round_}")]) for _ in range(4))
            )
            assert len({one.job.id for [one] in outcomes}) == 1  # type: ignore[union-attr]
        async with Load(store) as load:
            await load.progress(10)
        await load.assert_lived_once()
    assert statistic(postgres_cluster, postgres_url, "xact_rollback") == 0


async def test_behind_jobs_that_others_are_taking_all_tasks_are_claimed(
    postgres_url: str, store: PostgresStore
) -> None:
    tasks = ("a", "b", "c", "d")
    first, second, third, fourth = [await submit_one(store, task=task) for task in tasks]
    async with locked(postgres_url, first), locked(postgres_url, second):
        claimed = await claim(store, limit=2, tasks=tasks)
    assert {one.job.id for one in claimed} == {third.id, fourth.id}


async def test_jobs_that_another_claim_is_taking_are_passed_over(
    postgres_url: str, store: PostgresStore
) -> None:
    first = await submit_one(store)
    second = await submit_one(store)
    async with locked(postgres_url, first):
        assert [one.job.id for one in await claim(store, limit=2)] == [second.id]
    assert [one.job.id for one in await claim(store, limit=2)] == [first.id]
    assert {job.state for job in await all_jobs(store)} == {State.CLAIMED}


async def test_behind_many_held_ranges_a_claim_locks_just_what_it_takes(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [await submit_one(store, task=f"task-{number}") for number in range(60)]
    free = [await submit_one(store, task=f"free-{number}") for number in range(3)]
    locks: list[int] = []

    async def counted(session: Any, request: Any, ids: Any) -> Any:
        locks.append(len(ids))
        return await claim_locked(session, request, ids)

    monkeypatch.setattr(claim_module, "claim_locked", counted)
    async with locked(postgres_url, held[0]) as raw:
        for job in held[1:]:
            await lock(raw, job)
        claimed = await claim(store, limit=2)

    assert len(claimed) == 2
    assert {one.job.id for one in claimed} <= {job.id for job in free}
    # What it locked and did not take would be kept from others, who might find nothing else.
    assert locks == [2]
