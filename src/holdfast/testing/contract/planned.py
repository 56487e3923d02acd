"""Planned ends: written exactly as the changes that are decided for each job, or left alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.plan import PlannedEnd, end_by_plan, plan_success, record_after
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import resolve
from holdfast.ports.models import Claimed
from holdfast.ports.store import Store
from holdfast.testing.factories import (
    CONTROL,
    HOUR,
    PATIENT,
    SHORT_CLAIM,
    fresh,
    new_job,
    owner_of,
)
from holdfast.testing.store_actions import chain, claim, do, passed, stored

AGO = 1500
"""Microseconds between a start and its write."""


def end_of(claimed: Claimed, body: bytes = b'{"answer":42}', *, ago: int = AGO) -> PlannedEnd:
    """End a job by the plan of its group."""
    plan = plan_success(claimed.group.like)
    assert plan is not None
    return end_by_plan(plan, claimed.id, body, ago=ago, floor=claimed.updated_at)


async def claim_new(store: Store, jobs: int, **fields: Any) -> list[Claimed]:
    """Submit jobs to a queue of their own, and claim them."""
    queue = fields.setdefault("queue", fresh("queue"))
    await store.submit([new_job(**fields) for _ in range(jobs)])
    claimed = await claim(store, queue, limit=jobs)
    assert len(claimed) == jobs
    return claimed


def decide_events(job: Job, end: PlannedEnd, now: int, written: Sequence[LoggedEvent]) -> list[Any]:
    """Return the events of the start and the success as decided for this job alone."""
    owner = owner_of(job)
    body = end.body
    changes = chain(job, c.Start(actor=owner, ago=end.ago), c.Complete(actor=owner, body=body))
    times = ("at", "lease_expires_at", "run_at", "deadline_at")
    base = max(now, end.floor)
    return [
        replace(
            one.event,
            **{name: resolve(getattr(one.event, name), base) for name in times}
            | {"at": max(resolve(one.event.at, base) or 0, end.floor)},
            # The store's own: the batch that wrote them, and what continues the log.
            request_id=event.request_id,
            seal=event.seal,
        )
        for one, event in zip(changes, written, strict=True)
    ]


async def assert_written(store: Store, claimed: Claimed, end: PlannedEnd, now: int) -> None:
    """Compare what is in the ledger with what is decided for the job alone."""
    job = await stored(store, claimed.id)
    events = await store.events(claimed.id)
    assert job == record_after(end, claimed.job, now)
    assert derive(events) == job
    assert events[-2:] == decide_events(claimed.job, end, now, events[-2:])


async def assert_left_alone(store: Store, claimed: Claimed, end: PlannedEnd) -> None:
    """Try to write an end that must miss, and leave no trace."""
    job, log = await stored(store, claimed.id), await store.events(claimed.id)
    outcome = await store.commit_planned([end])
    assert list(outcome.missed) == [claimed.id]
    assert await stored(store, claimed.id) == job
    assert await store.events(claimed.id) == log


class PlannedContract:
    """Many plain ends at once."""

    @pytest.mark.req("B4", "E1", "E2")
    async def test_a_planned_end_is_written_as_it_would_be_decided(self, store: Store) -> None:
        # The last is dated before its claim, which no event may be.
        agos = (0, AGO, HOUR)
        claimed = await claim_new(store, len(agos))
        ends = [end_of(one, b"%d" % ago, ago=ago) for one, ago in zip(claimed, agos, strict=True)]
        outcome = await store.commit_planned(ends)

        assert not outcome.missed
        for one, end in zip(claimed, ends, strict=True):
            await assert_written(store, one, end, outcome.now)

    async def test_ends_of_several_plans_leave_together(self, store: Store) -> None:
        terms: tuple[dict[str, Any], ...] = (
            {},
            {"task": "other"},
            {"policy": replace(PATIENT, timeout=None)},
        )
        claimed = [one for fields in terms for one in await claim_new(store, 2, **fields)]
        ends = [end_of(one) for one in claimed]
        outcome = await store.commit_planned(ends)

        assert not outcome.missed
        for one, end in zip(claimed, ends, strict=True):
            await assert_written(store, one, end, outcome.now)

    async def test_planned_ends_are_counted(self, store: Store) -> None:
        claimed = await claim_new(store, 3)
        await store.commit_planned([end_of(one) for one in claimed])

        counts = {(one.queue, one.state): one.jobs for one in await store.counts()}
        assert counts == {(claimed[0].job.queue, State.SUCCEEDED): 3}

    @pytest.mark.req("B3", "C3")
    async def test_a_planned_end_on_another_revision_is_left_alone(self, store: Store) -> None:
        [claimed] = await claim_new(store, 1)
        await do(store, claimed.job, c.RequestCancel(actor=CONTROL))

        await assert_left_alone(store, claimed, end_of(claimed))

    async def test_a_planned_end_that_was_written_is_not_written_again(self, store: Store) -> None:
        [claimed] = await claim_new(store, 1)
        end = end_of(claimed)
        await store.commit_planned([end])

        await assert_left_alone(store, claimed, end)

    @pytest.mark.req("B6")
    async def test_a_planned_end_after_its_lease_is_left_alone(self, store: Store) -> None:
        [claimed] = await claim_new(store, 1, policy=SHORT_CLAIM)
        await passed(store, claimed.job.lease_expires_at)

        await assert_left_alone(store, claimed, end_of(claimed))

    async def test_a_planned_end_of_an_older_epoch_is_left_alone(self, store: Store) -> None:
        [claimed] = await claim_new(store, 1)
        await store.bump_epoch()

        await assert_left_alone(store, claimed, end_of(claimed))

    async def test_a_planned_end_that_misses_spoils_no_other(self, store: Store) -> None:
        claimed = await claim_new(store, 3) + await claim_new(store, 1, task="other")
        await do(store, claimed[1].job, c.RequestCancel(actor=CONTROL))
        ends = [end_of(one) for one in claimed]
        outcome = await store.commit_planned(ends)

        assert claimed[1].id in outcome.missed
        for one, end in zip(claimed, ends, strict=True):
            if one.id in outcome.missed:
                assert not (await stored(store, one.id)).terminal
            else:
                await assert_written(store, one, end, outcome.now)
