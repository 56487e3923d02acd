"""Signs of life of the parts of a process, to find those that have been silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class Pulse:
    """One part's sign of life. Only that part calls `beat`; any thread may read."""

    __slots__ = ("_clock", "last", "limit_seconds", "name", "stopped")

    def __init__(self, name: str, limit_seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.name = name
        self.limit_seconds = limit_seconds
        self.last = clock()
        self.stopped = False

    def beat(self) -> None:
        self.last = self._clock()

    def stop(self) -> None:
        """Note that the part ended in order: its silence is right from now on."""
        self.stopped = True

    @property
    def age_seconds(self) -> float:
        """How long ago it last showed life."""
        return self._clock() - self.last

    @property
    def silent(self) -> bool:
        """Whether it should have shown life since."""
        return not self.stopped and self.age_seconds > self.limit_seconds


def silent(pulses: Iterable[Pulse]) -> dict[str, float]:
    """Return the parts that have been silent too long, and for how many seconds."""
    return {pulse.name: pulse.age_seconds for pulse in pulses if pulse.silent}


async def measure_lag(
    note: Callable[[float], None], pulse: Pulse, *, every_seconds: float = 0.5
) -> None:
    """Note again and again how late the event loop wakes a task, and beat its pulse."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + every_seconds
        await asyncio.sleep(every_seconds)
        note(max(0.0, loop.time() - due))
        pulse.beat()
