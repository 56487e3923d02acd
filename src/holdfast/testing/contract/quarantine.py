"""Jobs that are set aside: out of claims and sweeps, and otherwise as they were."""

from __future__ import annotations

from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import TERMINAL, State
from holdfast.lifecycle.times import After
from holdfast.ports.store import Store
from holdfast.testing.factories import SHORT_CLAIM, SHORT_RUN, owner_of
from holdfast.testing.store_actions import (
    claimed_ids,
    claimed_job,
    do,
    job_in,
    passed,
    running_job,
    stored,
    submit_one,
)


class QuarantineContract:
    """Set aside, listed, released. Each test releases what it set aside: else `verify` names it."""

    async def test_a_job_that_is_set_aside_is_not_claimed_until_it_is_released(
        self, store: Store
    ) -> None:
        bad, good = [await submit_one(store) for _ in range(2)]
        await store.quarantine([bad.id], reason="damaged")
        assert await claimed_ids(store) == [good.id]

        assert await store.release_quarantined([bad.id]) == 1
        assert await claimed_ids(store) == [bad.id]

    async def test_a_job_that_is_set_aside_is_not_due_until_it_is_released(
        self, store: Store
    ) -> None:
        late = await submit_one(store, deadline_at=After(1))
        lost = await running_job(store, policy=SHORT_RUN)
        unstarted = await claimed_job(store, policy=SHORT_CLAIM)
        ids = [late.id, lost.id, unstarted.id]
        await passed(store, unstarted.lease_expires_at)
        await store.quarantine(ids, reason="damaged")
        assert (await store.due()).jobs == []

        assert await store.release_quarantined(ids) == 3
        assert {job.id for job in (await store.due()).jobs} == set(ids)

    async def test_a_job_that_is_set_aside_is_neither_cleaned_nor_purged_until_it_is_released(
        self, store: Store
    ) -> None:
        bad, good = [await job_in(store, State.SUCCEEDED) for _ in range(2)]
        now = await passed(store, good.finished_at)
        await store.quarantine([bad.id], reason="damaged")
        assert [job.id for job in (await store.aged(ended_before=now)).jobs] == [good.id]
        assert [job.id for job in (await store.purgeable(ended_before=now)).jobs] == [good.id]

        await store.release_quarantined([bad.id])
        ids = [bad.id, good.id]
        assert [job.id for job in (await store.aged(ended_before=now)).jobs] == ids
        assert [job.id for job in (await store.purgeable(ended_before=now)).jobs] == ids

    async def test_setting_aside_changes_nothing_of_the_job(self, store: Store) -> None:
        jobs = [await job_in(store, state) for state in (State.QUEUED, State.RUNNING, *TERMINAL)]
        ids = [job.id for job in jobs]
        await store.quarantine(ids, reason="damaged")
        assert await store.get(ids) == jobs
        await store.release_quarantined(ids)
        assert await store.get(ids) == jobs

    async def test_an_owner_finishes_a_job_that_is_set_aside(self, store: Store) -> None:
        job = await running_job(store)
        await store.quarantine([job.id], reason="damaged")
        await do(store, job, c.Complete(actor=owner_of(job), body=b"1"))
        assert (await stored(store, job.id)).state is State.SUCCEEDED
        await store.release_quarantined([job.id])

    async def test_an_owner_is_not_asked_to_give_back_what_is_set_aside(self, store: Store) -> None:
        bad, good = [await running_job(store, owner="host:1:a") for _ in range(2)]
        owner = owner_of(good).name
        await store.quarantine([bad.id], reason="damaged")
        assert [job.id for job in await store.owned(owner)] == [good.id]
        assert await store.owned_on("host", but="host:2:b") == [good]

        await store.release_quarantined([bad.id])
        assert {job.id for job in await store.owned(owner)} == {bad.id, good.id}

    async def test_what_is_set_aside_is_listed_by_id_with_its_first_reason(
        self, store: Store
    ) -> None:
        ids = sorted([(await submit_one(store)).id for _ in range(3)])
        before = (await store.clock()).now
        await store.quarantine(ids, reason="first")
        await store.quarantine([*ids, mint_id()], reason="second")

        first = await store.quarantined(limit=2)
        rest = await store.quarantined(after=ids[1])
        assert [one.id for one in (*first.jobs, *rest.jobs)] == ids
        assert (first.total, rest.total) == (3, 3)
        assert {one.reason for one in first.jobs} == {"first"}
        assert all(one.since >= before for one in first.jobs)

        assert await store.release_quarantined(ids) == 3
        assert await store.release_quarantined(ids) == 0
        assert (await store.quarantined()).total == 0
