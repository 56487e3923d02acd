"""Limits as a process knows them: one read for all who ask, again after a second."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.operations.store_cache import LIMITS_SECONDS, KnownLimits
from holdfast.ports.models import Limits


class FakeStore:
    """Has limits, counts who reads them, and may be away."""

    def __init__(self) -> None:
        self.found = Limits(signals=7)
        self.away = False
        self.reads = 0

    async def limits(self) -> Limits:
        self.reads += 1
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("away")
        return self.found


async def test_limits_are_read_once_for_all_who_ask_and_again_after_a_second() -> None:
    store: Any = FakeStore()
    now = 100.0
    known = KnownLimits(store, clock=lambda: now)
    found = await asyncio.gather(*(known.get() for _ in range(50)))
    assert ({one.signals for one in found}, store.reads) == ({7}, 1)
    store.found = Limits(signals=9)
    assert (await known.get()).signals == 7
    now += LIMITS_SECONDS
    assert ((await known.get()).signals, store.reads) == (9, 2)


async def test_while_the_store_is_away_the_last_known_limits_hold() -> None:
    store: Any = FakeStore()
    now = 100.0
    known = KnownLimits(store, clock=lambda: now)
    store.away = True
    assert await known.get() == Limits()
    store.away = False
    assert (await known.get()).signals == 7
    store.away, now = True, now + LIMITS_SECONDS
    assert (await known.get()).signals == 7
