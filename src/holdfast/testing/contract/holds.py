"""Holds: who lifts one finds the jobs under it, and nothing else."""

from __future__ import annotations

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import State
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, SCHEDULER
from holdfast.testing.store_actions import claim_one, do, job_in, submit_one


async def held_ids(store: Store, hold: str) -> list[JobId]:
    """List the jobs under a hold."""
    return [job.id for job in await store.held(hold)]


class HoldContract:
    """What is held, by the name of the hold, and what is not admitted."""

    async def test_a_hold_finds_the_jobs_that_were_submitted_under_it(self, store: Store) -> None:
        jobs = [await submit_one(store, holds=("upload",)) for _ in range(3)]
        await submit_one(store)
        await submit_one(store, holds=("upload-2",))

        assert await store.held("upload") == jobs
        assert await store.held("upload", after=jobs[0].id, limit=1) == [jobs[1]]
        assert await store.held("uploa") == await store.held("") == []

    async def test_a_job_is_found_by_each_of_its_holds_until_that_is_lifted(
        self, store: Store
    ) -> None:
        job = await submit_one(store, holds=("upload",))
        job = await do(store, job, c.Hold(actor=CONTROL, hold="budget"))
        assert await store.held("upload") == await store.held("budget") == [job]

        job = await do(store, job, c.Unhold(actor=SCHEDULER, hold="upload"))
        assert (await held_ids(store, "upload"), await store.held("budget")) == ([], [job])
        await do(store, job, c.Unhold(actor=SCHEDULER, hold="budget"))
        assert await held_ids(store, "budget") == []
        assert (await claim_one(store)).job.id == job.id

    async def test_a_held_job_that_ends_is_found_no_more(self, store: Store) -> None:
        job = await submit_one(store, holds=("upload",))
        await do(store, job, c.Cancel(actor=CONTROL))

        assert await held_ids(store, "upload") == []

    async def test_what_is_not_admitted_is_listed_until_it_is(self, store: Store) -> None:
        first, second, third = [await job_in(store, State.PENDING) for _ in range(3)]
        await job_in(store, State.QUEUED)
        await submit_one(store, holds=("upload",))
        assert await store.pending() == [first, second, third]
        assert await store.pending(after=first.id, limit=1) == [second]

        await do(store, first, c.Admit(actor=SCHEDULER))
        await do(store, second, c.Deny(actor=SCHEDULER, rule="no"))
        assert await store.pending() == [third]
        held = await do(store, third, c.Hold(actor=CONTROL, hold="upload"))
        assert await store.pending() == [held]

    async def test_what_is_set_aside_is_not_listed_under_its_hold(self, store: Store) -> None:
        bad, good = [await job_in(store, State.PENDING, holds=("upload",)) for _ in range(2)]
        await store.quarantine([bad.id], reason="damaged")

        assert await store.held("upload", limit=1) == await store.pending(limit=1) == [good]
        await store.release_quarantined([bad.id])
        assert await held_ids(store, "upload") == [bad.id, good.id]
