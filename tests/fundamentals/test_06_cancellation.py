"""A job that runs is asked to end. It is cancelled once its handler is really dead."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Context, Holdfast, JobCancelled
from holdfast.testing import Kit


async def test_a_handler_hears_of_a_cancel(app: Holdfast, kit: Kit) -> None:
    """`ctx.cancelled` is a flag and awaitable. After `cancel_grace` the handler is killed."""
    running = asyncio.Event()

    @app.task(cancel_grace="10s")
    async def crawl(ctx: Context) -> None:
        running.set()
        await ctx.cancelled
        raise asyncio.CancelledError

    job = await crawl.submit()
    draining = asyncio.create_task(kit.drain())
    await running.wait()
    await job.cancel(reason="wrong site")
    await draining
    with pytest.raises(JobCancelled):
        await job.result()


async def test_a_hard_cancel_kills(app: Holdfast, kit: Kit) -> None:
    """A coroutine is cancelled where it awaits; `isolate="process"` is killed wherever it is."""
    running = asyncio.Event()

    @app.task
    async def hang() -> None:
        running.set()
        await asyncio.Event().wait()

    job = await hang.submit()
    draining = asyncio.create_task(kit.drain())
    await running.wait()
    await job.cancel(hard=True)
    await draining
    assert (await job.refresh()).state == "cancelled"
