"""Which workers elsewhere are alive: their requests are signs of life, recorded at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.ports.store import Store

RECORD_SECONDS = 5.0
"""How often a sign of life of one worker is recorded, however many come."""
NAMES_LIMIT = 10_000
"""How many workers are remembered."""


class Presence:
    """Records in the store that workers are alive."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._recorded: dict[str, float] = {}
        self._tasks: dict[str, tuple[str, ...]] = {}

    def remember_tasks(self, worker: str, tasks: tuple[str, ...]) -> None:
        """Remember which tasks a session was opened with."""
        self._tasks[worker] = tasks
        if len(self._tasks) > NAMES_LIMIT:
            del self._tasks[next(iter(self._tasks))]

    async def tasks(self, worker: str) -> tuple[str, ...] | None:
        """Return which tasks a session was opened with, here or at another server.

        None: there is no such session; it was never opened, or is forgotten.
        """
        if worker not in self._tasks:
            found = await self._store.worker(worker)
            if found is None:
                return None
            self.remember_tasks(worker, found.tasks)
        return self._tasks[worker]

    async def record_seen(self, worker: str) -> bool:
        """Record a sign of life; return whether the worker was not known here."""
        now = self._clock()
        recorded_at = self._recorded.get(worker)
        if recorded_at is not None and now - recorded_at < RECORD_SECONDS:
            return False
        self._recorded.pop(worker, None)
        self._recorded[worker] = now
        if len(self._recorded) > NAMES_LIMIT:
            # The one that has been silent for longest.
            del self._recorded[next(iter(self._recorded))]
        await self._store.seen(worker)
        return recorded_at is None
