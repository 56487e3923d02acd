"""The load: jobs of every kind, submitted for as long as the battle lasts."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.ids import mint_request
from tests.chaos.front import Front

AT_ONCE = 25
"""How many jobs may be unfinished before more are submitted."""
KINDS = {
    "quick": 6,
    "shaky": 3,
    "careful": 2,
    "lasting": 4,
    "careful_lasting": 1,
    "reporting": 2,
    "threaded": 3,
    "isolated": 0.7,
    "failing": 2,
    "blocking": 1,
    "exits_its_worker": 0.05,
}


class Load:
    """Submits until it is stopped; what was acknowledged is written down at the front."""

    def __init__(self, front: Front, chance: Random) -> None:
        """Choose by `chance`."""
        self._front = front
        self._chance = chance
        self._stopping = asyncio.Event()
        self.refused = 0
        """Submits that were not acknowledged: each was sent again under the same request."""

    def stop(self) -> None:
        """Submit no more."""
        self._stopping.set()

    async def run(self) -> None:
        """Keep so many jobs unfinished."""
        while not self._stopping.is_set():
            room = AT_ONCE - len(await self._patiently(self._front.unfinished))
            for kind in self._chance.choices(list(KINDS), list(KINDS.values()), k=max(room, 0)):
                await self._submit(kind)
            await asyncio.sleep(0.05)

    async def _submit(self, kind: str) -> None:
        task = self._front.app.tasks[kind].options(request_id=mint_request())
        words = self._words(kind)
        handle = await self._patiently(lambda: task.submit(*words))
        self._front.acknowledged.add(handle.id)

    def _words(self, kind: str) -> list[float]:
        match kind:
            case "lasting" | "careful_lasting" | "threaded" | "isolated":
                return [round(self._chance.uniform(0.05, 0.9), 2)]
            case "blocking":
                return [round(self._chance.uniform(0.1, 0.5), 2)]
            case _:
                return []

    async def _patiently(self, ask: Any) -> Any:
        """Ask until there is an answer: the database may be away."""
        while True:
            try:
                return await ask()
            except HoldfastError:
                self.refused += 1
                await asyncio.sleep(0.05)
