"""The request that a worker stops: shared by all of its parts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from math import inf

log = logging.getLogger(__name__)


class StopRequest:
    """Whether a worker is to stop, why, and when its grace is over."""

    def __init__(self, grace_seconds: float, changed: asyncio.Event) -> None:
        """Start without a request; one sets `changed` too, which parts of the worker wait for."""
        self.requested = asyncio.Event()
        self._changed = changed
        self.failed: BaseException | None = None
        """What ended the worker, if anything but `stop` did."""
        self._grace = grace_seconds
        self._grace_ends_at = inf
        self._cut_short: set[asyncio.Timeout] = set()

    def is_set(self) -> bool:
        """Return whether the worker is to stop."""
        return self.requested.is_set()

    def stop(self) -> None:
        """Request it; what runs has the grace to finish."""
        self._end_grace(time.monotonic() + self._grace)

    def hurry(self) -> None:
        """Request it, without a grace."""
        self._end_grace(time.monotonic())

    def fail(self, error: BaseException) -> None:
        """Request it because the worker cannot continue."""
        if not self.is_set():
            log.error("the worker claims no more jobs and stops: %s", error)
            self.failed = self.failed or error
            self.stop()

    def _end_grace(self, at: float) -> None:
        self._grace_ends_at = min(self._grace_ends_at, at)
        self.requested.set()
        self._changed.set()
        for wait in self._cut_short:
            _end(wait)

    def left(self, seconds: float) -> float:
        """Return how long the grace and this many seconds more last; `hurry` cuts it short."""
        return self._grace_ends_at + seconds - time.monotonic()

    @asynccontextmanager
    async def cutting_short(self) -> AsyncGenerator[None]:
        """End the block, without an error, as soon as the worker is to stop."""
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._cut_short.add(wait)
                if self.is_set():
                    _end(wait)
                yield
        except TimeoutError:
            if not wait.expired():
                raise
        finally:
            self._cut_short.discard(wait)

    async def wait(self, seconds: float) -> bool:
        """Wait a while; returns whether the worker is to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.requested.wait(), seconds)
        return self.is_set()


def _end(wait: asyncio.Timeout) -> None:
    # One that is ending already cannot be rescheduled: asked to stop twice, a worker stops.
    if not wait.expired():
        wait.reschedule(asyncio.get_running_loop().time())
