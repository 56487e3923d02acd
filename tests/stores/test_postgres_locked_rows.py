"""A job's row that a foreign transaction keeps locked: its own commits wait, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.errors import JobBusy, StoreUnavailable
from holdfast.flow.hold import hold
from holdfast.flow.recover import sweep
from holdfast.flow.signal import signal
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import State
from holdfast.operations.batches import BatchedStore
from holdfast.ports.models import Committed, Outcome, Rejected
from holdfast.stores.postgres import commit
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import (
    CONTROL,
    RECONCILER,
    SHORT_RUN,
    new_job,
    owner_of,
)
from holdfast.testing.store_actions import change, passed, running_job, stored, submit_one
from holdfast.worker_protocol.apply_reports import apply_reports
from holdfast.worker_protocol.reports import HeartbeatReport
from tests.stores.ledgers import assert_proven, postgres_store
from tests.support.postgres import PostgresCluster
from tests.support.waiting import wait_until


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with postgres_store(postgres_url) as store:
        yield store
        await assert_proven(store)


@asynccontextmanager
async def locked(url: str, job: Job) -> AsyncIterator[Any]:
    """A transaction of somebody else's that has locked a job's row and does not end."""
    raw = await asyncpg.connect(url)
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute("SELECT 1 FROM holdfast.jobs WHERE id = $1 FOR UPDATE", job.id)
    try:
        yield raw
    finally:
        await raw.close()


async def renew(store: PostgresStore, jobs: list[Job]) -> list[Outcome]:
    return await store.commit([change(job, c.Heartbeat(actor=owner_of(job))) for job in jobs])


def kinds(outcomes: list[Outcome]) -> list[type]:
    return [type(one) for one in outcomes]


@pytest.mark.req("B13")
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
async def test_a_locked_row_keeps_no_other_job_of_the_batch_from_being_renewed(
    postgres_url: str, store: PostgresStore, pooled: bool
) -> None:
    jobs = [await running_job(store) for _ in range(10)]
    async with postgres_store(postgres_url, pooled=pooled) as worker, locked(postgres_url, jobs[3]):
        outcomes = await renew(worker, jobs)
        refused = outcomes.pop(3)
        assert kinds(outcomes) == [Committed] * 9
        assert isinstance(refused, Rejected)
        assert refused.busy
        assert str(jobs[3].id) in refused.message
        for job in [*jobs[:3], *jobs[4:]]:
            assert (await stored(store, job.id)).lease_expires_at > job.lease_expires_at  # type: ignore[operator]
        assert await stored(store, jobs[3].id) == jobs[3]
    assert kinds(await renew(store, [jobs[3]])) == [Committed]


async def test_a_row_that_is_known_to_be_locked_is_not_waited_for_again(
    postgres_url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await running_job(store) for _ in range(3)]
    async with locked(postgres_url, jobs[0]):
        await renew(store, jobs[:2])
        jobs[1] = await stored(store, jobs[1].id)
        waits = 0
        write = commit._write_folds

        async def counted(session: Any, folds: Any, request_id: str) -> list[Outcome]:
            nonlocal waits
            waits += any(one.id == jobs[0].id for one in folds)
            return await write(session, folds, request_id)

        monkeypatch.setattr(commit, "_write_folds", counted)
        assert kinds(await renew(store, jobs)) == [Rejected, Committed, Committed]
        assert waits == 0
    jobs[1:] = [await stored(store, job.id) for job in jobs[1:]]
    # Once it is free it is written, and from then on like any other.
    assert kinds(await renew(store, jobs)) == [Committed] * 3
    assert not store._locked_rows.has_any([])
    assert not store._locked_rows._ids


async def test_a_child_whose_key_is_locked_keeps_no_other_job_from_being_written(
    postgres_url: str, store: PostgresStore
) -> None:
    jobs = [await running_job(store) for _ in range(5)]
    await submit_one(store, job_id="warm")
    raw = await asyncpg.connect(postgres_url)
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute(
        "INSERT INTO holdfast.keys (tenant, kind, key, id, digest)"
        " SELECT tenant, kind, 'order-7', gen_random_uuid(), digest FROM holdfast.keys LIMIT 1"
    )
    child = new_job(job_id="order-7", parent_id=jobs[2].id)
    spawn = c.DeadLetter(
        actor=owner_of(jobs[2]), error_code="parse_error", stage="input", submits=(child,)
    )
    changes = [change(job, c.Heartbeat(actor=owner_of(job))) for job in jobs]
    changes[2] = change(jobs[2], spawn)
    outcomes = await store.commit(changes)
    await transaction.rollback()
    await raw.close()
    assert kinds(outcomes) == [Committed, Committed, Rejected, Committed, Committed]
    assert kinds(await store.commit([changes[2]])) == [Committed]


@pytest.mark.req("B13")
async def test_a_worker_goes_on_with_its_other_jobs_while_one_is_locked(postgres_url: str) -> None:
    async with Holdfast(postgres_url, unbounded_leases=True) as app:
        finish = asyncio.Event()

        @app.task(heartbeat="2s")
        async def work(number: int) -> int:
            await finish.wait()
            return number

        async with app.worker(concurrency=5):
            handles = [await work.submit(number) for number in range(5)]
            store = await app.store()
            jobs = await _running(store, handles)
            async with locked(postgres_url, jobs[0]) as raw:
                # Each lease is renewed twice over, except the one that is locked.
                await asyncio.gather(*(_renewed(store, job, times=2) for job in jobs[1:]))
                finish.set()
                assert [await one.result(30) for one in handles[1:]] == [1, 2, 3, 4]
                more = await work.submit(5)
                assert await more.result(30) == 5
                assert (await stored(store, jobs[0].id)).state is State.RUNNING
                await raw.execute("ROLLBACK")
            assert await handles[0].result(30) == 0
        after = [await stored(store, job.id) for job in jobs[1:]]
        assert [job.attempt for job in after] == [1] * 4
        await assert_proven(store)


async def _running(store: Any, handles: list[Any]) -> list[Job]:
    while True:
        jobs = await store.get([JobId(UUID(one.id)) for one in handles])
        if all(job.state is State.RUNNING for job in jobs):
            return list(jobs)
        await asyncio.sleep(0.02)


async def _renewed(store: Any, job: Job, *, times: int) -> None:
    last = job.lease_expires_at
    while times:
        now = await stored(store, job.id)
        assert now.state is State.RUNNING
        if now.lease_expires_at != last:
            last, times = now.lease_expires_at, times - 1
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("gathered", [False, True], ids=["alone", "gathered"])
async def test_a_signal_waits_for_the_lock_and_arrives_once(
    postgres_cluster: PostgresCluster, postgres_url: str, store: PostgresStore, gathered: bool
) -> None:
    job, other = [await running_job(store) for _ in range(2)]
    sender: Any = BatchedStore(store) if gathered else store
    async with locked(postgres_url, job) as raw:
        waits = asyncio.create_task(signal(sender, job.id, CONTROL, "go", request_id="once"))
        await signal(sender, other.id, CONTROL, "go")
        await _somebody_waits_under_the_lock(raw, postgres_cluster)
        assert not waits.done()
        await raw.execute("ROLLBACK")
        await waits
    assert [one.name for one in (await stored(store, job.id)).signals] == ["go"]


async def _somebody_waits_under_the_lock(raw: Any, cluster: PostgresCluster) -> None:
    """Wait until somebody waits who decides only once it has the row."""
    question = (
        "SELECT count(*) > 0 FROM pg_stat_activity"
        f" WHERE {raw.get_server_pid()} = ANY (pg_blocking_pids(pid))"
        " AND query LIKE '%WHERE id = $1::uuid FOR UPDATE%'"
    )
    await asyncio.to_thread(
        wait_until, lambda: cluster.sql(question) == "t", "somebody to wait under the lock"
    )


async def test_a_command_gives_up_at_the_deadline_with_the_lock_named(
    postgres_url: str, store: PostgresStore
) -> None:
    job = await submit_one(store)
    async with (
        postgres_store(postgres_url, deadline_seconds=0.2, attempt_seconds=0.2) as brief,
        locked(postgres_url, job),
    ):
        with pytest.raises(StoreUnavailable, match="lock"):
            await hold(brief, job.id, CONTROL)


@pytest.mark.req("B13")
async def test_a_sweep_recovers_other_jobs_while_one_is_locked(
    postgres_url: str, store: PostgresStore
) -> None:
    jobs = [await running_job(store, policy=SHORT_RUN) for _ in range(4)]
    await passed(store, max(job.lease_expires_at or 0 for job in jobs))
    async with locked(postgres_url, jobs[0]):
        swept = await sweep(store, RECONCILER, jitter=lambda: 0.5)
        assert list(swept.failed) == [jobs[0].id]
        states = [(await stored(store, job.id)).state for job in jobs[1:]]
        assert states == [State.STALLED] * 3
    await sweep(store, RECONCILER, jitter=lambda: 0.5)
    assert (await stored(store, jobs[0].id)).state is State.STALLED


async def test_a_remote_workers_other_reports_are_accepted_while_one_job_is_locked(
    postgres_url: str, store: PostgresStore
) -> None:
    jobs = [await running_job(store, owner="w") for _ in range(3)]
    reports = [HeartbeatReport(internal_id=job.id, attempt=job.attempt) for job in jobs]
    async with locked(postgres_url, jobs[1]):
        heard = await apply_reports(store, "w", reports, jobs)
    assert [one.error is None for one in heard] == [True, False, True]
    assert isinstance(heard[1].error, JobBusy)
    assert heard[1].error.code == "job_busy"
