"""SIGKILL at every named point between a claim and the acknowledged end, on both stores.

The points are read off the code: one that is added is killed at, one that is never reached fails.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle
from tests.crashes.apps import LEASE_SECONDS
from tests.crashes.waiting import all_ended, until
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.named_points import named_points
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms", "concurrency": 4}
DEATHS = (1, 3)
"""Each victim dies when it comes to the point for the so many-th time."""


def points_of(engine: str) -> list[str]:
    """The points that a worker on this engine comes to."""
    other = {"sqlite": "postgres.", "postgres": "sqlite."}[engine]
    return [point for point in named_points() if not point.startswith((other, "http."))]


KILLS = [(engine, point) for engine in ("sqlite", "postgres") for point in points_of(engine)]


def test_the_points_cover_the_way_of_a_job() -> None:
    steps = {point.partition(".")[0] for point in named_points()}
    assert {"claim", "start", "handler", "finish", "commit", "renew"} <= steps


async def submit_everything(app: Holdfast, leases: float) -> list[JobHandle[Any]]:
    """Submit jobs of every kind: starts that fold and that do not, retries, renewals.

    Some take so many leases that they are renewed several times.
    """
    tasks = app.tasks
    calls = [tasks[kind].prepare() for kind in ("quick", "shaky", "careful", "reporting")]
    seconds = leases * LEASE_SECONDS
    calls += [tasks[kind].prepare(seconds) for kind in ("lasting", "careful_lasting")]
    return await app.submit_many([*calls, tasks["threaded"].prepare()])


@pytest.mark.req("B3", "B4", "B9", "B29", "C4")
@pytest.mark.parametrize(("url", "point"), KILLS, indirect=["url"])
async def test_a_worker_killed_at_any_point_loses_nothing(
    app: Holdfast, crew: Crew, resource: Resource, point: str
) -> None:
    leases = 2.5 if point.startswith("renew.") else 0.75
    jobs = [job for _ in DEATHS for job in await submit_everything(app, leases)]
    for victim in [crew.start(die_at=f"{point}:{times}", **BRISK) for times in DEATHS]:
        assert await asyncio.to_thread(victim.wait) == -signal.SIGKILL, victim.said()

    async with app.worker(**BRISK):
        states = await all_ended(jobs)

    allowed = {State.SUCCEEDED, State.DEAD_LETTERED}
    for job, state in zip(jobs, states, strict=True):
        careful = "careful" in job.record.task
        assert state in (allowed if careful else {State.SUCCEEDED}), job
        # What must not be repeated acts only once its start is durable: then nobody runs it again.
        begun = [effect for effect in resource.of(job.id) if effect.what == "begin"]
        assert len(begun) <= 1 or not careful, job
    await assert_kept(await app.store(), resource, [job.id for job in jobs])


IN_A_CHILD = [
    point for point in named_points() if point.partition(".")[0] in ("handler", "finish", "start")
]


@pytest.mark.parametrize(
    ("url", "point"), [("sqlite", point) for point in IN_A_CHILD], indirect=["url"]
)
async def test_a_worker_killed_around_a_handler_in_a_process_takes_it_along(
    app: Holdfast, crew: Crew, resource: Resource, point: str
) -> None:
    jobs = await app.submit_many([app.tasks["isolated"].prepare(0.2) for _ in range(2)])
    victim = crew.start(die_at=f"{point}:2", **BRISK)
    assert await asyncio.to_thread(victim.wait) == -signal.SIGKILL, victim.said()
    async with app.worker(**BRISK):
        assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    await assert_kept(await app.store(), resource, [job.id for job in jobs])


AT_RELEASE = ("commit.sending", "commit.answered", "finish.acknowledged")


@pytest.mark.parametrize("point", AT_RELEASE)
async def test_a_worker_killed_while_it_gives_a_job_back_loses_nothing(
    app: Holdfast, crew: Crew, resource: Resource, point: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = await app.tasks["gated"].submit(str(gate))
    victim = crew.start(arm_at_signal=point, grace="0s", **BRISK)
    await until(lambda: resource.saw(job.id, "begin"), "the job to run")
    victim.send(signal.SIGUSR1)
    victim.send(signal.SIGTERM)
    assert await asyncio.to_thread(victim.wait) == -signal.SIGKILL, victim.said()
    gate.touch()
    async with app.worker(**BRISK):
        assert await all_ended([job]) == [State.SUCCEEDED]
    await assert_kept(await app.store(), resource, [job.id])
