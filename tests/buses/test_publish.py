"""What clients on the bus learn from us: ends that no worker reported, dead letters, alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from cap.pb.cordum.agent.v1 import job_pb2
from cap.progress import cancel_payload, emit_cancel

from holdfast import Holdfast
from holdfast.buses.nats import NatsBus
from holdfast.flow.cancel import cancel
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role
from holdfast.ports.bus import Delivery, Outgoing
from tests.buses.site import ROUTES, Site, refused, settings_of, succeed, until

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
OURS = "holdfast-main"


def _told(heard: list[Any]) -> dict[str, str]:
    """What we have published, by job."""
    return {
        one.job_result.job_id: job_pb2.JobStatus.Name(one.job_result.status)
        for one in heard
        if one.sender_id == OURS
    }


@both_engines
@pytest.mark.req("A12", "A17")
async def test_ends_that_no_worker_sent_are_published_and_those_of_workers_are_not(
    site: Site,
) -> None:
    heard = await site.listen("sys.job.result")
    site.sweeping()
    routes = {"job.once": {"bus": "main", "timeout_seconds": 0.5}, "job.any.*": {"bus": "main"}}
    async with site.bridge(settings_of(routes)):
        await site.worker("job.any.good", succeed)
        await site.submit("good", "job.any.good")
        assert (await site.ended("good")).succeeded
        await site.listen("job.once")
        await site.submit("late")
        await site.submit("cancelled", "job.any.nobody")
        job = await site.until("cancelled", lambda job: job.releases > 0, "to be released")
        await cancel(site.store, job.id, Actor(Role.CONTROL, "someone"))
        await site.ended("late")
        await until(lambda: {"late", "cancelled"} <= _told(heard).keys(), "both to be published")
    assert _told(heard) == {"late": "JOB_STATUS_TIMEOUT", "cancelled": "JOB_STATUS_CANCELLED"}
    late = next(one for one in heard if one.job_result.job_id == "late" and one.sender_id == OURS)
    assert (late.trace_id, late.job_result.worker_id) == ("trace-late", OURS)


@pytest.mark.parametrize("lost", [Delivery.NOT_SENT, Delivery.UNKNOWN])
async def test_an_end_that_did_not_leave_is_published_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, lost: Delivery
) -> None:
    send, failed = NatsBus.send, list[str]()

    async def fail_once(self: NatsBus, messages: Sequence[Outgoing]) -> list[Delivery]:
        if not failed and any(one.subject == "sys.job.result" for one in messages):
            failed.append("once")
            return [lost for _ in messages]
        return await send(self, messages)

    monkeypatch.setattr(NatsBus, "send", fail_once)
    heard = await site.listen("sys.job.result")
    async with site.bridge():
        await site.submit("j", "job.any.nobody")
        job = await site.until("j", lambda job: job.releases > 0, "to be released")
        await cancel(site.store, job.id, Actor(Role.CONTROL, "someone"))
        await until(lambda: _told(heard) == {"j": "JOB_STATUS_CANCELLED"}, "the cancel")
    assert failed


@pytest.mark.req("A12", "A13")
async def test_a_denial_is_published_as_denied(site: Site) -> None:
    heard = await site.listen("sys.job.result")
    async with site.bridge():
        await site.submit("j", meta=job_pb2.JobMetadata(requires=["nothing-has-this"]))
        job = await site.until("j", lambda job: job.state == "queued", "to be stored")
        deny = c.Deny(actor=Actor(Role.SCHEDULER, "kernel"), rule="r1", reason="not allowed")
        await perform(site.store, job.id, deny)
        await until(lambda: _told(heard) == {"j": "JOB_STATUS_DENIED"}, "the denial")
    assert heard[0].job_result.error_message == "not allowed"


@both_engines
async def test_a_failed_job_is_a_dead_letter_with_an_alert(site: Site) -> None:
    letters, alerts = await site.listen("sys.job.dlq"), await site.listen("sys.alert")
    async with site.bridge():
        await site.listen("job.once")
        await site.submit("j")
        await site.out("j")
        await site.say("j", "FAILED", error_code="E1", error_message="it broke")
        await until(lambda: bool(letters and alerts), "the dead letter and its alert")
    result = letters[0].job_result
    assert (result.job_id, result.error_code, result.error_message) == ("j", "E1", "it broke")
    assert alerts[0].alert.code == "E1"


async def test_what_ended_while_no_bridge_ran_is_published_by_the_next(site: Site) -> None:
    heard = await site.listen("sys.job.result")
    async with site.bridge():
        await site.submit("j", "job.any.nobody")
        job = await site.until("j", lambda job: job.releases > 0, "to be released")
    await cancel(site.store, job.id, Actor(Role.CONTROL, "someone"))
    async with site.bridge():
        await until(lambda: "j" in _told(heard), "the end")


@pytest.mark.req("A8", "A12")
async def test_jobs_of_another_bus_are_neither_published_nor_ended_by_what_comes_in_here(
    site: Site, url: str
) -> None:
    heard = await site.listen("sys.job.result")
    settings = settings_of({**ROUTES, "job.theirs": {"bus": "other"}})
    async with Holdfast(url, topics=settings.topics) as app:
        for name in ("waiting", "ended"):
            await app.submit_topic("job.theirs", job_id=name)
        async with site.bridge(settings) as bridge:
            await emit_cancel(site.client, cancel_payload("client", "waiting", "no", "someone"))
            await until(lambda: refused(bridge, "cancel", "unknown_job") == 1, "its refusal")
            await app.cancel("ended")
            before = await site.ended("ended")
            await site.say("ended", "SUCCEEDED")
            await until(lambda: refused(bridge, "result", "not_on_bus") == 1, "its refusal")
            # Ends are published in their order: this one is behind the other bus's.
            await site.submit("own", "job.any.nobody")
            await site.until("own", lambda job: job.releases > 0, "to be released")
            await app.cancel("own")
            await until(lambda: "own" in _told(heard), "the end")
            assert await site.job("ended") == before
    assert _told(heard) == {"own": "JOB_STATUS_CANCELLED"}
    assert not (await site.job("waiting")).terminal
