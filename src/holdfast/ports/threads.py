"""Work beside the event loop, or in turns with others on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def to_end(do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it in a thread, and wait for its end also when cancelled, however often.

    For work on what the caller closes or removes next: a file must not be closed while a thread
    writes to it.
    """
    running = asyncio.ensure_future(asyncio.to_thread(do, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        if not running.cancelled():
            # Seen, so that nothing complains about an error that nobody looked at.
            running.exception()
        raise


async def let_others_run() -> None:
    """Let everything else on the event loop have its turn, in the middle of long work."""
    await asyncio.sleep(0)
