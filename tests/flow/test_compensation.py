"""A compensation is there exactly if the end is that it came with, on either engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import HoldfastError, StoreBroken, StoreUnavailable
from holdfast.flow.cancel import cancel
from holdfast.flow.command import perform
from holdfast.flow.recover import sweep
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.linked import compensation_id
from holdfast.lifecycle.record import Actor, Job, Record
from holdfast.lifecycle.states import Link, Role, State
from holdfast.lifecycle.times import After
from holdfast.ports.models import Lost, Query
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.queries.why.why import why
from holdfast.testing.factories import CONTROL, RECONCILER, new_job, owner_of
from holdfast.testing.store_actions import change, claim_one, do, running_job, submit_one

UNDOABLE = Policy(compensates=True, timeout=1)
BRIEF = Policy(compensates=True, heartbeat=1, max_attempts=1)
SWEEPER = Actor(Role.RECONCILER, "r")


async def undoing(store: Store, job: Job) -> list[Job]:
    """List what was made to undo a job."""
    jobs = (await store.find(Query(parent_id=job.id))).jobs
    return [one for one in jobs if one.link_kind is Link.COMPENSATION]


@pytest.mark.req("B28")
@pytest.mark.parametrize("seed", range(4))
async def test_of_several_that_end_a_job_at_once_one_brings_its_compensation(
    either_store: Store, seed: int
) -> None:
    store = either_store
    job = await running_job(store, policy=UNDOABLE)
    job = await do(store, job, c.RequestCancel(actor=CONTROL))
    now = (await store.clock()).now
    owner = owner_of(job)
    ends: list[c.Command] = [
        c.Fail(actor=owner, error_code="boom"),
        c.Cancel(actor=owner),
        c.TimeOut(actor=owner),
        c.TimeOut(actor=RECONCILER, as_of=now),
    ]
    order = ends[seed:] + ends[:seed]
    outcomes = await asyncio.gather(
        *(perform(store, job.id, command) for command in order), return_exceptions=True
    )

    assert any(isinstance(outcome, Record) for outcome in outcomes)
    assert all(isinstance(one, HoldfastError | Record) for one in outcomes)
    assert [one.id for one in await undoing(store, job)] == [compensation_id(job.id)]


@pytest.mark.req("B28")
async def test_an_end_that_is_refused_brings_nothing(either_store: Store) -> None:
    store = either_store
    job = await running_job(store, policy=UNDOABLE)
    stale = change(job, c.Fail(actor=owner_of(job), error_code="boom"))
    await do(store, job, c.Complete(actor=owner_of(job)))
    [outcome] = await store.commit([stale])

    assert isinstance(outcome, Lost)
    assert await undoing(store, job) == []


@pytest.mark.req("B28")
async def test_a_sweep_that_ends_lost_jobs_brings_their_compensations(either_store: Store) -> None:
    store = either_store
    jobs = [await running_job(store, policy=BRIEF) for _ in range(3)]
    late = await submit_one(store, policy=UNDOABLE, deadline_at=After(0))
    await sweep(store, SWEEPER, jitter=lambda: 0.0)

    for job in jobs:
        [undo] = await undoing(store, job)
        assert (undo.state, undo.task, undo.queue) == (State.QUEUED, job.task, job.queue)
    assert await undoing(store, late) == [], "it was never claimed"


async def fail(store: Store, job: Job) -> None:
    await perform(store, job.id, c.Fail(actor=owner_of(job), error_code="boom"))


async def cancel_while_parked(store: Store, job: Job) -> None:
    await do(store, job, c.Wait(actor=owner_of(job), signal="go"))
    await cancel(store, job.id, CONTROL)


async def lose(store: Store, job: Job) -> None:
    await sweep(store, SWEEPER, jitter=lambda: 0.0)


async def cancel_its_parent(store: Store, job: Job) -> None:
    await do(store, job, c.Wait(actor=owner_of(job), signal="go"))
    assert job.parent_id is not None
    await cancel(store, job.parent_id, CONTROL)


@pytest.mark.req("B18", "B19", "B28")
@pytest.mark.parametrize("end", [fail, cancel_while_parked, lose, cancel_its_parent])
async def test_a_compensation_is_found_by_the_correlation_of_what_it_undoes(
    either_store: Store, end: Callable[[Store, Job], Awaitable[None]]
) -> None:
    store = either_store
    parent = await running_job(store)
    # Only what a sweep has to find lost has a lease that is over at once.
    policy = BRIEF if end is lose else UNDOABLE
    job = await running_job(
        store,
        policy=policy,
        correlation_id="order-7",
        parent_id=parent.id,
        link_kind=Link.CHILD,
    )
    await end(store, job)
    [undo] = await undoing(store, job)

    found = (await store.find(Query(correlation_id="order-7"))).jobs
    assert {one.id for one in found} == {job.id, undo.id}
    [first] = await store.events(undo.id)
    assert first.correlation_id == "order-7"


class Unread:
    """A store that cannot read events."""

    def __init__(self, store: Store, error: Exception) -> None:
        """Fail so."""
        self._store = store
        self._error = error

    def __getattr__(self, name: str) -> Any:
        """All else is the store's."""
        return getattr(self._store, name)

    async def events(self, *_: Any, **__: Any) -> Any:
        """Fail."""
        raise self._error


