"""Stores that take long: times are counted so that nothing ends early, and nothing runs on."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.ports.models import Claimed, ClaimRequest
from holdfast.wiring import make_store, read_address
from tests.crashes.waiting import until
from tests.crashes.wrapped import Wrapped
from tests.worker.silence import Silence, troubled_app
from tests.worker.test_worker import LIMIT

WAITED_SECONDS = 1.0


class SlowToClaim(Wrapped):
    """A store whose claims wait for long before they are written."""

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Wait in line, then claim."""
        await asyncio.sleep(WAITED_SECONDS)
        return await self.store.claim(request)


@pytest.mark.req("B10")
async def test_a_deadline_is_not_early_by_the_time_that_the_claim_took(
    app: Holdfast, url: str
) -> None:
    slow = Holdfast(store=lambda: SlowToClaim(make_store(read_address(url))))

    @slow.task
    async def looks(ctx: Context) -> tuple[float, int]:
        assert ctx.time_left is not None
        return ctx.time_left, (await (await slow.store()).clock()).now

    async with slow, slow.worker():
        job = await looks.options(deadline="60s").submit()
        left, now = await job.result(LIMIT)
    assert job.record.deadline_at is not None
    # The clock was looked at later: by then at most as much was left as the handler was told.
    assert left > (job.record.deadline_at - now) / 1e6 - WAITED_SECONDS / 2


async def test_a_lease_is_watched_though_the_store_does_not_answer(
    app: Holdfast, url: str, silence: Silence
) -> None:
    begun = asyncio.Event()
    reasons: list[str | None] = []
    troubled = troubled_app(url, silence)

    @troubled.task(lease="500ms", heartbeat="250ms")
    async def waits(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancelled.reason)

    async with troubled, troubled.worker(tick="50ms", poll="50ms"):
        job = await waits.submit()
        await asyncio.wait_for(begun.wait(), LIMIT)
        silence.on.set()
        await until(lambda: bool(reasons), "the attempt to be stopped")
        silence.on.clear()
        assert reasons == ["lease_lost"]
        await job.cancel(hard=True)
