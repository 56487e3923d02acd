"""What handlers log: kept by job, bounded, erased with the job's bodies; no part of the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.ports.models import HIGHEST_LEVEL, LOG_LINES, LOG_TEXT, LogEntry, LogLine
from holdfast.ports.store import Store
from holdfast.testing.factories import JANITOR
from holdfast.testing.store_actions import all_jobs, do, job_in

BAD: dict[str, dict[str, Any]] = {
    "a NUL": {"message": "a\0b"},
    "a lone surrogate": {"message": "\ud800"},
    "a line beyond the limit": {"message": "x" * (LOG_TEXT + 1)},
    "no text": {"message": b"bytes"},
    "no attempt": {"attempt": 0},
    "a level beyond all": {"level": HIGHEST_LEVEL + 1},
    "a time before 1970": {"at": -1},
}


def entry(job: Job, message: str = "hello", **options: Any) -> LogEntry:
    """Make a line of a job's log."""
    given: dict[str, Any] = {"attempt": 1, "at": 1_700_000_000_000_000, "level": 20}
    return LogEntry(id=job.id, message=message, **given | options)


def entered(line: LogLine) -> LogEntry:
    """Leave out what the store added."""
    return LogEntry(**{name: getattr(line, name) for name in LogEntry.__struct_fields__})


async def messages(store: Store, job: Job, **options: Any) -> list[str]:
    """Read what a job's handler logged."""
    return [line.message for line in await store.logs(job.id, **options)]


class LogContract:
    """What becomes of the lines of a job's log."""

    async def test_a_log_is_read_as_it_was_written(self, store: Store) -> None:
        job = await job_in(store, State.RUNNING)
        lines = [
            entry(job, "Grüße, 'w' \"1\" \\ {x} [1] 線\n\x1b[2J", attempt=3, at=7, level=0),
            entry(job, "", attempt=2, at=2**61, level=HIGHEST_LEVEL),
            entry(job, "x" * LOG_TEXT),
        ]
        await store.keep_logs(lines)

        kept = await store.logs(job.id)
        assert [entered(line) for line in kept] == lines
        assert len({line.position for line in kept}) == 3

    async def test_a_log_is_read_on_after_a_position(self, store: Store) -> None:
        job = await job_in(store, State.RUNNING)
        for number in range(5):
            await store.keep_logs([entry(job, f"{number}", at=5 - number)])
        first = await store.logs(job.id, limit=2)

        assert [line.message for line in first] == ["0", "1"]
        assert await messages(store, job, after=first[-1].position) == ["2", "3", "4"]
        last = (await store.logs(job.id))[-1]
        assert await messages(store, job, after=last.position) == []

    async def test_logs_of_several_jobs_stay_apart(self, store: Store) -> None:
        one, other = [await job_in(store, State.RUNNING) for _ in range(2)]
        await store.keep_logs([entry(one, "a"), entry(other, "b"), entry(one, "c")])

        assert await messages(store, one) == ["a", "c"]
        assert await messages(store, other) == ["b"]
        assert await messages(store, await job_in(store, State.QUEUED)) == []

    async def test_of_a_long_log_the_newest_lines_are_kept(self, store: Store) -> None:
        job, other = [await job_in(store, State.RUNNING) for _ in range(2)]
        await store.keep_logs([entry(other, "other")])
        await store.keep_logs([entry(job, f"{number}") for number in range(LOG_LINES)])
        assert (await messages(store, job, limit=1)) == ["0"]
        await store.keep_logs([entry(job, "new"), entry(job, "newest")])

        kept = await messages(store, job, limit=2 * LOG_LINES)
        assert len(kept) == LOG_LINES
        assert (kept[0], kept[-2:]) == ("2", ["new", "newest"])
        assert await messages(store, other) == ["other"]

    async def test_what_was_forgotten_does_not_come_between_two_readings(
        self, store: Store
    ) -> None:
        job = await job_in(store, State.SUCCEEDED)
        await store.keep_logs([entry(job, "before")])
        [read] = await store.logs(job.id)
        job = await do(store, job, c.Clean(actor=JANITOR))
        await store.erase_bodies([job.id])
        await store.keep_logs([entry(job, "after")])

        assert await messages(store, job, after=read.position) == ["after"]

    async def test_a_log_goes_with_the_bodies_of_its_job(self, store: Store) -> None:
        gone, kept = [await job_in(store, State.SUCCEEDED) for _ in range(2)]
        await store.keep_logs([entry(gone, "secret"), entry(kept, "needed")])
        gone = await do(store, gone, c.Clean(actor=JANITOR))
        await store.erase_bodies([gone.id, kept.id])

        assert await messages(store, gone) == []
        assert await messages(store, kept) == ["needed"]

    async def test_a_log_changes_no_job(self, store: Store) -> None:
        job = await job_in(store, State.RUNNING)
        before = await all_jobs(store), await store.events(job.id)
        await store.keep_logs([entry(job, "of an attempt that is none", attempt=9)])
        await store.keep_logs([])

        assert (await all_jobs(store), await store.events(job.id)) == before

    @pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
    async def test_a_line_that_cannot_be_kept_is_refused_with_its_batch(
        self, store: Store, bad: dict[str, Any]
    ) -> None:
        job = await job_in(store, State.RUNNING)
        wrong = entry(job, **{"message": "wrong", **bad})
        with pytest.raises(BadData):
            await store.keep_logs([entry(job, "good"), wrong])

        assert await messages(store, job) == []
