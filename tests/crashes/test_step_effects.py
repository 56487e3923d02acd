"""kill -9 between a step's effect and its record: with a verifier, no effect comes twice.

`make step-kills` does it two hundred times on each store; here it is a tenth of that.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle
from tests.crashes.paying import DEATH, STEPS
from tests.crashes.waiting import until
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.resource import Resource

KILLS = int(os.environ.get("KILLS", "20"))
"""Effects whose process is dead before they are recorded."""
KINDS = ("paying", "paying_in_a_thread", "paying_isolated")
SIDE_BY_SIDE = 2
MORTAL = {DEATH: "6"}
WORKER: dict[str, Any] = {"tick": "100ms", "poll": "50ms", "concurrency": 8}


async def all_ended(jobs: list[JobHandle[Any]]) -> bool:
    """Whether there is nothing left to do."""
    return all([(await job.refresh()).record.terminal for job in jobs if not job.record.terminal])


async def interrupted(job: JobHandle[Any], resource: Resource) -> list[str]:
    """List the effects that another attempt recorded than the one that had them."""
    recorded = [event for event in await job.events() if event.type == "step_completed"]
    attempts = {f"pay {event.payload}": event.attempt for event in recorded}
    paid = [one for one in resource.of(job.id) if one.accepted and one.what != "look"]
    return [one.what for one in paid if one.attempt < attempts[one.what]]


@pytest.mark.req("A16", "B32")
@pytest.mark.timeout(100 + 5 * KILLS)
async def test_no_effect_of_a_step_comes_twice_however_often_workers_die_in_it(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    tasks = [app.tasks[kind] for kind in KINDS]
    jobs = await app.submit_many(
        [tasks[n % len(tasks)].prepare() for n in range(-(-KILLS // STEPS))]
    )

    async def over() -> bool:
        return not any(victim.alive for victim in victims) or await all_ended(jobs)

    while not await all_ended(jobs):
        victims = [crew.start(environment=MORTAL, **WORKER) for _ in range(SIDE_BY_SIDE)]
        await until(over, "workers to kill themselves", limit=60 + 2 * KILLS)

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    deaths = []
    for job in jobs:
        assert await job.result() == list(range(STEPS))
        # Each was had once, by an attempt that died of it, and recorded by a later one.
        assert await interrupted(job, resource) == [f"pay {number}" for number in range(STEPS)]
        deaths += [one for one in resource.of(job.id) if one.what != "look"]
    assert len(deaths) == len(jobs) * STEPS >= KILLS
    await assert_kept(await app.store(), resource, [job.id for job in jobs])
