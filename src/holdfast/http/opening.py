"""The beginning of a server: the store is opened, also if it answers only later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.ports import Store
from holdfast.services.session import Session

log = logging.getLogger(__name__)

Beside: TypeAlias = Callable[[Store], Coroutine[Any, Any, None]]
"""What is run beside the requests, on the same open store."""

PATIENCE_SECONDS = 2.0
"""How long a server waits for its database before it begins to answer without it."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


@asynccontextmanager
async def opened(
    session: Session,
    beside: Sequence[Beside],
    check: Beside | None = None,
    end: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Hold the session open, with its loops beside it, while the block runs.

    A database that does not answer is waited for, for a moment here and then in the background:
    the server lives, says that it is not ready, and needs no restart. What `check` refuses, once
    the database has answered, ends a server that is about to begin. One that has begun by then is
    told to `end`, and the refusal is raised after the block.
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
    session: Session,
    beside: Sequence[Beside],
    check: Beside | None,
    loops: list[asyncio.Task[None]],
) -> None:
    pause, waited = FIRST_PAUSE_SECONDS, False
    while True:
        try:
            await session.open()
        except StoreUnavailable as error:
            _tell_away(error)
        except HoldfastError as error:
            # At the start somebody reads it; later it may be mended while the server waits.
            if not waited:
                raise
            log.error("the store cannot be used, will try again: %s", error)
        else:
            if await _checked(session.store, check):
                break
        waited = True
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    loops += [asyncio.create_task(_guarded(begin(session.store))) for begin in beside]


async def _checked(store: Store, check: Beside | None) -> bool:
    """Raise what the check refuses, however late; false if the store went away meanwhile."""
    try:
        if check is not None:
            await check(store)
    except StoreUnavailable as error:
        _tell_away(error)
        return False
    return True


def _tell_away(error: StoreUnavailable) -> None:
    log.warning("the store does not answer yet, will try again: %s", error)


def _end_if_refused(end: Callable[[], None], opening: asyncio.Task[None]) -> None:
    """Tell at once what a server that has begun ends of: it is raised only at its end."""
    if opening.cancelled() or (error := opening.exception()) is None:
        return
    unknown = None if isinstance(error, HoldfastError) else error
    log.error("the server cannot go on and ends: %s", error, exc_info=unknown)
    end()


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    """Tell what a loop died of: nobody awaits it before the end."""
    try:
        await work
    except Exception:
        log.critical("a loop beside the server died", exc_info=True)
        raise
