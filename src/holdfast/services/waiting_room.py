"""The waiting room: where workers elsewhere wait until there is a job for them.

Whoever asks is served at once if something is due. Else those who want the same stand in one line,
and only the first of it looks: a thousand idle workers cost the store what one costs, and a job
that comes wakes one of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager

from holdfast.identity import jitter
from holdfast.ports import Claimed, ClaimRequest, Store

POLL_SECONDS = 0.5
"""How long one waits for news of work; a job that becomes due by its time brings none."""


class WaitingRoom:
    """Claims for others on one event loop, and waits with them."""

    def __init__(self, store: Store, *, poll_seconds: float = POLL_SECONDS) -> None:
        """Take the store; nobody waits yet."""
        self._store = store
        self._poll = poll_seconds
        self._lines: dict[Hashable, _Line] = {}

    async def claim(
        self, request: ClaimRequest, wait_seconds: float, gone: Callable[[], Awaitable[bool]]
    ) -> list[Claimed]:
        """Claim; wait for something to come if nothing is due. Empty when the time is up.

        `gone` is asked before each further look: for whoever has left, nothing is claimed.
        """
        until = time.monotonic() + wait_seconds
        jobs = await self._store.claim(request)
        if jobs or wait_seconds <= 0:
            return jobs
        async with self._first_of_line(request, until) as first:
            while first and time.monotonic() < until and not await gone():
                if jobs := await self._store.claim(request):
                    break
                left = until - time.monotonic()
                pause = min(self._poll * (1 + jitter() / 4), max(left, 0.0))
                await self._store.wake_up(request.queues, limit_seconds=pause)
        return jobs

    @asynccontextmanager
    async def _first_of_line(self, request: ClaimRequest, until: float) -> AsyncIterator[bool]:
        """Stand in line; tells whether one's turn came before the time was up."""
        key = (frozenset(request.queues), request.capabilities, request.tenant)
        line = self._lines.setdefault(key, _Line())
        line.people += 1
        first = False
        try:
            first = await _acquired(line.turn, until)
            yield first
        finally:
            if first:
                line.turn.release()
            line.people -= 1
            if not line.people:
                del self._lines[key]


class _Line:
    """Those who want the same."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.people = 0


async def _acquired(lock: asyncio.Lock, until: float) -> bool:
    try:
        async with asyncio.timeout(until - time.monotonic()):
            return await lock.acquire()
    except TimeoutError:
        return False
