"""Reconcilers beside each other, and what happens between a sweep's look and its write."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.ids import jitter, mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Actor, Change, Job
from holdfast.lifecycle.states import EventType, Role, State
from holdfast.ports.models import ClaimRequest, Committed, Due
from holdfast.ports.store import Store
from holdfast.services.reconciler import Reconciler
from holdfast.tasks.handles import JobHandle
from tests.crashes.outages import suspend_between_writes
from tests.crashes.waiting import all_ended, until
from tests.crashes.wrapped import Pausing, app_through
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms"}


def finish(store: Store, job: Job, owner: str) -> Any:
    """Start and end a claimed job as its owner would, in one commit."""
    actor = Actor(Role.OWNER, owner, job.attempt)
    start = decide(job, c.Start(actor=actor))
    assert isinstance(start, Change)
    end = decide(start.next, c.Complete(actor=actor, body=b"null"))
    assert isinstance(end, Change)
    return store.commit([start, end])


async def claimed_by_hand(store: Store, owner: str) -> Job:
    """Claim one job for an owner that nobody renews for."""
    request = ClaimRequest(request_id=mint_request(), owner=owner, queues=("default",), limit=1)
    [claimed] = await store.claim(request)
    return claimed.job


async def test_two_reconcilers_at_once_end_each_lease_once(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    jobs: list[JobHandle[Any]] = await app.submit_many(
        [app.tasks["lasting"].prepare() for _ in range(20)]
    )
    victim = crew.start(concurrency=20, reconcile=False, **BRISK)
    await until(lambda: len(resource.all()) == len(jobs), "all to run")
    victim.kill()
    async with app.worker(**BRISK), app.worker(**BRISK):
        assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    for job in jobs:
        events = [event.type for event in await job.events()]
        given_back = events.count("job_released")
        assert events.count("job_stalled") == job.record.attempt - 1 - given_back
    await assert_kept(await app.store(), resource, [job.id for job in jobs])


@pytest.mark.req("B9", "C12")
async def test_a_job_that_is_finished_between_a_sweeps_look_and_its_write_stays_finished(
    app: Holdfast, url: str, resource: Resource
) -> None:
    store = await app.store()
    job = await app.tasks["quick"].submit()
    first = await claimed_by_hand(store, "dead")
    outcomes: list[Any] = []

    async def another_finishes(due: Due) -> None:
        """Do all that another reconciler and another worker may have done meanwhile."""
        assert [one.id for one in due.jobs] == [first.id]
        beside = Reconciler(store, "beside", jitter=jitter)
        assert (await beside.sweep()).written == {EventType.STALLED: 1}
        again = await claimed_by_hand(store, "alive")
        outcomes.extend(await finish(store, again, "alive"))

    await until(lambda: _lease_passed(store, first), "the lease to pass")
    paused: Any = Pausing(store, another_finishes)
    report = await Reconciler(paused, "late", jitter=jitter).sweep()

    assert (report.lost, report.written) == (1, {})
    assert all(isinstance(one, Committed) for one in outcomes)
    assert (await job.refresh()).state is State.SUCCEEDED
    assert job.record.attempt == 2
    await assert_kept(store, resource, [job.id])


async def _lease_passed(store: Store, job: Job) -> bool:
    return (await store.clock()).now > (job.lease_expires_at or 0)


@pytest.mark.req("B8")
async def test_a_lease_renewed_between_a_sweeps_look_and_its_write_is_left_alone(
    app: Holdfast, url: str, crew: Crew, resource: Resource
) -> None:
    """A worker that was stopped for a while goes on just then: the stale sweep must lose."""
    job = await app.tasks["lasting"].submit(1.0)
    looked: list[Due] = []
    victim = crew.start(reconcile=False, **BRISK)
    await until(lambda: resource.saw(job.id, "begin"), "the job to run")
    await asyncio.to_thread(suspend_between_writes, victim, url)

    async def goes_on(due: Due) -> None:
        if not looked:
            looked.append(due)
            victim.resume()
            await asyncio.sleep(0.3)

    async with (
        app_through(url, lambda store: Pausing(store, goes_on)) as troubled,
        troubled.worker(**BRISK),
    ):
        assert await all_ended([job]) == [State.SUCCEEDED]
    assert looked
    await assert_kept(await app.store(), resource, [job.id])


async def test_a_reconciler_killed_in_the_middle_is_replaced_by_any_other(
    app: Holdfast, crew: Crew, resource: Resource
) -> None:
    jobs = await app.submit_many([app.tasks["lasting"].prepare() for _ in range(8)])
    victim = crew.start(reconcile=False, **BRISK)
    await until(lambda: len(resource.all()) == len(jobs), "all to run")
    victim.kill()
    # The sweeper's own commits do not pass the desk: it dies while it claims what it has freed.
    sweeper = crew.start(die_at="claim.answered:2", **BRISK)
    assert await asyncio.to_thread(sweeper.wait) == -signal.SIGKILL, sweeper.said()
    async with app.worker(**BRISK):
        assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    await assert_kept(await app.store(), resource, [job.id for job in jobs])
