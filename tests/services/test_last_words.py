"""What a handler leaves behind must not speak over its outcome."""

from __future__ import annotations

import asyncio

from holdfast import Context
from holdfast.app import Holdfast
from tests.services.test_worker import LIMIT


async def test_progress_after_the_end_does_not_cost_the_outcome(app: Holdfast) -> None:
    left: list[asyncio.Task[None]] = []

    @app.task
    async def leaves(ctx: Context) -> int:
        async def chatter() -> None:
            for number in range(50):
                ctx.progress(number)
                ctx.heartbeat()
                await asyncio.sleep(0)

        left.append(asyncio.create_task(chatter()))
        return 7

    async with app.worker():
        jobs = [await leaves.submit() for _ in range(5)]
        assert [await job.result(LIMIT) for job in jobs] == [7] * 5
    await asyncio.gather(*left)
    assert {job.record.attempt for job in jobs} == {1}
