"""A ledger with jobs of every kind that the law can tell apart, made through the store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import KNOWN, CancelMode, Kind, Link, Priority, Role, State
from holdfast.lifecycle.times import NOW, After
from holdfast.ports.store import Store
from holdfast.testing.factories import (
    CONTROL,
    HOUR,
    JANITOR,
    RECONCILER,
    SCHEDULER,
    fresh,
    owner_of,
    worker,
)
from holdfast.testing.store_actions import claim_one, do, job_in, running_job, submit_one

Sample = Callable[[Store], Awaitable[Job]]


async def populate(store: Store) -> list[Job]:
    """Make one job of each kind."""
    jobs = [await job_in(store, state) for state in sorted(KNOWN)]
    return jobs + [await make(store) for make in _SAMPLES]


def rich() -> dict[str, Any]:
    """All that a submit can fix."""
    return {
        "tenant": "acme",
        "queue": fresh("queue"),
        "kind": Kind.COMMAND,
        "priority": Priority.CRITICAL,
        "needs": frozenset({"gpu"}),
        "policy": Policy(timeout=HOUR, start_timeout=HOUR, letter_on_fail=True, max_attempts=9),
        "cpus": 2,
        "memory_mb": 512,
        "deadline_at": After(24 * HOUR),
        "job_id": fresh("job"),
        "request_id": fresh("request"),
        "client_job_id": fresh("client"),
        "dedupe_key": fresh("dedupe"),
        "workflow_id": "flow",
        "step_index": 3,
        "task_version": "7",
        "correlation_id": fresh("correlation"),
        "trace_id": "trace",
        "labels": {"a": "b"},
        "env": {"c": "d"},
        "context_ptr": "s3://somewhere",
        "adapter_id": "an-adapter",
        "files_id": "an-upload",
        "reason": "because",
    }


async def _linked(store: Store) -> Job:
    parent = await job_in(store, State.QUEUED)
    return await running_job(store, parent_id=parent.id, link_kind=Link.CHILD, **rich())


async def _busy(store: Store) -> Job:
    """Running, with heartbeats, signals, steps, and a cancel asked for."""
    job = await _linked(store)
    owner = owner_of(job)
    job = await do(store, job, c.SignalJob(actor=CONTROL, name="one", body=b"1", reason="asked"))
    job = await do(store, job, c.SignalJob(actor=CONTROL, name="two"))
    job = await do(store, job, c.Step(actor=owner, name="pay", body=b'{"paid":1}'))
    job = await do(store, job, c.Step(actor=owner, name="await", consumes="two"))
    job = await do(store, job, c.Heartbeat(actor=owner, by_handler=True))
    job = await do(store, job, c.RequestCancel(actor=CONTROL, mode=CancelMode.HARD))
    return await do(store, job, c.Heartbeat(actor=owner))


async def _claimed_and_renewed(store: Store) -> Job:
    job = await job_in(store, State.CLAIMED, policy=Policy(start_timeout=HOUR))
    return await do(store, job, c.Heartbeat(actor=owner_of(job)))


async def _adopted(store: Store) -> Job:
    job = await running_job(store)
    return await do(store, job, c.Adopt(actor=Actor(Role.HOST, "worker-2")))


async def _waiting_with_timer(store: Store) -> Job:
    job = await running_job(store)
    return await do(store, job, c.Wait(actor=owner_of(job), signal="go", until=After(HOUR)))


async def _tried_before(store: Store, **wishes: Any) -> Job:
    """Queued again, with a failure and a release behind it."""
    job = await running_job(store, **{"queue": fresh("queue")} | wishes)
    job = await do(store, job, c.Retry(actor=owner_of(job), error_code="boom", retry_in=0))
    job = (await claim_one(store, job.queue)).job
    job = await do(store, job, c.Release(actor=owner_of(job)))
    return await do(store, job, c.Requeue(actor=CONTROL))


async def _held(store: Store) -> Job:
    job = await submit_one(store, queue=fresh("queue"), holds=("budget",), admitted=False)
    return await do(store, job, c.Hold(actor=CONTROL, hold="ann"))


async def _held_by_one_of_two(store: Store) -> Job:
    job = await do(store, await _held(store), c.Unhold(actor=CONTROL, hold="budget"))
    return await do(store, job, c.Reschedule(actor=CONTROL, run_at=After(HOUR)))


async def _held_and_tried(store: Store) -> Job:
    job = await _tried_before(store)
    return await do(store, job, c.Hold(actor=CONTROL, hold="ann"))


async def _lost(store: Store) -> Job:
    """Stalled, because its owner fell silent."""
    job = await running_job(store, queue=fresh("queue"))
    assert job.lease_expires_at is not None
    return await do(store, job, c.Stall(actor=RECONCILER, as_of=job.lease_expires_at))


async def _never_run_cancelled(store: Store) -> Job:
    return await do(store, await job_in(store, State.QUEUED), c.Cancel(actor=CONTROL))


async def _never_run_timed_out(store: Store) -> Job:
    job = await job_in(store, State.PENDING, deadline_at=NOW)
    return await do(store, job, c.TimeOut(actor=RECONCILER, as_of=job.deadline_at))


async def _never_run_dead_lettered(store: Store) -> Job:
    job = await job_in(store, State.PENDING)
    dead = c.DeadLetter(actor=SCHEDULER, error_code="dependency_unavailable", stage="fetch")
    return await do(store, job, dead)


async def _tried_and_cancelled(store: Store) -> Job:
    return await do(store, await _tried_before(store), c.Cancel(actor=CONTROL))


async def _failed_with_letter(store: Store) -> Job:
    job = await running_job(store, **rich())
    fail = c.Fail(
        actor=owner_of(job), error_code="boom", body=b'"boom"', exit_code=3, result_ptr="s3://log"
    )
    return await do(store, job, fail)


async def _redriven(store: Store) -> Job:
    job = await job_in(store, State.DEAD_LETTERED)
    return await do(store, job, c.Redriven(actor=CONTROL, link=job.id))


async def _discarded(store: Store) -> Job:
    return await do(store, await _failed_with_letter(store), c.Discarded(actor=CONTROL))


async def _annotated(store: Store) -> Job:
    job = await running_job(store, **rich())
    done = c.Complete(actor=owner_of(job), body=b"[1]", exit_code=0, result_ptr="s3://result")
    job = await do(store, job, done)
    return await do(store, job, c.LateResult(actor=worker("late"), state="failed", body=b"2"))


async def _cleaning(store: Store) -> Job:
    return await do(store, await _annotated(store), c.Clean(actor=JANITOR))


async def _cleaned(store: Store) -> Job:
    return await do(store, await _cleaning(store), c.Cleaned(actor=JANITOR))


_SAMPLES: tuple[Sample, ...] = (
    _linked,
    _busy,
    _claimed_and_renewed,
    _adopted,
    _waiting_with_timer,
    _tried_before,
    _held,
    _held_by_one_of_two,
    _held_and_tried,
    _lost,
    _never_run_cancelled,
    _never_run_timed_out,
    _never_run_dead_lettered,
    _tried_and_cancelled,
    _failed_with_letter,
    _redriven,
    _discarded,
    _annotated,
    _cleaning,
    _cleaned,
)
