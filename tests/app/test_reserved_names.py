"""An app registers, submits and serves no name that belongs to Holdfast's own services."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.errors import BadData, BadTask, ReservedName
from holdfast.lifecycle.states import State
from holdfast.tasks.context import Context
from holdfast.webhooks.registry import QUEUE, TASK


async def work() -> None:
    """Do nothing."""


def test_a_task_cannot_bear_a_reserved_name_or_queue(app: Holdfast) -> None:
    for options in ({"name": TASK}, {"queue": QUEUE}, {"name": "holdfast.mine"}):
        with pytest.raises(BadTask, match="reserved"):
            app.task(**options)(work)  # type: ignore[call-overload]


async def test_an_app_cannot_submit_by_a_reserved_name(app: Holdfast) -> None:
    task = app.task(work)
    with pytest.raises(ReservedName):
        await app.submit(TASK, webhook="billing", job="x", rev=1)
    with pytest.raises(ReservedName):
        await task.options(queue=QUEUE).submit()
    with pytest.raises(ReservedName):
        await app.submit_many([task.prepare(), task.options(queue=QUEUE).prepare()])
    assert [job async for job in app.jobs()] == []


def test_a_worker_cannot_serve_a_reserved_queue(app: Holdfast) -> None:
    with pytest.raises(ReservedName):
        app.worker(queues=["default", QUEUE])


async def test_a_handler_cannot_spawn_a_reserved_child(app: Holdfast) -> None:
    refused: list[str] = []

    @app.task(retries=0)
    async def parent(ctx: Context) -> None:
        try:
            await ctx.spawn(app.named(TASK), webhook="billing", job="x", rev=1)
        except BadData as error:
            refused.append(error.code)

    job = await parent.submit()
    async with app.worker(tick="50ms"):
        await job.result(timeout=30)
    assert refused == ["reserved_name"]
    assert [one.state async for one in app.jobs()] == [State.SUCCEEDED]
