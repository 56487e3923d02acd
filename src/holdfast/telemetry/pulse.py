"""Signs of life of the parts of a process: who has not moved for too long is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class Pulse:
    """One part's sign of life. `beat` is for that part alone, reading is for anybody."""

    __slots__ = ("_clock", "last", "limit_seconds", "name", "stopped")

    def __init__(self, name: str, limit_seconds: float, clock: Callable[[], float]) -> None:
        """Begin alive."""
        self._clock = clock
        self.name = name
        self.limit_seconds = limit_seconds
        self.last = clock()
        self.stopped = False

    def beat(self) -> None:
        """Show life."""
        self.last = self._clock()

    def stop(self) -> None:
        """End in order: its silence is right from now on."""
        self.stopped = True

    @property
    def age_seconds(self) -> float:
        """How long ago it last showed life."""
        return self._clock() - self.last

    @property
    def silent(self) -> bool:
        """Whether it ought to have shown life since."""
        return not self.stopped and self.age_seconds > self.limit_seconds


def silent(pulses: Iterable[Pulse]) -> dict[str, float]:
    """Name the parts that are silent too long, with the seconds since."""
    return {pulse.name: pulse.age_seconds for pulse in pulses if pulse.silent}


async def measure_lag(
    told: Callable[[float], None], pulse: Pulse, *, every_seconds: float = 0.5
) -> None:
    """Tell again and again how late the event loop wakes a sleeper, and beat its pulse."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + every_seconds
        await asyncio.sleep(every_seconds)
        told(max(0.0, loop.time() - due))
        pulse.beat()
