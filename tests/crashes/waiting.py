"""What tests of workers wait for: all jobs ended, an effect outside, a condition in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle

LIMIT_SECONDS = 40.0
PAUSE_SECONDS = 0.02


async def all_ended(jobs: Iterable[JobHandle[Any]], limit: float = LIMIT_SECONDS) -> list[State]:
    """Wait until every job has ended; in their order, how."""
    async with asyncio.timeout(limit):
        return [await job.wait() for job in jobs]


async def until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]],
    what: str,
    limit: float = LIMIT_SECONDS,
) -> None:
    """Look again and again at what gives no signal, such as another process's effects."""
    end = asyncio.get_running_loop().time() + limit
    while True:
        holds = condition()
        if not isinstance(holds, bool):
            holds = await holds
        if holds:
            return
        assert asyncio.get_running_loop().time() < end, f"waited {limit:g} s for {what}"
        await asyncio.sleep(PAUSE_SECONDS)
