"""The log writer: gathers what handlers log, and writes it to the store in batches.

A worker that dies loses the lines of its last moments. While the store is away, jobs that log more
than is kept lose their oldest lines first. No job ever waits for its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice

from holdfast.errors import HoldfastError
from holdfast.lifecycle.record import JobId
from holdfast.ports.models import LOG_LINES, LogEntry
from holdfast.ports.store import Store

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.1
"""How long lines are gathered before they are written together."""
PAUSE_SECONDS = 2.0
"""How long it waits after a store did not take them."""
BATCH = 1000
MOST_LINES = 20_000
"""Lines of all jobs that wait to be written; beyond that new ones are lost, with a warning."""


class LogWriter:
    """Lines that wait to be kept."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[JobId, deque[LogEntry]] = {}
        self._size = 0
        self._lost = 0
        self._came = asyncio.Event()
        self._writing = asyncio.Lock()

    def write(self, entry: LogEntry) -> None:
        """Take a line; on the event loop."""
        if self._size >= MOST_LINES:
            self._lost += 1
            return
        lines = self._waiting.setdefault(entry.id, deque(maxlen=LOG_LINES))
        self._size += len(lines) < LOG_LINES
        lines.append(entry)
        self._came.set()

    async def run(self) -> None:
        """Write what comes, again and again."""
        while True:
            await self._came.wait()
            self._came.clear()
            await asyncio.sleep(GATHER_SECONDS)
            try:
                await self.flush()
            except HoldfastError as error:
                log.warning("logs of jobs were not kept, will try again: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
                self._came.set()

    async def flush(self) -> None:
        """Write all that waits; what the store does not take waits on."""
        # One at a time: two would write the same lines.
        async with self._writing:
            while self._waiting:
                batch = self._batch()
                await self._store.keep_logs(batch)
                self._remove(batch)
            if self._lost:
                log.warning("%s lines of jobs' logs are lost: too many arrived at once", self._lost)
                self._lost = 0

    def _batch(self) -> list[LogEntry]:
        lines = (line for waiting in self._waiting.values() for line in waiting)
        return list(islice(lines, BATCH))

    def _remove(self, batch: list[LogEntry]) -> None:
        """Forget lines that were written; some may have been pushed out meanwhile by newer ones."""
        for entry in batch:
            waiting = self._waiting.get(entry.id)
            if waiting and waiting[0] is entry:
                waiting.popleft()
                self._size -= 1
                if not waiting:
                    del self._waiting[entry.id]
