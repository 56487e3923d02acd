"""What a worker holds, and what it gives back: unknown jobs, prefetched jobs, leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import OWNED, State
from holdfast.ports.store import NO_CLAIMS, Store
from holdfast.tasks.handles import JobHandle
from holdfast.telemetry import Meters
from holdfast.testing.factories import announcement, owner_of
from holdfast.testing.store_actions import claim, claim_one, claimed_job, stored, submit_one
from holdfast.worker.failures import Failures
from holdfast.worker.outbox import CommitQueue
from holdfast.worker.owned_job import OwnedJob, OwnedJobs, own, own_all
from holdfast.worker.ownership_check import OwnershipCheck
from holdfast.worker.stop import Stopper
from holdfast.worker.stop_request import StopRequest
from tests.crashes.waiting import until
from tests.crashes.wrapped import Wrapped
from tests.worker.test_worker import LIMIT, types


class Looks(Wrapped):
    """A store that says when it was asked what an owner holds, and answers when it is allowed."""

    def __init__(self, store: Store) -> None:
        """Have been asked nothing."""
        super().__init__(store)
        self.asked: asyncio.Queue[None] = asyncio.Queue()
        self.allowed = asyncio.Semaphore(0)

    async def owned(self, owner: str, **wishes: Any) -> Sequence[Job]:
        """Wait until the answer is allowed."""
        self.asked.put_nowait(None)
        await self.allowed.acquire()
        return await self.store.owned(owner, **wishes)


async def test_an_unknown_job_is_given_back_only_when_it_is_seen_twice(app: Holdfast) -> None:
    job = await claimed_job(await app.store(), owner="me")
    store = Looks(await app.store())
    owned, meters = OwnedJobs(), Meters()
    ownership_check = OwnershipCheck(
        store=store,  # type: ignore[arg-type]
        owned=owned,
        worker="me",
        announcement=lambda: announcement(name="me"),
        stopper=Stopper(
            owned=owned,
            commands=CommitQueue(),
            meters=meters,
            failures=Failures(lambda entry: None),
        ),
        stop_request=StopRequest(0.0, owned.changed),
        meters=meters,
        tick_seconds=0.001,
    )
    rounds = asyncio.create_task(ownership_check.run())
    try:
        for sightings in range(1, 3):
            await asyncio.wait_for(store.asked.get(), LIMIT)
            record = await stored(store.store, job.id)
            assert record.state is State.CLAIMED, f"a claim's reply may be near: {sightings}"
            store.allowed.release()
        await asyncio.wait_for(store.asked.get(), LIMIT)
        assert (await stored(store.store, job.id)).state is State.STALLED
    finally:
        rounds.cancel()


async def test_what_waits_behind_long_jobs_is_given_back(app: Holdfast) -> None:
    release, begun = asyncio.Event(), asyncio.Event()

    @app.task
    async def short() -> None: ...

    @app.task
    async def long() -> None:
        begun.set()
        await release.wait()

    async with app.worker(concurrency=1, tick="50ms", grace="0s") as busy:
        # Short ones first, so that the worker takes many at a time.
        for job in await short.submit_many([()] * 30):
            await job.wait(LIMIT)
        await app.pause("default")
        first = await long.submit()
        waiting: list[JobHandle[Any]] = await short.submit_many([()] * 5)
        await app.resume("default")
        await asyncio.wait_for(begun.wait(), LIMIT)
        assert busy.meters.prefetched > 0, "some were claimed together with the long one"
        await until(lambda: _nobody_holds(waiting), "them to be let go")
        async with app.worker(concurrency=1):
            for job in waiting:
                assert await job.wait(LIMIT) is State.SUCCEEDED
        assert not (await first.refresh()).record.terminal
        again = [job for job in waiting if job.record.attempt == 2]
        assert again
        assert ["released" in await types(job) for job in again] == [True] * len(again)
        release.set()
        assert await first.wait(LIMIT) is State.SUCCEEDED


async def _nobody_holds(jobs: list[JobHandle[Any]]) -> bool:
    return not {(await job.refresh()).state for job in jobs} & OWNED


async def owned_job(app: Holdfast) -> OwnedJob:
    """A claimed job, as a worker owns it."""
    store = await app.store()
    await submit_one(store, queue="q")
    claimed = await claim_one(store, "q")
    return own(claimed, owner_of(claimed.job), 1000.0)


async def test_a_claim_has_ended_once_the_ends_of_all_its_jobs_are_written(app: Holdfast) -> None:
    store, owned = await app.store(), OwnedJobs()
    for _ in range(5):
        await submit_one(store, queue="q")
    claims = [await claim(store, "q", limit=limit) for limit in (2, 2, 1)]
    actor = owner_of(claims[0][0].job)
    batches = [
        own_all(claimed, lambda _: actor, 1000.0, f"claim-{number}")
        for number, claimed in enumerate(claims)
    ]
    for job in (job for batch in batches for job in batch):
        owned.add(job)

    owned.end(batches[0][0])
    owned.end_all([batches[1][0], batches[2][0]])
    assert owned.ended_claims == {"claim-2": 1}
    owned.end_all([batches[0][1]])
    assert owned.ended_claims == {"claim-2": 1, "claim-0": 2}
    owned.forget(batches[1][1])
    assert owned.ended_claims == {"claim-2": 1, "claim-0": 2}, (
        "what became of a lost job is unknown"
    )


async def test_a_worker_reports_the_claims_that_have_ended(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def short() -> None:
        pass

    reported: list[str] = []
    worker = app.worker(tick="20ms")
    look = worker._store.owned

    async def owned(
        owner: str, *, ended: Mapping[str, int] = NO_CLAIMS, older_than: int = 0
    ) -> list[Job]:
        reported.extend(ended)
        return await look(owner, ended=ended, older_than=older_than)

    monkeypatch.setattr(worker._store, "owned", owned)
    async with worker:
        job = await short.submit()
        await job.result(LIMIT)
        await until(lambda: bool(reported), "the claim to be reported")
        events = await (await app.store()).events(job.record.id)
    assert reported == [events[1].request_id]


async def test_an_older_grant_never_replaces_a_newer_one(app: Holdfast) -> None:
    job = await owned_job(app)
    job.prove(2000.0, job.record.rev + 2)
    job.prove(3000.0, job.record.rev + 1)
    assert job.proven_until == 2000.0, "its reply came late: a start has cut that lease short"
    job.prove(1500.0, job.record.rev + 3)
    assert job.proven_until == 1500.0, "a newer one does, also where it is shorter"


async def test_a_machine_that_slept_past_its_leases_stops_what_it_runs(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped, asleep = asyncio.Event(), asyncio.Event(), 0.0
    real = time.clock_gettime

    def with_sleep(clock: int) -> float:
        # A suspend: the clock that counts it has moved on, the monotonic one has not.
        return real(clock) + (asleep if clock == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", with_sleep)

    @app.task(lease="60s", retries=5)
    async def charge(ctx: Context) -> int:
        if ctx.attempt > 1:
            return 7
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert str(ctx.cancelled.reason) == "lease_lost"
            stopped.set()
        return 0

    async with app.worker(tick="50ms", grace="0s") as worker:
        await charge.submit()
        await asyncio.wait_for(begun.wait(), LIMIT)
        asleep = 3600.0
        await asyncio.wait_for(stopped.wait(), LIMIT)
        assert worker.meters.fences == 1
