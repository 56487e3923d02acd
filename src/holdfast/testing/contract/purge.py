"""Whole jobs removed: what goes, what stays, what can be read of it afterwards."""

from __future__ import annotations

from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import KeyKind, Link, State
from holdfast.ports.store import Store
from holdfast.testing.factories import JANITOR, fresh
from holdfast.testing.store_actions import do, job_in, stored, submit_one


async def cleaned_job(store: Store, **options: object) -> Job:
    """Return a cleaned job; an event of another job follows its own."""
    job = await job_in(store, State.SUCCEEDED, **options)
    job = await do(store, job, c.Clean(actor=JANITOR))
    job = await do(store, job, c.Cleaned(actor=JANITOR))
    await submit_one(store, queue=fresh("newest"))
    return job


class PurgeContract:
    """Purge, its guards and its ledger."""

    async def test_a_purged_job_is_gone_with_its_events_and_is_counted_no_more(
        self, store: Store
    ) -> None:
        job = await cleaned_job(store, queue="purging")
        assert await store.purge([job.id], actor="ann", reason="old") == [job.id]

        assert await store.get([job.id]) == [None]
        assert await store.events(job.id) == []
        assert [one for one in await store.counts() if one.queue == "purging" and one.jobs] == []

    async def test_only_what_is_cleaned_and_has_nothing_linked_is_purged(
        self, store: Store
    ) -> None:
        ended = await job_in(store, State.SUCCEEDED)
        live = await submit_one(store)
        parent = await cleaned_job(store)
        await submit_one(store, parent_id=parent.id, link_kind=Link.CHILD)
        aside = await cleaned_job(store)
        await store.quarantine([aside.id], reason="damaged")
        ids = [ended.id, live.id, parent.id, aside.id, mint_id()]
        assert await store.purge(ids, actor="ann") == []

        for job in (ended, live, parent, aside):
            assert (await stored(store, job.id)).id == job.id
        assert await store.purges() == []
        await store.release_quarantined([aside.id])

    async def test_a_purge_is_entered_with_who_why_and_how_many(self, store: Store) -> None:
        before = (await store.clock()).now
        events = 0
        for reason in ("first", "second"):
            jobs = [await cleaned_job(store) for _ in range(2)]
            events = sum([len(await store.events(job.id)) for job in jobs])
            await store.purge([job.id for job in jobs], actor="ann", reason=reason)

        second, first = await store.purges()
        assert (first.reason, second.reason, second.actor) == ("first", "second", "ann")
        assert (second.jobs, second.events) == (2, events)
        assert first.number < second.number
        assert before <= first.at <= second.at
        assert await store.purges(limit=1) == [second]
        assert await store.purges(before=second.number) == [first]

    async def test_what_is_left_of_a_purged_job_is_its_id_its_tenant_and_its_names(
        self, store: Store
    ) -> None:
        job = await cleaned_job(store, job_id="order", tenant="shop", client_job_id="client")
        other = await submit_one(store)
        await store.purge([job.id], actor="ann")

        found, none = await store.purged([job.id, other.id])
        assert none is None
        assert found is not None
        assert (found.id, found.tenant, found.actor) == (job.id, "shop", "ann")
        assert await store.look_up("shop", KeyKind.JOB_ID, "order") == job.id
        assert await store.look_up("shop", KeyKind.JOB_ID, str(job.id)) == job.id
        assert await store.look_up("shop", KeyKind.CLIENT_JOB_ID, "client") is None
        assert await store.free_stray_keys() == 0

    async def test_purging_again_removes_and_enters_nothing(self, store: Store) -> None:
        job = await cleaned_job(store)
        await store.purge([job.id], actor="ann")
        assert await store.purge([job.id], actor="ann") == []
        assert len(await store.purges()) == 1

    async def test_purgeable_are_ended_jobs_a_stretch_at_a_time_with_what_is_linked(
        self, store: Store
    ) -> None:
        first = await job_in(store, State.FAILED)
        child = await submit_one(store, parent_id=first.id, link_kind=Link.REDRIVE)
        last = await job_in(store, State.SUCCEEDED)
        now = (await store.clock()).now
        found = await store.purgeable(ended_before=now, look_at=2)
        assert ([job.id for job in found.jobs], found.next) == ([first.id], child.id)
        assert found.linked == {first.id}
        rest = await store.purgeable(ended_before=now, after=found.next)
        assert ([job.id for job in rest.jobs], rest.next) == ([last.id], None)
        assert not rest.linked
        assert (await store.purgeable(ended_before=1)).jobs == []
