"""Signals that no wait has consumed: kept apart from the job, read with it, counted without it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.flow.command import perform
from holdfast.flow.signal import signal
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Change, Job, LoggedEvent, Signal
from holdfast.lifecycle.states import EventType, State
from holdfast.maintenance.rebuild import rebuild
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, JANITOR, fresh, owner_of
from holdfast.testing.store_actions import (
    chain,
    change,
    claim_one,
    commit_one,
    do,
    job_in,
    running_job,
    stored,
    submit_one,
)

SENT = 30


async def signalled(store: Store, job: Job, *names: str) -> Job:
    """Send a job signals, one after the other."""
    for name in names:
        job = await do(store, job, c.SignalJob(actor=CONTROL, name=name))
    return job


async def unread(store: Store, job: Job) -> Job:
    """Read a job without its pending signals."""
    [found] = await store.get([job.id], signals=False)
    assert found is not None
    return found


class SignalContract:
    """Pending signals: read, counted, consumed, and removed with their job."""

    @pytest.mark.req("E5")
    async def test_pending_signals_are_counted_without_being_read(self, store: Store) -> None:
        silent = await submit_one(store)
        job = await signalled(store, await submit_one(store), "go", "stop", "go")

        found = await unread(store, job)
        assert (found.signals, found.unread_signals, found.pending_signals) == ((), 3, 3)
        assert (found.rev, found.state) == (job.rev, job.state)
        assert (await stored(store, job.id)).unread_signals == 0
        assert await unread(store, silent) == silent

    @pytest.mark.req("E5")
    async def test_a_signal_decided_without_the_others_is_kept_behind_them(
        self, store: Store
    ) -> None:
        await signalled(store, job := await submit_one(store), "go", "stop")
        send = c.SignalJob(actor=CONTROL, name="more")
        await commit_one(store, change(await unread(store, job), send))

        assert (await stored(store, job.id)).signals == (
            Signal("go", 2),
            Signal("stop", 3),
            Signal("more", 4),
        )
        assert (await unread(store, job)).unread_signals == 3

    @pytest.mark.req("E5")
    async def test_a_claim_returns_the_pending_signals_of_its_jobs(self, store: Store) -> None:
        queue = fresh("signalled")
        job = await signalled(store, await submit_one(store, queue=queue), "go", "stop")
        await submit_one(store, queue=queue)

        first, second = (await claim_one(store, queue)).job, (await claim_one(store, queue)).job
        assert (first.id, first.signals, second.signals) == (job.id, job.signals, ())
        done = await do(store, first, c.Start(actor=owner_of(first)))
        done = await do(store, done, c.Step(actor=owner_of(done), name="w", consumes="stop"))
        assert done.signals == (Signal("go", 2),)
        assert await stored(store, done.id) == done

    @pytest.mark.req("E5")
    async def test_the_signal_that_ends_a_wait_leaves_the_others(self, store: Store) -> None:
        job = await signalled(store, await job_in(store, State.WAITING), "other", "more")
        send, resume = c.SignalJob(actor=CONTROL, name="go"), c.Resume(actor=CONTROL)
        await store.commit(chain(job, send, resume))

        woken = await stored(store, job.id)
        assert (woken.state, woken.signals) == (State.QUEUED, job.signals)
        assert (await claim_one(store, job.queue)).job.signals == job.signals

    async def test_the_last_consumed_signal_leaves_none(self, store: Store) -> None:
        job = await signalled(store, await running_job(store), "go")
        job = await do(store, job, c.Step(actor=owner_of(job), name="w", consumes="go"))

        assert (await stored(store, job.id)).signals == ()
        assert (await unread(store, job)).pending_signals == 0
        assert await store.side_problems() == []

    async def test_a_signal_whose_revision_was_taken_is_not_kept(self, store: Store) -> None:
        job = await submit_one(store)
        stale = change(job, c.SignalJob(actor=CONTROL, name="late"))
        await signalled(store, job, "first")
        await commit_one(store, stale)

        assert (await stored(store, job.id)).signals == (Signal("first", 2),)

    async def test_a_locked_commit_is_decided_on_all_pending_signals(self, store: Store) -> None:
        job = await running_job(store)
        seen: list[int] = []

        def send(current: Job, _: Sequence[LoggedEvent]) -> list[Change]:
            seen.append(len(current.signals))
            return [change(current, c.SignalJob(actor=CONTROL, name="go"))]

        await asyncio.gather(*(store.commit_locked(job.id, send) for _ in range(SENT)))

        assert sorted(set(seen)) == list(range(SENT))
        assert len((await stored(store, job.id)).signals) == SENT

    @pytest.mark.req("E5", "C3")
    async def test_signals_that_come_while_others_are_consumed_are_each_consumed_once(
        self, store: Store
    ) -> None:
        job = await running_job(store)

        async def consume() -> None:
            taken = 0
            while taken < SENT:
                current = await stored(store, job.id)
                if current.signals:
                    step = c.Step(actor=owner_of(job), name="w", use=taken + 1, consumes="go")
                    await perform(store, job.id, step)
                    taken += 1

        sending = (signal(store, job.id, CONTROL, "go", str(n).encode()) for n in range(SENT))
        await asyncio.gather(consume(), *sending)

        events = await store.events(job.id, limit=10 * SENT)
        sent = [event.rev for event in events if event.type is EventType.SIGNAL_RECEIVED]
        consumed = [event.facts.consumed for event in events if event.facts.consumed is not None]
        assert len(sent) == SENT
        assert consumed == sent
        assert (await stored(store, job.id)).pending_signals == 0
        assert await store.side_problems() == []

    async def test_a_rebuild_restores_pending_signals(self, store: Store) -> None:
        job = await signalled(store, await running_job(store), "go", "stop", "go")
        job = await do(store, job, c.Step(actor=owner_of(job), name="w", consumes="go"))
        await rebuild(store)

        assert await stored(store, job.id) == job
        assert [one.name for one in job.signals] == ["stop", "go"]

    async def test_a_purge_removes_pending_signals(self, store: Store) -> None:
        job = await signalled(store, await running_job(store), "go", "stop")
        job = await do(store, job, c.Complete(actor=owner_of(job)))
        assert (await stored(store, job.id)).signals == job.signals
        for command in (c.Clean(actor=JANITOR), c.Cleaned(actor=JANITOR)):
            job = await do(store, job, command)
        # A purge never removes the newest event of all.
        await submit_one(store)

        assert await store.purge([job.id], actor="ann") == [job.id]
        assert await store.side_problems() == []
