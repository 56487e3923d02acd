"""Claim: each job to one owner, under a lease, with its event; a repeated request claims once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import LeaseConflictError, RequestIdReused
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import apply
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import NO_FACTS, Facts, Job, LoggedEvent
from holdfast.lifecycle.states import CLAIMABLE, EventType, State
from holdfast.lifecycle.times import resolve
from holdfast.ports.models import Claimed, ClaimRequest
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, HOUR, PATIENT, SHORT_CLAIM, fresh, owner_of, worker
from holdfast.testing.store_actions import (
    WAYS_OUT,
    change,
    claim,
    claim_one,
    claimed_ids,
    claimed_job,
    do,
    job_in,
    passed,
    running_job,
    stored,
    submit_one,
)


def request(queue: str = "default", **options: Any) -> ClaimRequest:
    """Make a request for a few jobs of a queue."""
    given: dict[str, Any] = {"request_id": fresh("claim"), "owner": "worker-1", "limit": 10}
    return ClaimRequest(queues=(queue,), **given | options)


class ClaimContract:
    """The claim edge and its repeats."""

    @pytest.mark.req("B2", "B17", "B20", "C1", "C7", "C9", "E2")
    async def test_a_claim_gives_owner_lease_attempt_and_event_in_one(self, store: Store) -> None:
        before = await submit_one(store, queue="work")
        [claimed] = await store.claim(request("work", request_id="claim-1", owner="worker-7"))

        job = await stored(store, before.id)
        assert claimed.job == job
        assert (job.state, job.owner, job.rev) == (State.CLAIMED, "worker-7", 2)
        assert (job.attempt, job.epoch) == (1, (await store.clock()).epoch)
        assert job.updated_at > before.updated_at
        assert job.lease_expires_at == job.updated_at + job.policy.lease
        event = (await store.events(job.id))[-1]
        assert (event.type, event.rev) == (EventType.CLAIMED, 2)
        assert (event.actor, event.request_id) == ("worker-7", "claim-1")
        assert (event.at, event.attempt) == (job.updated_at, 1)
        assert event.lease_expires_at == job.lease_expires_at

    async def test_a_claim_brings_what_was_asked_for(self, store: Store) -> None:
        job = await submit_one(
            store,
            body=b'{"to":"ann"}',
            labels={"team": "mail"},
            context_ptr="s3://context",
            correlation_id="correlation-1",
            trace_id="trace-1",
        )
        claimed = await claim_one(store)

        [first] = await store.events(job.id, limit=1)
        assert claimed.body == first.body == b'{"to":"ann"}'
        assert claimed.created == first.created
        assert claimed.created.labels == {"team": "mail"}
        assert claimed.correlation_id == "correlation-1"

    @pytest.mark.req("C2", "C7", "C12", "B1")
    async def test_a_claim_is_the_edge_of_the_law(self, store: Store) -> None:
        """Compare the one edge that stores restate with what `decide` makes of it."""
        timed = Policy(max_attempts=6, start_timeout=7, lease=11 * HOUR)
        for state in sorted(CLAIMABLE):
            for policy in (PATIENT, timed):
                await _claim_is_decided(store, await job_in(store, state, policy=policy))

    @pytest.mark.req("C2")
    async def test_a_claim_of_a_later_epoch_is_the_edge_of_the_law(self, store: Store) -> None:
        await store.bump_epoch()
        job = await submit_one(store, queue="restored")

        await _claim_is_decided(store, job)

    async def test_a_claim_keeps_what_the_attempts_before_left(self, store: Store) -> None:
        job = await running_job(store, queue="work")
        job = await do(store, job, c.SignalJob(actor=CONTROL, name="approved"))
        job = await do(store, job, WAYS_OUT[State.RETRYING](job))
        claimed = (await claim_one(store, "work", owner="worker-2")).job

        assert (claimed.attempt, claimed.failures) == (2, 1)
        assert (claimed.signals, claimed.started_at) == (job.signals, None)

    async def test_a_claim_takes_no_more_than_its_limit(self, store: Store) -> None:
        jobs = {(await submit_one(store)).id for _ in range(5)}
        first = await claimed_ids(store, limit=2)
        second = await claimed_ids(store, limit=10)

        assert (len(first), len(second)) == (2, 3)
        assert {*first, *second} == jobs

    @pytest.mark.req("B2", "B21")
    async def test_claimers_at_once_never_share_a_job(self, store: Store) -> None:
        jobs = {(await submit_one(store)).id for _ in range(40)}
        answers = await asyncio.gather(
            *(claimed_ids(store, limit=3, owner=f"worker-{number}") for number in range(20))
        )
        rest = await claimed_ids(store, limit=40)

        taken = [id_ for answer in [*answers, rest] for id_ in answer]
        assert len(taken) == len(set(taken))
        assert set(taken) == jobs

    async def test_what_is_not_claimable_is_left_alone(self, store: Store) -> None:
        others = set(State) - CLAIMABLE - {State.UNKNOWN}
        jobs = [await job_in(store, state, queue=f"of-{state}") for state in others]

        assert await claim(store, *(job.queue for job in jobs), limit=100) == []
        assert await store.get([job.id for job in jobs]) == jobs

    @pytest.mark.req("B5", "B20", "C6")
    async def test_a_repeated_request_returns_the_same_claim(self, store: Store) -> None:
        for _ in range(5):
            await submit_one(store)
        asked = request(limit=3)
        first = await store.claim(asked)
        again = await store.claim(asked)

        assert len(first) == 3
        assert _by_id(again) == _by_id(first)
        for claimed in first:
            assert await stored(store, claimed.job.id) == claimed.job
            assert len(await store.events(claimed.job.id)) == 2

    @pytest.mark.req("B20", "C6")
    async def test_the_same_request_sent_twice_at_once_claims_once(self, store: Store) -> None:
        for _ in range(6):
            await submit_one(store)
        asked = request(limit=2)
        answers = await asyncio.gather(*(store.claim(asked) for _ in range(5)))

        assert [_by_id(answer) for answer in answers] == [_by_id(answers[0])] * 5
        assert len(await claimed_ids(store, owner="worker-2")) == 4

    @pytest.mark.req("B20")
    async def test_a_repeated_request_returns_what_it_still_holds(self, store: Store) -> None:
        for _ in range(3):
            await submit_one(store)
        asked = request()
        done, started, waiting = [claimed.job for claimed in await store.claim(asked)]
        done = await do(store, done, c.Start(actor=owner_of(done)))
        await do(store, done, WAYS_OUT[State.SUCCEEDED](done))
        started = await do(store, started, c.Start(actor=owner_of(started)))

        held = {claimed.job.id: claimed.job for claimed in await store.claim(asked)}
        assert held == {started.id: started, waiting.id: waiting}

    @pytest.mark.req("B20")
    async def test_a_repeated_request_whose_jobs_moved_on_is_refused(self, store: Store) -> None:
        asked = request("work")
        await submit_one(store, queue="work")
        [claimed] = await store.claim(asked)
        await do(store, claimed.job, WAYS_OUT[State.STALLED](claimed.job))
        await submit_one(store, queue="work")

        with pytest.raises(LeaseConflictError) as refusal:
            await store.claim(asked)
        assert refusal.value.code == "lease_lost"
        # Also once the same owner holds the same job again, under another request.
        assert len(await claimed_ids(store, "work")) == 2
        with pytest.raises(LeaseConflictError):
            await store.claim(asked)

    @pytest.mark.req("B6", "B20")
    async def test_a_repeated_request_whose_lease_has_passed_is_refused(self, store: Store) -> None:
        asked = request()
        await submit_one(store, policy=SHORT_CLAIM)
        [claimed] = await store.claim(asked)
        await passed(store, claimed.job.lease_expires_at)

        with pytest.raises(LeaseConflictError):
            await store.claim(asked)
        assert await stored(store, claimed.job.id) == claimed.job

    async def test_an_empty_claim_is_not_remembered(self, store: Store) -> None:
        asked = request()
        assert await store.claim(asked) == []
        job = await submit_one(store)

        assert [claimed.job.id for claimed in await store.claim(asked)] == [job.id]

    async def test_a_claim_request_of_another_owner_is_refused(self, store: Store) -> None:
        await submit_one(store)
        asked = request()
        [claimed] = await store.claim(asked)

        with pytest.raises(RequestIdReused) as refused:
            await store.claim(replace(asked, owner="worker-2"))
        assert refused.value.code == "request_id_reused"
        assert await stored(store, claimed.job.id) == claimed.job

    async def test_a_repeated_request_of_an_older_epoch_is_refused(self, store: Store) -> None:
        await submit_one(store)
        asked = request()
        [claimed] = await store.claim(asked)
        await store.bump_epoch()

        with pytest.raises(LeaseConflictError) as refused:
            await store.claim(asked)
        assert refused.value.code == "lease_lost"
        assert await stored(store, claimed.job.id) == claimed.job

    @pytest.mark.req("B2", "C7")
    async def test_an_attempt_rises_with_every_claim_and_with_nothing_else(
        self, store: Store
    ) -> None:
        job = await claimed_job(store, queue="work")
        for attempt in (1, 2, 3):
            assert job.attempt == attempt
            job = await do(store, job, c.Start(actor=owner_of(job)))
            job = await do(store, job, WAYS_OUT[State.STALLED](job))
            assert job.attempt == attempt
            job = (await claim_one(store, "work")).job


async def _claim_is_decided(store: Store, before: Job) -> None:
    """Claim a job and compare record and event with what the law makes of the same option."""
    clock = await store.clock()
    claimed = await claim_one(store, before.queue, request_id=f"claim of {before.id}")
    decided = change(
        before, c.Claim(actor=worker(), request_id=f"claim of {before.id}", epoch=clock.epoch)
    )
    event: LoggedEvent = (await store.events(before.id))[-1]
    at = claimed.job.updated_at
    expected: Any = replace(
        decided.event, at=at, lease_expires_at=resolve(decided.event.lease_expires_at, at)
    )
    assert event == expected
    assert claimed.job == apply(before, expected)
    assert event.facts == (NO_FACTS if clock.epoch == 1 else Facts(epoch=clock.epoch))


def _by_id(claimed: list[Claimed]) -> dict[Any, tuple[Any, ...]]:
    """What a worker is given of each job."""
    return {one.id: (one.job, one.created, one.body, one.correlation_id) for one in claimed}
