"""Cancels on the bus: asked of the worker, recorded after the grace, late results ignored."""

from __future__ import annotations

import pytest
from cap.progress import cancel_payload, emit_cancel

from holdfast.flow.cancel import cancel
from holdfast.lifecycle.record import UNCONFIRMED, Actor
from holdfast.lifecycle.states import Role
from tests.buses.site import Site, refused, settings_of, until

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
CONTROL = Actor(Role.CONTROL, "someone")


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
async def test_a_client_on_the_bus_may_cancel(site: Site) -> None:
    async with site.bridge() as bridge:
        await site.listen("job.once")
        await site.submit("out")
        await site.out("out")
        await site.submit("waiting", "job.any.nobody")
        await site.until("waiting", lambda job: job.releases > 0, "to be released")
        for name in ("out", "waiting", "unknown"):
            await emit_cancel(site.client, cancel_payload("client", name, "no more", "a person"))
        for name in ("out", "waiting"):
            assert (await site.ended(name)).cancelled
        await until(lambda: refused(bridge, "cancel", "unknown_job") == 1, "its refusal")
    actors = [event.actor for event in await site.events("waiting")]
    assert actors[-1] == "control:bus:main/client"
