"""The ranges that a claim reads: every one that has jobs, in the order of all, however many."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.lifecycle.claim_order import CLASS, FOREIGN
from holdfast.lifecycle.execution_policy import needs_key
from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.times import SECOND, After
from holdfast.stores.claim_ranges import range_of
from holdfast.stores.sqlite.claim import MERGED
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import HOUR
from holdfast.testing.store_actions import claim, submit_one

QUEUES = [f"queue-{number}" for number in range(200)]


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    """A store in memory."""
    store = SqliteStore(":memory:")
    await store.open()
    yield store
    await store.close()


def test_a_lane_keeps_needs_class_and_tenant_apart() -> None:
    assert all(0 < priority.code <= CLASS for priority in Priority if priority.code)
    assert not CLASS & FOREIGN
    for needs in ({"gpu"}, {"gpu", "ffmpeg"}, set(map(str, range(50)))):
        assert needs_key(frozenset(needs)) & (CLASS | FOREIGN) == 0


async def test_a_range_is_what_the_schema_says(store: SqliteStore) -> None:
    job = await submit_one(
        store,
        task="charge",
        task_version="2",
        tenant="acme",
        needs=frozenset({"gpu"}),
        priority=Priority.BATCH,
    )
    found = await store._session.fetch("SELECT queue, route, lane FROM jobs")

    assert found == [tuple(range_of(job))]


@pytest.mark.parametrize("limit", [1, 7, 3 * MERGED, 40 * MERGED])
async def test_many_ranges_are_merged_in_the_order_of_all(store: SqliteStore, limit: int) -> None:
    now = (await store.clock()).now
    for number in range(20 * MERGED):
        await submit_one(
            store,
            task=f"task-{number % (2 * MERGED)}",
            run_at=now - HOUR + number * number % 97 * SECOND,
        )
    claimed = await claim(store, limit=limit)
    rest = await claim(store, limit=1000)

    due = [(one.job.run_at or 0, one.job.id) for one in claimed + rest]
    assert len(due) == 20 * MERGED
    assert due == sorted(due)
    assert len(claimed) == min(limit, len(due))


async def test_a_job_that_is_not_due_leaves_its_range_out(store: SqliteStore) -> None:
    for number in range(2 * MERGED):
        await submit_one(store, task=f"task-{number}", run_at=After(HOUR))
    due = await submit_one(store, task="last")

    assert [one.job.id for one in await claim(store, limit=10)] == [due.id]


async def test_a_claim_from_very_many_queues_misses_nothing_that_is_due(
    store: SqliteStore,
) -> None:
    for queue in (QUEUES[0], QUEUES[-1]):
        for priority in (Priority.CRITICAL, Priority.BATCH):
            await submit_one(store, queue=queue, priority=priority)
    assert len(await claim(store, *QUEUES, limit=10)) == 4


async def test_a_claim_from_very_many_queues_keeps_the_order_of_claims(
    store: SqliteStore,
) -> None:
    fresh = await submit_one(store, queue=QUEUES[0], priority=Priority.CRITICAL)
    batch = await submit_one(store, queue=QUEUES[1], priority=Priority.BATCH)
    aged = await submit_one(
        store, queue=QUEUES[-1], priority=Priority.BATCH, run_at=After(-24 * HOUR)
    )
    found = [
        one.job.id
        for request in range(3)
        for one in await claim(store, *QUEUES, limit=1, request_id=f"claim-{request}")
    ]
    assert found == [aged.id, fresh.id, batch.id]
