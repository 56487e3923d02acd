"""How to test your own handlers: what they submit, what they do twice, how they recover."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast
from holdfast.testing import Faults, Kit, assert_submitted


class Bank:
    """The world outside, which your tests replace by something that counts."""

    def __init__(self) -> None:
        """Nothing was charged."""
        self.charged: list[int] = []

    def charge(self, order: int) -> None:
        """Charge."""
        self.charged.append(order)


@pytest.fixture
def bank(app: Holdfast) -> Bank:
    """An app with two tasks, and what they act on."""
    bank = Bank()

    @app.task
    async def buy(ctx: Context, order: int) -> str:
        await ctx.step("charge", bank.charge, order)
        await mail.submit(f"thanks for {order}")
        return "bought"

    @app.task
    async def mail(text: str) -> None: ...

    return bank


async def test_what_a_handler_submits(app: Holdfast, kit: Kit, bank: Bank) -> None:
    """`assert_submitted` finds a job by any of its arguments, and shows what differs."""
    await app.submit("buy", 7)
    await kit.drain()
    await assert_submitted(app, "mail", text="thanks for 7")
    with pytest.raises(AssertionError, match="text: is 'thanks for 7', not 'thanks for 8'"):
        await assert_submitted(app, "mail", text="thanks for 8")


@pytest.mark.holdfast(inline=True)
async def test_a_handler_without_any_worker(app: Holdfast, kit: Kit, bank: Bank) -> None:
    """Inline, `submit` runs the job at once and raises what its handler raised."""
    assert (await app.submit("buy", 7)).state == "succeeded"
    kit.faults.fail("charge", error=ConnectionError("refused"))
    with pytest.raises(ConnectionError):
        await app.submit("buy", 8)


async def test_a_worker_dies_in_the_middle(app: Holdfast, kit: Kit, bank: Bank) -> None:
    """`crash_before`, `crash_during` (done, not recorded) and `crash_after` a step.

    The worker says nothing more; its lease runs out by the kit's clock, and another one goes on.
    """
    kit.crash_after("charge")
    job = await app.submit("buy", 7)
    assert await job.result() == "bought"
    assert bank.charged == [7]


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_goes_wrong(app: Holdfast, kit: Kit, bank: Bank, seed: int) -> None:
    """A seeded plan draws lots, the same ones each time: a failure can be repeated."""
    kit.faults = Faults(seed).crash("charge", rate=0.3, times=10).fail("charge", rate=0.3, times=9)
    jobs = [await app.named("buy").options(retries=50).submit(order) for order in range(5)]
    await kit.drain()
    assert [await job.result() for job in jobs] == ["bought"] * 5
    assert set(bank.charged) == set(range(5))
