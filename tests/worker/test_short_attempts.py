"""Short attempts follow each other closely: what they must not share."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast

LIMIT = 60
"""Seconds after which a test has failed; nothing here takes so long."""
JOBS = 60


async def run_all(app: Holdfast, task: Any) -> list[Any]:
    """Run the same task often, with 0, 1, 2, … and one slot; tells the results."""
    jobs = await task.submit_many([(number,) for number in range(JOBS)])
    async with app.worker(concurrency=1):
        return [await job.result(LIMIT) for job in jobs]


def own_task() -> asyncio.Task[Any]:
    """Tell the task that a handler runs in."""
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_handlers_that_never_wait_share_no_task_and_no_variable(app: Holdfast) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="clean")
    tasks: set[str] = set()

    @app.task
    async def leaves(number: int) -> str:
        tasks.add(own_task().get_name())
        before = variable.get()
        variable.set(f"of {number}")
        return before

    assert await run_all(app, leaves) == ["clean"] * JOBS
    assert len(tasks) == JOBS


async def test_a_task_in_which_a_handler_waited_is_not_used_again(app: Holdfast) -> None:
    variable: ContextVar[int] = ContextVar("variable")
    tasks: list[str] = []

    @app.task
    async def waits(number: int) -> int:
        tasks.append(own_task().get_name())
        variable.set(number)
        await asyncio.sleep(0)
        assert own_task().get_name() == tasks[-1]
        return variable.get()

    assert await run_all(app, waits) == list(range(JOBS))
    assert len(set(tasks)) == JOBS


async def test_a_handler_that_cancels_its_own_task_spoils_no_other(app: Holdfast) -> None:
    @app.task(retries=0)
    async def cancels(number: int) -> int:
        if number % 2:
            await asyncio.sleep(0)
        else:
            own_task().cancel()
        return number

    assert await run_all(app, cancels) == list(range(JOBS))


async def test_between_two_jobs_the_event_loop_goes_round(app: Holdfast) -> None:
    done = 0
    rounds: set[int] = set()

    def go_round() -> None:
        rounds.add(done)
        asyncio.get_running_loop().call_soon(go_round)

    @app.task
    async def short(number: int) -> None:
        nonlocal done
        done += 1

    go_round()
    await run_all(app, short)
    assert len(rounds) >= JOBS / 2


async def test_who_cancels_a_task_after_its_job_hurts_nobody(app: Holdfast) -> None:
    @app.task(retries=0)
    async def leaves_a_canceller(number: int) -> int:
        asyncio.get_running_loop().call_soon(own_task().cancel)
        return number

    assert await run_all(app, leaves_a_canceller) == list(range(JOBS))


def _cancels_later(_: list[str]) -> None:
    asyncio.get_running_loop().call_later(0.005, own_task().cancel)


def _takes_its_cancel_back(_: list[str]) -> None:
    own_task().cancel()
    own_task().uncancel()


def _wants_to_hear_of_its_end(heard: list[str]) -> None:
    own_task().add_done_callback(lambda task: heard.append(task.get_name()))


@pytest.mark.parametrize(
    "deed", [_cancels_later, _takes_its_cancel_back, _wants_to_hear_of_its_end]
)
async def test_what_is_left_to_a_task_concerns_no_later_job(
    app: Holdfast, deed: Callable[[list[str]], None]
) -> None:
    """A handler that never waits may still tell others of its task."""
    heard: list[str] = []
    used: list[str] = []
    waited: list[str] = []

    @app.task(retries=0)
    async def leaves(number: int) -> int:
        if number % 2:
            waited.append(own_task().get_name())
            await asyncio.sleep(0.01)
        else:
            used.append(own_task().get_name())
            deed(heard)
        return number

    assert await run_all(app, leaves) == list(range(JOBS))
    assert not set(waited) & set(used)
    assert set(heard) <= set(used)


async def test_nothing_is_left_of_an_attempt_that_has_ended(app: Holdfast) -> None:
    left: list[weakref.ref[Any]] = []

    @app.task
    async def remembers(ctx: Context, number: int) -> None:
        left.append(weakref.ref(ctx.durable))

    await run_all(app, remembers)
    gc.collect()
    assert len(left) == JOBS
    assert not any(one() for one in left)
