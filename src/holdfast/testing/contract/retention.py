"""Upkeep of the ledger: heartbeats dropped, bodies erased, seals, and a projection rebuilt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import derive, derive_status
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import BEATS, Link, State
from holdfast.ports.models import LedgerEntry
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, JANITOR, job_ids, new_job, owner_of
from holdfast.testing.store_actions import all_jobs, change, do, job_in, passed, running_job, stored


async def ledger(store: Store, **options: Any) -> list[list[LedgerEntry]]:
    """Read the whole ledger, batch by batch."""
    return [batch async for batch in store.ledger(**options)]


class RetentionContract:
    """What janitors and tools do."""

    async def test_the_ledger_is_read_in_batches_by_id(self, store: Store) -> None:
        jobs = [await job_in(store, state) for state in (State.QUEUED, State.RUNNING) * 3]
        ids = sorted(job.id for job in jobs)
        batches = await ledger(store, batch=4)

        assert [len(batch) for batch in batches if batch] == [4, 2]
        assert [entry.id for batch in batches for entry in batch] == ids
        rest = await ledger(store, after=ids[2], batch=100)
        assert [entry.id for batch in rest for entry in batch] == ids[3:]

    @pytest.mark.req("E6", "E7")
    async def test_the_ledger_holds_rows_events_and_keys(self, store: Store) -> None:
        job = await job_in(store, State.SUCCEEDED, dedupe_key="key", job_id="given")
        [[entry]] = await ledger(store)

        assert entry.unreadable is None
        assert (entry.row, derive(entry.events)) == (job, job)
        assert entry.events == await store.events(job.id)
        assert derive_status(entry.events) is State.SUCCEEDED
        assert sorted(key.key for key in entry.keys) == ["given", "key"]

    async def test_the_size_is_about_right(self, store: Store) -> None:
        await store.submit([new_job() for _ in range(30)])

        assert await store.size() >= 0

    @pytest.mark.req("E7")
    async def test_a_projection_rebuilt_from_events_is_the_same(self, store: Store) -> None:
        for state in State:
            if state is not State.UNKNOWN:
                live = state in (State.QUEUED, State.FAILED)
                await job_in(store, state, dedupe_key=f"key-{state}", unique_live=live)
        before = await all_jobs(store)
        entries = [entry for batch in await ledger(store) for entry in batch]
        derived = [job for entry in entries if (job := derive(entry.events)) is not None]
        keys = [(entry.id, key) for entry in entries for key in entry.keys]
        await store.rebuild(derived, keys=keys)

        assert await all_jobs(store) == before
        after = [entry for batch in await ledger(store) for entry in batch]
        assert [entry.keys for entry in after] == [entry.keys for entry in entries]

    @pytest.mark.req("E7")
    async def test_keys_of_no_job_are_freed(self, store: Store) -> None:
        for state in (State.QUEUED, State.SUCCEEDED):
            await job_in(store, state, dedupe_key=f"key-{state}")
        [entries] = await ledger(store)
        nobodys = replace(entries[0].keys[0], key="nobodys")
        await store.rebuild([], keys=[(job_ids.mint(), nobodys)])
        assert len((await ledger(store))[0]) == 3

        assert await store.free_stray_keys() == 1
        assert await ledger(store) == [entries]
        assert await store.free_stray_keys() == 0

    @pytest.mark.req("C8")
    async def test_a_log_is_whole_without_its_dropped_heartbeats(self, store: Store) -> None:
        job = await _with_beats(store, 3)
        job = await do(store, job, c.Complete(actor=owner_of(job)))
        now = await passed(store, job.updated_at)
        assert await store.drop_beats(before=now) == 3

        events = await store.events(job.id)
        assert [event.rev for event in events] == [1, 2, 3, 7]
        assert events[-1].beats == 3
        assert derive(events) == job

    async def test_heartbeats_after_the_time_are_kept(self, store: Store) -> None:
        job = await _with_beats(store, 2)
        cut = await passed(store, job.updated_at)
        await passed(store, cut)
        for _ in range(2):
            job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
        job = await do(store, job, c.Complete(actor=owner_of(job)))

        assert await store.drop_beats(before=cut) == 2
        assert [event.rev for event in await store.events(job.id)] == [1, 2, 3, 6, 7, 8]

    async def test_dropping_heartbeats_is_bounded(self, store: Store) -> None:
        job = await _with_beats(store, 5)
        job = await do(store, job, c.Complete(actor=owner_of(job)))
        now = await passed(store, job.updated_at)

        assert await store.drop_beats(before=now, limit=2) == 2
        assert await store.drop_beats(before=now) == 3

    async def test_heartbeats_that_a_present_lease_rests_on_are_kept(self, store: Store) -> None:
        job = await _with_beats(store, 3)
        now = await passed(store, job.updated_at)
        await store.drop_beats(before=now)

        assert derive(await store.events(job.id)) == job == await stored(store, job.id)
        done = await do(store, job, c.Complete(actor=owner_of(job)))
        assert (await store.events(done.id))[-1].beats == 3

    async def test_aged_are_those_that_ended_before_a_time(self, store: Store) -> None:
        ended = [await job_in(store, state) for state in (State.SUCCEEDED, State.FAILED)]
        cut = await passed(store, ended[-1].finished_at)
        await passed(store, cut)
        await job_in(store, State.SUCCEEDED)
        await job_in(store, State.WAITING)

        aged = await store.aged(ended_before=cut)
        assert [job.id for job in aged.jobs] == sorted(job.id for job in ended)
        assert aged.jobs == [await stored(store, job.id) for job in aged.jobs]
        assert aged.next is None

    async def test_aged_are_found_a_stretch_of_ids_at_a_time(self, store: Store) -> None:
        states = (State.QUEUED, State.SUCCEEDED, State.SUCCEEDED, State.QUEUED, State.SUCCEEDED)
        jobs = [await job_in(store, state) for state in states]
        now = await passed(store, jobs[-1].finished_at)
        found: list[list[JobId]] = []
        after: JobId | None = None
        for look in range(3):
            assert look == 0 or after is not None
            aged = await store.aged(ended_before=now, after=after, look_at=2)
            found.append([job.id for job in aged.jobs])
            after = aged.next

        assert found == [[jobs[1].id], [jobs[2].id], [jobs[4].id]]
        assert after is None

    async def test_aged_are_neither_cleaned_nor_needed_by_a_live_job(self, store: Store) -> None:
        await _cleaned(store)
        started = await do(store, await job_in(store, State.SUCCEEDED), c.Clean(actor=JANITOR))
        needed = await job_in(store, State.FAILED)
        undoing = await running_job(store, parent_id=needed.id, link_kind=Link.COMPENSATION)
        now = await passed(store, undoing.updated_at)

        assert [job.id for job in (await store.aged(ended_before=now)).jobs] == [started.id]
        await do(store, undoing, c.Complete(actor=owner_of(undoing)))
        later = (await store.aged(ended_before=now)).jobs
        assert [job.id for job in later] == [started.id, needed.id]

    async def test_continued_are_jobs_from_which_one_was_made_that_may_still_read_them(
        self, store: Store
    ) -> None:
        for link in (Link.RETRY, Link.REDRIVE, Link.COMPENSATION):
            first = await job_in(store, State.FAILED)
            second = await job_in(store, State.FAILED, parent_id=first.id, link_kind=link)
            assert await store.continued([first.id, second.id]) == set()
            third = await running_job(store, parent_id=second.id, link_kind=link)
            ids = [first.id, second.id, third.id]
            assert await store.continued(ids) == {first.id, second.id}
            await do(store, third, c.Complete(actor=owner_of(third)))
            assert await store.continued(ids) == set()

    async def test_continued_are_jobs_from_which_one_was_made_that_may_be_redriven(
        self, store: Store
    ) -> None:
        first = await job_in(store, State.FAILED)
        letter = await job_in(
            store, State.DEAD_LETTERED, parent_id=first.id, link_kind=Link.REDRIVE
        )
        assert await store.continued([first.id, letter.id]) == {first.id}
        await do(store, letter, c.Discarded(actor=CONTROL))
        assert await store.continued([first.id, letter.id]) == set()

    async def test_a_live_child_continues_nothing(self, store: Store) -> None:
        parent = await job_in(store, State.FAILED)
        await running_job(store, parent_id=parent.id, link_kind=Link.CHILD)
        assert await store.continued([parent.id, mint_id()]) == set()
        assert await store.continued([]) == set()

    async def test_erased_bodies_leave_their_digests(self, store: Store) -> None:
        job = await _cleaned(store, body=b'{"secret":1}')
        other = await job_in(store, State.SUCCEEDED, body=b'{"other":1}')
        before = await store.events(job.id)
        assert await store.erase_bodies([job.id, other.id]) == 2

        after = await store.events(job.id)
        assert [event.body for event in after] == [None] * len(after)
        assert after == [replace(event, body=None) for event in before]
        assert derive(after) == job == await stored(store, job.id)

    async def test_bodies_of_a_job_that_nobody_cleans_are_kept(self, store: Store) -> None:
        for state in (State.QUEUED, State.RUNNING, State.SUCCEEDED):
            job = await job_in(store, state, body=b'{"kept":1}')
            assert await store.erase_bodies([job.id]) == 0

            assert (await store.events(job.id))[0].body == b'{"kept":1}'

    async def test_erasing_again_erases_nothing(self, store: Store) -> None:
        job = await _cleaned(store)
        await store.erase_bodies([job.id])

        assert await store.erase_bodies([job.id]) == 0

    async def test_events_are_sealed_while_sealing_is_on(self, store: Store) -> None:
        before = await job_in(store, State.RUNNING)
        assert await _seals(store, before.id) == []
        await store.set_sealing(True)
        job = await job_in(store, State.RUNNING)
        job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
        job = await do(store, job, c.Complete(actor=owner_of(job)))

        events = await store.events(job.id)
        seals = await _seals(store, job.id)
        assert len(seals) == len(events) == 5
        assert len(set(seals)) == 5

    async def test_sealing_changes_nothing_else(self, store: Store) -> None:
        await store.set_sealing(True)
        job = await job_in(store, State.SUCCEEDED)
        await store.set_sealing(False)
        other = await job_in(store, State.SUCCEEDED)

        assert await _seals(store, other.id) == []
        assert derive(await store.events(job.id)) == job

    @pytest.mark.req("E1", "E8")
    async def test_a_secret_stays_and_is_nobody_elses(self, store: Store) -> None:
        first = await asyncio.gather(*(store.secret("feed") for _ in range(5)))
        assert set(first) == {await store.secret("feed")}
        assert len(first[0]) == 32
        assert await store.secret("other") not in first

    async def test_a_store_has_no_opinion_of_its_own(self, store: Store) -> None:
        """The projection is what the events show, not what the last caller believed."""
        job = await running_job(store)
        done = change(job, c.Complete(actor=owner_of(job), body=b"1"))
        await store.commit([done])

        events = await store.events(job.id)
        assert derive_status(events) is (await stored(store, job.id)).state is done.next.state


async def _with_beats(store: Store, beats: int) -> Job:
    job = await running_job(store)
    for _ in range(beats):
        job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    events = await store.events(job.id)
    assert len([event for event in events if event.type in BEATS]) == beats
    return job


async def _cleaned(store: Store, **options: Any) -> Job:
    job = await job_in(store, State.SUCCEEDED, **options)
    job = await do(store, job, c.Clean(actor=JANITOR))
    return await do(store, job, c.Cleaned(actor=JANITOR))


async def _seals(store: Store, id: JobId) -> list[bytes]:
    return [event.seal for event in await store.events(id) if event.seal is not None]
