"""The ranges that a claim reads: every one, the most urgent class first, however many there are."""

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.times import After
from holdfast.stores.ranges import MOST_RANGES, ranges, windows
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.acts import claim, submit_one
from holdfast.testing.factories import HOUR

QUEUES = [f"queue-{number}" for number in range(MOST_RANGES)]
"""So many that a claim needs a statement per class."""


@pytest_asyncio.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = SqliteStore(":memory:")
    await store.open()
    yield store
    await store.close()


def test_windows_give_every_range_once_in_every_turn() -> None:
    everything = ranges(QUEUES[:100], [0, 7])
    for turn in range(5):
        given = list(windows(everything, turn))
        assert all(len(some) <= MOST_RANGES for some in given)
        assert sorted(one for some in given for one in some) == sorted(everything)


def test_windows_give_the_most_urgent_class_first_in_every_turn() -> None:
    everything = ranges(QUEUES, [0])
    for turn in range(5):
        given = [one for some in windows(everything, turn) for one in some]
        assert [one.priority for one in given] == [one.priority for one in everything]


def test_another_range_of_a_class_leads_in_the_next_turn() -> None:
    everything = ranges([f"queue-{number}" for number in range(MOST_RANGES + 1)], [0])
    leading = {next(windows(everything, turn))[0].queue for turn in range(MOST_RANGES + 1)}
    assert len(leading) == MOST_RANGES + 1


def test_no_ranges_are_no_windows() -> None:
    assert list(windows([], 3)) == []


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
