"""Verify: whatever cell of the projection is turned, the job is named; sound ones never are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import Retention
from holdfast.maintenance.verify import LedgerProblem, derived, verify
from holdfast.ports.store import Store
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import job_ids, owner_of
from holdfast.testing.store_actions import all_jobs, do, passed, running_job
from tests.stores.damage import Turn, Vandal, another, vandal
from tests.stores.ledgers import Ledger, make_ledger, problems_of
from tests.stores.load import Load
from tests.stores.raw import ENGINES, row_of
from tests.stores.samples import populate


@pytest.fixture(scope="module", params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = make_ledger(request, tmp_path_factory)
    asyncio.run(_populate(made))
    return made


async def _populate(ledger: Ledger) -> None:
    async with ledger.store() as store:
        await populate(store)


@pytest.fixture
async def store(ledger: Ledger) -> AsyncIterator[Store]:
    async with ledger.store() as store:
        yield store
        assert await problems_of(store) == []


@pytest.fixture
async def hand(ledger: Ledger, store: Store) -> AsyncIterator[Vandal]:
    async with vandal(ledger) as hand:
        yield hand


async def named(store: Store) -> set[JobId | None]:
    return {problem.id for problem in await problems_of(store)}


@pytest.mark.req("E1")
async def test_what_the_store_wrote_is_proven(store: Store) -> None:
    seen: list[int] = []
    found: list[LedgerProblem] = []
    report = await verify(store, on_problem=found.append, progress=seen.append)
    jobs = await all_jobs(store)
    assert found == []
    assert report.jobs == len(jobs) == len(seen)
    assert report.events == len([e for job in jobs for e in await store.events(job.id)])


@pytest.mark.req("E6")
async def test_a_job_read_by_deriving_it_is_the_one_that_is_stored(store: Store) -> None:
    for job in await all_jobs(store):
        assert await derived(store, job.id) == (job, job.state)


REQUIRED = {
    "id", "tenant", "kind", "task", "queue", "priority", "needs", "policy", "key_kinds",
    "created_at", "state", "rev", "beats", "attempt", "failures", "releases", "updated_at",
    "retention", "version",
}  # fmt: skip
"""Columns out of which NOT NULL keeps NULL; that cannot be set aside."""


@pytest.mark.req("E1", "E2")
async def test_each_turned_column_of_a_row_is_caught(store: Store, hand: Vandal) -> None:
    jobs = await all_jobs(store)
    missed = []
    for column in JOB_COLUMNS:
        values = {job.id: row_of(job)[column] for job in jobs}
        turns = [Turn(id_, None, column, another(column, old)) for id_, old in values.items()]
        emptied = [Turn(id_, None, column, None) for id_, old in values.items() if old is not None]
        for how, cells in (("turned", turns), ("emptied", emptied)):
            if how == "emptied" and column in REQUIRED:
                continue
            async with hand.turned("jobs", cells):
                found = await named(store)
            missed += [f"{column} {how} of {one.id}" for one in cells if one.id not in found]
    assert missed == []


async def test_a_word_of_nobodys_law_is_caught_in_a_row(store: Store, hand: Vandal) -> None:
    jobs = await all_jobs(store)
    for column in ("state", "kind", "priority", "retention"):
        turns = [Turn(job.id, None, column, 99) for job in jobs]
        async with hand.turned("jobs", turns):
            assert await named(store) >= {job.id for job in jobs}


async def test_a_missing_row_is_caught(store: Store, hand: Vandal) -> None:
    jobs = await all_jobs(store)
    for job in (jobs[0], jobs[len(jobs) // 2], jobs[-1]):
        [row] = await hand.rows(f"SELECT {', '.join(JOB_COLUMNS)} FROM jobs WHERE id = $1", job.id)
        await hand.rows("DELETE FROM jobs WHERE id = $1", job.id)
        assert job.id in await named(store)
        await _insert(hand, "jobs", row)


async def _insert(hand: Vandal, table: str, row: dict[str, Any]) -> None:
    marks = ", ".join(f"${i}" for i in range(1, len(row) + 1))
    await hand.rows(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())


async def test_a_row_that_no_event_speaks_of_is_caught(store: Store, hand: Vandal) -> None:
    job = (await all_jobs(store))[0]
    stranger = row_of(job) | {"id": job_ids.mint(), "job_id": None}
    await _insert(hand, "jobs", stranger)
    assert JobId(stranger["id"]) in await named(store)
    await hand.rows("DELETE FROM jobs WHERE id = $1", stranger["id"])


async def test_missing_and_foreign_keys_are_caught(store: Store, hand: Vandal) -> None:
    [holder, *_] = [job for job in await all_jobs(store) if job.key_kinds]
    keys = await hand.rows("SELECT * FROM keys WHERE id = $1", holder.id)
    for key in keys:
        where = "tenant = $1 AND kind = $2 AND key = $3"
        place = (key["tenant"], key["kind"], key["key"])
        await hand.rows(f"DELETE FROM keys WHERE {where}", *place)
        assert holder.id in await named(store)
        await _insert(hand, "keys", key)
        for column in ("tenant", "kind", "key", "digest"):
            changed = key | {column: another(column, key[column])}
            if column == "kind":
                changed["kind"] = 64
            await hand.rows(f"DELETE FROM keys WHERE {where}", *place)
            await _insert(hand, "keys", changed)
            assert holder.id in await named(store)
            await hand.rows("DELETE FROM keys WHERE id = $1 AND digest = $2 AND key = $3",
                            holder.id, changed["digest"], changed["key"])  # fmt: skip
            await _insert(hand, "keys", key)


@pytest.mark.req("B19")
async def test_erased_bodies_are_reported_as_erased_and_not_as_damage(ledger: Ledger) -> None:
    async with ledger.store() as store:
        before = await verify(store, on_problem=_refuse)
        cleaned = [job for job in await all_jobs(store) if job.retention is Retention.CLEANED]
        erased = await store.erase_bodies([job.id for job in cleaned])
        after = await verify(store, on_problem=_refuse)
    assert erased > 0
    assert after.erased == before.erased + erased
    assert after.problems == 0


def _refuse(problem: LedgerProblem) -> None:
    raise AssertionError(problem)


async def _verify_often(store: Store, load: Load, times: int) -> None:
    for _ in range(times):
        await verify(store, on_problem=_refuse)
        await load.progress(2)


@pytest.mark.req("B24", "E1")
@pytest.mark.parametrize("engine", ENGINES)
async def test_live_work_raises_no_false_alarm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: str
) -> None:
    ledger = make_ledger(request, tmp_path_factory, engine)
    async with ledger.store() as store, ledger.store() as verifier:
        async with Load(store, tasks=3) as load:
            await _verify_often(verifier, load, 8)
        await load.assert_lived_once()


async def test_live_work_raises_no_false_alarm_through_a_pooler(pooled_url: str) -> None:
    store = PostgresStore(pooled_url, pooled=True)
    await store.open()
    async with Load(store, tasks=3) as load:
        await _verify_often(store, load, 8)
    await load.assert_lived_once()
    await store.close()


async def test_a_job_with_dropped_heartbeats_is_proven(store: Store) -> None:
    job = await running_job(store)
    for _ in range(3):
        job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    now = await passed(store, job.updated_at)
    assert await store.drop_beats(before=now) >= 2
    assert await problems_of(store) == []
    await do(store, job, c.Complete(actor=owner_of(job)))
