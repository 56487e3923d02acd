"""What of a job's commands leaves in one commit, and what does not."""

from __future__ import annotations

import asyncio

from holdfast import Context
from holdfast.app.app import Holdfast


async def test_a_handlers_own_heartbeat_goes_alone_and_loses_nothing_beside_it(
    app: Holdfast,
) -> None:
    @app.task
    async def beating(ctx: Context) -> str:
        ctx.heartbeat()
        ctx.progress({"half": True})
        ctx.heartbeat()
        await asyncio.sleep(0)
        ctx.heartbeat()
        return "done"

    async with app.worker():
        job = await beating.submit()
        assert await job.result(20) == "done"
    types = [event.type for event in await job.events()]
    assert types[:2] == ["job_created", "job_claimed"]
    assert types[-1] == "job_succeeded"
    assert types.count("job_started") == types.count("job_progressed") == 1
    assert types.count("job_heartbeat") == 3
    assert job.record.attempt == 1
