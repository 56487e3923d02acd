"""The end of a server: it begins once, and every long wait ends with it, or with its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class Ending:
    """Whether the server is about to end."""

    def __init__(self) -> None:
        """Not yet."""
        self._begun = asyncio.Event()

    def begin(self) -> None:
        """Let every long wait end now."""
        self._begun.set()

    @property
    def begun(self) -> bool:
        """Whether it has begun."""
        return self._begun.is_set()

    async def wait(self) -> None:
        """Wait until it begins."""
        await self._begun.wait()

    async def unless(self, work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
        """Await something that may take long; None if the server ends or the client leaves first.

        `receive` is the request's: nothing of its body is wanted any more.
        """
        async with self.watched(receive) as over:
            working = asyncio.create_task(work)
            ending = asyncio.create_task(over.wait())
            try:
                await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
                return working.result() if working.done() else None
            finally:
                working.cancel()
                ending.cancel()

    @asynccontextmanager
    async def watched(self, receive: Receive) -> AsyncIterator[asyncio.Event]:
        """Give an event that is set once the server ends or the client has left."""
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
