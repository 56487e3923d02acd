"""The store's clock: the machine's, kept from going back over restarts and for all processes.

Own to SQLite: here the clock is the process's, on PostgreSQL it is a function of the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from holdfast.lifecycle.clock import ClockState, ClockStep, ClockWatch, agreed, tend
from holdfast.lifecycle.times import SECOND
from holdfast.stores.sqlite.turn import ReadSnapshot, Turn

log = logging.getLogger(__name__)
TEND_SECONDS = 1.0
"""How often a process looks at the clock's mark, and moves it on."""


def wall_clock() -> int:
    """Return the time in microseconds: the store's clock, unless a test hands in another."""
    return time.time_ns() // 1000


class StoreClock:
    """Reads the machine's clock, shifted where that was set back."""

    def __init__(self, machine: Callable[[], int]) -> None:
        self.step: ClockStep | None = None
        """When a machine's clock was last found to be set back."""
        self._machine = machine
        self._state = ClockState()
        self._watch = ClockWatch()
        self._unnoted: ClockStep | None = None
        """What was noticed at opening, where nothing can be written."""
        self._tended_at = float("-inf")

    def now(self) -> int:
        """Return the store's time."""
        return self._state.now(self._machine())

    def ahead(self) -> int:
        """Return how far it is ahead of the machine's clock."""
        return self._state.ahead(self._machine())

    @property
    def is_due(self) -> bool:
        """Whether the mark has to be looked at again."""
        return time.monotonic() - self._tended_at >= TEND_SECONDS

    def start(self, snapshot: ReadSnapshot) -> None:
        """Continue from the clock that the database keeps."""
        self._unnoted = self._continue_from(*_kept(snapshot))

    def _continue_from(self, kept: ClockState, step: ClockStep | None) -> ClockStep | None:
        """Continue from what is kept; return the step back that this process's clock has made."""
        machine = self._machine()
        own = agreed(self._state, kept, machine)
        lags = not self._watch.was_set_back(machine)
        steady = self._watch.steady(machine, time.monotonic())
        changed = tend(own, machine, steady=steady, lags=lags)
        self._state, noticed = changed or (own, None)
        self.step = noticed or step
        return noticed

    def tend(self, turn: Turn) -> None:
        """Move the mark on with a write that comes anyway, and notice a clock that was set back."""
        kept, step = _kept(turn)
        noticed = self._continue_from(kept, step)
        if self._unnoted is not None and kept.mark < self._unnoted.at:
            # It was noticed when the store was opened, and nobody has noted it since.
            noticed = self.step = noticed or self._unnoted
        self._unnoted = None
        state = self._state
        if noticed is not None or state.mark > kept.mark:
            before = (kept.mark, kept.shift, kept.since)
            turn.rows("set_clock", state.mark, state.shift, state.since, *before)
        if noticed is not None:
            turn.rows("add_clock_step", noticed.at, noticed.by)
            log.warning("this machine's clock was set back by %.1f s", noticed.by / SECOND)
        self._tended_at = time.monotonic()
        turn.now = self.now()


def _kept(snapshot: ReadSnapshot) -> tuple[ClockState, ClockStep | None]:
    """Read how far the store's clock has come, and the last time a machine's was set back."""
    [[mark, shift, since, at, by]] = snapshot.rows("clock")
    return ClockState(mark, shift, since), None if at is None else ClockStep(at, by)
