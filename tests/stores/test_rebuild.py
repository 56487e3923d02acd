"""Rebuild: the projection comes back from the events alone, the same to the last column."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import asyncpg
import pytest

from holdfast.errors import JobUnreadable
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy, policy_key
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.times import SECOND
from holdfast.maintenance.rebuild import rebuild
from holdfast.ports.store import Store
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.testing.factories import job_ids, owner_of
from holdfast.testing.store_actions import all_jobs, claimed_job, do, submit_one
from tests.stores.damage import Turn, Vandal, another, vandal
from tests.stores.ledgers import Ledger, assert_proven, make_ledger, postgres_store
from tests.stores.raw import ENGINES, row_of
from tests.stores.samples import populate

KEPT = ("jobs", "keys", "signals", "holds")
"""What is compared row by row; of claims and counts, what they say."""


@pytest.fixture(scope="module", params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = make_ledger(request, tmp_path_factory)
    asyncio.run(_populate(made))
    return made


async def _populate(ledger: Ledger) -> None:
    async with ledger.store() as store:
        await populate(store)
        await store.fold_counts()


@pytest.fixture
async def store(ledger: Ledger) -> AsyncIterator[Store]:
    """A store that has not read anything yet: what it knows of policies it must look up."""
    async with ledger.store() as store:
        yield store


@pytest.fixture
async def hand(ledger: Ledger) -> AsyncIterator[Vandal]:
    async with vandal(ledger) as hand:
        yield hand


async def held(store: Store) -> dict[str, list[JobId]]:
    owners = sorted({job.owner for job in await all_jobs(store) if job.owner})
    return {owner: [job.id for job in await store.owned(owner)] for owner in owners}


@pytest.mark.req("E7")
async def test_an_emptied_projection_is_rebuilt_from_the_events_alone(
    ledger: Ledger, store: Store, hand: Vandal
) -> None:
    async with ledger.store() as other:
        before = await hand.dump(KEPT), await held(other), await other.counts()
    for table in ("jobs", "keys", "signals", "holds", "counts", "claims"):
        await hand.rows(f"DELETE FROM {table}")
    assert await all_jobs(store) == []

    report = await rebuild(store)

    assert report.skipped == []
    assert report.changed == report.jobs > 30
    assert (await hand.dump(KEPT), await held(store), await store.counts()) == before
    await assert_proven(store)


@pytest.mark.req("E7")
async def test_each_turned_column_is_put_right(store: Store, hand: Vandal) -> None:
    before = await hand.dump(KEPT)
    jobs = await all_jobs(store)
    for column in JOB_COLUMNS[1:]:
        values = [(another(column, row_of(job)[column]), job.id) for job in jobs]
        await hand.many(f"UPDATE jobs SET {column} = $1 WHERE id = $2", values)
        report = await rebuild(store)
        assert report.changed == len(jobs), column
    assert await hand.dump(KEPT) == before
    await assert_proven(store)


@pytest.mark.req("E7")
async def test_keys_that_were_turned_to_other_jobs_come_back(
    store: Store, hand: Vandal, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One by one: in a batch of all, each key is free before it is taken.
    monkeypatch.setattr(store, "ledger", partial(store.ledger, batch=1))
    before = await hand.dump(KEPT)
    holders = sorted({row["id"] for row in await hand.rows("SELECT id FROM keys")})
    assert len(holders) > 2
    for others in (holders[1:] + holders[:1], holders[-1:] + holders[:-1]):
        # Through ids of nobody, for each is turned while others still are what they were.
        between = [job_ids.mint() for _ in holders]
        for old, new in ((holders, between), (between, others)):
            await hand.many(
                "UPDATE keys SET id = $1 WHERE id = $2", list(zip(new, old, strict=True))
            )
        assert await hand.dump(KEPT) != before
        await rebuild(store)
        assert await hand.dump(KEPT) == before
    await assert_proven(store)


@pytest.mark.req("E7")
async def test_what_was_proven_is_left_as_it_is(store: Store, hand: Vandal) -> None:
    before = await hand.dump((*KEPT, "events", "beats"))
    seen: list[int] = []
    report = await rebuild(store, progress=seen.append)
    assert report.changed == 0
    assert seen[-1] == report.jobs
    assert await hand.dump((*KEPT, "events", "beats")) == before


async def test_a_job_whose_events_cannot_be_read_is_left_alone_and_told(
    store: Store, hand: Vandal
) -> None:
    first, second, *_ = await all_jobs(store)
    stranger = row_of(second) | {"id": job_ids.mint(), "job_id": None}
    marks = ", ".join(f"${i}" for i in range(1, len(stranger) + 1))
    await hand.rows(
        f"INSERT INTO jobs ({', '.join(stranger)}) VALUES ({marks})", *stranger.values()
    )
    before = await hand.dump(KEPT)
    async with hand.turned("events", [Turn(first.id, 1, "data", "{not json")]):
        report = await rebuild(store)
    assert sorted(report.skipped) == sorted([first.id, JobId(stranger["id"])])
    assert await hand.dump(KEPT) == before
    await hand.rows("DELETE FROM jobs WHERE id = $1", stranger["id"])


async def test_a_policy_that_is_missing_is_written_again_from_corrected_terms(
    ledger: Ledger, hand: Vandal
) -> None:
    policy = Policy(max_attempts=2, timeout=77 * SECOND)
    async with ledger.store() as store:
        job = await claimed_job(store)
        job = await do(store, job, c.CorrectTerms(actor=owner_of(job), policy=policy))
    await hand.rows("DELETE FROM policies WHERE id = $1", policy_key(policy))
    async with ledger.store() as store:
        with pytest.raises(JobUnreadable):
            await store.get([job.id])
        await rebuild(store)
    async with ledger.store() as store:
        assert await store.get([job.id]) == [job]
        await assert_proven(store)


async def test_the_law_holds_again_after_a_rebuild(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for engine in ENGINES:
        ledger = make_ledger(request, tmp_path_factory, engine)
        async with ledger.store() as store:
            [job, *_] = await populate(store)
            await rebuild(store)
        async with ledger.raw() as raw:
            sql = "UPDATE jobs SET rev = rev - 1 WHERE id = $1"
            assert "an illegal move" in str(await raw.refusal(sql, [job.id]))


async def test_counting_all_jobs_may_take_longer_than_a_statement_else_may(
    postgres_url: str,
) -> None:
    limits = {"attempt_seconds": 2.0, "deadline_seconds": 2.0}
    async with postgres_store(postgres_url, **limits) as store:
        await submit_one(store)
        before = await store.counts()
        connection = await asyncpg.connect(postgres_url)
        try:
            async with connection.transaction():
                await connection.execute("DELETE FROM counts")
                recounting = asyncio.create_task(store.recount())
                await asyncio.sleep(3.0)
                assert not recounting.done()
            await recounting
        finally:
            await connection.close()
        assert await store.counts() == before
