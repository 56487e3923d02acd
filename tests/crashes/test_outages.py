"""The database goes away: under load, in the middle of a recovery, and for longer than a lease."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from holdfast.ports.models import Due
from holdfast.tasks.handles import JobHandle
from tests.crashes.apps import BRISK as BRISK_LEASES
from tests.crashes.apps import DEADLINE, LEASE_SECONDS, make_app
from tests.crashes.outages import outage
from tests.crashes.waiting import all_ended, until
from tests.crashes.wrapped import Pausing, app_through
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms"}
KINDS = ("quick", "shaky", "lasting", "threaded", "reporting")
IMPATIENT = 0.3
"""Seconds after which a store tells that its database does not answer."""


async def submit_some(app: Holdfast, times: int) -> list[JobHandle[Any]]:
    """Submit jobs of every kind."""
    return await app.submit_many([app.tasks[kind].prepare() for kind in KINDS * times])


@pytest.mark.req("B4", "E2")
async def test_a_database_killed_under_load_loses_nothing(
    app: Holdfast, crew: Crew, url: str, resource: Resource, request: pytest.FixtureRequest
) -> None:
    jobs = await submit_some(app, 4)
    members = [crew.start(**BRISK).wait_ready() for _ in range(2)]
    for ran in (5, 25):
        await until(lambda ran=ran: len(resource.all()) > ran, "the load to run")
        async with outage(url, request):
            await asyncio.sleep(LEASE_SECONDS / 3)
        jobs += await submit_some(app, 4)
    assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    for member in members:
        assert member.alive, "a restart must not end a worker: " + member.said()
    for member in members:
        member.send(signal.SIGTERM)
        assert await asyncio.to_thread(member.wait) == 0, member.said()
    await assert_kept(await app.store(), resource, [job.id for job in jobs])


async def test_a_recovery_interrupted_by_a_restart_of_the_database_is_done_again(
    app: Holdfast, crew: Crew, url: str, resource: Resource, request: pytest.FixtureRequest
) -> None:
    jobs = await submit_some(app, 4)
    victim = crew.start(die_at="handler.returned:3", **BRISK)
    assert await asyncio.to_thread(victim.wait) == -signal.SIGKILL, victim.said()
    interrupted = 0

    async def away(due: Due) -> None:
        nonlocal interrupted
        if interrupted < 2:
            interrupted += 1
            async with outage(url, request):
                await asyncio.sleep(LEASE_SECONDS / 3)

    async with (
        app_through(url, lambda store: Pausing(store, away)) as troubled,
        troubled.worker(**BRISK),
    ):
        assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    assert interrupted > 0
    await assert_kept(await app.store(), resource, [job.id for job in jobs])


@pytest.mark.req("B8")
async def test_a_worker_that_lost_its_database_stops_what_it_cannot_prove_and_comes_back(
    url: str, resource: Resource, request: pytest.FixtureRequest
) -> None:
    reasons: list[str | None] = []
    begun = asyncio.Event()
    app = make_app(url, deadline_seconds=IMPATIENT)

    @app.task(retries=50, **BRISK_LEASES)
    async def waits(ctx: Context) -> int:
        begun.set()
        if ctx.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                reasons.append(ctx.cancelled.reason)
        return ctx.attempt

    async with app:
        worker = app.worker(**BRISK)
        async with worker:
            job = await waits.submit()
            await asyncio.wait_for(begun.wait(), 10)
            async with outage(url, request):
                await until(lambda: bool(reasons), "the attempt to be stopped")
            another = await app.tasks["quick"].submit()
            assert await all_ended([job, another]) == [State.SUCCEEDED] * 2
        assert worker.failed is None
        assert reasons == ["lease_lost"]
        assert job.record.attempt > 1
        await assert_kept(await app.store(), resource, [job.id, another.id])


async def test_a_worker_started_while_its_database_is_away_waits_for_it(
    app: Holdfast, url: str, resource: Resource, crew: Crew, request: pytest.FixtureRequest
) -> None:
    job = await app.tasks["quick"].submit()
    async with outage(url, request):
        member = crew.start(environment={DEADLINE: str(IMPATIENT)}, **BRISK)
        await until(lambda: member.said().count("will try again") >= 2, "it to try")
        assert member.alive
    assert await all_ended([job]) == [State.SUCCEEDED]
    await assert_kept(await app.store(), resource, [job.id])


@pytest.mark.req("B8")
async def test_a_worker_stopped_while_its_database_is_away_ends_and_loses_nothing(
    app: Holdfast, url: str, resource: Resource, crew: Crew, request: pytest.FixtureRequest
) -> None:
    jobs = await app.submit_many([app.tasks["lasting"].prepare(5) for _ in range(3)])
    member = crew.start_command("--grace", "1")
    await until(lambda: len(resource.all()) == len(jobs), "all to run")
    async with outage(url, request):
        member.send(signal.SIGTERM)
        # Each request alone waits for half a minute: several must not add up.
        assert await asyncio.to_thread(member.wait, 45) == 1, member.said()
    async with app.worker(**BRISK):
        assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    await assert_kept(await app.store(), resource, [job.id for job in jobs])
