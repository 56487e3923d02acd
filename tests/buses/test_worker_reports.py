"""What a worker may say of a job, in which state (A8, A10, A12, A15, A19)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2
from cap.progress import emit_progress, progress_payload

from holdfast.errors import StoreUnavailable
from holdfast.flow.cancel import cancel
from holdfast.flow.submit import JobBuilder, NamedTask
from holdfast.ids import mint_id
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import CONFIRMED, Actor, Job
from holdfast.lifecycle.states import Role
from holdfast.ports.bus import WorkerProgress
from holdfast.ports.models import ClaimRequest
from holdfast.services.bus_bridge import progress
from holdfast.services.bus_bridge.bridge import BusBridge
from holdfast.services.bus_bridge.progress import ProgressPace
from tests.buses.site import Site, refused, result_packet, settings_of, until

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])

PATIENT = settings_of(cancel_grace_seconds=600.0)
SLOW = settings_of(
    {"job.once": {"bus": "main", "timeout_seconds": 0.2, "start_timeout_seconds": 600}},
    # Its own look at time limits must not come first.
    tick_seconds=600.0,
)
NOT_A_WORKER_S = ("PENDING", "SCHEDULED", "DISPATCHED", "DENIED")


async def _dispatch(site: Site, job_id: str = "j", topic: str = "job.once") -> Job:
    await site.listen(topic)
    await site.submit(job_id, topic)
    return await site.out(job_id)


async def _refused(bridge: BusBridge, reason: str, times: int = 1, channel: str = "result") -> None:
    await until(lambda: refused(bridge, channel, reason) >= times, f"{times} × {reason}")


@both_engines
@pytest.mark.req("A10", "A12")
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("status", NOT_A_WORKER_S)
async def test_a_status_that_is_not_a_worker_s_is_refused_and_changes_nothing(
    site: Site, status: str, started: bool
) -> None:
    async with site.bridge(PATIENT) as bridge:
        await _dispatch(site)
        if started:
            await site.say("j", "RUNNING")
            await site.until("j", lambda job: job.running, "to run")
        before = await site.job("j")
        await site.say("j", status)
        await _refused(bridge, "forbidden_status")
        assert await site.job("j") == before


@both_engines
@pytest.mark.req("A10", "A12")
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("status", "state"), [("SUCCEEDED", "succeeded"), ("FAILED", "failed")])
async def test_a_terminal_result_ends_a_dispatched_and_a_running_job_in_one_commit(
    site: Site, status: str, state: str, started: bool
) -> None:
    async with site.bridge(PATIENT):
        await _dispatch(site)
        if started:
            await site.say("j", "RUNNING")
            await site.until("j", lambda job: job.running, "to run")
        await site.say("j", status)
        job = await site.ended("j")
    assert job.state == state
    kinds = [event.type for event in await site.events("j")]
    assert kinds == ["job_created", "job_claimed", "job_started", f"job_{state}"]


@pytest.mark.req("A9", "A10")
async def test_a_worker_s_cancelled_counts_only_after_a_request(site: Site) -> None:
    async with site.bridge(PATIENT) as bridge:
        job = await _dispatch(site)
        await site.say("j", "CANCELLED")
        await _refused(bridge, "no_cancel_request")
        assert (await site.job("j")).rev == job.rev
        await cancel(site.store, job.id, Actor(Role.CONTROL, "someone"))
        await site.say("j", "CANCELLED", worker="worker-3", error_code="E7", error_message="left")
        job = await site.ended("j")
    assert job.cancelled
    end = (await site.events("j"))[-1]
    # It is the worker's own word that it stopped.
    assert (end.facts.kill, end.facts.worker) == (CONFIRMED, "worker-3")
    kept = decode_body(end.body)
    assert (kept["code"], kept["message"]) == ("E7", "left")


@both_engines
@pytest.mark.req("A10", "A17")
async def test_a_worker_s_timeout_counts_only_past_the_limit_by_the_store_s_clock(
    site: Site,
) -> None:
    async with site.bridge(PATIENT) as bridge:
        job = await _dispatch(site)
        await site.say("j", "RUNNING")
        await site.say("j", "TIMEOUT")
        await _refused(bridge, "not_timed_out")
        assert (await site.job(job.public_id)).running
    async with site.bridge(SLOW):
        await site.submit("late")
        await site.out("late")
        await site.say("late", "RUNNING")
        job = await site.until("late", lambda job: job.running, "to run")
        await until_past(site, job)
        await site.say("late", "TIMEOUT", error_code="E8", error_message="too slow")
        assert (await site.ended("late")).timed_out
    kept = decode_body((await site.events("late"))[-1].body)
    assert (kept["code"], kept["message"]) == ("E8", "too slow")


async def until_past(site: Site, job: Job) -> None:
    """Wait until the job's time limit has passed by the store's clock."""
    while (await site.store.clock()).now < (job.timeout_at or 0):
        pass


@both_engines
@pytest.mark.req("A10", "A14")
async def test_a_start_reported_after_the_end_and_the_same_end_again_change_nothing(
    site: Site,
) -> None:
    async with site.bridge(PATIENT) as bridge:
        await _dispatch(site)
        packet = result_packet("j", "SUCCEEDED", result_ptr="s3://a")
        data = packet.SerializeToString(deterministic=True)
        await site.send("sys.job.result", data)
        before = await site.ended("j")
        await site.send("sys.job.result", data)
        await site.say("j", "RUNNING")
        await _refused(bridge, "duplicate")
        await _refused(bridge, "late")
        assert await site.job("j") == before


@both_engines
@pytest.mark.req("A15")
async def test_another_result_for_an_ended_job_is_recorded_once_and_changes_nothing(
    site: Site,
) -> None:
    async with site.bridge(PATIENT) as bridge:
        await _dispatch(site)
        await site.say("j", "SUCCEEDED", result_ptr="s3://first")
        before = await site.ended("j")
        await site.say("j", "FAILED", worker="worker-2", error_code="E1")
        await site.say("j", "SUCCEEDED", worker="worker-3", result_ptr="s3://third")
        await _refused(bridge, "late", 2)
        after = await site.job("j")
        assert (after.state, after.result_ptr) == (before.state, "s3://first")
        assert after.rev == before.rev + 1
        assert (await site.events("j"))[-1].facts.late_state == "failed"


@both_engines
@pytest.mark.req("A8")
async def test_a_result_is_refused_for_every_job_that_is_not_out_on_the_bus(site: Site) -> None:
    builder = JobBuilder(actor=Actor(Role.GATEWAY, "test"))
    function = builder.decide(NamedTask("email"), b"null", {"job_id": "function"})
    other = builder.decide(NamedTask("job.once"), b"null", {"job_id": "theirs", "tenant": "b"})
    ended = builder.decide(NamedTask("email"), b"null", {"job_id": "ended", "queue": "other"})
    await site.store.submit([function, other, ended])
    await cancel(site.store, ended.record.id, Actor(Role.CONTROL, "someone"))
    end = await site.job("ended")
    taken = ClaimRequest(request_id="r", owner="worker-x", queues=("default",), limit=1)
    [_] = await site.store.claim(taken)
    async with site.bridge(PATIENT) as bridge:
        # Nobody listens to its topic: it goes back to its queue.
        await site.submit("waiting", "job.any.nobody")
        await site.until("waiting", lambda job: job.releases > 0, "to be released")
        for name in ("nobody-s", "theirs"):
            await site.say(name, "SUCCEEDED")
        await _refused(bridge, "unknown_job", 2)
        for name in ("function", "ended"):
            await site.say(name, "SUCCEEDED")
        await _refused(bridge, "not_on_bus", 2)
        for _ in range(20):
            await site.say("waiting", "SUCCEEDED")
        await _refused(bridge, "not_dispatched")
    assert not (await site.job("function")).terminal
    assert not (await site.job("waiting")).terminal
    assert (await site.job("ended")).rev == end.rev


@both_engines
@pytest.mark.req("A19", "A16")
async def test_a_result_of_an_old_attempt_is_refused_where_the_packet_tells(site: Site) -> None:
    async with site.bridge(PATIENT) as bridge:
        sent = await site.listen("job.again")
        await site.submit("j", "job.again")
        await site.out("j")
        await site.say("j", "FAILED_RETRYABLE", attempt=1)
        # A retry of an idempotent topic is the same job, sent again.
        await site.until("j", lambda job: job.attempt == 2, "to be sent again")
        await until(lambda: len(sent) == 2, "the second dispatch")
        assert [packet.job_request.dispatch.attempt for packet in sent] == [1, 2]
        await site.say("j", "SUCCEEDED", attempt=1, result_ptr="s3://old")
        await _refused(bridge, "old_attempt")
        assert (await site.job("j")).owned
        # Without the attempt on the wire, a topic declared idempotent takes it for the current.
        await site.say("j", "SUCCEEDED", result_ptr="s3://new")
        job = await site.ended("j")
    assert (job.attempt, job.result_ptr) == (2, "s3://new")


@pytest.mark.req("A16")
async def test_a_topic_that_is_not_idempotent_is_never_sent_twice(site: Site) -> None:
    async with site.bridge(PATIENT):
        sent = await site.listen("job.once")
        await site.submit("j")
        await site.out("j")
        await site.say("j", "FAILED_RETRYABLE", error_code="E")
        job = await site.ended("j")
    assert (job.state, job.attempt, len(sent)) == ("failed", 1, 1)


@pytest.mark.req("A10")
async def test_a_fatal_failure_is_not_retried(site: Site) -> None:
    async with site.bridge(PATIENT):
        await _dispatch(site, topic="job.again")
        await site.say("j", "FAILED_FATAL", error_code="E")
        job = await site.ended("j")
    assert (job.state, job.attempt, job.error_code) == ("failed", 1, "E")


@both_engines
@pytest.mark.req("A10")
async def test_progress_starts_a_job_and_is_kept(site: Site) -> None:
    async with site.bridge(PATIENT) as bridge:
        job = await _dispatch(site)
        payload = progress_payload("worker-1", "j", "step", 40, "almost")
        await emit_progress(site.client, payload)
        await site.until("j", lambda job: job.running, "to run")
        await until(lambda: bridge.meters.bus.applied.get("progress") == 1, "it to be applied")
        found = await site.store.last_progress(job.id)
        assert found is not None
        assert b'"percent":40' in (found.body or b"")
        await _say_progress(site, "j", job_pb2.JOB_STATUS_SUCCEEDED)
        await _refused(bridge, "forbidden_status", channel="progress")
        assert (await site.job("j")).running


@pytest.mark.req("A10")
async def test_a_flood_of_progress_leaves_few_and_short_events(site: Site) -> None:
    start, packets = time.monotonic(), 60
    async with site.bridge(PATIENT) as bridge:
        await _dispatch(site)
        for number in range(packets):
            step, text = "s" * 40_000, f"{number}" + "x" * 200_000
            payload = progress_payload("stranger", "j", step, number, text)
            await emit_progress(site.client, payload)
        await site.client.flush()
        found = bridge.meters.bus
        await until(
            lambda: (
                found.applied.get("progress", 0) + refused(bridge, "progress", "too_often")
                == packets
            ),
            "all to be applied or refused",
        )
        await site.say("j", "SUCCEEDED")
        await site.ended("j")
    events = [event for event in await site.events("j") if event.type == "job_progressed"]
    # Five at once, then one per second.
    assert 1 <= len(events) <= 6 + time.monotonic() - start
    assert max(len(event.body or b"") for event in events) < 3000


@pytest.mark.req("A9")
@pytest.mark.parametrize(
    "pointers", [["s3://x"] * 101, ["x" * 5000], ["x" * 1000] * 20], ids=["many", "long", "large"]
)
async def test_progress_with_more_pointers_than_are_kept_is_refused(
    site: Site, pointers: list[str]
) -> None:
    async with site.bridge(PATIENT) as bridge:
        job = await _dispatch(site)
        packet = buspacket_pb2.BusPacket(trace_id="t", sender_id="worker-1", protocol_version=1)
        packet.created_at.GetCurrentTime()
        packet.job_progress.job_id = "j"
        packet.job_progress.artifact_ptrs.extend(pointers)
        await site.send("sys.job.progress", packet.SerializeToString())
        await _refused(bridge, "invalid", channel="progress")
        assert (await site.job("j")).rev == job.rev


async def test_progress_is_not_lost_while_the_store_is_away(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only one at a time: what is handled again must not count twice.
    monkeypatch.setattr(progress, "AT_ONCE", 1)
    monkeypatch.setattr(progress, "PERIOD_SECONDS", 3600.0)
    async with site.bridge(PATIENT):
        await _dispatch(site)
        commit, away = site.store.commit, 2

        async def fail(*given: Any, **more: Any) -> Any:
            nonlocal away
            if away:
                away -= 1
                raise StoreUnavailable("away")
            return await commit(*given, **more)

        monkeypatch.setattr(site.store, "commit", fail)
        await emit_progress(site.client, progress_payload("worker-1", "j", "step", 40, "almost"))
        await site.until("j", lambda job: job.running, "to run")
        assert away == 0


def test_the_jobs_whose_pace_is_known_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MOST_JOBS", 10)
    pace = ProgressPace()
    word = WorkerProgress(sender="w", job_id="j", worker="w", attempt=None, status=None, data={})
    for _ in range(30):
        assert not pace.is_too_often(mint_id(), word)
    assert len(pace._due) == 10


async def _say_progress(site: Site, job_id: str, status: int) -> None:
    packet = buspacket_pb2.BusPacket(trace_id="t", sender_id="worker-1", protocol_version=1)
    packet.created_at.GetCurrentTime()
    packet.job_progress.job_id = job_id
    packet.job_progress.status = status
    await site.send("sys.job.progress", packet.SerializeToString(deterministic=True))


@pytest.mark.req("A10")
async def test_a_refused_word_does_not_take_the_next_one_of_the_same_job_with_it(
    site: Site,
) -> None:
    async with site.bridge(PATIENT):
        await _dispatch(site)
        forged = result_packet("j", "TIMEOUT", worker="forger")
        real = result_packet("j", "SUCCEEDED")
        for packet in (forged, real):
            await site.client.publish("sys.job.result", packet.SerializeToString())
        assert (await site.ended("j")).succeeded
