"""A step is remembered: whatever becomes of the attempt, it is not done again."""

from __future__ import annotations

from holdfast import NOT_HAPPENED, Context, Happened, Holdfast
from holdfast.testing import Kit


async def test_a_later_attempt_gets_what_the_step_returned(app: Holdfast, kit: Kit) -> None:
    """The handler runs again from the top; steps that are recorded answer from the record."""
    charged: list[int] = []

    def charge(order: int) -> str:
        charged.append(order)
        return f"receipt {order}"

    @app.task
    async def buy(ctx: Context, order: int) -> str:
        receipt = await ctx.step("charge", charge, order)
        if ctx.attempt == 1:
            raise ConnectionError("the mail server is down")
        return str(receipt)

    assert await (await buy.submit(7)).result() == "receipt 7"
    assert charged == [7]


async def test_between_its_effect_and_its_record_a_step_can_still_be_lost(
    app: Holdfast, kit: Kit
) -> None:
    """No queue can mend that for a world outside. So: a step is at least once, its record once."""
    charged: list[int] = []

    @app.task
    async def buy(ctx: Context, order: int) -> None:
        await ctx.step("charge", charged.append, order)

    kit.crash_during("charge")
    await (await buy.submit(7)).result()
    assert charged == [7, 7]


async def test_a_verifier_says_whether_it_happened(app: Holdfast, kit: Kit) -> None:
    """Where the world can be asked, `verify` closes the gap: no effect comes twice."""
    charged: dict[int, str] = {}

    def charge(order: int) -> str:
        assert order not in charged
        charged[order] = f"receipt {order}"
        return charged[order]

    def look_up(order: int) -> object:
        return Happened(charged[order]) if order in charged else NOT_HAPPENED

    @app.task
    async def buy(ctx: Context, order: int) -> str:
        return str(await ctx.step("charge", charge, order, verify=look_up))

    kit.crash_during("charge")
    assert await (await buy.submit(7)).result() == "receipt 7"


async def test_a_step_may_be_tried_again_by_itself(app: Holdfast, kit: Kit) -> None:
    """Without ending the attempt: `retries` and `backoff` of the step."""
    kit.faults.fail("fetch", times=2, error=ConnectionError("refused"))

    @app.task(retries=0)
    async def report(ctx: Context) -> str:
        return str(await ctx.step("fetch", lambda: "page", retries=2))

    assert await (await report.submit()).result() == "page"


async def test_code_that_has_changed_is_noticed_before_it_does_harm(
    app: Holdfast, kit: Kit
) -> None:
    """Steps are known by name and order. One that was renamed would charge twice: the job is parked
    until code is back that has the step."""
    charged: list[int] = []
    name = "charge"

    @app.task(retries=1)
    async def buy(ctx: Context) -> str:
        await ctx.step(name, charged.append, 7)
        if ctx.attempt == 1:
            raise ConnectionError
        return "bought"

    job = await buy.submit()
    await kit.drain(jump=False)
    name = "charge the card"
    drained = await kit.drain()
    assert [one.reason.code for one in drained.left] == ["step_mismatch"]
    assert "step 'charge'" in drained.left[0].text

    name = "charge"
    await kit.advance("1m")
    assert await job.result() == "bought"
    assert charged == [7]
