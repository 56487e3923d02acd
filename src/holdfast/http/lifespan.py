"""How a server starts and stops: the store is opened, also if it answers only later; every long
wait ends with the server, or with its client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

from starlette.types import Receive

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.operations.session import StoreSession
from holdfast.ports.store import Store

T = TypeVar("T")


class ServerShutdown:
    """Whether the server is stopping."""

    def __init__(self) -> None:
        self._started = asyncio.Event()

    def start(self) -> None:
        """End every long wait now."""
        self._started.set()

    @property
    def started(self) -> bool:
        """Whether the server is stopping."""
        return self._started.is_set()

    async def wait(self) -> None:
        await self._started.wait()

    async def await_unless_stopped(
        self, work: Coroutine[Any, Any, T], receive: Receive
    ) -> T | None:
        """Await work that may take long; None if the server stops or the client leaves first.

        `receive` is the request's: its body has been read.
        """
        async with self.watched(receive) as over:
            working = asyncio.create_task(work)
            waiting = asyncio.create_task(over.wait())
            try:
                await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
                return working.result() if working.done() else None
            finally:
                working.cancel()
                waiting.cancel()

    @asynccontextmanager
    async def watched(self, receive: Receive) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set once the server stops or the client has left."""
        over = asyncio.Event()

        async def watch() -> None:
            tasks = {asyncio.create_task(left(receive)), asyncio.create_task(self.wait())}
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                over.set()
            finally:
                for task in tasks:
                    task.cancel()

        watching = asyncio.create_task(watch())
        try:
            yield over
        finally:
            watching.cancel()


async def left(receive: Receive) -> None:
    """Wait until the client of a request has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


log = logging.getLogger(__name__)

Beside: TypeAlias = Callable[[Store], Coroutine[Any, Any, None]]
"""A loop that runs beside the requests, on the same open store."""

PATIENCE_SECONDS = 2.0
"""How long a server waits for its database before it starts to answer without it."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


@asynccontextmanager
async def opened(
    session: StoreSession,
    beside: Sequence[Beside],
    check: Beside | None = None,
    end: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Hold the session open, with its loops beside it, while the block runs.

    A database that does not answer is waited for, for a moment here and then in the background:
    the server is alive, reports that it is not ready, and needs no restart. If `check` refuses,
    once the database has answered, a server that is about to start does not. For one that has
    started by then `end` is called, and the refusal is raised after the block.
    """
    loops: list[asyncio.Task[None]] = []
    opening = asyncio.create_task(_open(session, beside, check, loops))
    try:
        await asyncio.wait([opening], timeout=PATIENCE_SECONDS)
        if opening.done():
            opening.result()
        else:
            opening.add_done_callback(partial(_end_if_refused, end))
        yield
        if opening.done():
            opening.result()
    finally:
        for task in (opening, *loops):
            task.cancel()
        await asyncio.gather(opening, *loops, return_exceptions=True)
        await session.close()


async def _open(
    session: StoreSession,
    beside: Sequence[Beside],
    check: Beside | None,
    loops: list[asyncio.Task[None]],
) -> None:
    pause, waited = FIRST_PAUSE_SECONDS, False
    while True:
        try:
            await session.open()
        except StoreUnavailable as error:
            _log_unavailable(error)
        except HoldfastError as error:
            # At the start a person reads it; later it may be fixed while the server waits.
            if not waited:
                raise
            log.error("the store cannot be used, retrying: %s", error)
        else:
            if await _run_check(session.store, check):
                break
        waited = True
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    loops += [asyncio.create_task(_run_logged(loop(session.store))) for loop in beside]


async def _run_check(store: Store, check: Beside | None) -> bool:
    """Raise what the check refuses, however late; False if the store is unavailable meanwhile."""
    try:
        if check is not None:
            await check(store)
    except StoreUnavailable as error:
        _log_unavailable(error)
        return False
    return True


def _log_unavailable(error: StoreUnavailable) -> None:
    log.warning("the store does not answer yet, retrying: %s", error)


def _end_if_refused(end: Callable[[], None], opening: asyncio.Task[None]) -> None:
    """Log at once why a server that has started stops: it is raised only at its end."""
    if opening.cancelled() or (error := opening.exception()) is None:
        return
    unknown = None if isinstance(error, HoldfastError) else error
    log.error("the server cannot continue and stops: %s", error, exc_info=unknown)
    end()


async def _run_logged(work: Coroutine[Any, Any, None]) -> None:
    """Log what a loop died of: it is not awaited before the end."""
    try:
        await work
    except Exception:
        log.critical("a loop beside the server died", exc_info=True)
        raise
