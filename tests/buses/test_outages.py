"""Bridges and servers that are killed at the worst moments change latency, never an outcome."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nats import errors
from nats.aio.client import Client

from holdfast.buses.nats import NatsBus
from holdfast.buses.trust import Trust
from holdfast.errors import BadConfig
from holdfast.flow.cancel import cancel
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role
from holdfast.ports.store import Store
from holdfast.services.bus_bridge.bridge import BusBridge
from tests.buses.site import LIMIT_SECONDS, Site, settings_of, succeed, until, until_async
from tests.buses.test_submits import Program
from tests.support.named_points import bus_points

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
DIED_AT = {"bus.claimed": 0, "bus.published": 1}
"""Points around a dispatch, and how often a job was sent that a bridge died at."""


def test_every_point_of_a_bridge_is_died_at() -> None:
    # The third is in test_submits.
    assert {*DIED_AT, "bus.submitted"} == set(bus_points())


@both_engines
@pytest.mark.req("A16", "A17", "A19")
@pytest.mark.parametrize(("point", "sent"), DIED_AT.items())
async def test_a_bridge_killed_around_the_dispatch_sends_a_job_at_most_once(
    site: Site, url: str, tmp_path: Path, point: str, sent: int
) -> None:
    routes = {"job.once": {"bus": "main", "start_timeout_seconds": 1}}
    got = await site.listen("job.once")
    async with site.bridge(settings_of({"job.other": {"bus": "main"}})):
        pass
    await site.submit("j")
    killed = Program(site, url, tmp_path, HOLDFAST_DIE_AT=point)
    try:
        assert await asyncio.to_thread(killed.wait) == -signal.SIGKILL, killed.log()
    finally:
        killed.kill()
    await until(lambda: len(got) == sent, "what was sent before its death")
    assert (await site.job("j")).claimed
    async with site.bridge(settings_of(routes)):
        if sent:
            await site.say("j", "SUCCEEDED")
            assert (await site.ended("j")).succeeded
        else:
            # It was never sent, and nobody knows that. Its start timeout is an hour, as it was
            # submitted: the reconciler, or a person before that, ends it.
            await cancel(site.store, (await site.job("j")).id, Actor(Role.CONTROL, "someone"))
            assert (await site.ended("j")).cancelled
    assert len(got) == sent


@both_engines
@pytest.mark.usefixtures("short_redelivery")
@pytest.mark.req("A19")
async def test_a_bridge_that_was_stopped_for_a_while_does_not_send_again(
    site: Site, url: str, tmp_path: Path
) -> None:
    async with site.bridge():
        # It makes the stream, with a short patience for what the stopped one has taken.
        pass
    seen: Counter[str] = Counter()

    async def count(request: Any) -> Any:
        seen[request.job_id] += 1
        return await succeed(request)

    await site.worker("job.once", count)
    stopped = Program(site, url, tmp_path)
    try:
        await site.until_served(stopped)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        async with site.bridge():
            for number in range(10):
                await site.submit(f"j{number}")
            for number in range(10):
                assert (await site.ended(f"j{number}")).succeeded
            os.kill(stopped.process.pid, signal.SIGCONT)
            await site.submit("after")
            assert (await site.ended("after")).succeeded
    finally:
        stopped.kill()
    assert max(seen.values()) == 1


@both_engines
@pytest.mark.parametrize("jetstream", [True, False])
@pytest.mark.req("A19")
async def test_a_server_that_is_killed_and_started_again_changes_no_outcome(site: Site) -> None:
    site.sweeping()
    routes = {
        "job.again": {"bus": "main", "idempotent": True, "retries": 20, "timeout_seconds": 3.0}
    }
    names: list[str] = []
    async with site.bridge(settings_of(routes)):
        await site.worker("job.again", succeed)
        for round_ in range(3):
            for number in range(5):
                names.append(f"j{round_}-{number}")
                await _submit_until_stored(site, names[-1])
            site.server.kill()
            site.server.start()
        for name in names:
            assert (await site.ended(name)).succeeded


@pytest.mark.req("A16", "A17")
async def test_a_job_whose_sending_was_cut_off_is_not_sent_again_and_times_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = {"job.once": {"bus": "main", "start_timeout_seconds": 1.0}}
    cut = asyncio.Event()

    async def lose(bus: NatsBus, client: Client) -> set[str]:
        cut.set()
        raise errors.ConnectionClosedError

    site.sweeping()
    heard = await site.listen("job.once")
    async with site.bridge(settings_of(routes)) as bridge:
        with monkeypatch.context() as patch:
            patch.setattr(NatsBus, "_find_unheard", lose)
            await site.submit("j")
            await asyncio.wait_for(cut.wait(), LIMIT_SECONDS)
        job = await site.ended("j")
        assert bridge.meters.bus.sent == {"unknown": 1}
    assert (job.state, job.attempt, len(heard)) == ("timed_out", 1, 1)


async def _submit_until_stored(site: Site, job_id: str) -> None:
    """Submit as a careful client does: again, until it is there. It is one job all the same."""
    limit = time.monotonic() + 60
    while await site.find(job_id) is None:
        assert time.monotonic() < limit, job_id
        with suppress(errors.Error):
            await site.submit(job_id, "job.again")
        await asyncio.sleep(0.2)


async def test_a_bridge_waits_for_a_server_that_is_away_and_can_be_stopped_meanwhile(
    site: Site,
) -> None:
    site.server.kill()
    stopped, patient = (
        BusBridge(site.store, site.bus(), settings_of(), Trust("holdfast-main")) for _ in range(2)
    )
    async with asyncio.TaskGroup() as group:
        first, second = group.create_task(stopped.run()), group.create_task(patient.run())
        # Both have asked for a connection once these have run.
        await asyncio.sleep(0)
        stopped.stop()
        await asyncio.wait_for(first, LIMIT_SECONDS)
        assert not patient.ready.is_set()
        site.server.start()
        await asyncio.wait_for(patient.ready.wait(), LIMIT_SECONDS)
        await site.worker("job.again", succeed)
        await _submit_until_stored(site, "j")
        assert (await site.ended("j")).succeeded
        patient.stop()
        await asyncio.wait_for(second, LIMIT_SECONDS)


async def test_a_server_that_was_set_up_anew_gets_its_stream_again(site: Site) -> None:
    async with site.bridge():
        await site.worker("job.again", succeed)
        await _submit_until_stored(site, "before")
        assert (await site.ended("before")).succeeded
        site.server.kill()
        shutil.rmtree(site.server.directory / "streams")
        site.server.start()
        await _submit_until_stored(site, "after")
        assert (await site.ended("after")).succeeded


async def test_what_was_taken_does_not_fill_the_stream(site: Site) -> None:
    async with site.bridge():
        await site.worker("job.once", succeed)
        for number in range(5):
            await site.submit(f"j{number}")
            assert (await site.ended(f"j{number}")).succeeded

        async def is_empty() -> bool:
            found = await site.client.jetstream().stream_info("holdfast-main")
            return found.state.messages == 0

        await until_async(is_empty, "the stream to be empty")


async def test_an_address_that_can_never_be_reached_is_an_error_at_once(store: Store) -> None:
    for url in ("nats://host:port", "nats://host:99999"):
        bridge = BusBridge(store, NatsBus(url, "main"), settings_of(), Trust("holdfast-main"))
        with pytest.raises(BadConfig, match="address of the bus"):
            await asyncio.wait_for(bridge.run(), LIMIT_SECONDS)
