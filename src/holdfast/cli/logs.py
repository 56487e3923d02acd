"""`holdfast logs`: what a job's handler said by `ctx.log`.

Exit codes: 0 shown, 1 no such job, 2 bad input, 3 the store failed, 4 refused, 130 Ctrl-C.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Annotated

import typer
from msgspec import Struct

from holdfast.cli.asking import JobName, Tenant, find_job
from holdfast.cli.running import (
    DEFAULT_URL,
    AsJson,
    Url,
    out,
    print_json,
    run,
    with_operations,
)
from holdfast.cli.showing import moment, plain, say
from holdfast.errors import BadData
from holdfast.json_format import json_of
from holdfast.lifecycle.job import Job
from holdfast.operations import Operations, Which
from holdfast.ports import LOG_LINES, LogLine
from holdfast.views import LogView

LOOK_SECONDS = 0.5
LAST_LOOK_SECONDS = 0.5
"""How long after a job's end its last lines may come: a worker gathers them, see `logbook`."""

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on until the job has ended, or Ctrl-C.")
]
Tail = Annotated[
    int, typer.Option("--tail", min=1, max=LOG_LINES, help="How many of the last lines.")
]
Level = Annotated[str, typer.Option("--level", help="At least: debug, info, warning, error.")]
OfAttempt = Annotated[int | None, typer.Option("--attempt", min=1, help="Of this attempt alone.")]


class Wish(Struct, frozen=True, kw_only=True):
    """Which lines to show."""

    level: int
    attempt: int | None

    def covers(self, line: LogLine) -> bool:
        """Whether a line is to be shown."""
        return line.level >= self.level and self.attempt in (None, line.attempt)


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command("logs")(show_logs)


def show_logs(
    job: JobName,
    *,
    follow: Follow = False,
    tail: Tail = LOG_LINES,
    level: Level = "debug",
    attempt: OfAttempt = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show what a job's handler said by ctx.log, the newest thousand lines; with -f as it comes.

    --json prints one object; with -f one object for each line.
    """

    async def work(operations: Operations) -> tuple[Job, list[LogLine]]:
        wish = Wish(level=_level(level), attempt=attempt)
        record = await operations.get(await find_job(operations, job))
        found = record.id
        lines = await operations.logs(found, limit=LOG_LINES)
        shown = [line for line in lines if wish.covers(line)][-tail:]
        if not follow:
            return record, shown
        for line in shown:
            _say(line, as_json)
        after = lines[-1].position if lines else 0
        async for line in following(operations, found, after):
            if wish.covers(line):
                _say(line, as_json)
        return record, []

    record, lines = run(with_operations(url, tenant, work))
    if follow:
        return
    if as_json:
        told = [_told(line) for line in lines]
        print_json({"job_id": record.public_id, "internal_id": str(record.id), "lines": told})
        return
    for line in lines:
        _say(line, as_json)


async def following(operations: Operations, job: Which, after: int) -> AsyncIterator[LogLine]:
    """Tell lines as they come, until the job has ended."""
    ended = False
    while True:
        ended_before = ended
        ended = (await operations.get(job)).terminal
        for line in await operations.logs(job, after=after):
            after = line.position
            yield line
        if ended_before:
            return
        await asyncio.sleep(LAST_LOOK_SECONDS if ended else LOOK_SECONDS)


def _level(word: str) -> int:
    levels = logging.getLevelNamesMapping()
    if word.upper() not in levels:
        raise BadData(f"--level must be one of debug, info, warning, error; not {word!r}")
    return levels[word.upper()]


def _told(line: LogLine) -> dict[str, object]:
    told: dict[str, object] = json_of(LogView.of(line))
    return told | {"level_name": logging.getLevelName(line.level)}


def _say(line: LogLine, as_json: bool) -> None:
    if as_json:
        print_json(_told(line))
        return
    name = logging.getLevelName(line.level)
    first, *rest = line.message.split("\n")
    say(out, f"{moment(line.at)} {line.attempt} {name:<7} {plain(first)}")
    for text in rest:
        # Indented, so that no line of a message can pass for one of its own.
        say(out, f"    {plain(text.expandtabs(4))}")
