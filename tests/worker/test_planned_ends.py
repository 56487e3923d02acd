"""Ends by plan: what happens to them between the handler's end and the store's answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.lifecycle.plan import PlannedEnd
from holdfast.lifecycle.states import State
from holdfast.ports.models import PlannedOutcome
from holdfast.ports.store import Store
from holdfast.wiring import make_store, read_address
from tests.crashes.wrapped import Wrapped
from tests.worker.test_worker import LIMIT, types

JOBS = 20


class Planned(Wrapped):
    """A store that writes planned ends, and then does as a test wants."""

    deaf = 0
    """How many replies are lost."""
    mute = 0
    """How many replies name every job as missed, though all are written."""
    sent = 0

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        """Write; then lose the reply, or spoil it."""
        kind = type(self)
        outcome: PlannedOutcome = await self.store.commit_planned(ends)
        kind.sent += len(ends)
        if kind.deaf:
            kind.deaf -= 1
            raise StoreUnavailable("the reply was lost")
        if kind.mute:
            kind.mute -= 1
            return PlannedOutcome(0, [end.id for end in ends])
        return outcome


def app_with(kind: type[Planned], url: str) -> Holdfast:
    """Return an app whose stores are of a kind."""

    def store() -> Store:
        return kind(make_store(read_address(url)))

    return Holdfast(store=store)


@pytest.mark.req("B5", "C6")
@pytest.mark.parametrize("trouble", ["deaf", "mute"])
async def test_a_planned_end_whose_reply_was_lost_is_written_once(
    app: Holdfast, url: str, trouble: str
) -> None:
    class Troubled(Planned):
        pass

    setattr(Troubled, trouble, 1)
    troubled, runs = app_with(Troubled, url), 0

    @troubled.task
    async def short(number: int) -> int:
        nonlocal runs
        runs += 1
        return number

    async with troubled:
        jobs = await short.submit_many([(number,) for number in range(JOBS)])
        async with troubled.worker() as worker:
            assert [await job.result(LIMIT) for job in jobs] == list(range(JOBS))
        told = [await types(job) for job in jobs]
    assert Troubled.sent >= JOBS, "they were planned"
    assert told == [["created", "claimed", "started", "succeeded"]] * JOBS
    assert (runs, worker.meters.fences) == (JOBS, 0)


async def test_a_call_that_comes_after_a_planned_end_is_answered(app: Holdfast, url: str) -> None:
    late: list[asyncio.Task[object]] = []
    written = asyncio.Event()

    class Slow(Planned):
        async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
            await asyncio.sleep(0)
            await asyncio.wait(late, timeout=0.05)
            outcome = await super().commit_planned(ends)
            written.set()
            return outcome

    slow = app_with(Slow, url)

    async def steps(ctx: Context) -> object:
        await asyncio.sleep(0)
        return await ctx.step("late", lambda: 1)

    @slow.task
    async def leaves_a_task(ctx: Context, number: int) -> None:
        late.append(asyncio.create_task(steps(ctx)))

    async with slow:
        jobs = await leaves_a_task.submit_many([(0,), (1,)])
        async with slow.worker():
            for job in jobs:
                assert await job.wait(LIMIT) is State.SUCCEEDED
            done, waiting = await asyncio.wait(late, timeout=LIMIT)
    assert written.is_set()
    assert (len(done), len(waiting)) == (2, 0)
    assert all(task.exception() is not None for task in done)


async def test_ends_of_handlers_that_compute_are_not_gathered_for_long(app: Holdfast) -> None:
    ended = 0
    seen: list[int] = []

    @app.task
    async def computes(number: int) -> None:
        nonlocal ended
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass
        ended += 1

    jobs = await computes.submit_many([(number,) for number in range(100)])
    async with app.worker(concurrency=2):
        await jobs[0].wait(LIMIT)
        seen.append(ended)
        await jobs[-1].wait(LIMIT)
    assert seen[0] < len(jobs), "the first end was written before the last handler ran"
