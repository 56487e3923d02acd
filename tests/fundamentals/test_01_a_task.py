"""A task is a function that can be run later, somewhere else, and is not lost."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast, ValidationError
from holdfast.testing import Kit


async def test_a_decorator_makes_a_function_a_task(app: Holdfast, kit: Kit) -> None:
    """`@app.task` registers it under its name. `submit` takes what the function takes."""

    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    job = await greet.submit("Ada")
    assert await job.result() == "hello Ada"


async def test_a_plain_function_runs_in_a_thread(app: Holdfast, kit: Kit) -> None:
    """`async def` runs on the worker's event loop, `def` in a thread: it may block."""

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    assert await (await add.submit(1, b=2)).result() == 3


async def test_the_first_parameter_may_be_the_context(app: Holdfast, kit: Kit) -> None:
    """Call it `ctx` and it is no argument: it is what a handler knows and can do."""

    @app.task
    async def who(ctx: Context) -> str:
        return f"attempt {ctx.attempt} of {ctx.job.task}"

    assert await (await who.submit()).result() == "attempt 1 of who"


async def test_arguments_are_checked_before_anything_is_written(app: Holdfast, kit: Kit) -> None:
    """A wrong argument is the submitter's error, at once, and no job."""

    @app.task
    async def double(number: int) -> int:
        return number * 2

    with pytest.raises(ValidationError, match="number"):
        await double.submit("three")  # type: ignore[arg-type]
    assert [job async for job in app.jobs()] == []
