"""Steps that fail: what the handler went past is remembered, what ended its attempt is not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.errors import HoldfastError, JobFailed
from holdfast.lifecycle.states import State
from holdfast.tasks.durable.protocol import NotRecorded, Reply
from holdfast.worker.durable_calls import DurableCalls
from tests.worker.test_worker import LIMIT, types


async def test_the_error_of_a_step_that_the_handler_went_past_is_remembered(app: Holdfast) -> None:
    tries: list[str] = []

    def ask(shop: str) -> str:
        tries.append(shop)
        raise KeyError(shop)

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> list[str]:
        missed = []
        for shop in ("north", "south"):
            try:
                await ctx.step("ask", ask, shop)
            except KeyError as error:
                missed.append(error.args[0])
        await ctx.step("give up", tries.append, "given up")
        if ctx.attempt == 1:
            raise OSError
        return missed

    async with app.worker():
        job = await order.submit()
        assert await job.result(LIMIT) == ["north", "south"]
    assert tries == ["north", "south", "given up"]
    assert (await types(job)).count("step_failed") == 2


async def test_errors_whose_writing_was_refused_are_remembered_with_the_next_step(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    write = DurableCalls._write

    async def refuse_once(durable_calls: DurableCalls, *args: Any, failed: bool = False) -> Reply:
        if failed and "refused" not in tries:
            tries.append("refused")
            return NotRecorded("busy", "not now")
        return await write(durable_calls, *args, failed=failed)

    monkeypatch.setattr(DurableCalls, "_write", refuse_once)

    def ask(shop: str) -> None:
        tries.append(shop)
        raise KeyError(shop)

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> list[str]:
        asked = [ctx.step("ask", ask, shop) for shop in ("north", "south")]
        missed = await asyncio.gather(*asked, return_exceptions=True)
        if ctx.attempt == 1:
            with suppress(HoldfastError):
                await ctx.step("give up", tries.append, "given up")
        await ctx.step("end", tries.append, "end")
        if ctx.attempt == 1:
            raise OSError
        return [repr(error) for error in missed]

    async with app.worker():
        job = await order.submit()
        assert await job.result(LIMIT) == ["KeyError('north')", "KeyError('south')"]
    assert tries == ["north", "south", "refused", "end"]
    assert (await types(job)).count("step_failed") == 2


async def test_a_step_is_polled_until_it_succeeds(app: Holdfast) -> None:
    tries: list[int] = []

    def look() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise FileNotFoundError(2, "not there yet")
        return "there"

    @app.task
    async def poll(ctx: Context) -> str:
        while True:
            try:
                found: str = await ctx.step("look", look)
            except FileNotFoundError as error:
                await ctx.sleep("1ms" if error.errno == 2 else "1h")
            else:
                return found

    async with app.worker(tick="20ms"):
        assert await (await poll.submit()).result(LIMIT) == "there"
    assert len(tries) == 3


async def test_a_failed_step_whose_error_ends_the_attempt_is_tried_again(app: Holdfast) -> None:
    tries: list[str] = []
    begun = asyncio.Event()

    async def flaky() -> str:
        await begun.wait()
        tries.append("flaky")
        if len(tries) == 1:
            raise OSError
        return "done"

    async def slow() -> str:
        begun.set()
        await asyncio.sleep(0)
        return "slow"

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> list[str]:
        async def two() -> str:
            await ctx.step("slow", slow)
            name: str = await ctx.step("after", slow)
            return name

        return list(await asyncio.gather(ctx.step("flaky", flaky), two()))

    async with app.worker():
        assert await (await order.submit()).result(LIMIT) == ["done", "slow"]


async def test_a_step_that_its_handler_gave_up_stays_given_up(app: Holdfast) -> None:
    tries: list[str] = []

    async def hangs(limit: asyncio.Timeout) -> None:
        tries.append("hangs")
        limit.reschedule(0)
        await asyncio.Event().wait()

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                await ctx.step("quote", hangs, limit)
        except TimeoutError:
            await ctx.step("estimate", tries.append, "estimate")
        if ctx.attempt == 1:
            raise OSError
        return "done"

    async with app.worker():
        assert await (await order.submit()).result(LIMIT) == "done"
    assert tries == ["hangs", "estimate"]


async def test_what_a_killed_handler_does_on_its_way_out_is_not_remembered(app: Holdfast) -> None:
    tries: list[str] = []
    begun = asyncio.Event()

    async def work() -> str:
        tries.append("work")
        if len(tries) == 1:
            begun.set()
            await asyncio.Event().wait()
        return "done"

    @app.task
    async def order(ctx: Context) -> str:
        try:
            result: str = await ctx.step("work", work)
        finally:
            await ctx.step("tidy", tries.append, "tidy")
        return result

    async with app.worker(grace=0):
        job = await order.submit()
        await begun.wait()
    assert (await job.refresh()).state is State.STALLED
    async with app.worker():
        assert await job.result(LIMIT) == "done"
    assert tries == ["work", "work", "tidy"]


async def test_a_step_inside_of_a_step_is_refused(app: Holdfast) -> None:
    @app.task
    async def order(ctx: Context) -> None:
        async def outer() -> None:
            await ctx.step("inner", print)

        await ctx.step("outer", outer)

    async with app.worker():
        job = await order.submit()
        with pytest.raises(JobFailed, match="step 'inner' is used inside a step"):
            await job.result(LIMIT)
    assert job.record.error_code == "nested_step"
