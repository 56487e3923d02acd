"""Writes that landed though nobody heard of it: repeated, they are found, not done again."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import EventType, State
from tests.crashes.apps import make_app
from tests.crashes.waiting import all_ended
from tests.crashes.wrapped import ForgettingClaims, LosingReplies, Loss, app_through
from tests.support.checker import assert_kept
from tests.support.proxy import FaultProxy
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms", "grace": "0s"}
KINDS = ("steady_quick", "steady_shaky", "steady_careful", "steady_reporting")
LOST_COMMITS = [
    EventType.STARTED,
    EventType.SUCCEEDED,
    EventType.RETRYING,
    EventType.PROGRESSED,
]


async def run_all(app: Holdfast, resource: Resource) -> list[Any]:
    """Run a job of each kind to its end, and check what is left."""
    jobs = await app.submit_many([app.tasks[kind].prepare() for kind in KINDS])
    async with app.worker(**BRISK) as worker:
        assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    assert worker.meters.fences == 0, "what landed was not refused"
    await assert_kept(await app.store(), resource, [job.id for job in jobs])
    return jobs


@pytest.mark.req("C6", "B4")
@pytest.mark.parametrize("kind", LOST_COMMITS)
async def test_an_ack_lost_after_the_commit_is_not_written_again(
    url: str, resource: Resource, kind: EventType
) -> None:
    loss = Loss(kind)
    async with app_through(url, lambda store: LosingReplies(store, loss)) as app:
        jobs = await run_all(app, resource)
        assert loss.lost > 0
        for job in jobs:
            types = [event.type for event in await job.events()]
            assert types.count("job_started") == types.count("job_claimed")


async def test_a_release_whose_ack_was_lost_burns_no_attempt(url: str, resource: Resource) -> None:
    loss = Loss(EventType.RELEASED)
    async with app_through(url, lambda store: LosingReplies(store, loss)) as app:
        job = await app.tasks["steady_gated"].submit("/nowhere")
        async with app.worker(**BRISK):
            while not resource.saw(job.id, "begin"):
                await job.refresh()
        assert loss.lost == 2
        assert ((await job.refresh()).state, job.record.failures) == (State.STALLED, 0)
        types = [event.type for event in await job.events()]
        assert types.count("job_released") == 1
        await job.cancel()
        await assert_kept(await app.store(), resource, [job.id])


@pytest.mark.req("C6")
async def test_a_claim_whose_reply_was_lost_is_asked_for_again(
    url: str, resource: Resource
) -> None:
    loss = Loss(times=3)
    async with app_through(url, lambda store: LosingReplies(store, loss)) as app:
        jobs = await run_all(app, resource)
        assert loss.lost == 3
        for job in jobs:
            claims = [event for event in await job.events() if event.type == "job_claimed"]
            assert len(claims) == (2 if job.record.task == "steady_shaky" else 1)


async def test_a_claim_that_its_worker_does_not_know_of_is_given_back_and_run(
    url: str, resource: Resource
) -> None:
    loss = Loss(times=1)
    async with app_through(url, lambda store: ForgettingClaims(store, loss)) as app:
        # The lease is a minute: nothing but the worker's own rounds gives it back in time.
        job = await app.tasks["patient"].submit()
        async with app.worker(**BRISK):
            assert await all_ended([job]) == [State.SUCCEEDED]
        assert (job.record.attempt, job.record.failures) == (2, 0)
        await assert_kept(await app.store(), resource, [job.id])


STATEMENTS = {"claim": b"INSERT INTO claims", "commit": b"UPDATE jobs"}


@pytest.mark.parametrize("statement", STATEMENTS)
async def test_a_line_that_breaks_after_the_statement_changes_nothing(
    proxy: FaultProxy, postgres_url: str, resource: Resource, statement: str
) -> None:
    faults = []
    async with make_app(proxy.url(postgres_url)) as app:
        jobs = await app.submit_many([app.tasks[kind].prepare() for kind in KINDS])
        async with app.worker(**BRISK):
            for _ in range(3):
                faults.append(proxy.drop_reply_after(STATEMENTS[statement]))
                jobs += await app.submit_many([app.tasks[kind].prepare() for kind in KINDS])
                await faults[-1].happened()
            assert set(await all_ended(jobs)) == {State.SUCCEEDED}
        assert all(fault.bitten for fault in faults)
        await assert_kept(await app.store(), resource, [job.id for job in jobs])
