"""How far a job is: read from Python, followed as it comes, and never said twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.tasks.handles import JobHandle
from tests.worker.test_worker import LIMIT

BRISK: dict[str, Any] = {"poll": "20ms", "tick": "50ms"}


async def reported(job: JobHandle[Any]) -> list[Any]:
    """List every report in a job's history."""
    return [one.payload for one in await job.events() if one.type == "job_progressed"]


async def test_the_last_report_of_a_handler_is_read_from_its_job(app: Holdfast) -> None:
    @app.task
    async def copies(ctx: Context) -> None:
        for done in range(3):
            ctx.progress({"done": done})
            await ctx.step(f"copy {done}", int)
        await ctx.wait_for("go")

    async with app.worker(**BRISK):
        job = await copies.submit()
        assert await job.progress() is None
        seen: list[Any] = []
        async for event in job.watch():
            seen.append((event.type, event.payload if event.type == "job_progressed" else None))
            if event.type == "job_waiting":
                assert await job.progress() == {"done": 2}
                await job.signal("go")
    assert [payload for kind, payload in seen if kind == "job_progressed"] == [
        {"done": done} for done in range(3)
    ]
    assert (seen[0][0], seen[-1][0]) == ("job_created", "job_succeeded")
    after = [event.type async for event in job.watch(after=(await job.events())[-2].rev)]
    assert after == ["job_succeeded"]


async def test_watching_a_job_from_its_last_event_on_ends(app: Holdfast) -> None:
    @app.task
    async def works() -> None: ...

    async with app.worker(**BRISK):
        job = await works.submit()
        await job.wait(LIMIT)
    last = (await job.events())[-1].rev

    async def watched() -> list[Any]:
        return [event async for event in job.watch(after=last)]

    assert await asyncio.wait_for(watched(), 30) == []


@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_resumed_handler_does_not_set_its_bar_back(app: Holdfast, mode: str) -> None:
    dies = [True, False]

    async def copies(ctx: Context) -> None:
        for done in range(4):
            ctx.progress(done)
            await ctx.step(f"copy {done}", int)
            if done == 1:
                await ctx.sleep(0.01)
        if dies.pop(0):
            raise OSError

    def copies_in_a_thread(ctx: Context) -> None:
        for done in range(4):
            ctx.progress(done)
            ctx.sync.step(f"copy {done}", int)
            if done == 1:
                ctx.sync.sleep(0.01)
        if dies.pop(0):
            raise OSError

    fn = copies if mode == "async" else copies_in_a_thread
    task = app.task(name="copies", retries=0)(fn)
    async with app.worker(**BRISK):
        job = await task.submit()
        await job.wait(LIMIT)
        assert await reported(job) == [0, 1, 2, 3]
        again = await job.redrive()
        await again.result(LIMIT)
        assert await reported(again) == [], "it was all said by the job that it resumes"


async def test_a_handler_without_steps_reports_anew_at_each_try(app: Holdfast) -> None:
    @app.task(retries=1, backoff="1ms")
    async def works(ctx: Context) -> None:
        ctx.progress([ctx.attempt, "half"])
        ctx.progress([ctx.attempt, "all"])
        if ctx.attempt == 1:
            raise OSError

    async with app.worker(**BRISK):
        job = await works.submit()
        await job.result(LIMIT)
        assert await reported(job) == [[1, "all"], [2, "all"]]
