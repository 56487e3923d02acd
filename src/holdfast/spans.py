"""Spans of time as people write them: `"5m"`, `"1h30m"`, seconds (`90`, `"90"`), a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite
from typing import TypeAlias

Span: TypeAlias = str | float | timedelta
"""Seconds as a number, a text such as `"1h30m"`, or a timedelta."""

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_WRITTEN = re.compile(
    r"(?:(?P<d>[\d.]+)d)?(?:(?P<h>[\d.]+)h)?(?:(?P<m>[\d.]+)m(?!s))?"
    r"(?:(?P<s>[\d.]+)s)?(?:(?P<ms>[\d.]+)ms)?",
    re.ASCII,
)
_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_HINT = "say seconds (90), a text ('90s', '5m', '1h30m', '500ms') or a timedelta"


def span_seconds(span: Span, what: str = "a span") -> float:
    """Tell how many seconds a span lasts; ValueError says what is wrong with it."""
    match span:
        case timedelta():
            seconds = span.total_seconds()
        case str():
            seconds = _read(span, what)
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
    """Tell how many microseconds a span lasts, the unit of the law."""
    return round(span_seconds(span, what) * 1_000_000)


def span_text(micros: int) -> str:
    """Return microseconds as a text with a unit, which is read back as the same: `60s`, `500ms`."""
    if micros % 1_000_000 == 0:
        return f"{micros // 1_000_000}s"
    if micros % 1000 == 0:
        return f"{micros // 1000}ms"
    return f"{micros / 1_000_000:.6f}".rstrip("0") + "s"


def _read(text: str, what: str) -> float:
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
