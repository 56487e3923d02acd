"""Parts of sentences about times, numbers and waits, for people."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.lifecycle.family import awaits_children
from holdfast.lifecycle.record import ELSEWHERE, MISMATCH, RESOLVE, SLEEP
from holdfast.lifecycle.signals import signals_of
from holdfast.lifecycle.times import LAST_INSTANT, SECOND


def describe_time(instant: int, now: int) -> str:
    """Return a time of the store's clock as a date, and how far from now it is."""
    shown = datetime.fromtimestamp(min(instant, LAST_INSTANT - SECOND) // SECOND, UTC)
    away = describe_span(abs(instant - now))
    return f"{shown:%Y-%m-%d %H:%M:%S}Z ({f'in {away}' if instant > now else f'{away} ago'})"


def since(instant: int | None, now: int) -> str:
    """Return ` since` a time; nothing if it is not known."""
    return "" if instant is None else f" since {describe_time(instant, now)}"


def describe_span(micros: int) -> str:
    """Return a span in its two largest units."""
    seconds = micros // SECOND
    for size, unit, part, small in _UNITS:
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size}{unit} {rest}{small}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"


_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def colon(text: str | None) -> str:
    return f": {text}" if text else ""


def count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def wait_text(wait_for: str | None) -> str:
    """Return what a job waits for, in words; empty if it does not wait."""
    if wait_for is None:
        return ""
    if wait_for in _WAITS:
        return _WAITS[wait_for]
    if awaits_children(wait_for):
        return "its children"
    if wait_for.startswith(RESOLVE):
        return f"a verdict on step {wait_for.removeprefix(RESOLVE)}"
    return " or ".join(sorted(signals_of(wait_for)))


_WAITS = {
    SLEEP: "its sleep to end",
    MISMATCH: "code that has its recorded steps",
    ELSEWHERE: "children of the job that it resumes",
}


def cpu_text(cpus: int) -> str:
    """Describe a number of CPUs."""
    return count(cpus, "CPU")


def memory_text(memory_mb: int) -> str:
    """Describe an amount of memory."""
    return f"{memory_mb:,} MB"
