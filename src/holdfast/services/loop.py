"""The one loop of services: it does one thing again and again, and outlives every error of it.

It keeps nothing that a restart would miss, so it can be killed at any moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 60.0
SILENT_SECONDS = 180.0
"""How long it may show no life: its longest pause, and a store that is slow to fail."""


class LoopHealth(Struct, kw_only=True):
    """How a loop is doing."""

    passes: int = 0
    """Passes that succeeded."""
    failures_in_a_row: int = 0
    last_error: str | None = None


class Loop:
    """Runs passes until stopped. Each pass returns for how many seconds to rest."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[float]],
        *,
        meters: Meters | None = None,
        first_pause_seconds: float = 1.0,
        longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        """Repeat `work`, one pass each, once `run` is called.

        After a failure it pauses for twice `first_pause_seconds`, and twice as long after each
        further failure. `meters` report it as dead once it is silent for `silent_seconds`.
        """
        self.health = LoopHealth()
        self._name = name
        self._work = work
        self._meters = meters or Meters()
        self._first_pause = first_pause_seconds
        self._longest_pause = longest_pause_seconds
        self._silent_seconds = silent_seconds
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Stop after the pass that is under way."""
        self._stopping.set()

    async def run(self) -> None:
        """Run passes until stopped. A failure is logged, waited out and retried."""
        pulse = self._meters.pulse(self._name, limit_seconds=self._silent_seconds)
        try:
            while not self._stopping.is_set():
                rest = await self._run_pass()
                pulse.beat()
                await rest_until(self._stopping, rest)
        except asyncio.CancelledError:
            pulse.stop()
            raise
        # Not in a `finally`: a loop that died of anything else must be reported.
        pulse.stop()

    async def _run_pass(self) -> float:
        try:
            rest = await self._work()
        except HoldfastError as error:
            return self.fail(error)
        except Exception as error:  # the loop's edge: nothing may end it but `stop`
            log.exception("a pass of the %s failed", self._name)
            return self.fail(error)
        self.health.passes += 1
        self.health.failures_in_a_row = 0
        return rest

    def fail(self, error: Exception) -> float:
        """Note a pass that failed; return for how many seconds to rest."""
        self.health.failures_in_a_row += 1
        self.health.last_error = str(error)
        times = self.health.failures_in_a_row
        log.warning("the %s failed %s times in a row: %s", self._name, times, error)
        return min(self._first_pause * 2.0 ** min(times, 10), self._longest_pause)


async def rest_until(stopping: asyncio.Event, seconds: float) -> None:
    """Wait for some seconds, or until `stopping` is set."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stopping.wait(), seconds)


async def wait_for_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
