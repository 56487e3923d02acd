"""The bus's ownership: renewed by any bridge, taken back after an absence, ended at its limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.lifecycle.lease import has_expired
from holdfast.lifecycle.times import SECOND
from tests.buses.site import SHORT, Site, settings_of, succeed, until, until_async

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])


async def _until_expired(site: Site, *names: str) -> None:
    async def all_expired() -> bool:
        now = (await site.store.clock()).now
        return all([has_expired(await site.job(name), now) for name in names])

    await until_async(all_expired, "the leases to pass")


@both_engines
@pytest.mark.req("A19")
async def test_leases_are_renewed_while_a_worker_works_and_says_nothing(site: Site) -> None:
    site.sweeping()
    async with site.bridge(settings_of(**SHORT)):
        await site.listen("job.once")
        for name in ("claimed", "running"):
            await site.submit(name)
            await site.out(name)
        await site.say("running", "RUNNING")
        start = (await site.store.clock()).now

        async def long_after() -> bool:
            return (await site.store.clock()).now > start + 5 * SECOND

        await until_async(long_after, "several leases to pass")
        for name in ("claimed", "running"):
            await site.say(name, "SUCCEEDED")
            job = await site.ended(name)
            assert (job.succeeded, job.attempt) == (True, 1)


@both_engines
@pytest.mark.req("A19", "A17")
async def test_bridges_that_were_away_longer_than_the_lease_lose_no_result(site: Site) -> None:
    names = [f"j{number}" for number in range(20)]
    async with site.bridge(settings_of(**SHORT)):
        await site.listen("job.once")
        for name in names:
            await site.submit(name)
        for name in names:
            await site.out(name)
    # Meanwhile they end, and their results wait in the stream; the leases pass.
    site.sweeping()
    for name in names:
        await site.say(name, "SUCCEEDED", result_ptr=f"s3://{name}")
    await _until_expired(site, *names)
    async with site.bridge(settings_of(**SHORT)) as bridge:
        for name in names:
            job = await site.ended(name)
            assert (job.succeeded, job.attempt, job.result_ptr) == (True, 1, f"s3://{name}")
        assert bridge.meters.bus.adopted == len(names)


@both_engines
@pytest.mark.req("A17")
async def test_bridges_that_do_not_return_leave_a_timeout_by_the_reconciler(site: Site) -> None:
    settings = settings_of(**SHORT, recovery=1 * SECOND)
    async with site.bridge(settings):
        await site.listen("job.once")
        await site.submit("j")
        await site.out("j")
    site.sweeping()
    job = await site.ended("j")
    assert job.timed_out
    assert (await site.events("j"))[-1].actor == "reconciler:test"


def _limited(topic: str, **terms: Any) -> Any:
    return settings_of({topic: {"bus": "main", **terms}})


@both_engines
@pytest.mark.req("A17")
async def test_a_job_that_is_never_started_ends_timeout_by_the_reconciler(site: Site) -> None:
    site.sweeping()
    async with site.bridge(_limited("job.once", start_timeout_seconds=0.5)):
        sent = await site.listen("job.once")
        await site.submit("j")
        job = await site.ended("j")
    assert (job.timed_out, job.error_code, len(sent)) == (True, "start_timeout", 1)
    # Its bridge, which has read what came from the bus, does the reconciler's part.
    assert (await site.events("j"))[-1].actor == "reconciler:bus:main"


@both_engines
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.req("A17", "A19")
async def test_bridges_that_were_away_past_the_time_limit_lose_no_result(
    site: Site, started: bool
) -> None:
    settings = _limited("job.once", timeout_seconds=1.0)
    async with site.bridge(settings):
        await site.listen("job.once")
        await site.submit("j")
        job = await site.out("j")
        if started:
            await site.say("j", "RUNNING")
            job = await site.until("j", lambda job: job.running, "to run")
    # The result is on the bus in time; whoever sweeps cannot know.
    await site.say("j", "SUCCEEDED")
    site.sweeping()

    async def is_over() -> bool:
        return (await site.store.clock()).now > (job.timeout_at or 0) + SECOND

    await until_async(is_over, "the limit to pass")
    assert (await site.job("j")).owned
    async with site.bridge(settings):
        assert (await site.ended("j")).succeeded


@both_engines
@pytest.mark.req("A17")
async def test_a_worker_that_dies_without_a_word_leaves_a_timeout_at_the_timeout(
    site: Site,
) -> None:
    site.sweeping()
    async with site.bridge(_limited("job.once", timeout_seconds=0.5)):
        await site.listen("job.once")
        await site.submit("silent")
        await site.submit("started")
        await site.out("started")
        await site.say("started", "RUNNING")
        for name in ("silent", "started"):
            assert (await site.ended(name)).timed_out


@both_engines
@pytest.mark.req("A16", "A17", "A19")
async def test_an_idempotent_topic_is_sent_again_and_the_first_attempt_s_result_refused(
    site: Site,
) -> None:
    site.sweeping()
    settings = _limited("job.again", idempotent=True, retries=5, timeout_seconds=1.0)
    async with site.bridge(settings):
        sent = await site.listen("job.again")
        await site.submit("j", "job.again")
        await until(lambda: len(sent) >= 2, "the second dispatch")
        await site.say("j", "SUCCEEDED", attempt=1, result_ptr="s3://old")
        await until(lambda: len(sent) >= 3, "the third dispatch")
        attempt = sent[-1].job_request.dispatch.attempt
        await site.say("j", "SUCCEEDED", attempt=attempt, result_ptr="s3://new")
        job = await site.ended("j")
    assert (job.succeeded, job.attempt, job.result_ptr) == (True, attempt, "s3://new")


@pytest.mark.req("A17")
async def test_a_deadline_from_the_budget_ends_a_running_job(site: Site) -> None:
    from cap.pb.cordum.agent.v1 import job_pb2

    site.sweeping()
    async with site.bridge():
        await site.listen("job.once")
        await site.submit("j", budget=job_pb2.Budget(deadline_ms=700))
        await site.out("j")
        await site.say("j", "RUNNING")
        job = await site.ended("j")
    assert (job.timed_out, job.error_code) == (True, "deadline")


async def test_a_result_that_finds_its_lease_passed_takes_the_job_back_first(site: Site) -> None:
    # This bridge looks after leases so rarely that they pass.
    settings = settings_of(**SHORT, tick_seconds=600.0)
    async with site.bridge(settings) as bridge:
        await site.listen("job.once")
        await site.submit("j")
        await site.out("j")
        await _until_expired(site, "j")
        await site.say("j", "SUCCEEDED")
        assert (await site.ended("j")).succeeded
        assert bridge.meters.bus.adopted == 1


async def test_another_bridge_goes_on_at_once_when_one_stops(site: Site) -> None:
    async with site.bridge():
        async with site.bridge():
            await site.worker("job.once", succeed)
            await site.submit("a")
            await site.ended("a")
        await site.submit("b")
        assert (await site.ended("b")).succeeded
    await asyncio.sleep(0)
