"""Whether a handler was asked to stop, and why: set from any thread, awaited or waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

# One for all: it is held for a few instructions, and a lock per job would cost every job.
CANCELLATION_LOCK = threading.Lock()


class Cancelled:
    """Whether the handler was asked to stop: a flag that can be awaited, or waited for in a thread.

    `reason` is `cancel`, `timeout`, `deadline`, `shutdown` or `lease_lost`.
    """

    __slots__ = ("_event", "_waiters", "killed", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self.killed = False
        """Whether the handler is killed and no longer asked."""
        self._event: threading.Event | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        """Return whether the handler was asked to stop."""
        return self.reason is not None

    def __await__(self) -> Generator[Any, None, str]:
        """Wait until the handler is asked to stop; return the reason."""
        if self.reason is None:
            yield from self._make_waiter().__await__()
        return self.reason or ""

    def __repr__(self) -> str:
        return f"<Cancelled: {self.reason}>" if self.reason else "<Cancelled: no>"

    def wait(self, timeout: float | None = None) -> bool:
        """Wait in a thread until the handler is asked to stop; return False after the timeout."""
        with CANCELLATION_LOCK:
            if self._event is None:
                self._event = threading.Event()
            event = self._event
            if self.reason is not None:
                event.set()
        return event.wait(timeout)

    def set(self, reason: str) -> None:
        """Ask the handler to stop; the first reason counts. Callable from any thread."""
        with CANCELLATION_LOCK:
            if self.reason is not None:
                return
            self.reason = reason
            waiters, self._waiters = self._waiters, []
            if self._event is not None:
                self._event.set()
        for waiter in waiters:
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    def _make_waiter(self) -> asyncio.Future[None]:
        waiter = asyncio.get_running_loop().create_future()
        with CANCELLATION_LOCK:
            if self.reason is not None:
                waiter.set_result(None)
            else:
                self._waiters.append(waiter)
        return waiter


async def wait_to_the_end(work: Awaitable[T]) -> T:
    """Wait until work has ended; raise a cancellation that came meanwhile only then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # looked at, so that asyncio does not report it as lost
    raise cancelled


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
