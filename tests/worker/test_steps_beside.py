"""Steps and waits side by side: nothing has its effect where it can no longer be recorded."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from tests.worker.test_worker import LIMIT, types, until


async def test_a_wait_beside_a_step_parks_the_job_only_once_the_step_is_recorded(
    app: Holdfast,
) -> None:
    effects: list[str] = []
    asked = asyncio.Event()

    async def charge() -> str:
        await asked.wait()
        effects.append("charged")
        return "receipt"

    @app.task
    async def order(ctx: Context) -> str:
        async def approval() -> None:
            asked.set()
            await ctx.wait_for("approved")

        receipt, _ = await asyncio.gather(ctx.step("charge", charge), approval())
        return str(receipt)

    async with app.worker():
        job = await order.submit()
        await until(job, State.WAITING)
        await job.signal("approved")
        assert await job.result(LIMIT) == "receipt"
    assert effects == ["charged"]
    seen = await types(job)
    assert seen.index("step_completed") < seen.index("waiting")


async def test_an_attempt_ends_only_after_the_steps_that_its_handler_left(app: Holdfast) -> None:
    effects: list[str] = []
    go_on = asyncio.Event()

    async def slow() -> str:
        await go_on.wait()
        effects.append("slow")
        return "slow"

    async def fails() -> None:
        go_on.set()
        raise OSError

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> str:
        if ctx.attempt == 1:
            await asyncio.gather(ctx.step("slow", slow), ctx.step("fails", fails))
        name: str = await ctx.step("slow", slow)
        return name

    async with app.worker():
        assert await (await order.submit()).result(LIMIT) == "slow"
    assert effects == ["slow"]


async def test_a_kill_reaches_a_step_that_the_handler_left(app: Holdfast) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("endless")

    @app.task(cancel_grace=0)
    async def order(ctx: Context) -> None:
        left = asyncio.create_task(ctx.step("endless", endless))
        await begun.wait()
        raise OSError(f"leaves {left}")

    async with app.worker(tick="20ms"):
        job = await order.submit()
        await begun.wait()
        await job.cancel()
        assert await job.wait(LIMIT) is State.CANCELLED
    assert ended == ["endless"]


async def test_signals_of_one_name_are_given_to_waits_side_by_side_one_each(app: Holdfast) -> None:
    @app.task
    async def collects(ctx: Context) -> list[Any]:
        await ctx.wait_for("go")
        return list(await asyncio.gather(ctx.wait_for("news"), ctx.wait_for("news")))

    async with app.worker():
        job = await collects.submit()
        await until(job, State.WAITING)
        for news in (1, 2):
            await job.signal("news", news)
        await job.signal("go")
        assert await job.result(LIMIT) == [1, 2]
