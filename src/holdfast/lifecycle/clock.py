"""The store's clock over a machine's clock that may be set: it never goes back.

A mark is kept in the store every few seconds, and with it the seconds after it are reserved: times
up to `mark + RESERVE` may have been given out. Where the machine's clock is behind the mark, the
store's clock continues from the end of what is reserved, by a shift. The shift shrinks by a tenth
of the time that passes: so the two clocks agree again in the end, and the store's clock runs slower
meanwhile, never backwards.

A clock that is set right again reaches the mark by itself: then the shift is dropped at once. (The
same happens where the mark was not moved for as long as the clock had been set back.)

A step back that is smaller than the distance from the mark cannot be distinguished from no step
without a write per operation: it repeats at most what is reserved.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.lifecycle.times import SECOND

MARK_EVERY = 2 * SECOND
"""How far the store's clock may be ahead of its mark before a sweep moves the mark on."""
RESERVE = 5 * SECOND
"""How far it is ahead at most while sweeps are on time, and how far it may leap when it is set
back: more would cost workers leases that they have not had time to renew."""
SLACK = SECOND
"""Less than this behind the mark does not count as a step: the clock stands still until it is
past."""
GAP = 60 * SECOND
"""Only a process that has seen the clock run steadily moves the mark further than this at once.
With a shift it does not do so at all where the machine's clock has reached the mark without it.
Else a clock that is ahead for a moment would take the store along permanently."""
STEADY_SECONDS = 60.0
"""How long a clock must have run as fast as the monotonic one."""
JUMP = 5 * SECOND
"""By how much it may differ from that one meanwhile."""
SLOWDOWN = 10
"""The shift shrinks by the time that passes, divided by this."""


class ClockState(Struct, frozen=True):
    """What a store keeps about its clock; times and spans in microseconds."""

    mark: int = 0
    """How far the store's clock had come when it was written; 0: never yet."""
    shift: int = 0
    """How far the store's clock was ahead of the machine's at `since`."""
    since: int = 0
    """When the shift was set, by the machine's clock."""

    def ahead(self, machine: int) -> int:
        """Return how far the store's clock is ahead by its shift, at a time of the machine's."""
        left = max(self.shift - max(machine - self.since, 0) // SLOWDOWN, 0)
        # A clock at the mark by itself was set right again: with the shift it would be far ahead.
        return 0 if machine >= self.mark and machine + left > self.mark + GAP else left

    def now(self, machine: int) -> int:
        """Return the store's time at a time of the machine's clock."""
        now = machine + self.ahead(machine)
        # Behind by more than that, the machine's clock was set back, and this is not noticed yet.
        return max(self.mark, now) if now >= self.mark - SLACK else self.mark + RESERVE


class ClockStep(Struct, frozen=True):
    """A step back of the machine's clock, as the store's clock noticed it."""

    at: int
    """By the store's clock."""
    by: int
    """How far it was behind the mark."""


def agreed(own: ClockState, kept: ClockState, machine: int) -> ClockState:
    """Return from which state a process with a clock of its own continues.

    From its own, unless its clock is behind the mark with it, and at the mark with the shift that
    others have kept: then it noticed late, or started after, what they have noticed.
    """
    mark = max(own.mark, kept.mark)
    mine = ClockState(mark, own.shift, own.since)
    if machine + mine.ahead(machine) >= mark - SLACK:
        return mine
    theirs = machine + kept.ahead(machine)
    if kept.mark - SLACK <= theirs <= kept.mark + GAP:
        return ClockState(mark, kept.shift, kept.since)
    return mine


def tend(
    state: ClockState, machine: int, *, steady: bool, lags: bool = False
) -> tuple[ClockState, ClockStep | None] | None:
    """Return what to keep from now on, and the step that was noticed; None if nothing changes.

    `steady`: the caller has seen the machine's clock run steadily for a while. `lags`: the caller
    has a clock of its own, and knows that it was not set back. It is behind because others' are
    ahead, and continues from their mark: if it leapt, they would be behind in turn, and leap again.
    """
    now = machine + state.ahead(machine)
    behind = state.mark - now
    if behind > SLACK:
        mark = state.mark if lags else state.mark + RESERVE
        return ClockState(mark, mark - machine, machine), ClockStep(mark, behind)
    if -behind < MARK_EVERY or (state.mark and -behind > GAP and not steady):
        return None
    return ClockState(now, state.shift if state.ahead(machine) else 0, state.since), None


class ClockWatch:
    """Watches whether a machine's clock runs as fast as a monotonic one."""

    def __init__(self) -> None:
        self._machine = self._last = 0
        self._seconds: float | None = None

    def steady(self, machine: int, seconds: float) -> bool:
        """Compare both clocks; return whether they have agreed for long enough."""
        if self._seconds is None or self._jumped(machine, seconds):
            self._machine, self._seconds = machine, seconds
        self._last = machine
        return seconds - self._seconds >= STEADY_SECONDS

    def was_set_back(self, machine: int) -> bool:
        """Return whether the machine's clock may be behind what it was at the last comparison."""
        return self._seconds is None or machine < self._last

    def _jumped(self, machine: int, seconds: float) -> bool:
        assert self._seconds is not None
        passed = round((seconds - self._seconds) * SECOND)
        return abs(machine - self._machine - passed) > JUMP
