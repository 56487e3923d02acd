"""Jobs that hurt whoever runs them: they end in the dead letters, and the others go on."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle
from tests.crashes.waiting import all_ended
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms"}
HUGE = 1_000_000_000
PATIENCE = 100.0
"""Seconds for a gigabyte to be made, written as JSON and refused, on a machine that is busy."""


async def facts_of(job: JobHandle[Any]) -> tuple[State, str | None, int]:
    """Tell how a job ended, by what, after how many failures."""
    await job.refresh()
    return job.state, job.record.error_code, job.record.failures


POISON_IN_A_CHILD = {
    "exiting": (),
    "crashing": (),
    "strange_error": (),
    "endless": (),
    "strange_result": (),
    "huge": (HUGE,),
}
UNFIT_RESULT = ("strange_result", "huge")


@pytest.mark.req("B9", "B14")
async def test_poison_in_a_process_of_its_own_ends_in_the_dead_letters_and_hurts_nobody(
    app: Holdfast, resource: Resource
) -> None:
    poison = {
        name: await app.tasks[name].submit(*arguments)
        for name, arguments in POISON_IN_A_CHILD.items()
    }
    sound = await app.submit_many([app.tasks["isolated"].prepare() for _ in range(3)])
    worker = app.worker(concurrency=3, **BRISK)
    async with worker:
        assert set(await all_ended(poison.values(), PATIENCE)) == {State.DEAD_LETTERED}
        assert set(await all_ended(sound)) == {State.SUCCEEDED}
    assert worker.failed is None
    for name, job in poison.items():
        tries = 1 if name in UNFIT_RESULT else 3
        code = "validation_failed" if name in UNFIT_RESULT else "exhausted_retries"
        assert await facts_of(job) == (State.DEAD_LETTERED, code, tries), name
        begun = [effect.attempt for effect in resource.of(job.id) if effect.what == "begin"]
        assert len(begun) == tries, (name, begun)
        assert begun == sorted(set(begun)), (name, begun)
    everything = [job.id for job in (*poison.values(), *sound)]
    await assert_kept(await app.store(), resource, everything)


async def test_poison_beside_others_in_a_worker_ends_in_the_dead_letters(
    app: Holdfast, resource: Resource
) -> None:
    names = {"strange_result_here": (), "strange_error_here": (), "endless_here": ()}
    poison = {name: await app.tasks[name].submit(*words) for name, words in names.items()}
    poison["huge_here"] = await app.tasks["huge_here"].submit(HUGE // 20)
    sound = await app.submit_many([app.tasks["quick"].prepare() for _ in range(3)])
    async with app.worker(**BRISK):
        assert set(await all_ended(poison.values())) == {State.DEAD_LETTERED}
        assert set(await all_ended(sound)) == {State.SUCCEEDED}
    everything = [job.id for job in (*poison.values(), *sound)]
    await assert_kept(await app.store(), resource, everything)


@pytest.mark.req("B9", "B11")
async def test_a_job_that_kills_its_worker_ends_in_the_dead_letters_and_not_in_a_loop(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    job = await app.tasks["exits_its_worker"].submit()
    for _ in range(3):
        victim = crew.start(**BRISK)
        assert await asyncio.to_thread(victim.wait) == 7, victim.said()
    sound = await app.tasks["quick"].submit()
    last = crew.start(**BRISK)
    assert await all_ended([job, sound]) == [State.DEAD_LETTERED, State.SUCCEEDED]
    assert last.alive
    last.send(signal.SIGTERM)
    assert await asyncio.to_thread(last.wait) == 0, last.said()
    assert await facts_of(job) == (State.DEAD_LETTERED, "exhausted_retries", 3)
    await assert_kept(await app.store(), resource, [job.id, sound.id])
