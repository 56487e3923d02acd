"""How commands show things: hostile text made harmless, times spelled out, plain tables.

Names, keys and errors come from anybody who may submit a job. Nothing of them reaches a terminal
but what can be printed: no escape sequence, no line break, no change of direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from holdfast.lifecycle.times import LAST_INSTANT, SECOND


def plain(value: object) -> str:
    """Write a value in one line; what cannot be printed is written as its escape."""
    text = "" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def short(value: object, limit: int = 60) -> str:
    """Write a value in one line of bounded length."""
    text = plain(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def instant(time: int | None) -> str:
    """Spell a time of the store's clock out."""
    if time is None:
        return "–"
    known = datetime.fromtimestamp(min(time, LAST_INSTANT - SECOND) // SECOND, UTC)
    return f"{known:%Y-%m-%d %H:%M:%S}Z"


def moment(time: int | None) -> str:
    """Spell a time out to the millisecond."""
    if time is None:
        return "–"
    whole, rest = divmod(min(time, LAST_INSTANT - SECOND), SECOND)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%d %H:%M:%S}.{rest // 1000:03}Z"


def seconds(begin: int | None, end: int | None) -> str:
    """Tell how long something took, to the millisecond."""
    return "–" if begin is None or end is None else f"{(end - begin) / SECOND:,.3f}s"


def say(console: Console, text: str) -> None:
    """Print one line as it is: no markup, no emoji, no wrapping."""
    console.print(text, markup=False, emoji=False, soft_wrap=True)


def say_table(console: Console, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns, one line per row whatever the width, so that a script can cut them."""
    lines = [list(titles), *(list(row) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        )
        say(console, "  ".join(cells).rstrip())


def say_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values, one per line; what has no value is left out."""
    for name, value in facts:
        if value:
            say(console, f"{name:<14} {value}")


def error_summary(error: Any) -> str | None:
    """Tell an error's body in one line; None if it is none."""
    if not isinstance(error, dict) or "message" not in error:
        return None
    kind, message = error.get("type"), error["message"]
    return f"{kind}: {message}" if kind else str(message)


def say_traceback(console: Console, error: dict[str, Any]) -> None:
    """Print an error's traceback, line by line and each of them harmless."""
    told = error.get("traceback")
    for line in str(told).rstrip().split("\n") if told else ():
        say(console, f"  {plain(line.expandtabs(4))}")
