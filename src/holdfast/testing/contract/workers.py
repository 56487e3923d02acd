"""Workers that announce themselves: who serves what; not part of the ledger."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.payload import NUMBER_LIMIT
from holdfast.lifecycle.states import State
from holdfast.ports.models import WORKER_SILENCE, Announcement, WorkerStatus
from holdfast.ports.store import Store
from holdfast.testing.factories import announcement
from holdfast.testing.store_actions import all_jobs, job_in, passed

BAD: dict[str, Any] = {
    "an empty name": {"name": ""},
    "a name with a NUL": {"name": "a\0b"},
    "a lone surrogate": {"host": "\ud800"},
    "a long name": {"name": "x" * 201},
    "a long queue": {"queues": ("x" * 201,)},
    "an empty queue": {"queues": ("",)},
    "queues that are text": {"queues": "default"},
    "a task that is not a text": {"tasks": (1,)},
    "capabilities that are text": {"capabilities": "gpu"},
    "more names than allowed": {"tasks": tuple(f"{n:0200}" for n in range(1400))},
    "a negative pid": {"pid": -1},
    "no slots": {"concurrency": 0},
    "slots beyond any machine": {"concurrency": NUMBER_LIMIT + 1},
    "slots that are not a number": {"concurrency": True},
    "half a CPU": {"cpus": 0.5},
    "less than no memory": {"free_memory_mb": -1},
}


async def announced(store: Store, **options: Any) -> WorkerStatus:
    """Announce a worker after all that was seen before, and read it back."""
    known = await store.workers()
    if known:
        await passed(store, known[0].seen_at)
    worker = announcement(**options)
    await store.announce(worker)
    return next(one for one in await store.workers() if one.name == worker.name)


def announced_by(status: WorkerStatus) -> Announcement:
    """Leave out what the store's clock added."""
    return Announcement(**{name: getattr(status, name) for name in Announcement.__struct_fields__})


