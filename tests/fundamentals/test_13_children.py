"""A job may spawn others and gather their results. It is parked while they run."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast, JobDeadLettered, JobFailed, PermanentError, Task
from holdfast.testing import Kit, submitted


@pytest.fixture
def square(app: Holdfast) -> Task[[int], int]:
    """What the children do."""

    @app.task
    async def square(number: int) -> int:
        if number < 0:
            raise PermanentError(f"{number} is negative")
        return number * number

    return square


async def test_results_come_in_the_order_of_the_children(
    app: Holdfast, kit: Kit, square: Task[[int], int]
) -> None:
    """Children are ordinary jobs. `gather` parks the parent until they have ended."""

    @app.task
    async def total(ctx: Context, numbers: list[int]) -> int:
        children = [await ctx.spawn(square, number) for number in numbers]
        return sum(await ctx.gather(*children))

    job = await total.submit([1, 2, 3])
    assert await job.result() == 14
    assert len([child async for child in app.jobs(parent=job)]) == 3


async def test_a_child_is_spawned_once(app: Holdfast, kit: Kit, square: Task[[int], int]) -> None:
    """It is there exactly if its spawn is recorded: an attempt that dies makes no second one."""

    @app.task
    async def total(ctx: Context) -> int:
        child = await ctx.spawn(square, 3)
        await ctx.step("note", lambda: None)
        return (await ctx.gather(child))[0]

    kit.crash_before("note")
    assert await (await total.submit()).result() == 9
    assert len(await submitted(app, square)) == 1


async def test_a_child_that_failed_is_an_error_or_a_value(
    app: Holdfast, kit: Kit, square: Task[[int], int]
) -> None:
    """`gather` raises the first error; with `return_errors` it stands in the result's place."""

    @app.task(retries=0)
    async def strict(ctx: Context) -> list[int]:
        return await ctx.gather(await ctx.spawn(square, -1))

    @app.task
    async def lenient(ctx: Context) -> str:
        children = [await ctx.spawn(square, number) for number in (2, -1)]
        good, bad = await ctx.gather(*children, return_errors=True)
        assert isinstance(bad, JobFailed)
        return f"{good}, and {bad.error_message}"

    with pytest.raises(JobDeadLettered, match="-1 is negative"):
        await (await strict.submit()).result()
    assert await (await lenient.submit()).result() == "4, and -1 is negative"


async def test_a_cancel_reaches_the_children(app: Holdfast, kit: Kit) -> None:
    """And so do a deadline and a failure: nobody waits for them any more."""

    @app.task
    async def child(ctx: Context) -> None:
        await ctx.wait_for("never")

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.gather(await ctx.spawn(child))

    job = await parent.submit()
    await kit.drain()
    assert (await app.why(job)).reason.code == "waits_for_children"
    await job.cancel()
    await kit.drain()
    [orphan] = [one async for one in app.jobs(task="child")]
    assert orphan.state == "cancelled"
