"""Locked commits: decided on the current record, with nobody between decision and commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Change, Job, LoggedEvent
from holdfast.lifecycle.states import EventType, State
from holdfast.ports.models import Committed, Lost, Rejected
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, SHORT_RUN, job_ids, new_job, owner_of
from holdfast.testing.store_actions import (
    chain,
    change,
    claimed_job,
    do,
    passed,
    running_job,
    stored,
    submit_one,
)

CROWD = 20


class LockContract:
    """What `commit_locked` owes: the current record, the lock, and all guards of a commit."""

    @pytest.mark.req("C3", "C8", "E2")
    async def test_a_locked_commit_is_decided_on_the_current_record(self, store: Store) -> None:
        old = await submit_one(store)
        current = await do(store, old, c.Hold(actor=CONTROL, hold="first"))
        seen: list[Job] = []

        def hold(job: Job, _: Sequence[LoggedEvent]) -> list[Change]:
            seen.append(job)
            return [change(job, c.Hold(actor=CONTROL, hold="second"))]

        outcome = await store.commit_locked(old.id, hold)

        assert isinstance(outcome, Committed)
        assert seen[-1] == current
        assert outcome.job == await stored(store, old.id)
        assert (outcome.job.rev, outcome.job.held_by) == (3, ("first", "second"))
        assert [event.rev for event in await store.events(old.id)] == [1, 2, 3]

    @pytest.mark.req("B3", "C3")
    async def test_of_locked_commits_at_once_every_one_is_written(self, store: Store) -> None:
        job = await submit_one(store)

        async def hold(name: str) -> None:
            outcome = await store.commit_locked(
                job.id, lambda current, _: [change(current, c.Hold(actor=CONTROL, hold=name))]
            )
            assert isinstance(outcome, Committed), outcome

        await asyncio.gather(*(hold(f"hold-{number}") for number in range(CROWD)))
        assert len((await stored(store, job.id)).held_by) == CROWD
        assert len(await store.events(job.id)) == CROWD + 1

    async def test_a_locked_commit_sees_the_events_since_a_revision(self, store: Store) -> None:
        job = await running_job(store)
        job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
        await do(store, job, c.Progress(actor=owner_of(job), body=b"1"))
        seen: list[list[EventType]] = []

        def look(_: Job, events: Sequence[LoggedEvent]) -> list[Change]:
            seen.append([event.type for event in events])
            return []

        await store.commit_locked(job.id, look, after=3)
        await store.commit_locked(job.id, look, after=5)
        await store.commit_locked(job.id, look)
        assert seen == [[EventType.LEASE_RENEWED, EventType.PROGRESSED], [], []]

    async def test_a_locked_commit_without_a_change_leaves_nothing(self, store: Store) -> None:
        job = await submit_one(store)

        assert await store.commit_locked(job.id, lambda *_: []) == Lost(job)
        assert await stored(store, job.id) == job
        assert len(await store.events(job.id)) == 1

    async def test_a_locked_commit_of_an_unknown_job_is_lost(self, store: Store) -> None:
        await submit_one(store)

        assert await store.commit_locked(job_ids.mint(), lambda *_: []) == Lost(None)

    @pytest.mark.req("B6", "C4")
    async def test_a_locked_commit_needs_a_live_lease_too(self, store: Store) -> None:
        job = await running_job(store, policy=SHORT_RUN)
        await passed(store, job.lease_expires_at)
        outcome = await store.commit_locked(
            job.id, lambda current, _: [change(current, c.Complete(actor=owner_of(job)))]
        )

        assert outcome == Lost(job)
        assert await stored(store, job.id) == job

    @pytest.mark.req("B4")
    async def test_a_locked_commit_folds_and_brings_its_submits(self, store: Store) -> None:
        job = await claimed_job(store)
        child = new_job(task="child", queue="elsewhere", needs=frozenset({"gpu"}))

        def decide(current: Job, _: Sequence[LoggedEvent]) -> list[Change]:
            actor = owner_of(current)
            step = c.Step(actor=actor, name="spawn", body=b"1", submits=(child,))
            return chain(current, c.Start(actor=actor), step, c.Complete(actor=actor))

        outcome = await store.commit_locked(job.id, decide)

        assert isinstance(outcome, Committed)
        assert (outcome.job.state, outcome.job.rev) == (State.SUCCEEDED, 5)
        assert (await stored(store, child.record.id)).queue == "elsewhere"

    async def test_a_locked_commit_whose_submit_is_refused_leaves_nothing(
        self, store: Store
    ) -> None:
        job = await running_job(store)
        taken = await submit_one(store, job_id="mine", task="one")
        child = new_job(job_id="mine", task="another")
        step = c.Step(actor=owner_of(job), name="spawn", body=b"1", submits=(child,))
        outcome = await store.commit_locked(job.id, lambda current, _: [change(current, step)])

        assert isinstance(outcome, Rejected)
        assert await stored(store, job.id) == job
        assert await stored(store, taken.id) == taken
