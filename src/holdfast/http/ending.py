"""The end of a server: it begins once, and whoever waits for something long hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

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

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await something that may take long; None if the server's end comes before it."""
        working = asyncio.create_task(work)
        ending = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            working.cancel()
            ending.cancel()
