"""The virtual clock of a test: it stands still until the test moves it, and never goes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.stores.sqlite.clock import wall_clock

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class VirtualClock:
    """The store's clock in a test. No other clock is replaced: handlers' own sleeps are real."""

    def __init__(self, start: datetime | None = None) -> None:
        """Start at a time with its zone, or at the present moment."""
        self._micros = wall_clock() if start is None else instant(start)

    def __call__(self) -> int:
        """Return the time as stores do, in microseconds."""
        return self._micros

    @property
    def now(self) -> datetime:
        """The time it is."""
        return _EPOCH + timedelta(microseconds=self._micros)

    def move_to(self, micros: int) -> None:
        """Make it later; what is earlier changes nothing."""
        self._micros = max(self._micros, micros)


def instant(time: datetime) -> int:
    """Return a time in microseconds; it must have a zone."""
    if time.tzinfo is None:
        raise ValueError(f"the time must have a zone: {time!r} has none")
    return (time - _EPOCH) // timedelta(microseconds=1)
