"""Symbolic time. The law has no clock: it writes "now plus thirty seconds", the store fills it in.

Times are microseconds since 1970 UTC, the same number in both engines and in Python.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar, cast

from msgspec import Struct

SECOND = 1_000_000


class After(Struct, frozen=True, gc=False):
    """The store's now, plus (or minus) some microseconds."""

    micros: int


NOW = After(0)
Time: TypeAlias = int | After
T = TypeVar("T", bound=Time)
T_co = TypeVar("T_co", bound=Time, covariant=True)

HORIZON = 500_000_000_000_000
"""What separates a span (below, under 16 years) from an instant (above, after 1985) in one number.

Stores send both through one array; `encode` refuses what could be taken for the other.
"""

LONGEST_SPAN = "500,000,000 seconds (15.8 years)"
"""What every span is under: `HORIZON` in words."""

LAST_INSTANT = 253_402_300_800_000_000
"""The end of the year 9999: what every engine and language can still write as a date."""


def later(time: T, micros: int) -> T:
    """Return a time shifted by a span, symbolic or not."""
    if isinstance(time, After):
        return cast("T", After(time.micros + micros))
    return cast("T", time + micros)


def is_past(time: Time | None, now: int | None) -> bool:
    """Return whether an instant has come; a symbolic time, or one that is not set, never has."""
    return isinstance(time, int) and now is not None and time <= now


def resolve(time: Time | None, now: int) -> int | None:
    """Return the instant of a time at `now`."""
    if time is None:
        return None
    return now + time.micros if isinstance(time, After) else time


def encode(time: Time | None) -> int | None:
    """Return a time as one number: a span if small, an instant if large (see `HORIZON`)."""
    if time is None:
        return None
    number = time.micros if isinstance(time, After) else time
    if (number < HORIZON) is not isinstance(time, After):
        raise OverflowError(f"a time out of range: {time!r}")
    return number


def seconds(value: float) -> int:
    """Return seconds as microseconds."""
    return round(value * SECOND)
