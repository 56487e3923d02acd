"""Spans of time as people write them (`"5m"`, `"1h30m"`, seconds, a timedelta), and dates.

Inside, both are microseconds: of a span, and since 1970 UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import TypeAlias

Span: TypeAlias = str | float | timedelta
"""Seconds as a number, a text such as `"1h30m"`, or a timedelta."""
WrittenSpan: TypeAlias = str | float
"""A span as JSON has it: a text such as `"1h30m"`, or seconds."""
Instant: TypeAlias = datetime
"""A date as JSON has it: RFC 3339, to the microsecond, in UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_WRITTEN = re.compile(
    r"(?:(?P<d>[\d.]+)d)?(?:(?P<h>[\d.]+)h)?(?:(?P<m>[\d.]+)m(?!s))?"
    r"(?:(?P<s>[\d.]+)s)?(?:(?P<ms>[\d.]+)ms)?",
    re.ASCII,
)
_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_HINT = "use seconds (90), a text ('90s', '5m', '1h30m', '500ms') or a timedelta"


def span_seconds(span: Span, what: str = "a span") -> float:
    """Return a span in seconds; ValueError explains what is wrong with it."""
    match span:
        case timedelta():
            seconds = span.total_seconds()
        case str():
            seconds = _read_span(span, what)
        # A bool is an int to Python, and never a span to its author.
        case int() | float() if not isinstance(span, bool):
            seconds = float(span)
        case _:
            raise ValueError(f"{what} must be a span, not {span!r}: {_HINT}")
    # Also in microseconds: what is finite only in seconds cannot be kept.
    if not isfinite(seconds * 1_000_000) or seconds < 0:
        raise ValueError(f"{what} must be a finite span of 0 or more, not {span!r}: {_HINT}")
    return seconds


def span_micros(span: Span, what: str = "a span") -> int:
    """Return a span in microseconds, the unit of the law."""
    return round(span_seconds(span, what) * 1_000_000)


def span_text(span: int) -> str:
    """Return microseconds as a text with a unit, which is read back as the same: `60s`, `500ms`."""
    if span % 1_000_000 == 0:
        return f"{span // 1_000_000}s"
    if span % 1000 == 0:
        return f"{span // 1000}ms"
    return f"{span / 1_000_000:.6f}".rstrip("0") + "s"


def written_span(span: Span) -> WrittenSpan:
    """Return a span as JSON has it."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def instant(time: int) -> Instant:
    """Return a time of the store's clock as a date."""
    return _EPOCH + timedelta(microseconds=min(time, _LAST))


def micros(time: Instant) -> int:
    """Return a date as a time of the store's clock."""
    return (time - _EPOCH) // _MICROSECOND


def _read_span(text: str, what: str) -> float:
    if _SECONDS.fullmatch(text):
        return float(text)
    found = _WRITTEN.fullmatch(text.replace(" ", ""))
    parts = {unit: number for unit, number in found.groupdict().items() if number} if found else {}
    try:
        if parts:
            return sum(float(number) * _UNITS[unit] for unit, number in parts.items())
    except ValueError:
        pass
    raise ValueError(f"{what} must be a span, not {text!r}: {_HINT}")
