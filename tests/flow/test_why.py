"""Every reason why a job stands where it stands, on both engines, with who did it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.errors import NoSuchJob
from holdfast.flow import reasons as r
from holdfast.flow.phrases import when
from holdfast.flow.why import Why, why
from holdfast.identity import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import Actor, Job
from holdfast.lifecycle.policy import Policy
from holdfast.lifecycle.states import Cancel, Kind, Letter, Link, Role, State
from holdfast.lifecycle.times import LAST_INSTANT, SECOND, After
from holdfast.ports import WORKER_SILENCE, Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.acts import claim_one, claimed_job, do, job_in, passed, running_job
from holdfast.testing.acts import submit_one as submit
from holdfast.testing.factories import (
    CONTROL,
    HOUR,
    RECONCILER,
    SCHEDULER,
    SHORT_CLAIM,
    SHORT_RUN,
    announcement,
    fresh,
    new_job,
    owner_of,
)
from tests.support.postgres import PostgresCluster

B = TypeVar("B", bound=r.Because)
ERROR = b'{"type":"ValueError","message":"boom","traceback":"..."}'


@pytest.fixture(scope="module")
def postgres_place(postgres_cluster: PostgresCluster) -> str:
    """One migrated database for all tests here: each has queues of its own."""
    url = postgres_cluster.create_database()
    asyncio.run(migrate(url))
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def unopened(request: pytest.FixtureRequest) -> SqliteStore | PostgresStore:
    """A store on either engine."""
    if request.param == "sqlite":
        return SqliteStore(":memory:")
    return PostgresStore(request.getfixturevalue("postgres_place"))


@pytest.fixture
async def store(unopened: SqliteStore | PostgresStore) -> AsyncIterator[Store]:
    """The same, open."""
    await unopened.open()
    yield unopened
    await unopened.close()


async def worker(store: Store, **wishes: Any) -> str:
    """Have a worker say that it lives."""
    said = announcement(**{"name": fresh("worker"), "concurrency": 4} | wishes)
    await store.announce(said)
    return said.name


async def silence(store: Any, name: str) -> None:
    """Let a worker have been seen too long ago."""
    if isinstance(store, SqliteStore):
        sql = "UPDATE workers SET seen_at = seen_at - ? WHERE name = ?"
        await store._write(lambda turn: turn.connection.execute(sql, (WORKER_SILENCE, name)))
    else:
        sql = "UPDATE workers SET seen_at = seen_at - $1 WHERE name = $2"
        await store._fetch_text(sql, WORKER_SILENCE, name)


async def served(store: Store, **wishes: Any) -> tuple[Job, str]:
    """A queued job of a queue that a worker serves."""
    queue = fresh("queue")
    name = await worker(store, queues=(queue,))
    return await submit(store, queue=queue, **wishes), name


async def ask(store: Store, job: Job, kind: type[B]) -> tuple[Why, B]:
    """Ask why; the first reason must be of this kind, and be told."""
    answer = await why(store, job.id)
    assert isinstance(answer.reason, kind), answer.text
    assert answer.state is job.state
    assert answer.text.startswith(answer.reason.say(answer.now))
    return answer, answer.reason


def codes(answer: Why) -> list[str]:
    return [one.code for one in answer.also]


async def test_not_due_until_its_time(store: Store) -> None:
    job, _ = await served(store, run_at=After(HOUR))
    answer, reason = await ask(store, job, r.NotDue)

    assert reason.until == job.run_at
    assert reason.set == r.Said(by="gateway:api", at=job.created_at)
    assert "not due until" in answer.text
    assert "(in 59m 59s), as set" in answer.text
    assert answer.also == ()


async def test_not_due_says_who_rescheduled_it(store: Store) -> None:
    job, _ = await served(store)
    moved = c.Reschedule(actor=CONTROL, run_at=After(HOUR), reason="after the sale")
    job = await do(store, job, moved)
    answer, reason = await ask(store, job, r.NotDue)

    assert reason.set == r.Said(by="control:ann", at=job.updated_at, cause="after the sale")
    assert "by control:ann: after the sale" in answer.text


async def retrying(store: Store, **wishes: Any) -> Job:
    queue = fresh("queue")
    await worker(store, queues=(queue,))
    job = await running_job(store, queue=queue, **wishes)
    given: dict[str, Any] = {"error_code": "handler_error", "body": ERROR, "retry_in": HOUR}
    return await do(store, job, c.Retry(actor=owner_of(job), **given))


async def test_backoff_says_which_error_and_which_failure_of_how_many(store: Store) -> None:
    job = await retrying(store)
    answer, reason = await ask(store, job, r.Backoff)

    assert (reason.until, reason.failures, reason.max_attempts) == (job.run_at, 1, 6)
    failure = r.Failure(
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
        job = await do(store, job, c.Stall(actor=RECONCILER, as_of=now, reason="lease ran out"))
        if job.failures < 2:
            job = (await claim_one(store, job.queue, owner="worker-7")).job
            job = await do(store, job, c.Start(actor=owner_of(job)))
    answer, reason = await ask(store, job, r.Backoff)

    assert reason.failure.error_code is None
    assert (reason.failures, reason.failure.by) == (2, "worker-7")
    assert "attempt 2 was lost by worker-7: lease ran out" in answer.text
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
    _, reason = await ask(store, await do(store, job, retry), r.Backoff)

    assert reason.failure.error == told


async def test_a_paused_queue_says_by_whom_when_and_why(store: Store) -> None:
    job, _ = await served(store, run_at=After(HOUR))
    status = await store.pause(job.queue, actor="ann", reason="migration")
    answer, reason = await ask(store, job, r.QueuePaused)

    assert reason.queue == job.queue
    assert reason.paused == r.Said(by="ann", at=status.paused_at or 0, cause="migration")
    assert "by ann: migration" in answer.text
    assert codes(answer) == ["not_due"]
    await store.resume(job.queue, actor="ann")
    assert (await why(store, job.id)).reason.code == "not_due"


async def test_held_says_by_what_and_who_put_it_there(store: Store) -> None:
    job, _ = await served(store, held_by="budget")
    job = await do(store, job, c.Hold(actor=CONTROL, hold="audit", reason="looks odd"))
    await store.pause(job.queue, actor="ann")
    answer, reason = await ask(store, job, r.Held)

    audit, budget = reason.holds
    assert audit.put == r.Said(by="control:ann", at=job.updated_at, cause="looks odd")
    assert audit.name == "audit"
    assert budget == r.Hold(name="budget", put=r.Said(by="gateway:api", at=job.created_at))
    assert "held by 'audit', put" in answer.text
    assert ", and by 'budget', put" in answer.text
    assert codes(answer) == ["queue_paused"]


async def test_a_hold_of_the_submit_is_found_behind_a_long_history(store: Store) -> None:
    job, _ = await served(store, held_by="budget")
    for _ in range(101):
        job = await do(store, job, c.Hold(actor=CONTROL, hold="audit"))
        job = await do(store, job, c.Reschedule(actor=CONTROL, run_at=After(0)))
        job = await do(store, job, c.Unhold(actor=CONTROL, hold="audit"))
    _, reason = await ask(store, job, r.Held)

    [hold] = reason.holds
    assert hold.put is not None
    assert hold.put.by == "gateway:api"


async def test_pending_admission(store: Store) -> None:
    job = await submit(store, admitted=False, queue=fresh("queue"), held_by="upload")
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
    assert f"{closest} comes closest and lacks ffmpeg" in answer.text


async def test_no_live_worker_has_the_task(store: Store) -> None:
    job, name = await served(store, task="unheard-of")
    answer, reason = await ask(store, job, r.TaskUnknown)

    assert (reason.task, reason.workers) == ("unheard-of", (name,))
    assert f"has the task 'unheard-of' (asked: {name})" in answer.text


async def test_a_command_needs_no_registered_task(store: Store) -> None:
    job, _ = await served(store, task="unheard-of", kind=Kind.COMMAND)

    await ask(store, job, r.Ready)


async def test_due_with_workers_says_how_busy_they_are(store: Store) -> None:
    job, name = await served(store, cpus=2, memory_mb=512)
    others = [await submit(store, queue=job.queue, tenant="acme") for _ in range(2)]
    answer, reason = await ask(store, job, r.Ready)

    assert (reason.workers, reason.slots, reason.since) == ((name,), 4, job.run_at)
    assert (reason.under_way, reason.others) == (0, len(others))
    assert (reason.cpus, reason.memory_mb) == (2, 512)
    assert "at most 2 others could go first; it asks for 2 CPUs and 512 MB" in answer.text
    assert answer.also == ()
    await claim_one(store, job.queue)
    _, busier = await ask(store, others[1], r.Ready)
    assert (busier.under_way, busier.others) == (1, 1)


async def test_ready_after_a_failure_still_tells_the_failure(store: Store) -> None:
    job = await retrying(store)
    job = await do(store, job, c.Reschedule(actor=CONTROL, run_at=After(0)))
    answer, _ = await ask(store, job, r.Ready)

    assert answer.last_failure is not None
    assert answer.last_failure.error == "ValueError: boom"


async def test_claimed_says_by_whom_until_when(store: Store) -> None:
    name = await worker(store)
    job = await claimed_job(store, owner=name, policy=Policy(start_timeout=HOUR))
    answer, reason = await ask(store, job, r.Claimed)

    assert (reason.worker, reason.since) == (name, job.updated_at)
    assert (reason.until, reason.start_by) == (job.lease_expires_at, job.timeout_at)
    assert reason.seen is not None
    assert reason.seen.live
    assert f"held by {name} since" in answer.text
    assert "gone" not in answer.text


async def test_running_says_under_whom_since_when(store: Store) -> None:
    job = await running_job(store, policy=Policy(timeout=HOUR))
    answer, reason = await ask(store, job, r.Running)

    assert (reason.worker, reason.since) == ("worker-1", job.started_at)
    assert (reason.lease_until, reason.time_out_at) == (job.lease_expires_at, job.timeout_at)
    assert reason.seen is None
    assert "runs under worker-1 since" in answer.text
    assert answer.also == ()


async def test_running_under_a_worker_that_fell_silent_says_so(store: Store) -> None:
    name = await worker(store)
    await silence(store, name)
    job = await running_job(store, owner=name)
    answer, reason = await ask(store, job, r.Running)

    assert reason.seen is not None
    assert not reason.seen.live
    assert f"; its worker is gone: {name} on here, silent since" in answer.text


async def test_running_past_its_time_limit_is_its_owners_to_end(store: Store) -> None:
    job = await running_job(store, policy=Policy(timeout=1))
    await passed(store, job.timeout_at)
    answer, _ = await ask(store, job, r.Running)

    assert "time limit passed, its owner must end it" in answer.text


@pytest.mark.req("B12", "B13")
async def test_a_requested_cancel_says_by_whom_and_that_it_is_not_dead_yet(store: Store) -> None:
    job = await running_job(store)
    cancel = c.RequestCancel(actor=CONTROL, mode=Cancel.HARD, reason="wrong input")
    job = await do(store, job, cancel)
    asked_at = job.updated_at
    job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    answer, reason = await ask(store, job, r.CancelRequested)

    assert reason.asked == r.Said(by="control:ann", at=asked_at, cause="wrong input")
    assert (reason.mode, reason.worker) == (Cancel.HARD, "worker-1")
    assert "a hard cancel was requested" in answer.text
    assert "by control:ann: wrong input; worker-1 has not ended it yet" in answer.text
    assert codes(answer) == ["running"]


async def unkillable(store: Store) -> Job:
    job = await running_job(store)
    job = await do(store, job, c.RequestCancel(actor=CONTROL))
    said = c.Progress(actor=owner_of(job), unkillable=True, reason="a thread")
    return await do(store, job, said)


async def test_unkillable_says_since_when(store: Store) -> None:
    job = await unkillable(store)
    said_at = job.updated_at
    job = await do(store, job, c.Progress(actor=owner_of(job), body=b"0.5"))
    answer, reason = await ask(store, job, r.Unkillable)

    assert reason.said == r.Said(by="worker-1", at=said_at, cause="a thread")
    assert "unkillable" in answer.text
    assert codes(answer) == ["cancel_requested", "running"]


async def test_what_another_owner_could_not_kill_is_over(store: Store) -> None:
    job = await running_job(store)
    job = await do(store, job, c.Progress(actor=owner_of(job), unkillable=True))
    adopted = await do(store, job, c.Adopt(actor=Actor(Role.HOST, "worker-2")))
    await ask(store, adopted, r.Running)
    job = await do(store, adopted, c.Release(actor=owner_of(adopted)))
    job = (await claim_one(store, job.queue)).job
    job = await do(store, job, c.Start(actor=owner_of(job)))
    answer, _ = await ask(store, job, r.Running)

    assert answer.also == ()


@pytest.mark.parametrize("make", [claimed_job, running_job])
async def test_a_passed_lease_waits_for_a_reconciler(store: Store, make: Any) -> None:
    policy = SHORT_CLAIM if make is claimed_job else SHORT_RUN
    job = await make(store, policy=policy)
    await passed(store, job.lease_expires_at)
    answer, reason = await ask(store, job, r.Overdue)

    assert (reason.what, reason.since) == ("lease", job.lease_expires_at)
    assert (reason.worker, reason.not_before) == ("worker-1", None)
    assert "its lease passed" in answer.text
    assert "waits for a reconciler" in answer.text
    assert codes(answer) == [job.state.value]


async def test_a_lost_command_may_be_taken_back_by_its_own_host_first(store: Store) -> None:
    policy = Policy(heartbeat=1, on_silence="lose", host_recovery=HOUR, max_attempts=1)
    job = await running_job(store, policy=policy)
    await passed(store, job.lease_expires_at)
    answer, reason = await ask(store, job, r.Overdue)

    assert reason.not_before == (job.lease_expires_at or 0) + HOUR
    assert "its own host may take it back until" in answer.text


async def test_a_passed_deadline_waits_for_a_reconciler(store: Store) -> None:
    job, _ = await served(store, deadline_at=After(1))
    await passed(store, job.deadline_at)
    _, reason = await ask(store, job, r.Overdue)

    assert (reason.what, reason.since, reason.worker) == ("deadline", job.deadline_at, None)


async def test_a_start_that_came_too_late_waits_for_a_reconciler(store: Store) -> None:
    job = await claimed_job(store, policy=Policy(start_timeout=1))
    await passed(store, job.timeout_at)
    _, reason = await ask(store, job, r.Overdue)

    assert (reason.what, reason.since) == ("start_timeout", job.timeout_at)


async def test_waiting_for_a_signal_or_a_time(store: Store) -> None:
    job = await running_job(store)
    job = await do(store, job, c.Wait(actor=owner_of(job), signal="paid", until=After(HOUR)))
    answer, reason = await ask(store, job, r.Waiting)

    assert (reason.signal, reason.since, reason.until) == ("paid", job.updated_at, job.run_at)
    assert "waits for the signal 'paid' since" in answer.text
    _, endless = await ask(store, await job_in(store, State.WAITING), r.Waiting)
    assert endless.until is None


async def test_a_wait_that_ran_out_waits_for_a_reconciler(store: Store) -> None:
    job = await running_job(store)
    job = await do(store, job, c.Wait(actor=owner_of(job), signal="paid", until=After(1)))
    await passed(store, job.run_at)
    answer, reason = await ask(store, job, r.Overdue)

    assert (reason.what, reason.since) == ("timer", job.run_at)
    assert codes(answer) == ["waiting"]


async def test_a_wait_whose_signal_is_there_waits_for_a_reconciler(store: Store) -> None:
    job = await job_in(store, State.WAITING)
    job = await do(store, job, c.SignalJob(actor=CONTROL, name="stop"))
    await ask(store, job, r.Waiting)
    job = await do(store, job, c.SignalJob(actor=CONTROL, name="go"))
    _, reason = await ask(store, job, r.Overdue)

    assert reason.what == "signal"


async def test_ended_with_a_result(store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED)
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.state, reason.at) == (State.SUCCEEDED, job.finished_at)
    assert reason.ended == r.Said(by="worker-1", at=job.updated_at)
    assert (reason.error_code, reason.error, reason.letter) == (None, None, None)
    assert answer.text.startswith("succeeded ")
    assert answer.text.endswith("by worker-1; after 1 attempt")


async def test_ended_with_an_error(store: Store) -> None:
    job = await running_job(store)
    fail = c.Fail(actor=owner_of(job), error_code="handler_error", body=ERROR)
    job = await do(store, job, fail)
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.error_code, reason.error) == ("handler_error", "ValueError: boom")
    assert "; error handler_error: ValueError: boom; " in answer.text


async def test_ended_in_the_dead_letters(store: Store) -> None:
    job = await job_in(store, State.DEAD_LETTERED)
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.letter, reason.stage) == (Letter.OPEN, "exec")
    assert "error exhausted_retries at stage exec: boom" in answer.text
    assert "its dead letter is open" in answer.text
    again = new_job(parent_id=job.id, link_kind=Link.REDRIVE)
    redriven = c.Redriven(actor=CONTROL, link=again.record.id, submits=(again,), reason="fixed")
    job = await do(store, job, redriven)
    answer, reason = await ask(store, job, r.Ended)
    assert (reason.letter, reason.redriven_as) == (Letter.REDRIVEN, str(again.record.id))
    assert reason.settled == r.Said(by="control:ann", at=job.updated_at, cause="fixed")
    assert f"its dead letter is redriven as {again.record.id}" in answer.text


async def test_ended_without_proof_of_the_kill(store: Store) -> None:
    job = await running_job(store, policy=SHORT_RUN)
    await passed(store, job.lease_expires_at)
    job = await do(store, job, c.RequestCancel(actor=CONTROL))
    now = (await store.clock()).now
    job = await do(store, job, c.Cancel(actor=RECONCILER, as_of=now))
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.kill, reason.last_owner) == ("unconfirmed", "worker-1")
    assert "its owner worker-1 was lost, so its kill is unconfirmed" in answer.text


async def test_denied_says_by_whom(store: Store) -> None:
    job = await submit(store, admitted=False)
    deny = c.Deny(actor=SCHEDULER, rule="no-prod", body=b'"not here"', reason="rule no-prod")
    answer, reason = await ask(store, await do(store, job, deny), r.Ended)

    assert reason.ended is not None
    assert (reason.ended.by, reason.error) == ("scheduler:one", "not here")
    assert "by scheduler:one: rule no-prod; error denied: not here; after 0 attempts" in answer.text


async def test_a_claim_of_an_older_epoch_waits_for_a_reconciler(store: Store) -> None:
    job = await running_job(store)
    await store.bump_epoch()
    _, reason = await ask(store, job, r.Overdue)

    assert (reason.what, reason.worker) == ("epoch", "worker-1")


class Changed:
    """A store that shows a job otherwise than it is, and counts what it is asked."""

    def __init__(self, store: Store, **columns: Any) -> None:
        self._store, self._columns = store, columns
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._store, name)

    async def get(self, ids: Any) -> Any:
        """Show the job with other columns."""
        self.asked.append("get")
        found = await self._store.get(ids)
        return [None if job is None else replace(job, **self._columns) for job in found]


async def test_a_state_of_a_newer_version_says_to_upgrade(store: Store) -> None:
    job = await submit(store)
    newer: Any = Changed(store, state=State.UNKNOWN)
    answer = await why(newer, job.id)

    assert isinstance(answer.reason, r.NewerVersion)
    assert "upgrade" in answer.text


async def test_a_job_that_moves_meanwhile_is_told_as_it_was_read(store: Store) -> None:
    job = await running_job(store)
    cancelled = await do(store, job, c.RequestCancel(actor=CONTROL))
    done = await do(store, cancelled, c.Cancel(actor=owner_of(job)))
    assert done.terminal
    earlier: Any = Changed(store, **{n: getattr(job, n) for n in job.__struct_fields__})
    answer = await why(earlier, job.id)

    assert isinstance(answer.reason, r.Running)
    assert answer.also == ()


@pytest.mark.parametrize("what", ["held", "ready", "running", "ended"])
async def test_it_reads_no_more_than_it_says(store: Store, what: str) -> None:
    if what in ("held", "ready"):
        job, _ = await served(store, held_by="budget" if what == "held" else None)
    else:
        job = await job_in(store, State.RUNNING if what == "running" else State.SUCCEEDED)
    counting: Any = Changed(store)
    await why(counting, job.id)

    assert len(counting.asked) <= 6, counting.asked


async def test_a_job_that_is_not_there_is_said(store: Store) -> None:
    with pytest.raises(NoSuchJob):
        await why(store, mint_id())


async def test_an_answer_can_be_written_as_json(store: Store) -> None:
    job = await unkillable(store)
    answer = await why(store, job.id)
    told = msgspec.json.decode(msgspec.json.encode(answer))

    assert (told["reason"]["code"], told["state"]) == ("unkillable", "running")
    assert [one["code"] for one in told["also"]] == ["cancel_requested", "running"]
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Why) == answer


def test_every_reason_has_a_code_of_its_own() -> None:
    kinds = get_args(r.Reason)
    tags = [kind.__struct_config__.tag for kind in kinds]

    assert set(kinds) == set(r.Because.__subclasses__())
    assert len(set(tags)) == len(kinds)
    assert all(tag.isidentifier() and tag.islower() for tag in tags)


def test_the_page_about_it_names_every_reason() -> None:
    page = (Path(__file__).parents[2] / "docs/why.md").read_text("utf-8")
    named = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]

    assert sorted(named) == sorted(kind.__struct_config__.tag for kind in get_args(r.Reason))


@pytest.mark.parametrize(
    ("away", "told"),
    [
        (0, "0s ago"),
        (5, "in 5s"),
        (-65, "1m 5s ago"),
        (120, "in 2m"),
        (3661, "in 1h 1m"),
        (-90_000, "1d 1h ago"),
        (86_400, "in 1d"),
    ],
)
def test_a_time_is_told_with_how_far_away_it_is(away: int, told: str) -> None:
    now = 1_700_000_000 * SECOND

    assert when(now + away * SECOND, now).endswith(f"Z ({told})")


def test_the_last_of_all_times_can_be_told() -> None:
    assert when(LAST_INSTANT, 0).startswith("9999-12-31 23:59:59Z")
