"""An app on one event loop: the open store, and who gathers, watches and waits there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from holdfast.ports import Store
from holdfast.services.attendance import Attendance
from holdfast.services.gathering import Together
from holdfast.services.known_limits import KnownLimits
from holdfast.services.known_terms import KnownTerms
from holdfast.services.waiting_room import WaitingRoom
from holdfast.services.watching import Watching


class Session:
    """One store on one loop. It opens when first used, and closes at the latest with its loop."""

    def __init__(self, store: Store) -> None:
        """Take a store that is not open yet."""
        self.store = store
        self.together = Together(store)
        self.watching = Watching(store)
        self.terms = KnownTerms(store)
        self.limits = KnownLimits(store)
        self.waiting_room = WaitingRoom(store)
        self.attendance = Attendance(store)
        self.is_open = False
        self.users = 0
        """How many `async with` blocks hold it."""
        self._opening: asyncio.Task[None] | None = None
        self._life = self._live()

    async def open(self) -> None:
        """Open the store once, however many ask for it."""
        if self.is_open:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        # Whoever is cancelled leaves it to the others.
        await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Send what was submitted, then let go of the store; one that is not open yet stays so."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self.together.finish()
        await self._life.aclose()

    async def _open(self) -> None:
        try:
            await anext(self._life)
        except BaseException:
            # A generator that failed is over; the next who tries needs a new one.
            self._life = self._live()
            raise
        finally:
            self._opening = None

    async def _live(self) -> AsyncGenerator[None]:
        # A generator, because a loop that ends closes those that it has begun: then nobody who
        # used an app without `async with` leaves a database open.
        await self.store.open()
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False
            await self.store.close()
