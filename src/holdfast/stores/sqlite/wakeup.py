"""News of work: who waits for it, and what came since a waiter last looked.

differs from postgres: there is no NOTIFY; the writer sees from the file's data version that another
process has committed. It looks when it gets a notice of that, or else by the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Collection, Iterable

LOOK_SECONDS = (0.001, 0.005)
"""How often the writer looks for commits of other processes while a caller waits, at the most and
at the least, where no notices arrive. It can rest for whole milliseconds only."""
LOOKS = 50
"""How often it looks in a silence as long as the one so far: more work soon follows on work."""


QUEUES_LIMIT = 5000
"""Queues of which the last news is remembered: submitters choose the names."""


class News:
    """Numbered moments at which work may have come. All methods may be called from any thread."""

    def __init__(self) -> None:
        self.number = 0
        self._queues: dict[str, int] = {}
        self._forgotten = 0
        """The number of the last news whose queue is not remembered."""
        self._foreign = 0
        self._version: int | None = None
        self._came_at = 0.0
        self._waiting: dict[asyncio.Future[bool], frozenset[str]] = {}
        self._lock = threading.Lock()

    def next_look_seconds(self) -> float | None:
        """Return how long to rest before looking again; None when nobody waits."""
        if not self._waiting:
            return None
        most, least = LOOK_SECONDS
        return min(max((time.monotonic() - self._came_at) / LOOKS, most), least)

    def note_commit(self, queues: Collection[str]) -> None:
        """Note that a commit of this process may have brought work to queues."""
        if not queues:
            return
        with self._lock:
            self._next()
            if len(self._queues) >= QUEUES_LIMIT:
                self._queues.clear()
                self._forgotten = self.number
            self._queues.update(dict.fromkeys(queues, self.number))
            self._wake(
                future for future, wanted in self._waiting.items() if not wanted.isdisjoint(queues)
            )

    def note_data_version(self, version: int | None) -> None:
        """Note the file's data version; another one than before means a foreign commit."""
        with self._lock:
            known, self._version = self._version, version
            if known is not None and known != version:
                self._next()
                self._foreign = self.number
                self._wake(self._waiting)

    def _next(self) -> None:
        self.number += 1
        self._came_at = time.monotonic()

    def has_come_since(self, queues: Iterable[str], number: int) -> bool:
        """Return whether work may have come to these queues after that number."""
        if self._foreign > number:
            return True
        return any(self._queues.get(queue, self._forgotten) > number for queue in queues)

    async def wait(self, queues: frozenset[str], number: int, limit_seconds: float) -> bool:
        """Wait until work may have come after that number, or the limit."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        with self._lock:
            if self.has_come_since(queues, number):
                return True
            self._waiting[future] = queues
        timer = loop.call_later(limit_seconds, _settle, future, False)
        try:
            return await future
        finally:
            timer.cancel()
            with self._lock:
                self._waiting.pop(future, None)

    def _wake(self, futures: Iterable[asyncio.Future[bool]]) -> None:
        for future in futures:
            with contextlib.suppress(RuntimeError):  # its loop is closed, nobody waits
                future.get_loop().call_soon_threadsafe(_settle, future, True)


def _settle(future: asyncio.Future[bool], came: bool) -> None:
    if not future.done():
        future.set_result(came)
