"""What a handler leaves behind must not speak over its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.lifecycle.record import Change
from holdfast.lifecycle.states import EventType, State
from holdfast.ports.models import Outcome
from holdfast.runners.function import TaskRunner
from holdfast.tasks.handles import JobHandle
from holdfast.wiring import make_store, read_address
from tests.crashes.waiting import until
from tests.crashes.wrapped import Wrapped
from tests.worker.test_worker import LIMIT


async def test_progress_after_the_end_does_not_cost_the_outcome(app: Holdfast) -> None:
    left: list[asyncio.Task[None]] = []

    @app.task
    async def leaves(ctx: Context) -> int:
        async def chatter() -> None:
            for number in range(50):
                ctx.progress(number)
                ctx.heartbeat()
                await asyncio.sleep(0)

        left.append(asyncio.create_task(chatter()))
        return 7

    async with app.worker():
        jobs = [await leaves.submit() for _ in range(5)]
        assert [await job.result(LIMIT) for job in jobs] == [7] * 5
    await asyncio.gather(*left)
    assert {job.record.attempt for job in jobs} == {1}


class HoldingProgress(Wrapped):
    """A store that is told of progress, and takes its time."""

    gate: asyncio.Event

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Wait with what brings progress."""
        if EventType.PROGRESSED in {change.event.type for change in changes}:
            await self.gate.wait()
        return await self.store.commit(changes)


async def test_progress_does_not_speak_over_the_word_that_a_handler_cannot_be_killed(
    app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskRunner, "kill_patience_seconds", 0.1)
    HoldingProgress.gate = asyncio.Event()
    slow = Holdfast(store=lambda: HoldingProgress(make_store(read_address(url))))
    begun, may_speak, spoke, let_go = (asyncio.Event() for _ in range(4))

    async def deaf_until(event: asyncio.Event) -> None:
        while not event.is_set():
            with suppress(asyncio.CancelledError):
                await event.wait()

    @slow.task(cancel_grace="0s")
    async def deaf(ctx: Context) -> None:
        ctx.progress("before the kill, and on its way until long after")
        begun.set()
        await deaf_until(may_speak)
        ctx.progress("after the kill")
        spoke.set()
        await deaf_until(let_go)
        raise asyncio.CancelledError

    async with slow, slow.worker(tick=0.05) as worker:
        job = await deaf.submit()
        await asyncio.wait_for(begun.wait(), LIMIT)
        await job.cancel(hard=True)
        await until(lambda: worker.meters.unkillable == 1, "the kill to have no effect")
        may_speak.set()
        await asyncio.wait_for(spoke.wait(), LIMIT)
        HoldingProgress.gate.set()
        try:
            await until(lambda: _is_unkillable(job), "the ledger to say so", limit=10)
        finally:
            let_go.set()
        assert await job.wait(LIMIT) is State.CANCELLED


async def _is_unkillable(job: JobHandle[None]) -> bool:
    return "unkillable" in [event.facts.get("kill") for event in await job.events()]
