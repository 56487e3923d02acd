"""Workers that fell behind their lease: stopped, blocked, or holding the interpreter."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle
from tests.crashes.apps import STEADY_LEASE_SECONDS
from tests.crashes.outages import suspend_between_writes
from tests.crashes.waiting import all_ended, until
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms"}


async def ended_attempt(job: JobHandle[Any]) -> int:
    """Tell which attempt a job that succeeded ended with."""
    assert (await job.refresh()).state is State.SUCCEEDED
    return job.record.attempt


@pytest.mark.req("B8", "C4", "B32")
async def test_a_worker_stopped_past_its_lease_is_refused_when_it_goes_on(
    app: Holdfast, url: str, crew: Crew, resource: Resource, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    jobs = [await app.tasks[name].submit(str(gate)) for name in ("steady_gated", "steady_heedless")]
    victim = crew.start(**BRISK)
    for job in jobs:
        await until(lambda job=job: resource.saw(job.id, "begin"), "the victim to run it")
    await asyncio.to_thread(suspend_between_writes, victim, url)
    gate.touch()
    async with app.worker(**BRISK):
        assert await all_ended(jobs) == [State.SUCCEEDED, State.SUCCEEDED]
    before = [await ended_attempt(job) for job in jobs]
    assert min(before) > 1

    victim.resume()
    await until(lambda: resource.saw(jobs[1].id, "end", attempt=1), "the victim to go on")
    another = await app.tasks["quick"].submit()
    assert await all_ended([another]) == [State.SUCCEEDED], "it works on"
    victim.send(signal.SIGTERM)
    assert await asyncio.to_thread(victim.wait) == 0, victim.said()

    for job, attempt in zip(jobs, before, strict=True):
        assert await ended_attempt(job) == attempt
        late = [effect for effect in resource.of(job.id) if effect.attempt < attempt]
        # The first handler may have been killed before it could act; the second acts anyhow.
        refused = [False] if job is jobs[1] else []
        assert [e.accepted for e in late if e.what == "end"] in ([False], refused)
    await assert_kept(await app.store(), resource, [job.id for job in (*jobs, another)])


@pytest.mark.req("B13", "C4")
async def test_a_completion_that_comes_after_the_cancel_is_refused(
    app: Holdfast, url: str, crew: Crew, resource: Resource, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = await app.tasks["steady_heedless"].submit(str(gate))
    victim = crew.start(**BRISK)
    await until(lambda: resource.saw(job.id, "begin"), "the victim to run it")
    await asyncio.to_thread(suspend_between_writes, victim, url)
    await job.cancel(hard=True)
    async with app.worker(**BRISK):
        assert await all_ended([job]) == [State.CANCELLED]
    gate.touch()

    victim.resume()
    another = await app.tasks["quick"].submit()
    assert await all_ended([another]) == [State.SUCCEEDED]
    victim.send(signal.SIGTERM)
    assert await asyncio.to_thread(victim.wait) == 0, victim.said()
    assert (await job.refresh()).state is State.CANCELLED
    assert {effect.attempt for effect in resource.of(job.id)} == {1}, "it never ran again"
    await assert_kept(await app.store(), resource, [job.id, another.id])


STOPS = ("claim.answered", "handler.entering", "handler.returned", "commit.sending")


@pytest.mark.req("C4")
@pytest.mark.parametrize("point", STOPS)
async def test_what_a_worker_stopped_at_a_point_still_sends_is_refused(
    app: Holdfast, crew: Crew, resource: Resource, point: str
) -> None:
    job = await app.tasks["quick"].submit()
    victim = crew.start(stop_at=point, **BRISK)
    await asyncio.to_thread(victim.wait_stopped)
    async with app.worker(**BRISK):
        assert await all_ended([job]) == [State.SUCCEEDED]
    attempt = await ended_attempt(job)
    assert attempt > 1

    victim.resume()
    await until(lambda: "is lost" in victim.said(), "the victim to be told")
    assert await ended_attempt(job) == attempt
    await assert_kept(await app.store(), resource, [job.id])


@pytest.mark.req("B8")
async def test_a_handler_that_blocks_the_loop_for_three_leases_keeps_its_job(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    job = await app.tasks["blocking"].submit(3 * STEADY_LEASE_SECONDS)
    crew.start(**BRISK)
    await until(lambda: resource.saw(job.id, "begin"), "the job to run")
    async with app.worker(**BRISK):
        assert await all_ended([job]) == [State.SUCCEEDED]
    assert await ended_attempt(job) == 1
    events = [event.type for event in await job.events()]
    assert events.count("job_lease_renewed") >= 3
    await assert_kept(await app.store(), resource, [job.id])


async def test_a_handler_that_holds_the_interpreter_is_fenced_and_ends_once(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    job = await app.tasks["hoarding"].submit(2 * STEADY_LEASE_SECONDS)
    victim = crew.start(**BRISK)
    await until(lambda: resource.saw(job.id, "begin"), "the job to run")
    async with app.worker(**BRISK):
        assert await all_ended([job]) == [State.SUCCEEDED]
    assert await ended_attempt(job) > 1, "no thread of that process could renew its lease"

    await until(lambda: resource.saw(job.id, "end", attempt=1), "the victim to go on")
    another = await app.tasks["quick"].submit()
    assert await all_ended([another]) == [State.SUCCEEDED], "it works on"
    assert victim.alive
    await assert_kept(await app.store(), resource, [job.id, another.id])
