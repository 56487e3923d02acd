"""A job that nobody holds says what keeps it, and who did that."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.signals import any_of
from holdfast.lifecycle.states import Kind
from holdfast.lifecycle.times import After
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.queries.why.facts import Act, FailedAttempt, PlacedHold
from holdfast.queries.why.why import why
from holdfast.testing.factories import CONTROL, HOUR, RECONCILER, SHORT_RUN, fresh, owner_of
from holdfast.testing.store_actions import claim_one, do, passed, running_job
from holdfast.testing.store_actions import submit_one as submit
from tests.queries.why.acts import ask, codes, retrying, served, silence, worker


async def test_not_due_until_its_time(store: Store) -> None:
    job, _ = await served(store, run_at=After(HOUR))
    answer, reason = await ask(store, job, r.NotDue)

    assert reason.until == job.run_at
    assert reason.set == Act(by="gateway:api", at=job.created_at)
    assert "not due until" in answer.text
    assert "(in 59m 59s), as set" in answer.text
    assert answer.also == ()


async def test_not_due_says_who_rescheduled_it(store: Store) -> None:
    job, _ = await served(store)
    moved = c.Reschedule(actor=CONTROL, run_at=After(HOUR), reason="after the sale")
    job = await do(store, job, moved)
    answer, reason = await ask(store, job, r.NotDue)

    assert reason.set == Act(by="control:ann", at=job.updated_at, cause="after the sale")
    assert "by control:ann: after the sale" in answer.text


async def test_backoff_says_which_error_and_which_failure_of_how_many(store: Store) -> None:
    job = await retrying(store)
    answer, reason = await ask(store, job, r.BacksOff)

    assert (reason.until, reason.failures, reason.max_attempts) == (job.run_at, 1, 6)
    failure = FailedAttempt(
        error_code="handler_error",
        error="ValueError: boom",
        cause=None,
        attempt=1,
        at=job.updated_at,
        by="worker-1",
    )
    assert reason.failure == failure == answer.last_failure
    assert "failure 1 of at most 6: handler_error in attempt 1 by worker-1" in answer.text
    assert ": ValueError: boom, " in answer.text


async def test_backoff_after_lost_leases_says_whose(store: Store) -> None:
    policy = replace(SHORT_RUN, backoff_first=HOUR, backoff_max=HOUR)
    job = await running_job(store, policy=policy)
    for _ in range(2):
        now = await passed(store, job.lease_expires_at)
        job = await do(store, job, c.Stall(actor=RECONCILER, as_of=now, reason="lease expired"))
        if job.failures < 2:
            job = (await claim_one(store, job.queue, owner="worker-7")).job
            job = await do(store, job, c.Start(actor=owner_of(job)))
    answer, reason = await ask(store, job, r.BacksOff)

    assert reason.failure.error_code is None
    assert (reason.failures, reason.failure.by) == (2, "worker-7")
    assert "attempt 2 was lost by worker-7: lease expired" in answer.text
    assert codes(answer) == ["no_worker"]


async def test_a_retry_moved_by_a_person_is_not_a_backoff(store: Store) -> None:
    job = await retrying(store)
    job = await do(store, job, c.Reschedule(actor=CONTROL, run_at=After(2 * HOUR)))
    answer, reason = await ask(store, job, r.NotDue)

    assert reason.set is not None
    assert reason.set.by == "control:ann"
    assert answer.last_failure is not None
    assert answer.last_failure.error == "ValueError: boom"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'"boom"', "boom"),
        (b'{"message":"boom"}', "boom"),
        (b"[1]", "[1]"),
        (b"null", None),
        (None, None),
        (b'"' + b"x" * 1000 + b'"', "x" * 499 + "…"),
    ],
)
async def test_an_error_is_told_whatever_its_form(
    store: Store, body: bytes | None, told: str | None
) -> None:
    job = await running_job(store)
    retry = c.Retry(actor=owner_of(job), error_code="odd", body=body, retry_in=HOUR)
    _, reason = await ask(store, await do(store, job, retry), r.BacksOff)

    assert reason.failure.error == told


async def test_a_paused_queue_says_by_whom_when_and_why(store: Store) -> None:
    job, _ = await served(store, run_at=After(HOUR))
    status = await store.pause(job.queue, actor="ann", reason="migration")
    answer, reason = await ask(store, job, r.QueuePaused)

    assert reason.queue == job.queue
    assert reason.paused == Act(by="ann", at=status.paused_at or 0, cause="migration")
    assert "by ann: migration" in answer.text
    assert codes(answer) == ["not_due"]
    await store.resume(job.queue, actor="ann")
    assert (await why(store, job.id)).reason.code == "not_due"


async def test_held_says_by_what_and_who_put_it_there(store: Store) -> None:
    job, _ = await served(store, holds=("budget",))
    job = await do(store, job, c.Hold(actor=CONTROL, hold="audit", reason="looks odd"))
    await store.pause(job.queue, actor="ann")
    answer, reason = await ask(store, job, r.HeldJob)

    audit, budget = reason.holds
    assert audit.put == Act(by="control:ann", at=job.updated_at, cause="looks odd")
    assert audit.name == "audit"
    assert budget == PlacedHold(name="budget", put=Act(by="gateway:api", at=job.created_at))
    assert "held by 'audit', put" in answer.text
    assert ", and by 'budget', put" in answer.text
    assert codes(answer) == ["queue_paused"]


async def test_a_hold_of_the_submit_is_found_behind_a_long_history(store: Store) -> None:
    job, _ = await served(store, holds=("budget",))
    for _ in range(101):
        job = await do(store, job, c.Hold(actor=CONTROL, hold="audit"))
        job = await do(store, job, c.Reschedule(actor=CONTROL, run_at=After(0)))
        job = await do(store, job, c.Unhold(actor=CONTROL, hold="audit"))
    _, reason = await ask(store, job, r.HeldJob)

    [hold] = reason.holds
    assert hold.put is not None
    assert hold.put.by == "gateway:api"


async def test_pending_admission(store: Store) -> None:
    job = await submit(store, admitted=False, queue=fresh("queue"), holds=("upload",))
    answer, reason = await ask(store, job, r.AwaitsAdmission)

    assert reason.since == job.created_at
    assert "waits for admission" in answer.text
    assert codes(answer) == ["held"]


async def test_no_live_worker_says_which_were_last_seen(store: Store) -> None:
    queue = fresh("queue")
    silent, ended = await worker(store, queues=(queue, "x")), await worker(store, queues=(queue,))
    await worker(store, queues=("another",))
    await store.retire(ended)
    await silence(store, silent)
    job = await submit(store, queue=queue)
    answer, reason = await ask(store, job, r.NoWorker)

    assert [(one.name, one.live) for one in reason.last_seen] == [(ended, False), (silent, False)]
    assert reason.last_seen[0].stopped_at is not None
    assert f"no live worker serves queue '{queue}'; last seen: {ended}, ended" in answer.text
    assert f"{silent} on here, silent since" in answer.text


async def test_a_queue_that_nobody_ever_served_has_no_worker(store: Store) -> None:
    job = await submit(store, queue=fresh("queue"))
    answer, reason = await ask(store, job, r.NoWorker)

    assert reason.last_seen == ()
    assert "none did in the last week" in answer.text


async def test_no_capable_worker_says_which_needs_are_missing(store: Store) -> None:
    needs = frozenset({"gpu", "ffmpeg"})
    job, _ = await served(store, needs=needs)
    closest = await worker(store, queues=(job.queue,), capabilities=frozenset({"gpu"}))
    dead = await worker(store, queues=(job.queue,), capabilities=needs)
    await store.retire(dead)
    answer, reason = await ask(store, job, r.NoCapableWorker)

    assert (reason.needs, reason.missing) == (("ffmpeg", "gpu"), ("ffmpeg",))
    assert (reason.closest, reason.workers) == (closest, 2)
    assert "has 2 live workers, none with all it needs (ffmpeg, gpu)" in answer.text
    assert f"{closest} comes closest and lacks ffmpeg" in answer.text


async def test_no_live_worker_has_the_task(store: Store) -> None:
    job, name = await served(store, task="unheard-of")
    answer, reason = await ask(store, job, r.TaskUnknown)

    assert (reason.task, reason.version, reason.workers) == ("unheard-of", None, (name,))
    assert "has task 'unheard-of': start one whose app registers it" in answer.text
    assert f"live workers of the queue: {name}" in answer.text


async def test_no_live_worker_has_the_version_of_the_task(store: Store) -> None:
    job = await submit(store, queue=fresh("queue"), task="charge", task_version="1")
    for tasks in (("charge@2", "other@1"), ("charge@3",), ("charge",)):
        await worker(store, queues=(job.queue,), tasks=tasks)
    answer, reason = await ask(store, job, r.TaskUnknown)

    assert (reason.task, reason.version, reason.versions) == ("charge", "1", ("2", "3"))
    assert "has task 'charge' version '1' (there is version 2, 3)" in answer.text

    await worker(store, queues=(job.queue,), tasks=("charge@1",))
    await ask(store, job, r.ReadyToClaim)


async def test_a_job_without_a_version_is_for_every_version_of_its_task(store: Store) -> None:
    job = await submit(store, queue=fresh("queue"), task="charge")
    await worker(store, queues=(job.queue,), tasks=("charge@2",))

    await ask(store, job, r.ReadyToClaim)


async def test_a_command_needs_no_registered_task(store: Store) -> None:
    job, _ = await served(store, task="unheard-of", kind=Kind.COMMAND)

    await ask(store, job, r.ReadyToClaim)


COMMAND = frozenset({"command", "runner:podman"})


@pytest.mark.req("D18")
async def test_a_command_without_a_worker_for_it_says_how_to_start_one(store: Store) -> None:
    job = await submit(store, queue=fresh("queue"), kind=Kind.COMMAND, needs=COMMAND)
    answer, reason = await ask(store, job, r.NoCommandWorker)
    assert (reason.missing, reason.workers) == (("command", "runner:podman"), 0)
    assert answer.advice == (
        f"start one: holdfast worker --commands podman --command-queues {job.queue}"
    )

    await worker(store, queues=(job.queue,), capabilities=frozenset({"command", "gpu"}))
    answer, reason = await ask(store, job, r.NoCommandWorker)
    assert (reason.missing, reason.workers) == (("runner:podman",), 1)
    assert "1 live worker, none that runs commands with podman" in answer.text

    await worker(store, queues=(job.queue,), capabilities=COMMAND, cpus=1, memory_mb=1)
    await ask(store, job, r.ReadyToClaim)


async def test_a_command_whose_other_needs_nobody_has_names_those(store: Store) -> None:
    needs = COMMAND | {"gpu"}
    job = await submit(store, queue=fresh("queue"), kind=Kind.AGENT, needs=needs)
    await worker(store, queues=(job.queue,), capabilities=COMMAND)
    _, reason = await ask(store, job, r.NoCapableWorker)

    assert reason.missing == ("gpu",)


@pytest.mark.req("D18")
@pytest.mark.parametrize(
    ("asked", "free", "text"),
    [
        ((4, 100), (2, 900), "needs 4 CPUs, host big has 2 free"),
        ((1, 800), (2, 700), "needs 800 MB, host big has 700 MB free"),
        ((4, 800), (1, 700), "needs 4 CPUs and 800 MB, host big has 1 CPU and 700 MB free"),
        ((8, 100), (2, 900), "needs 8 CPUs; the largest host, big, has 4"),
        ((1, 2000), (4, 1000), "needs 2,000 MB; the largest host, big, has 1,000 MB"),
    ],
)
async def test_no_host_with_room_says_what_is_asked_for_and_what_there_is(
    store: Store, asked: tuple[int, int], free: tuple[int, int], text: str
) -> None:
    job = await submit(store, queue=fresh("queue"), cpus=asked[0], memory_mb=asked[1])
    for host, total, left in (("small", (1, 50), (1, 50)), ("big", (4, 1000), free)):
        room = {"cpus": total[0], "memory_mb": total[1]}
        room |= {"free_cpus": left[0], "free_memory_mb": left[1]}
        await worker(store, queues=(job.queue,), host=host, **room)
    answer, reason = await ask(store, job, r.NoRoom)

    assert answer.text == text
    assert reason.ever == ("free" in text)
    assert (answer.advice is None) == reason.ever


async def test_a_job_that_some_host_has_room_for_is_ready(store: Store) -> None:
    job = await submit(store, queue=fresh("queue"), cpus=2, memory_mb=100)
    full = {"cpus": 4, "memory_mb": 1000, "free_cpus": 1, "free_memory_mb": 1000}
    await worker(store, queues=(job.queue,), **full)
    await ask(store, job, r.NoRoom)

    await worker(store, queues=(job.queue,), **full | {"free_cpus": 2})
    await ask(store, job, r.ReadyToClaim)


async def test_a_worker_that_announces_no_room_has_it(store: Store) -> None:
    job = await submit(store, queue=fresh("queue"), cpus=64)
    await worker(store, queues=(job.queue,), cpus=1, memory_mb=1)
    await ask(store, job, r.NoRoom)
    await worker(store, queues=(job.queue,))

    await ask(store, job, r.ReadyToClaim)


async def test_due_with_workers_says_how_busy_they_are(store: Store) -> None:
    job, name = await served(store, cpus=2, memory_mb=512)
    others = [await submit(store, queue=job.queue, tenant="acme") for _ in range(2)]
    answer, reason = await ask(store, job, r.ReadyToClaim)

    assert (reason.workers, reason.slots, reason.since) == ((name,), 4, job.run_at)
    assert (reason.under_way, reason.others) == (0, len(others))
    assert (reason.cpus, reason.memory_mb) == (2, 512)
    busy = "its queue has 1 live worker with 4 slots, 0 jobs under way and at most 2 jobs that"
    assert f"{busy} could go first; it asks for 2 CPUs and 512 MB" in answer.text
    assert answer.also == ()
    await claim_one(store, job.queue)
    _, busier = await ask(store, others[1], r.ReadyToClaim)
    assert (busier.under_way, busier.others) == (1, 1)


async def test_ready_after_a_failure_still_tells_the_failure(store: Store) -> None:
    job = await retrying(store)
    job = await do(store, job, c.Reschedule(actor=CONTROL, run_at=After(0)))
    answer, _ = await ask(store, job, r.ReadyToClaim)

    assert answer.last_failure is not None
    assert answer.last_failure.error == "ValueError: boom"


async def test_a_wait_for_one_of_several_signals_advises_to_send_either(store: Store) -> None:
    job = await running_job(store)
    parked = await do(store, job, c.Wait(actor=owner_of(job), signal=any_of(["yes", "no"])))
    answer = await why(store, parked.id)
    assert answer.reason.advice("J1") == "holdfast signal J1 no, or: holdfast signal J1 yes"


async def test_an_agent_that_no_worker_can_run_says_so(store: Store) -> None:
    needs = frozenset({"command", "agent:coder"})
    job = await submit(store, queue=fresh("queue"), kind=Kind.AGENT, task="agent", needs=needs)
    able = frozenset({"command"})
    await worker(store, queues=(job.queue,), tasks=("worker",), capabilities=able)
    answer, reason = await ask(store, job, r.NoCommandWorker)
    assert (reason.agent, reason.missing, reason.workers) == (True, ("agent:coder",), 1)
    assert "1 live worker, none that runs agents with profile 'coder'" in answer.text
    assert answer.advice is not None
    assert "whose holdfast.toml has [agents.coder]: holdfast worker" in answer.advice


@pytest.mark.req("A2")
async def test_a_topic_that_nobody_serves_is_named(store: Store) -> None:
    queue = fresh("queue")
    job = await submit(store, task="job.chat.simple", queue=queue)
    answer, reason = await ask(store, job, r.NoTopicWorker)
    assert (reason.topic, reason.queue, reason.workers) == ("job.chat.simple", queue, 0)
    expected = f"no worker serves topic 'job.chat.simple': queue {queue!r} has no live worker"
    assert answer.text == expected

    name = await worker(store, queues=(queue,), tasks=("other",))
    answer, reason = await ask(store, job, r.NoTopicWorker)
    assert reason.workers == 1
    assert "1 live worker, none with the task of that name" in answer.text
    assert answer.advice is not None
    assert f"holdfast worker MODULE:APP --queues {queue}" in answer.advice

    await silence(store, name)
    answer, reason = await ask(store, job, r.NoTopicWorker)
    assert [one.name for one in reason.last_seen] == [name]
    assert f"last seen: {name}" in answer.text

    await worker(store, queues=(queue,), tasks=("job.chat.simple",))
    await ask(store, job, r.ReadyToClaim)


@pytest.mark.req("A2")
async def test_a_topic_of_a_bus_without_a_bridge_is_named(store: Store) -> None:
    topic = f"job.bus.{fresh('topic')}"
    job = await submit(store, task=topic, queue=topic, kind=Kind.BUS)
    answer, reason = await ask(store, job, r.NoTopicWorker)
    assert reason.bus
    assert f"no worker serves topic {topic!r}: no live bridge or worker" in answer.text
    assert answer.advice is not None
    assert f"subscribes to {topic}" in answer.advice

    await worker(store, queues=(topic,), host="bus")
    await ask(store, job, r.ReadyToClaim)


@pytest.mark.req("A5")
async def test_an_adapter_that_no_worker_has_is_named(store: Store) -> None:
    queue = fresh("queue")
    name = await worker(store, queues=(queue,), capabilities=frozenset({"gpu"}))
    job = await submit(store, queue=queue, needs=frozenset({"gpu", "adapter:llama 8b"}))
    answer, reason = await ask(store, job, r.NoCapableWorker)
    assert reason.missing == ("adapter:llama 8b",)
    assert f"{name} comes closest and lacks adapter llama 8b" in answer.text
    assert answer.advice is not None
    assert answer.advice.endswith("--capabilities gpu --adapter 'llama 8b'")
