"""The store's limits as one process knows them: read again when they are older than a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from holdfast.errors import StoreError
from holdfast.ports import Limits, Store

log = logging.getLogger(__name__)

LIFE_SECONDS = 1.0
"""How long limits are used before they are read again."""


class KnownLimits:
    """A cache of the limits, in front of one store."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """Know the defaults, until they are read."""
        self._store = store
        self._clock = clock
        self._known = Limits()
        self._until: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def get(self) -> Limits:
        """Return the limits as they were read last; one read for all who ask at once."""
        if self._until is None or self._clock() >= self._until:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            # Whoever is cancelled leaves it to the others.
            await asyncio.shield(self._reading)
        return self._known

    async def _read(self) -> None:
        try:
            self._known = await self._store.limits()
            self._until = self._clock() + LIFE_SECONDS
        except StoreError as error:
            # The command that they are for meets the same store, and reports it with its job.
            log.debug("the limits could not be read: %s", error)
        finally:
            self._reading = None
