"""A job that others write to all the time stays its worker's, and its worker makes progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.flow.signal import signal
from holdfast.lifecycle.record import Actor, Change
from holdfast.lifecycle.states import BEATS, EventType, Role
from holdfast.ports.models import Outcome
from holdfast.tasks.handles import JobHandle
from holdfast.wiring import make_store, read_address
from tests.crashes.wrapped import Wrapped
from tests.worker.test_worker import LIMIT, types

SENDER = Actor(Role.CONTROL, "sender")
OWNERS = frozenset(
    {EventType.STARTED, EventType.STEP_COMPLETED, EventType.PROGRESSED, EventType.SUCCEEDED}
)


class Overtaken(Wrapped):
    """A store in which a signal arrives before each commit with an event of these types."""

    types: frozenset[EventType]
    overtaken = 0
    on_overtaken: Callable[[int], None] = staticmethod(lambda count: None)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Send the signal first, so that the compare-and-set misses."""
        for id_ in {one.id for one in changes if one.event.type in self.types}:
            await signal(self.store, id_, SENDER, "note")
            type(self).overtaken += 1
            self.on_overtaken(self.overtaken)
        return await self.store.commit(changes)


def overtaken(url: str, types: frozenset[EventType]) -> tuple[Holdfast, type[Overtaken]]:
    """Make an app none of whose workers ever wins a compare-and-set with such an event."""

    class Always(Overtaken):
        pass

    Always.types = types
    return Holdfast(
        store=lambda: Always(make_store(read_address(url))), unbounded_leases=True
    ), Always


async def ran_once(job: JobHandle[Any]) -> bool:
    """Whether a job was claimed and started once, and succeeded."""
    told = await types(job)
    return [told.count(one) for one in ("claimed", "started", "succeeded")] == [1, 1, 1]


@pytest.mark.parametrize("what", ["steps", "progress"])
async def test_a_worker_keeps_a_job_that_is_signalled_before_each_of_its_writes(
    app: Holdfast, url: str, what: str
) -> None:
    busy, store = overtaken(url, OWNERS)

    @busy.task(idempotent=False)
    async def charge(ctx: Context) -> str:
        for number in range(3):
            if what == "steps":
                await ctx.step(f"s{number}", lambda: 1)
            else:
                ctx.progress(number)
                await asyncio.sleep(0)
        return "charged"

    async with busy, busy.worker() as worker:
        job = await charge.submit()
        assert await job.result(LIMIT) == "charged"
        assert await ran_once(job)
    assert worker.meters.fences == 0
    assert store.overtaken > 5


@pytest.mark.req("B7")
async def test_a_lease_is_renewed_though_each_renewal_is_overtaken(app: Holdfast, url: str) -> None:
    busy, store = overtaken(url, BEATS)
    loop, enough = asyncio.get_running_loop(), asyncio.Event()

    def count(times: int) -> None:
        if times == 3:
            loop.call_soon_threadsafe(enough.set)

    store.on_overtaken = staticmethod(count)

    @busy.task(lease="2s", heartbeat="1s", retries=0)
    async def long() -> int:
        await asyncio.wait_for(enough.wait(), LIMIT)
        return 7

    async with busy, busy.worker(tick="50ms") as worker:
        job = await long.submit()
        assert await job.result(LIMIT) == 7
        assert await ran_once(job)
    assert worker.meters.fences == 0


async def test_other_jobs_of_the_worker_are_written_beside_a_busy_one(
    app: Holdfast, url: str
) -> None:
    busy, _ = overtaken(url, frozenset({EventType.PROGRESSED}))

    @busy.task
    async def reports(ctx: Context) -> int:
        for number in range(5):
            ctx.progress(number)
            await asyncio.sleep(0.01)
        return 1

    @busy.task
    async def plain() -> int:
        return 2

    async with busy, busy.worker():
        jobs = [await (reports if n % 5 == 0 else plain).submit() for n in range(20)]
        assert [await job.result(LIMIT) for job in jobs] == [1, 2, 2, 2, 2] * 4
