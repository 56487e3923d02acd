"""Defects of jobs' logs."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lifecycle.record import JobId
from holdfast.ports.models import LogEntry, LogLine
from tests.stores.defects.wrapped import Wrapped


class KeepsTheOldestLines(Wrapped):
    caught_by = ("test_of_a_long_log_the_newest_lines_are_kept",)

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        if entries and len(await self.inner.logs(entries[0].id)) < 1000:
            await self.inner.keep_logs(entries)


class KeepsAllLines(Wrapped):
    caught_by = ("test_of_a_long_log_the_newest_lines_are_kept",)

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        for one in entries:
            await self.raw(
                "INSERT INTO logs (id, attempt, at, level, message) VALUES (?, ?, ?, ?, ?)",
                *(one.id.bytes, one.attempt, one.at, one.level, one.message),
            )


class ReadsALogByItsTimes(Wrapped):
    caught_by = ("test_a_log_is_read_on_after_a_position",)

    async def logs(self, id: JobId, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        lines = await self.inner.logs(id, after=after, limit=1000)
        return sorted(lines, key=lambda line: line.at)[:limit]


class ReadsTheLinesOfAllJobs(Wrapped):
    caught_by = ("test_logs_of_several_jobs_stay_apart",)

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        await self.inner.keep_logs(entries)
        for one in entries[:1]:
            await self.raw("UPDATE logs SET id = ?", one.id.bytes)


class LeavesTheLogBehind(Wrapped):
    caught_by = ("test_a_log_goes_with_the_bodies_of_its_job",)

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        lines = [line for id_ in ids for line in await self.inner.logs(id_)]
        erased = await self.inner.erase_bodies(ids)
        await self.inner.keep_logs(lines)
        return erased


class GivesPositionsAgain(Wrapped):
    caught_by = ("test_what_was_forgotten_does_not_come_between_two_readings",)

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        erased = await self.inner.erase_bodies(ids)
        await self.raw("DELETE FROM sqlite_sequence WHERE name = 'logs'")
        return erased


DEFECTS: tuple[type[Wrapped], ...] = (
    KeepsTheOldestLines,
    KeepsAllLines,
    ReadsALogByItsTimes,
    ReadsTheLinesOfAllJobs,
    LeavesTheLogBehind,
    GivesPositionsAgain,
)
