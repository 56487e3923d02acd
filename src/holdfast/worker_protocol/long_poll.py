"""Claims of workers elsewhere that wait until a job is due.

A claim is served at once if something is due. Else claims that want the same form one line, and
only the first of it looks: a thousand idle workers cost the store what one costs, and a job that
comes wakes one of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from holdfast.ids import jitter
from holdfast.ports.models import Claimed, ClaimRequest
from holdfast.ports.store import Store

Watched: TypeAlias = Callable[[], AbstractAsyncContextManager[asyncio.Event]]
"""Watches a client while the block runs, and returns an event that is set once it has left."""

POLL_SECONDS = 0.5
"""How long to wait for a wakeup; a job that becomes due by its time sends none."""


class LongPoll:
    """Claims for workers elsewhere, on one event loop."""

    def __init__(self, store: Store, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._poll = poll_seconds
        self._lines: dict[Hashable, _ClaimLine] = {}

    async def claim(
        self, request: ClaimRequest, wait_seconds: float, watched: Watched
    ) -> list[Claimed]:
        """Claim; wait for a job if none is due. Return none when the time is up.

        `watched` is entered only to wait; its event is set once the client has left: then nothing
        more is claimed for it, and its place in line is free at once.
        """
        until = time.monotonic() + wait_seconds
        jobs = await self._store.claim(request)
        if jobs or wait_seconds <= 0:
            return jobs
        async with watched() as gone, self._wait_in_line(request, until, gone) as first:
            while first and time.monotonic() < until and not gone.is_set():
                if jobs := await self._store.claim(request):
                    break
                left = until - time.monotonic()
                pause = min(self._poll * (1 + jitter() / 4), max(left, 0.0))
                await self._store.wake_up(request.queues, limit_seconds=pause)
        return jobs

    @asynccontextmanager
    async def _wait_in_line(
        self, request: ClaimRequest, until: float, gone: asyncio.Event
    ) -> AsyncIterator[bool]:
        """Wait in line; yield whether its turn came before the time was up."""
        tasks = None if request.tasks is None else frozenset(request.tasks)
        key = (frozenset(request.queues), tasks, request.capabilities, request.tenant)
        line = self._lines.setdefault(key, _ClaimLine())
        line.claims += 1
        first = False
        try:
            first = await _acquire_in_time(line.turn, until, gone)
            yield first
        finally:
            if first:
                line.turn.release()
            line.claims -= 1
            if not line.claims:
                del self._lines[key]


class _ClaimLine:
    """Claims that want the same."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.claims = 0


async def _acquire_in_time(lock: asyncio.Lock, until: float, gone: asyncio.Event) -> bool:
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
