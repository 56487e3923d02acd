"""How commands print: hostile text made harmless, times spelled out, plain tables, JSON.

Anyone who may submit a job chooses its names, keys and errors. Only printable characters of them
reach a terminal: no escape sequence, no line break, no change of direction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from holdfast.lifecycle.times import LAST_INSTANT, SECOND

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def plain(value: object) -> str:
    """Return a value as one line; what cannot be printed is written as its escape."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    escaped = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return "".join(escaped)


def short(value: object, limit: int = 60) -> str:
    """Return a value as one line of bounded length."""
    text = plain(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def time_text(time: int | None, *, millis: bool = False) -> str:
    """Spell out a time of the store's clock, to the second or to the millisecond."""
    if time is None:
        return "–"
    whole, rest = divmod(min(time, LAST_INSTANT - SECOND), SECOND)
    fraction = f".{rest // 1000:03}" if millis else ""
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%d %H:%M:%S}{fraction}Z"


def seconds_text(start: int | None, end: int | None) -> str:
    """Return how long something took, to the millisecond."""
    return "–" if start is None or end is None else f"{(end - start) / SECOND:,.3f}s"


def align_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Align columns, one line per row whatever the width, so that a script can cut them."""
    lines = [titles, *rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Align names and values, one pair per line; a pair without a value is left out."""
    return [f"{name:<14} {value}" for name, value in pairs if value]


def error_summary(error: Any) -> str | None:
    """Return an error's body as one line; None if it is not an error's."""
    if not isinstance(error, dict) or "message" not in error:
        return None
    kind, message = error.get("type"), error["message"]
    return f"{kind}: {message}" if kind else str(message)


def traceback_lines(error: dict[str, Any]) -> list[str]:
    """Return an error's traceback, each line of it harmless."""
    text = str(error.get("traceback") or "").rstrip()
    return [f"  {plain(line.expandtabs(4))}" for line in text.split("\n")] if text else []


def print_line(text: str, console: Console = out) -> None:
    """Print one line as it is: no markup, no emoji, no wrapping."""
    console.print(text, markup=False, emoji=False, soft_wrap=True)


def print_note(text: str) -> None:
    """Print one line for people on stderr, where it does not mix with the answer."""
    print_line(text, err)


def print_json(value: Any) -> None:
    """Print one JSON object for machines: no colours, no wrapping."""
    typer.echo(json.dumps(value))


def print_answer(
    answer: Any, *lines: str, notes: Iterable[str] = (), as_json: bool = False
) -> None:
    """Print an answer: as JSON, or as lines on stdout with notes on stderr."""
    if as_json:
        print_json(answer)
        return
    for line in lines:
        print_line(line)
    for note in notes:
        print_note(note)


@contextmanager
def progress_bar(
    what: str, total: int | None, *, quiet: bool, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show how far a long command is; on stderr, and only on a terminal."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(what, total=total or None)
        yield lambda done: bar.update(task, completed=done)
