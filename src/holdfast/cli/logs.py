"""`holdfast logs`: what a job's handler logged by `ctx.log`, or what its command printed."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any

import typer
from msgspec import UNSET
from msgspec.structs import replace
from typer import Option

from holdfast.cli.options import JobCommand, JobName, Options, find_job
from holdfast.cli.output import plain, print_note, time_text
from holdfast.cli.settings import CommandFileOptions
from holdfast.durations import micros
from holdfast.errors import BadData
from holdfast.lifecycle.record import Job
from holdfast.operations.follow_logs import follow_pages, read_pages
from holdfast.operations.json_format import json_of
from holdfast.operations.read_logs import PRINTING
from holdfast.operations.request import Operations
from holdfast.operations.requests import MOST_TAIL, GetJob, GetLogs
from holdfast.operations.views import Log, LogView
from holdfast.ports.models import LOG_LINES
from holdfast.queries.log_records import OutputStream

CUT = "the command printed more than is kept; these are the first bytes"


class LogFilter(Options):
    """Which lines are shown, and how."""

    tail: Annotated[int, Option(min=1, max=MOST_TAIL, help="Maximum lines, the latest ones.")] = (
        LOG_LINES
    )
    stream: Annotated[OutputStream | None, Option(help="Only what a command printed to it.")] = None
    level: Annotated[str, Option(help="At least this level: debug, info, warning, error.")] = (
        "debug"
    )
    attempt: Annotated[int | None, Option(min=1, help="Only of this attempt.")] = None
    raw: Annotated[
        bool,
        Option(
            "--raw",
            help="Only the text, as it is: control sequences reach the terminal, stderr is stderr.",
        ),
    ] = False

    def wants(self, line: LogView) -> bool:
        """Return whether a line is to be shown."""
        return line.level >= _read_level(self.level) and self.attempt in (None, line.attempt)


def show_logs(
    command: JobCommand,
    job: JobName,
    *,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Print new lines until the job has ended, or Ctrl-C.")
    ] = False,
    shown: LogFilter,
    files: CommandFileOptions,
) -> None:
    """Show what a job's command printed, or its handler logged by ctx.log; -f prints new lines.

    The newest thousand lines of a handler are kept, and the first 50 MB of a command. --json prints
    one object; with -f, one object for each line.
    """
    _read_level(shown.level)

    async def work(operations: Operations) -> tuple[Log, list[LogView]]:
        record = await operations.do(GetJob(job=await find_job(operations, job)))
        kept: list[LogView] = []
        async with aclosing(_read_wanted(operations, record, shown, follow=follow)) as pages:
            async for page in pages:
                if command.as_json and not follow:
                    kept += page.lines
                else:
                    for line in page.lines:
                        _print_line(command, line, raw=shown.raw)
        return page, kept

    last, kept = command.ask(work, files=files)
    if command.as_json and not follow:
        command.show(json_of(last) | {"lines": [_as_data(line) for line in kept]})
    elif last.truncated:
        print_note(CUT)


async def _read_wanted(
    operations: Operations, job: Job, shown: LogFilter, *, follow: bool
) -> AsyncGenerator[Log]:
    """Return pages of a log with the lines that are to be shown; at least one."""
    printed, is_first = job.kind in PRINTING, True
    if shown.stream is not None and not printed:
        raise BadData(f"--stream is for commands, and job {job.public_id} is a {job.kind}")
    wanted = GetLogs(job=job.id, stream=shown.stream, tail=shown.tail if printed else None)
    read = follow_pages if follow else read_pages
    async with aclosing(read(operations, wanted)) as pages:
        async for page in pages:
            lines = [line for line in page.lines if shown.wants(line)]
            if is_first and not printed:
                # The whole log of a handler so far: what is not wanted does not count.
                lines = lines[-shown.tail :]
            is_first = False
            yield replace(page, lines=lines)


def _read_level(word: str) -> int:
    levels = logging.getLevelNamesMapping()
    if word.upper() not in levels:
        raise BadData(f"--level must be one of debug, info, warning, error; not {word!r}")
    return levels[word.upper()]


def _print_line(command: JobCommand, line: LogView, *, raw: bool) -> None:
    if raw and not command.as_json:
        print_unchanged(line)
    else:
        command.show(_as_data(line), *_line_as_text(line))


def print_unchanged(line: LogView) -> None:
    """Print what a command printed, as it is, and to where it did."""
    text = line.message if line.partial else f"{line.message}\n"
    # As bytes: the terminal's encoding may not have every character.
    typer.echo(text.encode(), nl=False, err=line.stream is OutputStream.STDERR)


def _as_data(line: LogView) -> dict[str, Any]:
    data: dict[str, Any] = json_of(line)
    return data | {"level_name": logging.getLevelName(line.level)}


def _line_as_text(line: LogView) -> Iterator[str]:
    time = time_text(micros(line.at), millis=True)
    if line.stream is not UNSET:
        yield f"{time} {line.stream} {plain(line.message.expandtabs(4))}{'…' * bool(line.partial)}"
        return
    name = logging.getLevelName(line.level)
    first, *rest = line.message.split("\n")
    yield f"{time} {line.attempt} {name:<7} {plain(first)}"
    for text in rest:
        # Indented, so that no line of a message can pass for a log line of its own.
        yield f"    {plain(text.expandtabs(4))}"