class WorkerContract:
    """What a worker announces, and what is listed of it."""

    async def test_a_worker_is_listed_with_all_it_announced(self, store: Store) -> None:
        worker = announcement(
            name="Grüße, 'w' \"1\" \\ {x} [1]",
            queues=("b", "a", "線"),
            capabilities=frozenset({"gpu", "ffmpeg"}),
            tasks=("mail.send", "pay"),
            host="host.example",
            pid=NUMBER_LIMIT,
            concurrency=1,
            cpus=8,
            memory_mb=NUMBER_LIMIT,
            free_cpus=0,
            free_memory_mb=512,
        )
        before = (await store.clock()).now
        await store.announce(worker)
        [status] = await store.workers()
        assert await store.worker(worker.name) == status
        assert await store.worker("nobody") is None

        assert announced_by(status) == worker
        assert before <= status.started_at == status.seen_at <= (await store.clock()).now
        assert status.stopped_at is None
        assert status.is_live(status.seen_at)

    async def test_a_worker_without_queues_or_tasks_is_listed(self, store: Store) -> None:
        worker = announcement(queues=(), tasks=())
        await store.announce(worker)

        assert [announced_by(one) for one in await store.workers()] == [worker]

    async def test_announcing_again_moves_when_it_was_seen_and_nothing_else(
        self, store: Store
    ) -> None:
        first = await announced(store)
        second = await announced(store)

        assert second.seen_at > first.seen_at
        assert replace(second, seen_at=first.seen_at) == first

    async def test_the_last_word_of_a_worker_counts(self, store: Store) -> None:
        await announced(store)
        options: dict[str, Any] = {
            "queues": ("other",),
            "capabilities": frozenset({"gpu"}),
            "tasks": ("pay",),
            "host": "there",
            "pid": 43,
            "concurrency": 2,
            "cpus": 4,
            "memory_mb": 4096,
            "free_cpus": 3,
            "free_memory_mb": 1,
        }

        assert announced_by(await announced(store, **options)) == announcement(**options)
        assert len(await store.workers()) == 1

    async def test_workers_come_most_recently_seen_first(self, store: Store) -> None:
        for name in ("two", "three", "one", "two"):
            await announced(store, name=name)

        assert [one.name for one in await store.workers()] == ["two", "one", "three"]
        assert [one.name for one in await store.workers(limit=2)] == ["two", "one"]

    async def test_workers_seen_since_a_time_are_those_seen_then_or_later(
        self, store: Store
    ) -> None:
        for name in ("one", "two", "three"):
            await announced(store, name=name)
        newest, middle, _ = await store.workers()

        assert await store.workers(seen_since=middle.seen_at) == [newest, middle]
        assert await store.workers(seen_since=middle.seen_at + 1) == [newest]
        assert await store.workers(seen_since=newest.seen_at + 1) == []

    async def test_seeing_a_worker_changes_nothing_else(self, store: Store) -> None:
        other = await announced(store, name="other")
        before = await announced(store)
        await passed(store, before.seen_at)
        await store.seen("worker-1")
        [after, unseen] = await store.workers()

        assert after.seen_at > before.seen_at
        assert replace(after, seen_at=before.seen_at) == before
        assert unseen == other

    async def test_seeing_one_that_ended_or_never_started_changes_nothing(
        self, store: Store
    ) -> None:
        await announced(store)
        await store.retire("worker-1")
        ended = await store.workers()
        await passed(store, ended[0].seen_at)
        await store.seen("worker-1")
        await store.seen("nobody")

        assert await store.workers() == ended

    async def test_a_worker_that_ended_in_order_is_listed_as_ended(self, store: Store) -> None:
        lives = await announced(store, name="lives")
        before = await announced(store, name="ended")
        await passed(store, before.seen_at)
        await store.retire("ended")
        [ended, other] = await store.workers()

        assert other == lives
        assert ended.stopped_at == ended.seen_at
        assert ended.seen_at > before.seen_at == ended.started_at
        assert announced_by(ended) == announced_by(before)
        assert not ended.is_live(ended.seen_at)

    async def test_ending_twice_or_without_a_start_changes_nothing(self, store: Store) -> None:
        await announced(store)
        await store.retire("worker-1")
        ended = await store.workers()
        await passed(store, ended[0].seen_at)
        await store.retire("worker-1")
        await store.retire("nobody")

        assert await store.workers() == ended

    async def test_a_worker_that_comes_back_starts_anew(self, store: Store) -> None:
        await announced(store)
        await store.retire("worker-1")
        [ended] = await store.workers()
        back = await announced(store)

        assert back.stopped_at is None
        assert back.started_at == back.seen_at > ended.seen_at

    async def test_a_worker_that_fell_silent_is_listed_and_not_live(self, store: Store) -> None:
        status = await announced(store)

        assert status.is_live(status.seen_at + WORKER_SILENCE - 1)
        assert not status.is_live(status.seen_at + WORKER_SILENCE)

    async def test_many_that_announce_at_once_are_one_row_each(self, store: Store) -> None:
        names = [f"worker-{n % 5}" for n in range(30)]
        await asyncio.gather(*(store.announce(announcement(name=name)) for name in names))

        assert sorted(one.name for one in await store.workers()) == sorted(set(names))

    async def test_what_cannot_be_kept_of_a_worker_is_refused_before_it_is_written(
        self, store: Store
    ) -> None:
        before = await announced(store)
        for what, options in BAD.items():
            try:
                await store.announce(announcement(**options))
            except BadData:
                continue
            pytest.fail(f"{what} was taken")

        assert await store.workers() == [before]

    async def test_a_name_that_no_worker_can_have_is_refused(self, store: Store) -> None:
        for name in ("", "a\0b", "x" * 201):
            with pytest.raises(BadData):
                await store.retire(name)
            with pytest.raises(BadData):
                await store.seen(name)

    async def test_workers_are_not_part_of_the_ledger(self, store: Store) -> None:
        await job_in(store, State.RUNNING)
        before = await all_jobs(store)
        size = await store.size()
        status = await announced(store)
        entries = [entry async for batch in store.ledger() for entry in batch]
        derived = [job for entry in entries if (job := derive(entry.events)) is not None]
        await store.rebuild(derived, keys=[(entry.id, k) for entry in entries for k in entry.keys])
        await store.recount()

        assert await all_jobs(store) == before
        assert await store.size() == size
        assert await store.workers() == [status]
