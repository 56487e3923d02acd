"""Look at a ledger until it shows what must come: it gives no signal of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.tasks.handles import JobHandle
from tests.worker.test_worker import LIMIT


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    """Look until it is so."""
    async with asyncio.timeout(LIMIT):
        while not await look():  # noqa: ASYNC110  the ledger gives no signal
            await asyncio.sleep(0.01)


async def waits_for(job: JobHandle[Any], name: str) -> JobHandle[Any]:
    """Look until a job waits for a signal."""

    async def is_parked() -> bool:
        return (await job.refresh()).record.wait_for == name

    await eventually(is_parked)
    return job


async def reaches_attempt(job: JobHandle[Any], attempt: int) -> JobHandle[Any]:
    """Look until a job was claimed so often."""

    async def is_there() -> bool:
        return (await job.refresh()).record.attempt >= attempt

    await eventually(is_there)
    return job
