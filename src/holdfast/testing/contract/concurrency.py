"""The contract of contention: keys that change hands, ranges whose heads others hold, hints."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import KeyKind
from holdfast.ports.models import SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, fresh, new_job
from holdfast.testing.store_actions import all_jobs, claim, do, stored, submit_one

ROUNDS = 60
"""A race that a wrong store lost about once in twenty rounds."""


class ConcurrencyContract:
    """What holds when several want the same at the same moment."""

    @pytest.mark.req("C11", "B5")
    async def test_a_live_key_that_is_freed_at_that_moment_has_one_holder_at_most(
        self, store: Store
    ) -> None:
        for _ in range(ROUNDS):
            key = fresh("key")
            holder = await submit_one(store, dedupe_key=key, unique_live=True)
            options = [new_job(dedupe_key=key, unique_live=True) for _ in range(3)]
            await asyncio.gather(
                do(store, holder, c.Cancel(actor=CONTROL)),
                *(store.submit([option]) for option in options),
            )
            live = [job for job in await all_jobs(store) if not job.terminal]
            assert len(live) <= 1
            for job in live:
                assert await store.look_up("default", KeyKind.DEDUPE, key) == job.id
                await do(store, job, c.Cancel(actor=CONTROL))

    async def test_one_key_in_a_batch_is_judged_by_the_key_and_not_by_its_kind(
        self, store: Store
    ) -> None:
        key = fresh("key")
        first = new_job(dedupe_key=key, request_id=fresh("request"), body=b"1")
        second = new_job(dedupe_key=key, request_id=fresh("request"), body=b"2")
        answers = await store.submit([first, second])
        assert [isinstance(one, Submitted) and one.created for one in answers] == [True, False]
        assert len(await all_jobs(store)) == 1

    async def test_a_job_that_shares_a_key_with_a_loser_of_its_batch_is_not_lost(
        self, store: Store
    ) -> None:
        taken, free = fresh("taken"), fresh("free")
        holder = await submit_one(store, dedupe_key=taken)
        loser = new_job(dedupe_key=taken, job_id=free)
        hopeful = new_job(job_id=free)
        answers = await store.submit([loser, hopeful])
        assert isinstance(answers[0], Submitted)
        assert answers[0].job.id == holder.id
        assert isinstance(answers[1], Submitted)
        assert answers[1].created
        assert await store.look_up("default", KeyKind.JOB_ID, free) == hopeful.record.id

    @pytest.mark.req("A1")
    async def test_an_internal_id_as_job_id_needs_the_same_body(self, store: Store) -> None:
        job = await submit_one(store, body=b"1")
        [same] = await store.submit([new_job(job_id=str(job.id), body=b"1")])
        [other] = await store.submit([new_job(job_id=str(job.id), body=b"2")])
        assert isinstance(same, Submitted)
        assert (same.job.id, same.created) == (job.id, False)
        assert isinstance(other, SubmitRefused)
        assert (other.code, other.holder) == ("key_conflict", job.id)

    async def test_claimers_of_several_queues_at_once_leave_nothing_due_behind(
        self, store: Store
    ) -> None:
        queues = [fresh("queue") for _ in range(4)]
        for _ in range(5):
            jobs = {(await submit_one(store, queue=queue)).id for queue in queues}
            claims = await asyncio.gather(
                *(claim(store, *queues, owner=f"worker-{n}") for n in range(4))
            )
            assert {one.job.id for found in claims for one in found} == jobs

    async def test_a_due_job_is_found_among_very_many_queues(self, store: Store) -> None:
        queues = [fresh("queue") for _ in range(150)]
        job = await submit_one(store, queue=queues[-1])
        assert [one.job.id for one in await claim(store, *queues)] == [job.id]

    async def test_work_that_came_between_a_claim_and_the_wait_ends_the_wait(
        self, store: Store
    ) -> None:
        queue = fresh("queue")
        assert await claim(store, queue) == []
        job = await submit_one(store, queue=queue)
        assert await asyncio.wait_for(store.wake_up([queue], limit_seconds=60), 20)
        assert (await stored(store, job.id)).queue == queue
