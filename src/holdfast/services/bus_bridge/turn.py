"""Whose turn it is: one bridge at a time sends jobs and publishes, so that limits hold over all.

The turn is a note in the store with its end, by the store's clock. Who dies with it is followed a
few seconds later; nothing but the number of jobs in flight depends on it.
"""

from __future__ import annotations

from time import monotonic

from holdfast.lifecycle.times import SECOND
from holdfast.ports.store import Store

TURN_SECONDS = 5.0


class DispatchTurn:
    """The turn of one bridge of a bus."""

    def __init__(self, store: Store, bus: str, holder: str) -> None:
        self._store = store
        self._note = f"bus:{bus}:turn"
        self._holder = holder
        self._until = 0.0
        """Until when it is ours, by the monotonic clock, from before the store was asked."""

    async def take(self) -> bool:
        """Return whether the turn is ours; take or prolong it if it may be."""
        if monotonic() < self._until - TURN_SECONDS / 2:
            return True
        asked = monotonic()
        now = (await self._store.clock()).now
        text = await self._store.note(self._note)
        holder, _, end = (text or "").rpartition(" ")
        if holder not in ("", self._holder) and int(end) > now:
            return False
        to = f"{self._holder} {now + int(TURN_SECONDS * SECOND)}"
        taken = await self._store.move_note(self._note, before=text, to=to)
        self._until = asked + TURN_SECONDS if taken else 0.0
        return taken

    @property
    def held(self) -> bool:
        """Whether it is certainly ours at this moment."""
        return monotonic() < self._until

    async def give_back(self) -> None:
        """Let another bridge have it at once."""
        text = await self._store.note(self._note)
        if text is not None and text.startswith(f"{self._holder} "):
            await self._store.move_note(self._note, before=text, to=f"{self._holder} 0")
        self._until = 0.0
