"""Jobs' logs: what handlers say by `ctx.log` is kept, whatever runs them, and delays nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.ids import mint_id
from holdfast.lifecycle.record import JobId
from holdfast.ports.models import LOG_LINES, LogEntry, LogLine
from holdfast.tasks.handles import JobHandle
from holdfast.worker import log_writer
from holdfast.worker.log_writer import LogWriter
from tests.worker.isolated import app as isolated

LIMIT = 60


async def log_of(app: Holdfast, job: JobHandle[Any]) -> list[LogLine]:
    """Read a job's log."""
    return await (await app.store()).logs(job.record.id)


async def test_what_handlers_say_is_kept_with_attempt_level_and_time(app: Holdfast) -> None:
    @app.task(backoff="1ms")
    async def mend(ctx: Context) -> None:
        ctx.log.info("try %s", ctx.attempt)
        if ctx.attempt == 1:
            ctx.log.error("no luck")
            raise OSError("no luck")

    before = (await (await app.store()).clock()).now
    async with app.worker():
        job = await mend.submit()
        await job.result(LIMIT)

    lines = await log_of(app, job)
    first = [line.message.splitlines()[0] for line in lines]
    retry = first[2]
    assert retry.startswith("attempt 1 failed: OSError: no luck; retry in 0.0")
    assert [(line.attempt, line.level, said) for line, said in zip(lines, first, strict=True)] == [
        (1, logging.INFO, "try 1"),
        (1, logging.ERROR, "no luck"),
        (1, logging.WARNING, retry),
        (2, logging.INFO, "try 2"),
    ]
    minute = 60_000_000
    assert all(before - minute < line.at < before + 2 * minute for line in lines)


async def test_a_worker_that_ends_leaves_no_line_behind(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "GATHER_SECONDS", LIMIT)

    @app.task
    async def speak(ctx: Context) -> None:
        ctx.log.info("last words")

    async with app.worker():
        job = await speak.submit()
        await job.result(LIMIT)

    assert [line.message for line in await log_of(app, job)] == ["last words"]


async def test_a_handler_in_a_thread_is_heard_too(app: Holdfast) -> None:
    @app.task
    def count(ctx: Context) -> None:
        for number in range(3):
            ctx.log.info("%s", number)

    async with app.worker():
        job = await count.submit()
        await job.result(LIMIT)

    assert [line.message for line in await log_of(app, job)] == ["0", "1", "2"]


async def test_a_handler_in_a_process_of_its_own_is_heard_too(url: str) -> None:
    isolated.use(url)
    async with isolated, isolated.worker():
        job = await isolated.submit("says")
        await job.result(LIMIT)
    async with isolated:
        lines = await log_of(isolated, job)

    assert [(line.level, line.message.splitlines()[0]) for line in lines] == [
        (logging.INFO, "from another process"),
        (logging.ERROR, "it failed"),
    ]
    assert lines[1].message.endswith("ValueError: odd")


class Shelf:
    """Keeps lines as a store would; some calls fail, and each may be waited for."""

    def __init__(self) -> None:
        self.kept: list[LogEntry] = []
        self.failures = 0
        self.during: list[LogEntry] = []
        self.book: LogWriter | None = None

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("away")
        await asyncio.sleep(0)
        for entry in self.during:
            assert self.book is not None
            self.book.write(entry)
        self.during = []
        self.kept += entries

    def messages(self) -> list[str]:
        """Tell what was kept."""
        return [entry.message for entry in self.kept]


def entry(id: JobId, message: str) -> LogEntry:
    """Make a line."""
    return LogEntry(id=id, attempt=1, at=1, level=20, message=message)


@pytest.fixture
def shelf() -> Shelf:
    """A store that takes lines."""
    return Shelf()


@pytest.fixture
def book(shelf: Shelf) -> LogWriter:
    """A logbook that writes to it."""
    shelf.book = LogWriter(shelf)  # type: ignore[arg-type]
    return shelf.book


async def test_lines_that_the_store_did_not_take_are_written_later(
    book: LogWriter, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "PAUSE_SECONDS", 0.001)
    shelf.failures = 2
    running = asyncio.create_task(book.run())
    job = mint_id()
    for number in range(3):
        book.write(entry(job, f"{number}"))
    async with asyncio.timeout(LIMIT):
        while len(shelf.kept) < 3:  # noqa: ASYNC110  the logbook has no event for it
            await asyncio.sleep(0.001)
    running.cancel()

    assert shelf.messages() == ["0", "1", "2"]


async def test_of_a_job_that_says_too_much_the_newest_lines_are_written(
    book: LogWriter, shelf: Shelf
) -> None:
    loud, quiet = mint_id(), mint_id()
    book.write(entry(quiet, "quiet"))
    for number in range(3 * LOG_LINES):
        book.write(entry(loud, f"{number}"))
    await book.flush()

    expected = ["quiet", *(f"{number}" for number in range(2 * LOG_LINES, 3 * LOG_LINES))]
    assert shelf.messages() == expected


async def test_lines_that_come_while_others_are_written_are_written_once(
    book: LogWriter, shelf: Shelf
) -> None:
    job = mint_id()
    for number in range(LOG_LINES):
        book.write(entry(job, f"{number}"))
    # So many that they push out some that are just being written.
    shelf.during = [entry(job, f"new {number}") for number in range(LOG_LINES - 10)]
    await book.flush()

    assert shelf.messages() == [
        *(f"{number}" for number in range(LOG_LINES)),
        *(f"new {number}" for number in range(LOG_LINES - 10)),
    ]


async def test_more_than_can_wait_is_lost_and_that_is_said(
    book: LogWriter, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_writer, "MOST_LINES", 5)
    for number in range(8):
        book.write(entry(mint_id(), f"{number}"))
    await book.flush()
    book.write(entry(mint_id(), "again"))
    await book.flush()

    assert shelf.messages() == ["0", "1", "2", "3", "4", "again"]
    assert [record.getMessage() for record in caplog.records] == [
        "3 lines of jobs' logs are lost: too many arrived at once"
    ]