async def test_a_first_event_that_cannot_be_read_stops_no_sweep(store: Store) -> None:
    job = await running_job(store, policy=BRIEF, correlation_id="order-7")
    away: Any = Unread(store, StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        await sweep(away, SWEEPER, jitter=lambda: 0.0)
    damaged: Any = Unread(store, StoreBroken("damaged"))
    await sweep(damaged, SWEEPER, jitter=lambda: 0.0)
    [undo] = await undoing(store, job)
    assert (await store.events(undo.id))[0].correlation_id is None


@pytest.mark.req("B14", "B28")
async def test_a_compensation_whose_worker_is_lost_too_often_says_that_it_failed(
    store: Store,
) -> None:
    job = await running_job(store, queue="money", policy=BRIEF)
    await sweep(store, SWEEPER, jitter=lambda: 0.0)
    claimed = (await claim_one(store, "money")).job
    await perform(store, claimed.id, c.Start(actor=owner_of(claimed)))
    await sweep(store, SWEEPER, jitter=lambda: 0.0)
    [undo] = await undoing(store, job)

    assert (undo.state, undo.error_code) == (State.DEAD_LETTERED, "compensation_failed")


@pytest.mark.req("B28")
async def test_why_tells_who_undoes_a_job_and_whether_that_is_done(either_store: Store) -> None:
    store = either_store
    job = await running_job(store, policy=UNDOABLE)
    job = await do(store, job, c.Fail(actor=owner_of(job), error_code="boom"))
    undo = compensation_id(job.id)
    answer = await why(store, job.id)
    assert isinstance(answer.reason, r.Ended)
    assert (answer.reason.undone_by, answer.reason.undoing) == (str(undo), State.QUEUED)
    assert f"its compensation {undo} is queued" in answer.text

    await do(store, job, c.Compensated(actor=Actor(Role.WORKER, "w-7"), link=undo))
    answer = await why(store, job.id)
    assert isinstance(answer.reason, r.Ended)
    assert answer.reason.undone is not None
    assert answer.reason.undone.by == "w-7"
    assert f"undone by {undo}" in answer.text


@pytest.mark.req("A16")
async def test_why_names_the_next_try(store: Store) -> None:
    job = await running_job(store, policy=replace(UNDOABLE, compensates=False))
    again = new_job(parent_id=job.id, link_kind=Link.RETRY)
    job = await do(store, job, c.Fail(actor=owner_of(job), error_code="b", submits=(again,)))

    assert f"tried again as {again.record.id}" in (await why(store, job.id)).text
