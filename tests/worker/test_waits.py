"""Waits for one of several signals, within `asyncio.timeout`, and what a park does to a handler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.errors import BadData
from holdfast.lifecycle.signals import any_of
from holdfast.tasks.cancellation import Cancelled
from tests.worker.eventually import eventually, waits_for
from tests.worker.test_worker import LIMIT

BRISK: dict[str, Any] = {"poll": "20ms", "tick": "50ms"}


@pytest.mark.req("E5")
@pytest.mark.parametrize("name", ["approve", "reject"])
async def test_whichever_of_several_signals_comes_first_ends_a_wait(
    app: Holdfast, name: str
) -> None:
    @app.task
    async def order(ctx: Context) -> list[Any]:
        return list(await ctx.wait_any("approve", "reject"))

    async with app.worker(**BRISK):
        job = await waits_for(await order.submit(), any_of(["approve", "reject"]))
        assert "one of the signals 'approve', 'reject'" in (await app.why(job.id)).text
        await job.signal("other", 1)
        await job.signal(name, {"by": "ann"})
        assert await job.result(LIMIT) == [name, {"by": "ann"}]


@pytest.mark.req("E5")
async def test_of_signals_that_are_there_the_oldest_is_taken_and_the_others_are_kept(
    app: Holdfast,
) -> None:
    @app.task(retries=1, backoff="1ms")
    def order(ctx: Context) -> list[Any]:
        taken = [ctx.sync.wait_any("approve", "reject") for _ in range(2)]
        if ctx.attempt == 1:
            raise OSError("what was taken is remembered")
        return [*taken, ctx.sync.wait_for("approve")]

    job = await order.submit()
    for number, name in enumerate(("reject", "approve", "approve")):
        await job.signal(name, number)
    async with app.worker(**BRISK):
        assert await job.result(LIMIT) == [["reject", 0], ["approve", 1], 2]


async def test_a_wait_for_one_of_several_has_a_timeout(app: Holdfast) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.wait_any("approve", "reject", timeout="50ms")
        except TimeoutError as error:
            return str(error)
        return "came"

    async with app.worker(**BRISK):
        text = await (await order.submit()).result(LIMIT)
    assert "arrived in time" in text


@pytest.mark.parametrize(
    "signals", [(), ("holdfast:sleep",), tuple(f"{n:0>190}" for n in range(9))]
)
async def test_names_that_cannot_be_waited_for_are_refused(
    app: Holdfast, signals: tuple[str, ...]
) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        with pytest.raises(BadData):
            await ctx.wait_any(*signals)
        return "refused"

    async with app.worker(**BRISK):
        assert await (await order.submit()).result(LIMIT) == "refused"


async def test_a_timeout_around_a_wait_ends_it_though_the_job_is_parked(app: Holdfast) -> None:
    @app.task
    async def order(ctx: Context) -> list[str]:
        ended: list[str] = []
        for wait in (
            lambda: ctx.wait_for("approve"),
            lambda: ctx.wait_any("approve", "reject"),
            lambda: ctx.sleep("1h"),
            lambda: ctx.wait_for("approve", timeout="1h"),
        ):
            try:
                async with asyncio.timeout(60), asyncio.timeout(0.05):
                    await wait()
            except TimeoutError as error:
                ended.append(type(error).__name__)
        async with asyncio.timeout(60):
            await ctx.sleep("10ms")
        return ended

    async with app.worker(**BRISK):
        assert await (await order.submit()).result(LIMIT) == ["WaitTimeout"] * 4


async def test_a_signal_that_comes_within_the_timeout_is_taken(app: Holdfast) -> None:
    @app.task
    async def order(ctx: Context) -> Any:
        async with asyncio.timeout(LIMIT):
            return await ctx.wait_for("approve")

    async with app.worker(**BRISK):
        job = await waits_for(await order.submit(), "approve")
        assert job.record.run_at is not None
        await job.signal("approve", "ann")
        assert await job.result(LIMIT) == "ann"


async def test_a_finally_block_runs_at_each_park_and_its_steps_do_not(app: Holdfast) -> None:
    seen: list[str] = []

    @app.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.wait_for("approve")
        finally:
            seen.append("finally")
            await ctx.step("clean up", seen.append, "step")
        return "done"

    async with app.worker(**BRISK):
        job = await waits_for(await order.submit(), "approve")
        # The park is on record a moment before the handler learns of it.

        async def is_unwound() -> bool:
            return bool(seen)

        await eventually(is_unwound)
        assert seen == ["finally"], "the handler is unwound at the park; a step there is not run"
        await job.signal("approve")
        assert await job.result(LIMIT) == "done"
    assert seen == ["finally", "finally", "step"]


def test_whether_a_cancel_was_asked_for_can_be_printed() -> None:
    cancelled = Cancelled()
    assert repr(cancelled) == "<Cancelled: no>"
    cancelled.set("timeout")
    assert repr(cancelled) == "<Cancelled: timeout>"
