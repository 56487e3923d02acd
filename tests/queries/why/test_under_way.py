"""A job that somebody holds, or that waits, says under whom and until when."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.family import CHILDREN, wait_name
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import CancelMode, Link, Role, State
from holdfast.lifecycle.times import After
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.queries.why.facts import Act
from holdfast.testing.factories import CONTROL, HOUR, SHORT_CLAIM, SHORT_RUN, new_job, owner_of
from holdfast.testing.store_actions import claim_one, claimed_job, do, job_in, passed, running_job
from tests.flow.families import child_of, waiting_parent
from tests.queries.why.acts import ask, codes, served, silence, unkillable, worker


async def test_claimed_says_by_whom_until_when(store: Store) -> None:
    name = await worker(store)
    job = await claimed_job(store, owner=name, policy=Policy(start_timeout=HOUR))
    answer, reason = await ask(store, job, r.NotStarted)

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
    cancel = c.RequestCancel(actor=CONTROL, mode=CancelMode.HARD, reason="wrong input")
    job = await do(store, job, cancel)
    asked_at = job.updated_at
    job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    answer, reason = await ask(store, job, r.CancelRequested)

    assert reason.asked == Act(by="control:ann", at=asked_at, cause="wrong input")
    assert (reason.mode, reason.worker) == (CancelMode.HARD, "worker-1")
    assert "a hard cancel was requested" in answer.text
    assert "by control:ann: wrong input; worker-1 has not ended it yet" in answer.text
    assert codes(answer) == ["running"]


async def test_unkillable_says_since_when(store: Store) -> None:
    job = await unkillable(store)
    said_at = job.updated_at
    job = await do(store, job, c.Progress(actor=owner_of(job), body=b"0.5"))
    answer, reason = await ask(store, job, r.Unkillable)

    assert reason.said == Act(by="worker-1", at=said_at, cause="a thread")
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
    assert "its lease expired" in answer.text
    assert "waits for a reconciler" in answer.text
    assert codes(answer) == [job.state.value]


@pytest.mark.parametrize("on_silence", ["lose", "time_out"])
async def test_a_lost_command_or_bus_job_may_be_taken_back_by_its_host_or_bus_first(
    store: Store, on_silence: str
) -> None:
    policy = Policy(heartbeat=1, on_silence=on_silence, host_recovery=HOUR, max_attempts=1)
    job = await running_job(store, policy=policy)
    await passed(store, job.lease_expires_at)
    answer, reason = await ask(store, job, r.Overdue)

    assert reason.not_before == (job.lease_expires_at or 0) + HOUR
    assert "its own host or bus may take it back until" in answer.text
    assert "waits for a reconciler" not in answer.text
    assert answer.advice is not None
    assert "same host" in answer.advice


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


async def test_a_claim_of_an_older_epoch_waits_for_a_reconciler(store: Store) -> None:
    job = await running_job(store)
    await store.bump_epoch()
    _, reason = await ask(store, job, r.Overdue)

    assert (reason.what, reason.worker) == ("epoch", "worker-1")


async def test_a_parent_names_the_children_it_waits_for(store: Store) -> None:
    parent, children = await waiting_parent(
        store, *[State.QUEUED] * 7, State.SUCCEEDED, name=wait_name(range(1, 8))
    )
    answer, reason = await ask(store, parent, r.WaitsForChildren)

    assert (reason.live, reason.more, reason.since) == (6, False, parent.updated_at)
    assert [one.job_id for one in reason.children] == [str(job.id) for job in children[1:6]]
    assert "waits for 6 children since" in answer.text
    assert f"{children[1].id} (greet, queued)" in answer.text


async def test_a_parent_names_the_next_try_of_a_child(store: Store) -> None:
    parent = await running_job(store)
    first = await child_of(store, parent, policy=Policy(max_attempts=3, idempotent=False))
    again = new_job(parent_id=first.id, link_kind=Link.RETRY)
    await do(store, first, c.Fail(actor=owner_of(first), error_code="boom", submits=(again,)))
    parent = await do(store, parent, c.Wait(actor=owner_of(parent), signal=CHILDREN))
    _, reason = await ask(store, parent, r.WaitsForChildren)

    assert [one.job_id for one in reason.children] == [str(again.record.id)]


async def test_a_parent_whose_children_have_ended_waits_for_a_reconciler(store: Store) -> None:
    parent, _ = await waiting_parent(store, State.SUCCEEDED)
    answer, reason = await ask(store, parent, r.Overdue)

    assert reason.what == "children"
    assert "the children that it waits for have ended" in answer.text
