"""Cancels on the bus: asked of the worker, recorded after the grace, late results ignored."""

from __future__ import annotations

from typing import Any

import pytest
from cap.progress import cancel_payload, emit_cancel

from holdfast.flow.bus_job import build_bus_job
from holdfast.flow.cancel import cancel
from holdfast.lifecycle.record import UNCONFIRMED, Actor
from holdfast.lifecycle.states import Priority, Role
from holdfast.ports.bus import JobOffer
from holdfast.services.bus_bridge import cancel_orders
from tests.buses.site import Handler, Site, refused, settings_of, succeed, until, until_async

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
CONTROL = Actor(Role.CONTROL, "someone")


async def _cancel(site: Site, job_id: str) -> None:
    await emit_cancel(site.client, cancel_payload("client", job_id, "no more", "a person"))


@both_engines
@pytest.mark.req("A18", "A15", "A12")
async def test_a_cancel_is_asked_for_and_recorded_unconfirmed_after_the_grace(site: Site) -> None:
    asked = await site.listen("sys.job.cancel")
    told = await site.listen("sys.job.result")
    async with site.bridge() as bridge:
        await site.listen("job.once")
        await site.submit("j")
        await site.out("j")
        await site.say("j", "RUNNING")
        job = await site.until("j", lambda job: job.running, "to run")
        await cancel(site.store, job.id, CONTROL)
        job = await site.ended("j")
        assert job.cancelled
        assert (await site.events("j"))[-1].facts.kill == UNCONFIRMED
        packet = asked[0].job_cancel
        assert (packet.job_id, packet.dispatch.attempt, len(asked)) == ("j", 1, 1)
        # Its worker never heard of it: the result is noted once, and changes nothing.
        for _ in range(2):
            await site.say("j", "SUCCEEDED")
        await until(lambda: refused(bridge, "result", "late") >= 1, "the late result")
        after = await site.job("j")
        assert (after.state, after.rev) == (job.state, job.rev + 1)
        # The client learns of it from us.
        await until(lambda: any(one.sender_id == "holdfast-main" for one in told), "the result")


@pytest.mark.req("A18")
async def test_a_hard_cancel_has_no_grace(site: Site) -> None:
    async with site.bridge(settings_of(cancel_grace_seconds=3600.0)):
        await site.listen("job.once")
        await site.submit("j")
        job = await site.out("j")
        await cancel(site.store, job.id, CONTROL, hard=True)
        assert (await site.ended("j")).cancelled


@pytest.mark.req("A18", "A12")
async def test_a_client_on_the_bus_may_cancel(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel_orders, "UNKNOWN_SECONDS", 1.0)
    async with site.bridge() as bridge:
        await site.listen("job.once")
        await site.submit("out")
        await site.out("out")
        await site.submit("waiting", "job.any.nobody")
        await site.until("waiting", lambda job: job.releases > 0, "to be released")
        for name in ("out", "waiting", "unknown"):
            await _cancel(site, name)
        for name in ("out", "waiting"):
            assert (await site.ended(name)).cancelled
        await until(lambda: refused(bridge, "cancel", "unknown_job") == 1, "its refusal")
    actors = [event.actor for event in await site.events("waiting")]
    assert actors[-1] == "control:bus:main/client"


def _recorder(ran: list[str]) -> Handler:
    async def handle(request: Any) -> Any:
        ran.append(request.job_id)
        return await succeed(request)

    return handle


OFFER = JobOffer(
    sender="client",
    trace_id="t",
    job_id="j",
    topic="job.once",
    priority=Priority.BATCH,
    tenant=None,
    context_ptr=None,
    adapter_id=None,
    env={},
    labels={},
    needs=frozenset(),
    idempotency_key=None,
    deadline_ms=None,
    parent_job_id=None,
    workflow_id=None,
    step_index=None,
    rest={},
)
NAMES = [f"c{number}" for number in range(5)]


@both_engines
@pytest.mark.req("A18", "A16")
async def test_a_cancel_that_waits_in_the_stream_behind_its_submit_comes_in_time(
    site: Site,
) -> None:
    async with site.bridge():
        pass
    for name in NAMES:
        await site.submit(name)
        await _cancel(site, name)
    ran: list[str] = []
    await site.worker("job.once", _recorder(ran))
    async with site.bridge() as bridge:
        for name in NAMES:
            assert (await site.ended(name)).cancelled
        await until(lambda: bridge.meters.bus.applied.get("cancel") == 5, "all to be counted")
        await _until_left_in_stream(site, 0)
    assert (ran, bridge.meters.bus.refused) == ([], {})


