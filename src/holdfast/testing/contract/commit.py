"""Commit: compare-and-set on the revision; each change once, whole, or not at all."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.record import Actor, Change, Job
from holdfast.lifecycle.states import EventType, Link, Role, State
from holdfast.ports.models import Committed, Lost, Rejected
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, HOUR, fresh, job_ids, new_job, owner_of
from holdfast.testing.store_actions import (
    all_jobs,
    chain,
    change,
    claim,
    claimed_job,
    commit_one,
    do,
    job_in,
    refused,
    running_job,
    stored,
    submit_one,
)

BOB = Actor(Role.CONTROL, "bob")


def hold(job: Job, name: str = "operator", request_id: str | None = None) -> Change:
    """Decide a hold: the plainest change there is."""
    return change(job, c.Hold(actor=CONTROL, hold=name, request_id=request_id))


class CommitContract:
    """One change after the other, at once, and again."""

    @pytest.mark.req("B4", "B25", "C8", "C9", "E1", "E2", "E6")
    async def test_a_change_is_one_revision_and_one_event(self, store: Store) -> None:
        before = await submit_one(store)
        command = c.Hold(actor=CONTROL, hold="quota", request_id="hold-1", reason="too many")
        job = await do(store, before, command)

        assert job == await stored(store, job.id)
        assert (job.rev, job.held_by) == (before.rev + 1, ("quota",))
        assert job.updated_at > before.updated_at
        events = await store.events(job.id)
        assert derive(events) == job
        last = events[-1]
        assert (last.rev, last.type) == (2, EventType.HELD)
        assert (last.from_state, last.to_state) == (State.QUEUED, State.QUEUED)
        assert (last.at, last.actor) == (job.updated_at, "control:ann")
        assert (last.request_id, last.reason) == ("hold-1", "too many")

    @pytest.mark.req("B3", "C3")
    async def test_a_stale_revision_is_refused_and_changes_nothing(self, store: Store) -> None:
        old = await submit_one(store)
        current = await do(store, old, c.Hold(actor=CONTROL, hold="quota"))

        assert await refused(store, hold(old)) == current

    @pytest.mark.req("C3")
    async def test_a_revision_ahead_of_the_job_is_refused(self, store: Store) -> None:
        job = await submit_one(store)

        assert await refused(store, hold(replace(job, rev=2))) == job

    @pytest.mark.req("C3", "C13")
    async def test_a_stale_sweep_does_not_overwrite_a_finished_job(self, store: Store) -> None:
        claimed = await claimed_job(store)
        sweep = change(claimed, c.RequestCancel(actor=CONTROL))
        job = await do(store, claimed, c.Start(actor=owner_of(claimed)))
        done = await do(store, job, c.Complete(actor=owner_of(job)))

        assert await refused(store, sweep) == done

    async def test_a_change_of_an_unknown_job_is_answered_with_nothing(self, store: Store) -> None:
        ghost = replace(await submit_one(store), id=job_ids.mint())

        assert await commit_one(store, hold(ghost)) == Lost(None)

    @pytest.mark.req("C3")
    async def test_of_changes_at_once_on_one_revision_one_wins(self, store: Store) -> None:
        job = await submit_one(store)
        changes = [hold(job, f"hold-{number}", fresh("request")) for number in range(10)]
        outcomes = await asyncio.gather(*(commit_one(store, one) for one in changes))

        won = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
        assert len(won) == 1
        assert await stored(store, job.id) == won[0].job
        assert len(await store.events(job.id)) == 2

    @pytest.mark.req("B5", "C6")
    async def test_a_change_sent_again_after_a_lost_reply_is_success(self, store: Store) -> None:
        job = await submit_one(store)
        sent = hold(job, request_id="hold-1")
        first = await commit_one(store, sent)
        again = await commit_one(store, sent)

        assert isinstance(first, Committed)
        assert again == Committed(first.job, repeated=True)
        assert await stored(store, job.id) == first.job
        assert len(await store.events(job.id)) == 2

    @pytest.mark.req("B5", "C6")
    async def test_a_change_sent_again_after_others_is_still_success(self, store: Store) -> None:
        job = await submit_one(store)
        sent = hold(job, request_id="hold-1")
        held = await commit_one(store, sent)
        assert isinstance(held, Committed)
        await do(store, held.job, c.Unhold(actor=CONTROL, hold="operator"))
        again = await commit_one(store, sent)

        assert isinstance(again, Committed)
        assert again.repeated
        assert len(await store.events(job.id)) == 3

    @pytest.mark.req("B5", "C6")
    async def test_an_ending_sent_again_after_a_lost_reply_is_success(self, store: Store) -> None:
        job = await running_job(store)
        sent = change(job, c.Complete(actor=owner_of(job), body=b"1", request_id="complete-1"))
        first = await commit_one(store, sent)
        again = await commit_one(store, sent)

        assert isinstance(first, Committed)
        assert again == Committed(first.job, repeated=True)
        assert len(await store.events(job.id)) == 4

    async def test_a_heartbeat_sent_again_after_a_lost_reply_is_success(self, store: Store) -> None:
        job = await running_job(store)
        sent = change(job, c.Heartbeat(actor=owner_of(job), request_id="beat-1"))
        first = await commit_one(store, sent)
        again = await commit_one(store, sent)

        assert isinstance(first, Committed)
        assert again == Committed(first.job, repeated=True)
        assert len(await store.events(job.id)) == 4

    @pytest.mark.req("C6")
    async def test_a_request_id_with_other_content_is_not_a_repeat(self, store: Store) -> None:
        job = await running_job(store)
        one = c.Step(actor=owner_of(job), name="charge", body=b"1", request_id="step-1")
        await do(store, job, one)

        await refused(store, change(job, replace(one, body=b"2")))
        await refused(
            store, change(job, c.Progress(actor=one.actor, body=b"1", request_id="step-1"))
        )

    async def test_a_request_id_of_another_actor_is_not_a_repeat(self, store: Store) -> None:
        job = await submit_one(store)
        await do(store, job, c.Hold(actor=CONTROL, hold="operator", request_id="hold-1"))

        await refused(store, change(job, c.Hold(actor=BOB, hold="operator", request_id="hold-1")))

    async def test_a_change_without_a_request_id_is_not_a_repeat(self, store: Store) -> None:
        job = await submit_one(store)
        await do(store, job, c.Hold(actor=CONTROL, hold="operator"))

        await refused(store, hold(job))

    async def test_outcomes_come_in_the_order_of_the_changes(self, store: Store) -> None:
        jobs = [await submit_one(store) for _ in range(5)]
        stale = jobs[3]
        await do(store, stale, c.Hold(actor=CONTROL, hold="quota"))
        ghost = replace(jobs[0], id=job_ids.mint())
        # Against the order of ids, so that a store that sorts must put its answers back.
        batch = [hold(job) for job in (jobs[4], stale, jobs[2], ghost, jobs[0])]
        outcomes = await store.commit(batch)

        assert [type(one) for one in outcomes] == [Committed, Lost, Committed, Lost, Committed]
        written = [one.job.id for one in outcomes if isinstance(one, Committed)]
        assert written == [jobs[4].id, jobs[2].id, jobs[0].id]
        assert await store.get([jobs[1].id]) == [jobs[1]]

    async def test_a_job_named_twice_without_a_chain_changes_once(self, store: Store) -> None:
        job = await submit_one(store)
        won, lost = await store.commit([hold(job, "first"), hold(job, "second")])

        assert isinstance(won, Committed)
        assert isinstance(lost, Lost)
        assert (await stored(store, job.id)).held_by == ("first",)

    async def test_batches_at_once_over_the_same_jobs_do_not_deadlock(self, store: Store) -> None:
        jobs = [await submit_one(store) for _ in range(30)]
        batches = [
            [hold(job, f"hold-{n}") for job in jobs[:: 1 if n % 2 else -1]] for n in range(8)
        ]
        answers = await asyncio.gather(*(store.commit(batch) for batch in batches))

        won = [one for answer in answers for one in answer if isinstance(one, Committed)]
        assert sorted(one.job.id for one in won) == sorted(job.id for job in jobs)

    @pytest.mark.req("B24")
    async def test_a_large_batch_is_written_whole(self, store: Store) -> None:
        await store.submit([new_job() for _ in range(600)])
        jobs = [claimed.job for claimed in await claim(store, limit=600)]
        started = await store.commit([change(job, c.Start(actor=owner_of(job))) for job in jobs])
        running = [one.job for one in started if isinstance(one, Committed)]
        ended = await store.commit(
            [change(job, c.Complete(actor=owner_of(job), body=b"%d" % job.rev)) for job in running]
        )

        assert len(jobs) == len(running) == 600
        assert all(isinstance(one, Committed) for one in ended)
        # Counted: of two long lists that differ, pytest shows where for minutes.
        logs = Counter([len(entry.events) async for batch in store.ledger() for entry in batch])
        assert logs == {4: 600}

    @pytest.mark.req("A7")
    async def test_an_accepted_change_brings_its_submits(self, store: Store) -> None:
        job = await running_job(store)
        retry = new_job(parent_id=job.id, link_kind=Link.RETRY, body=b"[1]")
        other = new_job(parent_id=job.id, link_kind=Link.COMPENSATION, dedupe_key="undo")
        await do(store, job, c.Fail(actor=owner_of(job), error_code="boom", submits=(retry, other)))

        children = await store.get([retry.record.id, other.record.id])
        assert [child.parent_id for child in children if child] == [job.id, job.id]
        [event] = await store.events(retry.record.id)
        assert event.body == b"[1]"

    async def test_a_lost_change_brings_no_submits(self, store: Store) -> None:
        job = await running_job(store)
        await do(store, job, c.Heartbeat(actor=owner_of(job)))
        child = new_job(parent_id=job.id, job_id="child")
        lost = c.Fail(actor=owner_of(job), error_code="boom", submits=(child,))

        await refused(store, change(job, lost))
        assert [row.id for row in await all_jobs(store)] == [job.id]
        await submit_one(store, job_id="child")

    async def test_a_repeated_change_brings_its_submits_once(self, store: Store) -> None:
        job = await running_job(store)
        child = new_job(parent_id=job.id)
        sent = change(
            job,
            c.Fail(
                actor=owner_of(job), error_code="boom", submits=(child,), request_id=fresh("fail")
            ),
        )
        await commit_one(store, sent)
        again = await commit_one(store, sent)

        assert isinstance(again, Committed)
        assert again.repeated
        assert len(await all_jobs(store)) == 2

    async def test_a_submit_of_a_change_meets_the_holder_of_its_key(self, store: Store) -> None:
        holder = await submit_one(store, dedupe_key="child")
        job = await running_job(store)
        child = new_job(parent_id=job.id, dedupe_key="child")
        done = await do(
            store, job, c.Fail(actor=owner_of(job), error_code="boom", submits=(child,))
        )

        assert done.state is State.FAILED
        assert {row.id for row in await all_jobs(store)} == {holder.id, job.id}

    async def test_one_key_in_the_submits_of_two_changes_makes_one_job(self, store: Store) -> None:
        parents = [await running_job(store) for _ in range(2)]
        outcomes = await store.commit(
            [
                change(
                    job,
                    c.Fail(
                        actor=owner_of(job),
                        error_code="boom",
                        submits=(new_job(parent_id=job.id, dedupe_key="child"),),
                    ),
                )
                for job in parents
            ]
        )

        assert [type(one) for one in outcomes] == [Committed, Committed]
        assert len(await all_jobs(store)) == 3

    async def test_a_change_whose_submit_is_refused_is_refused(self, store: Store) -> None:
        await submit_one(store, job_id="child", body=b"1")
        job, other = await running_job(store), await running_job(store)
        child = new_job(parent_id=job.id, job_id="child", body=b"2")
        refused_one, accepted = await store.commit(
            [
                change(job, c.Fail(actor=owner_of(job), error_code="boom", submits=(child,))),
                change(other, c.Fail(actor=owner_of(other), error_code="boom")),
            ]
        )

        assert isinstance(refused_one, Rejected)
        assert refused_one.code == "key_conflict"
        assert await stored(store, job.id) == job
        assert isinstance(accepted, Committed)

    async def test_a_single_change_whose_submit_is_refused_is_refused(self, store: Store) -> None:
        await submit_one(store, job_id="child", body=b"1")
        job = await running_job(store)
        child = new_job(parent_id=job.id, job_id="child", body=b"2", link_kind=Link.CHILD)
        step = c.Step(actor=owner_of(job), name="spawn", submits=(child,))
        outcome = await commit_one(store, change(job, step))

        assert isinstance(outcome, Rejected)
        assert outcome.code == "key_conflict"
        assert await stored(store, job.id) == job

    @pytest.mark.req("C13")
    async def test_a_lost_race_shows_the_record_that_won(self, store: Store) -> None:
        job = await job_in(store, State.WAITING)
        signal = c.SignalJob(actor=CONTROL, name="go", body=b"1")
        resumed = await store.commit(chain(job, signal, c.Resume(actor=CONTROL)))
        lost = await commit_one(store, change(job, c.Cancel(actor=BOB)))

        assert lost == Lost(await stored(store, job.id))
        assert all(isinstance(outcome, Committed) for outcome in resumed)

    async def test_the_clock_of_a_job_never_runs_backwards(self, store: Store) -> None:
        job = await submit_one(store)
        for number in range(5):
            later = c.Reschedule(actor=CONTROL, run_at=job.created_at + HOUR + number)
            job = await do(store, job, later)
        times = [event.at for event in await store.events(job.id)]

        assert times == sorted(times)
        assert times[-1] == job.updated_at <= (await store.clock()).now
