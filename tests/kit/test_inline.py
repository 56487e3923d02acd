"""Inline: a job runs where it is submitted, and what its handler raises comes out there."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast, JobTimedOut, ValidationError
from holdfast.lifecycle.states import State
from holdfast.testing import Kit


@pytest.fixture
def app() -> Holdfast:
    return Holdfast()


async def test_submit_returns_a_job_that_has_ended(app: Holdfast) -> None:
    @app.task
    async def double(number: int) -> int:
        return number * 2

    async with Kit(app, inline=True):
        job = await double.submit(21)
        assert job.state is State.SUCCEEDED
        assert await job.result() == 42


async def test_an_error_propagates_at_the_first_attempt(app: Holdfast) -> None:
    error = OSError("no route")

    @app.task(retries=5)
    async def fails() -> None:
        raise error

    async with Kit(app, inline=True):
        with pytest.raises(OSError, match="no route") as raised:
            await fails.submit()
        assert raised.value is error
        [job] = [job async for job in app.jobs()]
        assert job.state is State.RETRYING


async def test_what_a_handler_submits_runs_inside_it(app: Holdfast) -> None:
    seen: list[str] = []

    @app.task
    async def inner() -> None:
        seen.append("inner")

    @app.task
    async def outer() -> None:
        seen.append("begins")
        await inner.submit()
        seen.append("ends")

    async with Kit(app, inline=True):
        await outer.submit()
    assert seen == ["begins", "inner", "ends"]


async def test_sleeps_and_delays_pass_and_waits_park(app: Holdfast) -> None:
    @app.task
    async def patient(ctx: Context) -> str:
        await ctx.sleep("3d")
        return str(await ctx.wait_for("answer"))

    async with Kit(app, inline=True):
        job = await patient.options(delay="1h").submit()
        assert job.state is State.WAITING
        assert job.record.wait_for == "answer"
        await job.signal("answer", "yes")
        assert await job.result() == "yes"


async def test_what_no_handler_raised_is_raised_by_its_state(app: Holdfast) -> None:
    @app.task(timeout="10ms", retries=0)
    async def slow(ctx: Context) -> None:
        await ctx.cancelled
        await ctx.wait_for("never")

    @app.task
    async def strict(number: int) -> None: ...

    async with Kit(app, inline=True):
        with pytest.raises(JobTimedOut):
            await slow.submit()
        with pytest.raises(ValidationError):
            await strict.submit("x")  # type: ignore[arg-type]


async def test_a_part_of_a_test_may_be_inline(app: Holdfast) -> None:
    @app.task
    async def work() -> None: ...

    async with Kit(app) as kit:
        with kit.inline():
            assert (await work.submit()).state is State.SUCCEEDED
        assert (await work.submit()).state is State.QUEUED


async def test_while_a_handler_runs_no_time_is_jumped_over(app: Holdfast) -> None:
    @app.task
    async def inner() -> None: ...

    @app.task
    async def outer() -> str:
        return (await inner.options(delay="1h").submit()).state

    async with Kit(app, inline=True) as kit:
        before = kit.clock.now
        assert await (await outer.submit()).result() == "queued"
        assert kit.clock.now == before
