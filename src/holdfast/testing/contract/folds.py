"""Folding: changes of one job that follow each other are one row update with an event each."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import apply
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Facts, Job, LoggedEvent
from holdfast.lifecycle.states import EventType, KeyKind, State
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Committed, Lost, Rejected
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, fresh, owner_of
from holdfast.testing.store_actions import (
    WAYS_OUT,
    chain,
    change,
    claimed_job,
    do,
    job_in,
    running_job,
    stored,
    submit_one,
)


async def fold(store: Store, job: Job, *commands: c.Command) -> Job:
    """Commit commands that follow each other in one go; all must be accepted."""
    outcomes = await store.commit(chain(job, *commands))
    assert all(isinstance(one, Committed) and not one.repeated for one in outcomes), outcomes
    assert len(outcomes) == len(commands)
    written = outcomes[-1]
    assert isinstance(written, Committed)
    assert written.job == await stored(store, job.id)
    assert written.job.rev == job.rev + len(commands)
    return written.job


def types(events: list[LoggedEvent]) -> list[EventType]:
    """Name the events."""
    return [event.type for event in events]


class FoldContract:
    """What may share a commit, and that it is all or none."""

    @pytest.mark.req("B4", "B24", "E2")
    async def test_start_and_finish_fold_into_two_events(self, store: Store) -> None:
        job = await claimed_job(store)
        actor = owner_of(job)
        done = await fold(store, job, c.Start(actor=actor), c.Complete(actor=actor, body=b"42"))

        assert (done.state, done.rev) == (State.SUCCEEDED, 4)
        assert (done.owner, done.lease_expires_at, done.epoch) == (None, None, None)
        events = await store.events(job.id)
        assert types(events)[2:] == [EventType.STARTED, EventType.SUCCEEDED]
        assert [event.rev for event in events] == [1, 2, 3, 4]
        assert events[2].to_state is events[3].from_state is State.RUNNING
        assert (events[2].body, events[3].body) == (None, b"42")

    async def test_a_folded_start_lies_before_its_commit_and_after_the_claim(
        self, store: Store
    ) -> None:
        job = await claimed_job(store)
        actor = owner_of(job)
        start = c.Start(actor=actor, ago=3600 * SECOND)
        done = await fold(store, job, start, c.Complete(actor=actor))

        # An hour ago there was no claim yet: a start is never earlier than the event before it.
        assert done.started_at == job.updated_at
        assert done.finished_at is not None
        assert done.finished_at > done.started_at
        times = [event.at for event in await store.events(job.id)]
        assert times == sorted(times)

    async def test_a_start_may_fold_with_every_way_out(self, store: Store) -> None:
        for state in WAYS_OUT:
            job = await claimed_job(store)
            if state is State.CANCELLED:
                job = await do(store, job, c.RequestCancel(actor=CONTROL))
            start = c.Start(actor=owner_of(job))
            ended = await fold(store, job, start, WAYS_OUT[state](job))

            assert ended.state is state
            assert ended.owner is None

    async def test_steps_in_a_fold_keep_their_bodies(self, store: Store) -> None:
        job = await claimed_job(store)
        actor = owner_of(job)
        steps = [
            c.Step(actor=actor, name=f"step-{number}", use=number, body=b'{"n":%d}' % number)
            for number in range(1, 6)
        ]
        progress = c.Progress(actor=actor, body=b'"nearly"')
        await fold(store, job, c.Start(actor=actor), *steps, progress, c.Complete(actor=actor))

        events = (await store.events(job.id))[3:-1]
        assert [event.facts.step for event in events[:-1]] == [step.name for step in steps]
        assert [event.facts.step_use for event in events[:-1]] == [1, 2, 3, 4, 5]
        assert [event.body for event in events] == [*(step.body for step in steps), progress.body]
        assert [event.digest for event in events] == [digest(event.body or b"") for event in events]

    async def test_a_wait_that_follows_steps_is_where_the_fold_ends(self, store: Store) -> None:
        job = await running_job(store)
        actor = owner_of(job)
        step = c.Step(actor=actor, name="ask", body=b"1")
        waiting = await fold(store, job, step, c.Wait(actor=actor, signal="answer"))

        assert (waiting.state, waiting.wait_for) == (State.WAITING, "answer")

    async def test_a_signal_and_the_resume_it_brings_fold(self, store: Store) -> None:
        job = await job_in(store, State.WAITING)
        signal = c.SignalJob(actor=CONTROL, name="go", body=b'"yes"')
        queued = await fold(store, job, signal, c.Resume(actor=CONTROL))

        assert (queued.state, queued.signals, queued.wait_for) == (State.QUEUED, (), None)
        events = (await store.events(job.id))[-2:]
        assert types(events) == [EventType.SIGNAL_RECEIVED, EventType.WAIT_COMPLETED]
        assert events[1].facts.consumed == events[0].rev
        assert events[0].body == b'"yes"'

    @pytest.mark.req("C3")
    async def test_a_fold_on_a_stale_revision_leaves_nothing(self, store: Store) -> None:
        old = await claimed_job(store)
        current = await do(store, old, c.Heartbeat(actor=owner_of(old)))
        actor = owner_of(old)
        outcomes = await store.commit(chain(old, c.Start(actor=actor), c.Complete(actor=actor)))

        assert outcomes == [Lost(current), Lost(current)]
        assert await stored(store, old.id) == current
        assert len(await store.events(old.id)) == 3

    async def test_a_fold_with_a_bad_change_leaves_nothing(self, store: Store) -> None:
        job, other = await claimed_job(store), await claimed_job(store)
        actor = owner_of(job)
        changes = chain(job, c.Start(actor=actor), c.Complete(actor=actor))
        event = replace(changes[1].event, facts=Facts(result_ptr="\ud800"))
        changes[1] = replace(changes[1], event=event, next=apply(changes[1].record, event))
        outcomes = await store.commit([*changes, change(other, c.Start(actor=owner_of(other)))])

        assert [type(one) for one in outcomes] == [Rejected, Rejected, Committed]
        assert await stored(store, job.id) == job
        assert len(await store.events(job.id)) == 2

    @pytest.mark.req("B5", "C6")
    async def test_a_fold_sent_again_after_a_lost_reply_is_success(self, store: Store) -> None:
        job = await claimed_job(store)
        actor = owner_of(job)
        changes = chain(
            job,
            c.Start(actor=actor, request_id=fresh("start")),
            c.Complete(actor=actor, body=b"1", request_id=fresh("complete")),
        )
        first = await store.commit(changes)
        again = await store.commit(changes)

        done = await stored(store, job.id)
        assert first[-1] == Committed(done)
        assert again[-1] == Committed(done, repeated=True)
        assert all(isinstance(one, Committed) and one.repeated for one in again)
        assert len(await store.events(job.id)) == 4

    async def test_folds_of_several_jobs_share_a_batch(self, store: Store) -> None:
        jobs = [await claimed_job(store) for _ in range(4)]
        stale = jobs[1]
        await do(store, stale, c.Heartbeat(actor=owner_of(stale)))
        starts = [change(job, c.Start(actor=owner_of(job))) for job in jobs]
        ends = [change(one.next, c.Complete(actor=owner_of(one.next))) for one in starts]
        # All starts, then all ends: a fold need not be in one piece within its batch.
        outcomes = await store.commit([*starts, *ends[::-1]])

        kinds = [Committed, Lost, Committed, Committed]
        assert [type(one) for one in outcomes] == [*kinds, *kinds[::-1]]
        states = [job.state for job in await store.get([job.id for job in jobs]) if job]
        assert states == [State.SUCCEEDED, State.CLAIMED, State.SUCCEEDED, State.SUCCEEDED]

    async def test_what_does_not_follow_from_the_fold_is_refused_alone(self, store: Store) -> None:
        job = await claimed_job(store)
        actor = owner_of(job)
        start, end = chain(job, c.Start(actor=actor), c.Complete(actor=actor, body=b"1"))
        other = change(start.next, c.Complete(actor=actor, body=b"2"))
        outcomes = await store.commit([start, end, other])

        assert [type(one) for one in outcomes] == [Committed, Committed, Lost]
        events = await store.events(job.id)
        assert (len(events), events[-1].body) == (4, b"1")

    async def test_a_heartbeat_does_not_fold(self, store: Store) -> None:
        # A start may lie before its commit: behind a beat of the same commit it would come first.
        job = await claimed_job(store)
        actor = owner_of(job)
        beat, start = chain(job, c.Heartbeat(actor=actor), c.Start(actor=actor, ago=SECOND))
        outcomes = await store.commit([beat, start])

        assert [type(one) for one in outcomes] == [Committed, Lost]
        assert (await stored(store, job.id)).rev == beat.event.rev

    @pytest.mark.req("C11")
    async def test_the_end_of_a_fold_frees_the_live_key(self, store: Store) -> None:
        job = await claimed_job(store, dedupe_key="one", unique_live=True)
        actor = owner_of(job)
        await fold(store, job, c.Start(actor=actor), c.Complete(actor=actor))

        assert await store.look_up("default", KeyKind.DEDUPE, "one") is None
        await submit_one(store, dedupe_key="one", unique_live=True)
