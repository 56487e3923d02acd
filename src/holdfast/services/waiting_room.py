"""The waiting room: where workers elsewhere wait until there is a job for them.

Whoever asks is served at once if something is due. Else those who want the same stand in one line,
and only the first of it looks: a thousand idle workers cost the store what one costs, and a job
that comes wakes one of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from holdfast.identity import jitter
from holdfast.ports import Claimed, ClaimRequest, Store

Watched: TypeAlias = Callable[[], AbstractAsyncContextManager[asyncio.Event]]
"""Watches a client while the block runs, and gives an event that is set once it has left."""

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
        self, request: ClaimRequest, wait_seconds: float, watched: Watched
    ) -> list[Claimed]:
        """Claim; wait for something to come if nothing is due. Empty when the time is up.

        `watched` is entered only to wait, and gives what is set once the client has left: nothing
        more is claimed for it, and its place in line is free at once.
        """
        until = time.monotonic() + wait_seconds
        jobs = await self._store.claim(request)
        if jobs or wait_seconds <= 0:
            return jobs
        async with watched() as gone, self._first_of_line(request, until, gone) as first:
            while first and time.monotonic() < until and not gone.is_set():
                if jobs := await self._store.claim(request):
                    break
                left = until - time.monotonic()
                pause = min(self._poll * (1 + jitter() / 4), max(left, 0.0))
                await self._store.wake_up(request.queues, limit_seconds=pause)
        return jobs

    @asynccontextmanager
    async def _first_of_line(
        self, request: ClaimRequest, until: float, gone: asyncio.Event
    ) -> AsyncIterator[bool]:
        """Stand in line; tells whether one's turn came before the time was up."""
        tasks = None if request.tasks is None else frozenset(request.tasks)
        key = (frozenset(request.queues), tasks, request.capabilities, request.tenant)
        line = self._lines.setdefault(key, _Line())
        line.people += 1
        first = False
        try:
            first = await _acquired(line.turn, until, gone)
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


async def _acquired(lock: asyncio.Lock, until: float, gone: asyncio.Event) -> bool:
    acquiring, leaving = asyncio.create_task(lock.acquire()), asyncio.create_task(gone.wait())
    try:
        limit = max(0.0, until - time.monotonic())
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({acquiring, leaving}, timeout=limit, return_when=first)
    except asyncio.CancelledError:
        if acquiring.done():
            lock.release()
        raise
    finally:
        acquiring.cancel()
        leaving.cancel()
    return acquiring.done()
