"""Deploys: SIGTERM under load, workers side by side, and names that never come back."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle
from tests.crashes.apps import STEADY_LEASE_SECONDS
from tests.crashes.waiting import all_ended, until
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms"}
KINDS = (
    "steady_quick",
    "steady_careful",
    "steady_threaded",
    "steady_lasting",
    "steady_careful_lasting",
    "steady_isolated",
)


@pytest.mark.req("B29")
async def test_a_deploy_under_load_loses_nothing_and_burns_no_attempt(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    jobs: list[JobHandle[Any]] = []
    old = crew.start_command("--concurrency", "4", "--poll", "0.05")
    for _ in range(3):
        ran = len(resource.all())
        jobs += await app.submit_many([app.tasks[kind].prepare() for kind in KINDS * 3])
        await until(lambda ran=ran: len(resource.all()) >= ran + 4, "the old one to work")
        new = crew.start_command("--concurrency", "4", "--poll", "0.05")
        old.send(signal.SIGTERM)
        assert await asyncio.to_thread(old.wait) == 0, old.said()
        old = new
    assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    assert {(await job.refresh()).record.failures for job in jobs} == {0}
    old.send(signal.SIGTERM)
    assert await asyncio.to_thread(old.wait) == 0, old.said()
    await assert_kept(await app.store(), resource, [job.id for job in jobs])


async def test_what_outlasts_the_grace_is_given_back_and_burns_no_attempt(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    jobs = await app.submit_many([app.tasks["steady_lasting"].prepare(60) for _ in range(4)])
    old = crew.start_command("--grace", "0.1")
    await until(lambda: len(resource.all()) == len(jobs), "all to run")
    old.send(signal.SIGTERM)
    assert await asyncio.to_thread(old.wait) == 0, old.said()
    for job in jobs:
        await job.refresh()
        assert (job.state, job.record.failures) == (State.STALLED, 0)
        await job.cancel()
    await assert_kept(await app.store(), resource, [job.id for job in jobs])


@pytest.mark.req("B8")
async def test_leases_are_renewed_until_the_last_job_is_gone(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    job = await app.tasks["steady_lasting"].submit(2.5 * STEADY_LEASE_SECONDS)
    leaving = crew.start(**BRISK)
    await until(lambda: resource.saw(job.id, "begin"), "it to run")
    leaving.send(signal.SIGTERM)
    async with app.worker(**BRISK):
        assert await all_ended([job]) == [State.SUCCEEDED]
    assert (job.record.attempt, job.record.failures) == (1, 0)
    assert await asyncio.to_thread(leaving.wait) == 0, leaving.said()
    await assert_kept(await app.store(), resource, [job.id])


async def test_two_workers_and_twenty_slow_jobs_keep_both_busy(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    first = crew.start(concurrency=2, **BRISK).wait_ready()
    second = crew.start(concurrency=2, **BRISK).wait_ready()
    # Short ones first: whoever has seen only those must not hoard the slow ones.
    short = await app.submit_many([app.tasks["quick"].prepare() for _ in range(100)])
    await all_ended(short)
    jobs = await app.submit_many([app.tasks["threaded"].prepare(0.3) for _ in range(20)])
    assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    ran = Counter(resource.of(job.id)[0].pid for job in jobs)
    assert set(ran) == {first.process.pid, second.process.pid}
    assert min(ran.values()) >= 6, ran
    await assert_kept(await app.store(), resource, [job.id for job in (*short, *jobs)])


async def test_the_name_of_a_worker_never_comes_back(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    job = await app.tasks["lasting"].submit(0.1)
    names: list[str] = []
    for _ in range(3):
        member = crew.start(**BRISK).wait_ready()
        names.append(member.name)
        await until(lambda: _is_listed(app, names[-1]), "it to announce itself")
        member.kill()
    async with app.worker(**BRISK), app.worker(**BRISK) as again:
        names.append(again.name)
        assert await all_ended([job]) == [State.SUCCEEDED]
    names += [event.actor for event in await job.events() if event.type == "job_claimed"]
    assert len(set(names)) >= 4, names
    await assert_kept(await app.store(), resource, [job.id])


async def _is_listed(app: Holdfast, name: str) -> bool:
    return name in [worker.name for worker in await (await app.store()).workers()]
