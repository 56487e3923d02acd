"""Defects of the workers' registry, and of looking for a job's newest events."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle.record import JobId, LoggedEvent
from holdfast.lifecycle.states import EventType
from holdfast.ports.models import Announcement, WorkerStatus
from tests.stores.defects.wrapped import Wrapped


class RetiresNobody(Wrapped):
    caught_by = ("test_a_worker_that_ended_in_order_is_listed_as_ended",)

    async def retire(self, name: str) -> None:
        """Say yes and do nothing."""


class RetiresAgain(Wrapped):
    caught_by = ("test_ending_twice_or_without_a_start_changes_nothing",)

    async def retire(self, name: str) -> None:
        now = (await self.inner.clock()).now
        sql = "UPDATE workers SET seen_at = ?1, stopped_at = ?1 WHERE name = ?2"
        await self.raw(sql, now, name)


class SeesTheDead(Wrapped):
    caught_by = ("test_seeing_one_that_ended_or_never_started_changes_nothing",)

    async def seen(self, name: str) -> None:
        now = (await self.inner.clock()).now
        await self.raw("UPDATE workers SET seen_at = ?1 WHERE name = ?2", now, name)


class SeesNobody(Wrapped):
    caught_by = ("test_seeing_a_worker_changes_nothing_else",)

    async def seen(self, name: str) -> None:
        """Say yes and do nothing."""


class LeavesTheRetiredForDead(Wrapped):
    caught_by = ("test_a_worker_that_comes_back_starts_anew",)

    async def announce(self, worker: Announcement) -> None:
        if not any(one.name == worker.name for one in await self.inner.workers()):
            await self.inner.announce(worker)


class ForgetsTheRoomOfAWorker(Wrapped):
    caught_by = (
        "test_a_worker_is_listed_with_all_it_announced",
        "test_the_last_word_of_a_worker_counts",
    )

    async def announce(self, worker: Announcement) -> None:
        await self.inner.announce(replace(worker, free_cpus=None, free_memory_mb=None))


class KeepsTheFirstWord(Wrapped):
    caught_by = ("test_the_last_word_of_a_worker_counts",)

    async def announce(self, worker: Announcement) -> None:
        known = {one.name: one for one in await self.inner.workers()}
        await self.inner.announce(known.get(worker.name) or worker)


class BeginsAnewEachTime(Wrapped):
    caught_by = ("test_announcing_again_moves_when_it_was_seen_and_nothing_else",)

    async def announce(self, worker: Announcement) -> None:
        await self.inner.announce(worker)
        await self.raw("UPDATE workers SET started_at = seen_at WHERE name = ?", worker.name)


class ListsWorkersByName(Wrapped):
    caught_by = (
        "test_workers_come_most_recently_seen_first",
        "test_workers_seen_since_a_time_are_those_seen_then_or_later",
    )

    async def workers(
        self, *, seen_since: int | None = None, limit: int = 1000
    ) -> list[WorkerStatus]:
        found = await self.inner.workers(seen_since=seen_since, limit=limit)
        return sorted(found, key=lambda one: one.name)


class SwallowsBadWorkers(Wrapped):
    caught_by = ("test_what_cannot_be_kept_of_a_worker_is_refused_before_it_is_written",)

    async def announce(self, worker: Announcement) -> None:
        with contextlib.suppress(BadData):
            await self.inner.announce(worker)


class ForgetsWorkersOnARebuild(Wrapped):
    caught_by = ("test_workers_are_not_part_of_the_ledger",)

    async def recount(self) -> None:
        await self.inner.recount()
        await self.raw("DELETE FROM workers")


class LooksFromTheOldestEvent(Wrapped):
    caught_by = ("test_the_newest_events_of_some_types_come_newest_first",)

    async def latest_events(
        self, id: JobId, types: Sequence[EventType], *, limit: int = 100
    ) -> list[LoggedEvent]:
        found = [event for event in await self.inner.events(id) if event.type in types]
        return found[:limit][::-1]


class CountsEveryReportOfProgress(Wrapped):
    caught_by = ("test_reports_of_progress_do_not_bury_facts",)

    async def latest_events(
        self, id: JobId, types: Sequence[EventType], *, limit: int = 100
    ) -> list[LoggedEvent]:
        found = [event for event in await self.inner.events(id) if event.type in types]
        return found[::-1][:limit]


class MixesHistories(Wrapped):
    caught_by = ("test_histories_of_several_jobs_are_read_together",)

    async def histories(self, ids: Sequence[JobId], *, last: int) -> list[list[LoggedEvent]]:
        return await self.inner.histories(sorted(ids), last=last)


class ReadsPastTheLastRevision(Wrapped):
    caught_by = ("test_histories_of_several_jobs_are_read_together",)

    async def histories(self, ids: Sequence[JobId], *, last: int) -> list[list[LoggedEvent]]:
        del last
        return [await self.inner.events(id_) for id_ in ids]


DEFECTS: tuple[type[Wrapped], ...] = (
    RetiresNobody,
    RetiresAgain,
    SeesTheDead,
    SeesNobody,
    LeavesTheRetiredForDead,
    ForgetsTheRoomOfAWorker,
    KeepsTheFirstWord,
    BeginsAnewEachTime,
    ListsWorkersByName,
    SwallowsBadWorkers,
    ForgetsWorkersOnARebuild,
    LooksFromTheOldestEvent,
    CountsEveryReportOfProgress,
    MixesHistories,
    ReadsPastTheLastRevision,
)
