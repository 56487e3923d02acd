"""Sending jobs: to whom, how many at once, and what happens where nobody listens."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from cap.heartbeat import emit_heartbeat, heartbeat_payload
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2

from holdfast.lifecycle.record import Job
from holdfast.operations.local import LocalOperations
from holdfast.operations.requests import ExplainJob
from holdfast.operations.session import StoreSession
from holdfast.ports.models import Announcement
from holdfast.services.bus_bridge import dispatch, listeners
from holdfast.services.bus_bridge.listeners import Listeners
from tests.buses.site import ROUTES, Site, settings_of, succeed, until, until_async

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])


@both_engines
@pytest.mark.req("A2")
async def test_a_topic_without_subscribers_costs_nothing_and_goes_on_when_one_comes(
    site: Site,
) -> None:
    async with site.bridge() as bridge:
        await site.submit("j")
        job = await site.until("j", lambda job: job.releases >= 2, "to be released")
        assert (job.failures, bridge.meters.bus.sent["no_listener"] >= 2) == (0, True)
        await site.worker("job.once", succeed)
        job = await site.ended("j")
    assert (job.succeeded, job.failures) == (True, 0)
    reasons = [event.reason for event in await site.events("j") if event.type == "job_released"]
    assert set(reasons) == {"no worker listens to the topic"}


async def test_a_job_that_nobody_listened_to_for_long_is_not_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(listeners, "LONGEST_PAUSE_SECONDS", 0.01)
    async with site.bridge():
        await site.submit("j")
        # More often than a job may be released for nothing: from then on it pauses instead.
        await site.until("j", lambda job: job.attempt >= 11, "to be released often")
        await site.worker("job.once", succeed)
        job = await site.ended("j")
    assert (job.succeeded, job.failures) == (True, 0)


@pytest.mark.parametrize("word", ["heartbeat", "handshake"])
async def test_a_heartbeat_or_a_handshake_opens_a_topic_at_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(listeners, "FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(listeners, "LONGEST_PAUSE_SECONDS", 3600.0)
    async with site.bridge():
        await site.submit("j")
        await site.until("j", lambda job: job.releases == 1, "to be released")
        await site.worker("job.once", succeed)
        if word == "heartbeat":
            payload = heartbeat_payload("worker-1", "job.once", 0, 1, 0.0)
            await emit_heartbeat(site.client, payload)
        else:
            await _shake_hands(site)
        assert (await site.ended("j")).succeeded


async def _shake_hands(site: Site) -> None:
    from cap.handshake import publish_handshake

    await publish_handshake(site.client, "worker-1", ready_topics=["job.once"])


def test_a_known_worker_s_heartbeat_for_another_topic_opens_nothing() -> None:
    opened: list[bool] = []
    found = Listeners(lambda: opened.append(True))
    from holdfast.ports.bus import WorkerPresence

    def beat(topic: str) -> None:
        found._learn(
            WorkerPresence(
                sender="w", topics=(topic,), capabilities=frozenset({"gpu"}), concurrency=1
            )
        )

    beat("job.x")
    found.close("job.y")
    beat("job.x")
    assert (opened, found.is_open("job.y")) == ([], False)
    beat("job.y")
    assert (opened, found.is_open("job.y")) == ([True], True)
    assert found.capabilities == {"gpu"}


@both_engines
@pytest.mark.req("A2", "A19")
async def test_no_more_jobs_are_out_than_the_topic_allows_over_three_bridges(site: Site) -> None:
    most, now = 0, 0
    hold = asyncio.Event()

    async def handle(request: Any) -> Any:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await hold.wait()
        now -= 1
        return await succeed(request)

    async with site.bridge(), site.bridge(), site.bridge():
        for number in range(10):
            await site.worker("job.few", handle, name=f"worker-{number}")
        for number in range(12):
            await site.submit(f"j{number}", "job.few")
        await until(lambda: now > 0, "one to run")
        out = await site.store.owned("bus:main")
        hold.set()
        assert len(out) <= 3
        for number in range(12):
            assert (await site.ended(f"j{number}")).succeeded
    assert most <= 3
    assert await _most_out(site, 12) <= 3


async def _most_out(site: Site, jobs: int) -> int:
    """How many were owned at once, by the ledger."""
    changes: list[tuple[int, int]] = []
    for number in range(jobs):
        for event in await site.events(f"j{number}"):
            if event.type == "job_claimed":
                changes.append((event.at, 1))
            elif event.type in ("job_released", "job_succeeded"):
                changes.append((event.at, -1))
    out = most = 0
    # An end and a claim in the same microsecond: the end came first.
    for _, change in sorted(changes):
        out += change
        most = max(most, out)
    return most


@pytest.mark.req("A5")
async def test_an_adapter_and_what_a_job_requires_are_needs_that_the_bus_must_have(
    site: Site,
) -> None:
    routes = {**ROUTES, "job.any.prefer": {"bus": "main", "adapter": "prefer"}}
    settings = settings_of(routes, capabilities=frozenset({"adapter:a", "docker"}))
    async with site.bridge(settings):
        for topic in ("job.once", "job.any.prefer"):
            await site.worker(topic, succeed)
        docker = job_pb2.JobMetadata(requires=["docker"])
        await site.submit("served", adapter_id="a", meta=docker)
        await site.submit("hint", "job.any.prefer", adapter_id="b")
        await site.submit("unserved", adapter_id="b")
        assert (await site.ended("served")).succeeded
        assert (await site.ended("hint")).succeeded
        job = await site.job("unserved")
        assert (job.attempt, job.needs) == (0, frozenset({"adapter:b"}))


@pytest.mark.req("A5")
async def test_capabilities_that_a_worker_announces_count_beside_a_worker_that_names_too_many(
    site: Site,
) -> None:
    async with site.bridge():
        await site.worker("job.once", succeed)
        junk = [f"junk-{number}" for number in range(1000)]
        for name, capabilities in (("greedy", junk), ("worker-1", ["adapter:x"])):
            packet = buspacket_pb2.BusPacket()
            packet.ParseFromString(heartbeat_payload(name, "job.once", 0, 1, 0.0))
            packet.heartbeat.capabilities.extend(capabilities)
            await site.send("sys.heartbeat", packet.SerializeToString())
        await site.submit("j", adapter_id="x")
        assert (await site.ended("j")).succeeded


async def test_why_names_what_a_job_of_the_bus_waits_for(site: Site) -> None:
    async with site.bridge():
        await site.submit("j")
        await site.until("j", lambda job: job.releases >= 1, "to be released")
        local = LocalOperations(StoreSession(site.store), name="test", tenant="default")
        found: list[str] = []

        async def says_so() -> bool:
            why = await local.do(ExplainJob(job="j"))
            found[:] = [one.code for one in (why.reason, *why.also)]
            return "no_topic_worker" in found

        await until_async(says_so, "why to say that nobody listens", lambda: found)


async def test_a_bridge_that_sends_nothing_does_not_announce_what_it_cannot_know(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "ANNOUNCE_SECONDS", 0.1)
    announced: list[tuple[str, ...]] = []
    real = site.store.announce

    async def announce(announcement: Announcement) -> None:
        announced.append(announcement.queues)
        await real(announcement)

    monkeypatch.setattr(site.store, "announce", announce)
    async with site.bridge(), site.bridge():
        await site.submit("j")
        await site.until("j", lambda job: job.releases >= 1, "to be released")
        await until(lambda: bool(announced) and "job.once" not in announced[-1], "that to be known")
        announced.clear()
        await until(lambda: len(announced) >= 10, "both to have looked again")
        assert not any("job.once" in one for one in announced)
        local = LocalOperations(StoreSession(site.store), name="test", tenant="default")
        why = await local.do(ExplainJob(job="j"))
    assert "no_topic_worker" in [one.code for one in (why.reason, *why.also)]


@pytest.mark.req("A2")
async def test_a_job_that_no_packet_can_hold_ends_and_stops_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "PACKET_BYTES", 2000)
    async with site.bridge():
        await site.worker("job.once", succeed)
        await site.submit("large", env={str(number): "y" * 900 for number in range(4)})
        await site.submit("small")
        job: Job = await site.ended("large")
        assert (await site.ended("small")).succeeded
    assert (job.state, job.error_code) == ("failed", "undeliverable")


@pytest.mark.req("A2")
async def test_a_worker_that_takes_long_gets_everything_in_the_end(site: Site) -> None:
    done: list[str] = []

    async def slow(request: Any) -> Any:
        await asyncio.sleep(0.005)
        done.append(request.job_id)
        return await succeed(request)

    async with site.bridge():
        await site.worker("job.once", slow)
        for number in range(200):
            await site.submit(f"j{number}")
        start = time.monotonic()
        for number in range(200):
            assert (await site.ended(f"j{number}")).succeeded, time.monotonic() - start
    assert len(done) == 200
