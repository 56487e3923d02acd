"""Parents and children under SIGKILL: each child is there once, and the parent is woken."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle
from tests.crashes.waiting import LIMIT_SECONDS
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms", "concurrency": 4}


async def family_ends_well(app: Holdfast, job: JobHandle[Any], resource: Resource) -> list[Job]:
    """Let a family come to its end: the parent has the result of each of its three children."""
    async with app.worker(**BRISK):
        results = await job.result(LIMIT_SECONDS)
    store = await app.store()
    children = await store.children([job.record.id])
    assert [child.state for child in children] == [State.SUCCEEDED] * 3
    assert results == [{"attempt": child.attempt} for child in children]
    await assert_kept(store, resource, [str(child.id) for child in children])
    return children


@pytest.mark.parametrize("task", ["brooding", "brooding_isolated"])
async def test_a_parent_killed_between_spawn_and_gather_gets_the_same_children(
    app: Holdfast, crew: Crew, resource: Resource, task: str
) -> None:
    job = await app.tasks[task].submit(die=True)
    if task == "brooding":
        victim = crew.start(**BRISK)
        assert await asyncio.to_thread(victim.wait) == -signal.SIGKILL, victim.said()
        spawned = await (await app.store()).children([job.record.id])
        assert [child.step_index for child in spawned] == [0, 1, 2]

    await family_ends_well(app, job, resource)


DEATHS = [("commit.answered", 5), ("finish.acknowledged", 2), ("finish.acknowledged", 4)]


@pytest.mark.parametrize(("point", "times"), DEATHS)
async def test_a_worker_killed_while_children_end_leaves_no_parent_waiting(
    app: Holdfast, crew: Crew, resource: Resource, point: str, times: int
) -> None:
    job = await app.tasks["brooding"].submit()
    victim = crew.start(die_at=f"{point}:{times}", **BRISK)
    assert await asyncio.to_thread(victim.wait) == -signal.SIGKILL, victim.said()

    await family_ends_well(app, job, resource)
