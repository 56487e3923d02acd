"""Steps that run in threads, which cannot be killed."""

from __future__ import annotations

import asyncio
import threading

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from tests.crashes.waiting import until
from tests.worker.test_worker import LIMIT, types


async def test_a_step_in_a_thread_has_ended_before_its_job_is_told_dead(app: Holdfast) -> None:
    """A job that is told cancelled and still has effects would be a lie."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(LIMIT)
        ended.set()

    @app.task(cancel_grace="0s")
    async def handler(ctx: Context) -> None:
        await ctx.step("slow", slow)

    async def is_unkillable() -> bool:
        return "progressed" in await types(job)

    async with app.worker(tick="20ms", poll="20ms"):
        job = await handler.submit()
        await asyncio.to_thread(begun.wait, LIMIT)
        await job.cancel(hard=True)
        await until(is_unkillable, "the worker to say that its kill took no effect")
        assert (await job.refresh()).state is State.RUNNING
        go_on.set()
        assert await job.wait(LIMIT) is State.CANCELLED
        assert ended.is_set()
