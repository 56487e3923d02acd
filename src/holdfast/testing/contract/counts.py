"""Summaries by state and queue, paused queues, and the hint that work has come."""

from __future__ import annotations

import asyncio
from collections import Counter

from holdfast.lifecycle.states import LIVE, TERMINAL, State
from holdfast.ports.store import Store
from holdfast.testing.store_actions import WAYS_OUT, claim, do, job_in, running_job, submit_one


async def counted(store: Store, tenant: str | None = None) -> dict[tuple[str, str, State], int]:
    """Read the summaries, without those that count none."""
    counts = await store.counts(tenant)
    return {(one.tenant, one.queue, one.state): one.jobs for one in counts if one.jobs}


class CountContract:
    """Counts and queues."""

    async def test_counts_are_the_jobs_in_each_state(self, store: Store) -> None:
        states = sorted(LIVE | TERMINAL)
        ours = {}
        for number, state in enumerate(states):
            for copy in range(1 + number % 3):
                await job_in(store, state, queue=f"{state}-{copy}")
                ours["default", f"{state}-{copy}", state] = 1
        await submit_one(store, queue="queued-0")
        ours["default", "queued-0", State.QUEUED] += 1
        await submit_one(store, tenant="acme", queue="queued-0")
        theirs = {("acme", "queued-0", State.QUEUED): 1}

        assert await counted(store) == ours | theirs
        assert await counted(store, "default") == ours
        assert await counted(store, "acme") == theirs
        assert await counted(store, "nobody") == {}

    async def test_folding_the_counts_changes_none(self, store: Store) -> None:
        for state in (State.QUEUED, State.RUNNING, State.SUCCEEDED, State.SUCCEEDED):
            await job_in(store, state)
        before = await counted(store)
        await store.fold_counts()
        assert await counted(store) == before
        job = await running_job(store, queue="more")
        await do(store, job, WAYS_OUT[State.FAILED](job))
        await asyncio.gather(*(store.fold_counts() for _ in range(3)))

        assert await counted(store) == before | {("default", "more", State.FAILED): 1}

    async def test_counting_anew_changes_none(self, store: Store) -> None:
        for state in (State.QUEUED, State.RUNNING, State.SUCCEEDED):
            await job_in(store, state)
        before = await counted(store)
        await store.recount()

        assert await counted(store) == before

    async def test_counts_hold_while_they_are_folded_under_load(self, store: Store) -> None:
        async def work(number: int) -> None:
            job = await running_job(store, queue=f"queue-{number % 3}", owner=f"worker-{number}")
            await do(store, job, WAYS_OUT[State.SUCCEEDED](job))

        async def fold() -> None:
            for _ in range(5):
                await store.fold_counts()

        # One job of each queue at a time: its claim must be its own.
        for first in range(0, 9, 3):
            await asyncio.gather(*(work(first + number) for number in range(3)), fold())

        totals = Counter[State]()
        for (_, _, state), jobs in (await counted(store)).items():
            totals[state] += jobs
        assert totals == {State.SUCCEEDED: 9}

    async def test_a_pause_records_who_paused_when_and_why(self, store: Store) -> None:
        before = (await store.clock()).now
        status = await store.pause("mail", actor="ann", reason="provider is down")

        assert (status.name, status.paused_by) == ("mail", "ann")
        assert status.reason == "provider is down"
        assert status.paused_at is not None
        assert before <= status.paused_at <= (await store.clock()).now
        assert await store.queues() == [status]

    async def test_a_resumed_queue_is_listed_as_not_paused(self, store: Store) -> None:
        await store.pause("mail", actor="ann")
        status = await store.resume("mail", actor="bob")

        assert (status.name, status.paused_at) == ("mail", None)
        assert await store.queues() == [status]

    async def test_pauses_are_entered_in_the_ledger_of_the_queues(self, store: Store) -> None:
        await store.pause("mail", actor="ann", reason="down", request_id="pause-1")
        await store.pause("post", actor="ann")
        await store.resume("mail", actor="bob", reason="up", request_id="resume-1")

        first, second, third = await store.queue_events()
        assert (first.queue, first.actor, first.reason) == ("mail", "ann", "down")
        assert (first.request_id, third.request_id) == ("pause-1", "resume-1")
        assert (second.queue, third.queue, third.actor) == ("post", "mail", "bob")
        assert first.type == second.type != third.type
        assert first.at <= second.at <= third.at
        assert await store.queue_events("mail") == [first, third]

    async def test_a_pause_sent_again_is_success_and_no_second_entry(self, store: Store) -> None:
        first = await store.pause("mail", actor="ann", reason="down", request_id="pause-1")
        again = await store.pause("mail", actor="ann", reason="down", request_id="pause-1")

        assert again == first
        assert len(await store.queue_events("mail")) == 1

    async def test_a_pause_sent_again_after_a_resume_does_not_pause_again(
        self, store: Store
    ) -> None:
        await submit_one(store, queue="mail")
        await store.pause("mail", actor="ann", request_id="pause-1")
        await store.resume("mail", actor="bob", request_id="resume-1")
        await store.pause("mail", actor="ann", request_id="pause-1")

        assert len(await store.queue_events("mail")) == 2
        assert len(await claim(store, "mail")) == 1

    async def test_pausing_a_paused_queue_is_success(self, store: Store) -> None:
        await store.pause("mail", actor="ann")
        status = await store.pause("mail", actor="bob")

        assert status.paused_at is not None
        await store.resume("mail", actor="ann")
        await submit_one(store, queue="mail")
        assert len(await claim(store, "mail")) == 1

    async def test_waiting_for_work_ends_at_its_limit(self, store: Store) -> None:
        async with asyncio.timeout(5):
            await store.wake_up(["nothing-comes"], limit_seconds=0.05)
