"""Defects of the store's clock."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Clock, Due
from tests.stores.defects.wrapped import Wrapped


class GoesBackEverySecondLook(Wrapped):
    """A machine whose clock is set back now and then."""

    caught_by = ("test_the_clock_never_goes_back",)
    looks = 0

    async def due(self, *, limit: int = 500) -> Due:
        self.looks += 1
        found = await self.inner.due(limit=limit)
        return replace(found, now=found.now - self.looks * SECOND)


class StampsByAnotherClock(Wrapped):
    """Writes are stamped by another clock than the one that can be read."""

    caught_by = ("test_writes_are_stamped_with_a_clock_that_never_goes_back",)

    async def clock(self) -> Clock:
        clock = await self.inner.clock()
        return replace(clock, now=clock.now + 60 * SECOND)


DEFECTS: tuple[type[Wrapped], ...] = (GoesBackEverySecondLook, StampsByAnotherClock)
