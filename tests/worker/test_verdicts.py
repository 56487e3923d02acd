"""Verdicts: whether a step happened is asked before each effect, and answered once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.errors import Refused
from holdfast.lifecycle.states import State
from holdfast.tasks.durable.verdicts import NOT_HAPPENED, UNKNOWN, Happened
from tests.worker.test_worker import LIMIT, until


async def test_a_persons_no_is_said_of_one_beginning_only(app: Holdfast) -> None:
    paid: list[int] = []
    again = asyncio.Event()

    async def pay() -> str:
        paid.append(1)
        if len(paid) == 2:
            again.set()
        raise ConnectionError("the answer is lost")

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> str:
        name: str = await ctx.step("pay", pay, verify=lambda: UNKNOWN)
        return name

    async with app.worker():
        job = await order.submit()
        await until(job, State.WAITING)
        await job.resolve("pay", NOT_HAPPENED)
        await again.wait()
        await until(job, State.WAITING)
        await job.resolve("pay", Happened("receipt"))
        assert await job.result(LIMIT) == "receipt"
    assert len(paid) == 2


async def test_a_persons_word_stands_though_the_verifier_would_know_by_now(app: Holdfast) -> None:
    verdicts = [UNKNOWN, Happened("found later")]

    def pay() -> str:
        raise ConnectionError("the answer is lost")

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> list[str]:
        paid = await ctx.step("pay", pay, verify=lambda: verdicts.pop(0))
        return [paid, await ctx.step("ship", lambda: "sent")]

    async with app.worker():
        job = await order.submit()
        await until(job, State.WAITING)
        await job.resolve("pay", Happened("receipt"))
        assert await job.result(LIMIT) == ["receipt", "sent"]


async def test_a_persons_result_is_read_as_what_the_step_returns(app: Holdfast) -> None:
    @app.task(backoff="1ms")
    async def order(ctx: Context) -> int:
        receipt: Receipt = await ctx.step("pay", _loses_its_answer, verify=lambda: UNKNOWN)
        return receipt.number

    async with app.worker():
        job = await order.submit()
        await until(job, State.WAITING)
        await job.resolve("pay", Happened({"number": 7}))
        assert await job.result(LIMIT) == 7


@dataclass
class Receipt:
    number: int


def _loses_its_answer() -> Receipt:
    raise ConnectionError("the answer is lost")


async def test_a_person_is_asked_of_which_use_of_a_name_it_is(app: Holdfast) -> None:
    def pay(number: int) -> int:
        if number == 2:
            raise ConnectionError("the answer is lost")
        return number

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> list[int]:
        return [await ctx.step("pay", pay, n, verify=lambda _: UNKNOWN) for n in (1, 2)]

    async with app.worker():
        job = await order.submit()
        await until(job, State.WAITING)
        with pytest.raises(Refused, match="asks about step 'pay#2'"):
            await job.resolve("pay", NOT_HAPPENED)
        await job.resolve("pay#2", Happened(2))
        assert await job.result(LIMIT) == [1, 2]


async def test_a_verifier_is_asked_before_a_step_is_tried_again(app: Holdfast) -> None:
    paid: list[int] = []

    def pay() -> str:
        paid.append(1)
        raise ConnectionError("the answer is lost")

    @app.task(retries=0)
    async def order(ctx: Context) -> str:
        name: str = await ctx.step(
            "pay", pay, retries=3, backoff="1ms", verify=lambda: Happened("receipt")
        )
        return name

    async with app.worker():
        assert await (await order.submit()).result(LIMIT) == "receipt"
    assert paid == [1]