@both_engines
@pytest.mark.parametrize("jetstream", [True, False])
@pytest.mark.req("A18")
async def test_a_client_that_submits_and_cancels_at_once_has_nothing_run(site: Site) -> None:
    ran: list[str] = []
    await site.worker("job.once", _recorder(ran))
    async with site.bridge():
        for name in NAMES:
            await site.submit(name)
            await _cancel(site, name)
        for name in NAMES:
            assert (await site.ended(name)).cancelled
    assert ran == []


@pytest.mark.parametrize("jetstream", [True, False])
@pytest.mark.req("A18")
async def test_a_cancel_waits_for_its_job_which_is_never_sent_then(
    site: Site,
) -> None:
    ran: list[str] = []
    await site.worker("job.once", _recorder(ran))
    async with site.bridge() as bridge:
        await _cancel(site, "j")
        await until(lambda: bridge.meters.bus.received.get("cancel") == 1, "it to be taken")
        await site.submit("j")
        assert (await site.ended("j")).cancelled
        await until(lambda: bridge.meters.bus.applied.get("cancel") == 1, "it to be counted")
    assert (ran, bridge.meters.bus.refused) == ([], {})


async def test_a_job_whose_cancel_waits_is_called_off_though_it_came_by_another_way(
    site: Site,
) -> None:
    ran: list[str] = []
    await site.worker("job.once", _recorder(ran))
    # It does not look at what waits by itself: only the dispatch can notice.
    settings = settings_of(tick_seconds=600.0)
    async with site.bridge(settings) as bridge:
        await _cancel(site, "j")
        await until(lambda: bridge.meters.bus.received.get("cancel") == 1, "it to be taken")
        route = settings.topics.routes["job.once"]
        actor = Actor(Role.GATEWAY, "another bridge")
        await site.store.submit(
            [build_bus_job(OFFER, route, actor, tenant="default", policy=settings.policy(route))]
        )
        assert (await site.ended("j")).cancelled
        await until(lambda: bridge.meters.bus.applied.get("cancel") == 1, "it to be counted")
    assert ran == []
    kinds = [event.type for event in await site.events("j")]
    assert kinds == ["job_created", "job_claimed", "job_cancel_requested", "job_cancelled"]


async def _left_in_stream(site: Site) -> int:
    found = await site.client.jetstream().stream_info("holdfast-main")
    return int(found.state.messages)


async def _until_left_in_stream(site: Site, messages: int) -> None:
    async def holds() -> bool:
        return await _left_in_stream(site) == messages

    await until_async(holds, f"{messages} to be left in the stream")


@pytest.mark.usefixtures("short_redelivery")
@pytest.mark.req("A18", "A19")
async def test_a_cancel_that_waited_with_a_bridge_that_is_gone_goes_to_the_next(site: Site) -> None:
    async with site.bridge() as gone:
        await _cancel(site, "j")
        await until(lambda: gone.meters.bus.received.get("cancel") == 1, "it to be taken")
    assert await _left_in_stream(site) == 1
    async with site.bridge() as bridge:
        await until(lambda: bridge.meters.bus.received.get("cancel") == 1, "it to come again")
        await site.submit("j")
        assert (await site.ended("j")).cancelled
        await _until_left_in_stream(site, 0)


@pytest.mark.req("A18")
async def test_cancels_of_unknown_jobs_are_bounded_and_do_not_fill_the_stream(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel_orders, "MOST_WAITING", 3)
    monkeypatch.setattr(cancel_orders, "MOST_KEPT", 1)
    async with site.bridge() as bridge:
        for name in NAMES:
            await _cancel(site, name)
        await until(lambda: refused(bridge, "cancel", "unknown_job") == 2, "two to be dropped")
        await _until_left_in_stream(site, 1)
        await site.listen("job.once")
        for name in NAMES:
            await site.submit(name)
        for name in NAMES[2:]:
            assert (await site.ended(name)).cancelled
        for name in NAMES[:2]:
            assert not (await site.out(name)).terminal
