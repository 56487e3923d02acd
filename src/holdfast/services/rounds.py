"""Rounds: a loop that does one thing again and again, and outlives whatever is wrong with it.

It keeps nothing that a restart would miss, so it can be killed at any moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 60.0
PULSE_SECONDS = 180.0
"""How long it may show no life: its longest pause, and a store that takes long to say no."""


class Health(Struct, kw_only=True):
    """How the loop is doing, for whoever watches it."""

    rounds: int = 0
    failures_in_a_row: int = 0
    last_error: str | None = None


class Rounds:
    """One loop. Each round tells for how many seconds to rest."""

    def __init__(
        self, name: str, go: Callable[[], Awaitable[float]], *, meters: Meters | None = None
    ) -> None:
        """Take what is to be done; `run` begins."""
        self.health = Health()
        self._name = name
        self._go = go
        self._meters = meters or Meters()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End after the round that is under way."""
        self._stopping.set()

    async def run(self) -> None:
        """Go round until stopped. Trouble is told, waited out and tried again, never the end."""
        pulse = self._meters.pulse(self._name, limit_seconds=PULSE_SECONDS)
        try:
            while not self._stopping.is_set():
                rest = await self._round()
                pulse.beat()
                await self._pause(rest)
        except asyncio.CancelledError:
            pulse.stop()
            raise
        # Not in a `finally`: one that died of anything else is to be missed.
        pulse.stop()

    async def _round(self) -> float:
        try:
            rest = await self._go()
        except HoldfastError as error:
            return self._trouble(error)
        except Exception as error:  # the loop's edge: nothing may end it but `stop`
            log.exception("a round of the %s failed", self._name)
            return self._trouble(error)
        self.health.rounds += 1
        self.health.failures_in_a_row = 0
        return min(rest, LONGEST_PAUSE_SECONDS)

    def _trouble(self, error: Exception) -> float:
        self.health.failures_in_a_row += 1
        self.health.last_error = str(error)
        times = self.health.failures_in_a_row
        log.warning("the %s failed %s times in a row: %s", self._name, times, error)
        return min(2.0 ** min(times, 10), LONGEST_PAUSE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
