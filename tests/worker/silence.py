"""Stores that fall silent: every call waits until they speak again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from holdfast.app.app import Holdfast
from holdfast.ports.store import Store
from holdfast.wiring import make_store, read_address


class Silence:
    """Comes over all stores of an app at once, and goes."""

    def __init__(self) -> None:
        """Let everybody speak."""
        self.on = threading.Event()
        self.stores = 0
        """How many are open."""

    async def over(self) -> None:
        """Wait until it is over; in the loop of any thread."""
        while self.on.is_set():  # noqa: ASYNC110  the keeper's thread has a loop of its own
            await asyncio.sleep(0.02)


class Silent:
    """A store that does what another one does, and answers nothing while there is silence."""

    def __init__(self, store: Store, silence: Silence) -> None:
        """Stand in front of a store."""
        self._store = store
        self._silence = silence

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Let calls through as long as there is somebody to answer them."""

        async def call(*args: Any, **named: Any) -> Any:
            await self._silence.over()
            return await getattr(self._store, name)(*args, **named)

        return call

    async def open(self) -> None:
        """Open the real one."""
        self._silence.stores += 1
        await self._store.open()

    async def close(self) -> None:
        """Close the real one, which takes as long as the silence does."""
        await self._silence.over()
        await self._store.close()
        self._silence.stores -= 1


def troubled_app(url: str, silence: Silence) -> Holdfast:
    """Make an app whose stores can be silenced."""

    def silent() -> Any:
        return Silent(make_store(read_address(url)), silence)

    return Holdfast(store=silent, unbounded_leases=True)
