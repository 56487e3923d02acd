"""Attendance: workers elsewhere live as long as they are heard of, which is noted now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.ports import Store

NOTE_SECONDS = 5.0
"""How often it is noted of one worker, however often it is heard of."""
NAMES_LIMIT = 10_000
"""Of how many workers it is remembered when that was."""


class Attendance:
    """Notes in the store that workers live."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the store; of nobody is anything known."""
        self._store = store
        self._clock = clock
        self._noted: dict[str, float] = {}
        self._tasks: dict[str, tuple[str, ...]] = {}

    def opened(self, worker: str, tasks: tuple[str, ...]) -> None:
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
            self.opened(worker, found.tasks)
        return self._tasks[worker]

    async def note(self, worker: str) -> bool:
        """Hear of a worker; returns whether it was not known here."""
        now = self._clock()
        noted_at = self._noted.get(worker)
        if noted_at is not None and now - noted_at < NOTE_SECONDS:
            return False
        self._noted.pop(worker, None)
        self._noted[worker] = now
        if len(self._noted) > NAMES_LIMIT:
            # The one that was not heard of for longest.
            del self._noted[next(iter(self._noted))]
        await self._store.seen(worker)
        return noted_at is None
