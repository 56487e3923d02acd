"""Workers hear of a job when its transaction commits: not before, and not at all without one."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from holdfast import Holdfast
from holdfast.lifecycle.states import State
from tests.caller_transaction.callers import Asyncpg


async def test_hints_go_out_with_the_commit_one_for_each_queue(app: Holdfast, url: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hear(*news: Any) -> None:
        heard.put_nowait(news[3])

    listener = await asyncpg.connect(url)
    await listener.add_listener("holdfast.holdfast", hear)
    other = await asyncpg.connect(url)
    caller = Asyncpg(url)
    await caller.open()

    await caller.begin()
    await caller.submit(app.tasks["ship"], 1)
    await caller.rollback()
    await caller.begin()
    await caller.submit(app.tasks["ship"], 2)
    await caller.submit(app.tasks["ship"], 3)
    await caller.submit(app.tasks["ship"], 4, queue="slow")
    # What others say meanwhile arrives; so would what this transaction had said already.
    await other.execute("SELECT pg_notify('holdfast.holdfast', 'meanwhile')")
    first = await asyncio.wait_for(heard.get(), 20)
    await caller.commit()
    await other.execute("SELECT pg_notify('holdfast.holdfast', 'afterwards')")
    told = [await asyncio.wait_for(heard.get(), 20) for _ in range(3)]

    assert first == "meanwhile"
    assert (sorted(told[:2]), told[2]) == (["default", "slow"], "afterwards")
    for connection in (listener, other, caller):
        await connection.close()


async def test_an_idle_worker_runs_the_job_once_it_is_committed(app: Holdfast, url: str) -> None:
    caller = Asyncpg(url)
    await caller.open()
    async with app.worker(poll="10m"):
        await caller.begin()
        handle = await caller.submit(app.tasks["ship"], 7)
        plain = await app.tasks["ship"].submit(8)
        assert await plain.result("20s") == 8, "the worker looks, and finds the committed one"
        await caller.commit()
        assert await handle.result("20s") == 7
        assert await handle.wait() is State.SUCCEEDED
    await caller.close()
