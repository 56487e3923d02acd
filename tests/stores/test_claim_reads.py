"""What a claim reads: what it can serve, and not what lies beside it, however much that is."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from itertools import combinations
from typing import Any

import apsw
import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.alike import decide_like
from holdfast.ports.models import ClaimRequest
from holdfast.ports.store import Store
from holdfast.stores.postgres.claim_start import CURSOR_AFTER
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import fresh, new_job, owner_of
from holdfast.testing.store_actions import claim, do
from tests.stores.ledgers import Ledger, make_ledger
from tests.stores.plans import connected, recorded_postgres
from tests.stores.raw import POSTGRES, SQLITE

BACKLOG = 3000
OTHER_TASKS = 300
CAPABILITIES = tuple(f"cap{number}" for number in range(8))
SETS = [frozenset(some) for size in (1, 2, 3) for some in combinations(CAPABILITIES, size)]


@pytest.fixture(params=[SQLITE, POSTGRES])
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger of its own."""
    return make_ledger(request, tmp_path_factory)


async def submit_many(store: Store, number: int, **wishes: Any) -> None:
    """Submit jobs that are alike."""
    first = new_job(**wishes)
    alike = [decide_like(first, mint_id(), b"null") for _ in range(number)]
    for start in range(0, number, 500):
        await store.submit(alike[start : start + 500])


async def of_other_tasks(store: Store) -> None:
    for start in range(0, OTHER_TASKS, 100):
        names = [f"foreign-{number}" for number in range(start, start + 100)]
        await store.submit([new_job(task=name) for name in names for _ in range(10)])


async def of_another_version(store: Store) -> None:
    await submit_many(store, BACKLOG, task="mine", task_version="1")


async def of_other_tenants(store: Store) -> None:
    await submit_many(store, BACKLOG, task="mine", tenant="theirs")


async def of_many_needs_elsewhere(store: Store) -> None:
    await store.submit([new_job(task="mine", queue="elsewhere", needs=one) for one in SETS])


async def of_many_needs_and_ended(store: Store) -> None:
    await store.submit([new_job(task="mine", needs=one) for one in SETS])
    able = frozenset(CAPABILITIES)
    while claimed := await claim(store, limit=100, capabilities=able):
        for one in claimed:
            job = await do(store, one.job, c.Start(actor=owner_of(one.job)))
            await do(store, job, c.Complete(actor=owner_of(job), body=b"null"))


def wanted(**wishes: Any) -> ClaimRequest:
    given: dict[str, Any] = {"queues": ("default",), "limit": 10, "owner": "w"}
    return ClaimRequest(request_id=fresh("claim"), **given | wishes)


BESIDE: dict[str, tuple[Callable[[Store], Awaitable[None]], ClaimRequest]] = {
    "other tasks": (of_other_tasks, wanted(tasks=("an early one", "mine"))),
    "another version": (of_another_version, wanted(tasks=("mine@2",))),
    "other tenants, of a tenant": (of_other_tenants, wanted(tenant="ours")),
    "other tenants, of the default one": (of_other_tenants, wanted(tenant="default")),
    "needs of another queue": (
        of_many_needs_elsewhere,
        wanted(capabilities=frozenset(CAPABILITIES)),
    ),
    "needs of ended jobs": (of_many_needs_and_ended, wanted(capabilities=frozenset(CAPABILITIES))),
}


@pytest.mark.parametrize("beside", BESIDE)
async def test_a_claim_reads_nothing_of_the_backlog_that_it_cannot_serve(
    ledger: Ledger, beside: str
) -> None:
    fill, request = BESIDE[beside]
    async with ledger.store() as store:
        before = await pages(ledger, store, request)
        await fill(store)
    if ledger.engine == POSTGRES:
        await vacuum(ledger.place)
    async with ledger.store() as store:
        after = await pages(ledger, store, request)
    # A few levels of a tree more.
    assert after - before < 120, f"{before} pages, then {after}"


@pytest.mark.parametrize("tasks", [("mine",), None])
async def test_a_claim_that_enters_at_a_cursor_reads_no_backlog(
    ledger: Ledger, tasks: tuple[str, ...] | None
) -> None:
    request = wanted(tasks=tasks)
    async with ledger.store() as store:
        await submit_many(store, 1000, task="mine")
        before = await after_full_claims(ledger, store, request)
        await submit_many(store, 3 * BACKLOG, task="mine")
        after = await after_full_claims(ledger, store, request)
    assert after - before < 50, f"{before} pages, then {after}"


async def after_full_claims(ledger: Ledger, store: Any, request: ClaimRequest) -> int:
    """Count the pages that a claim looks at after a few that brought all they asked for."""
    for _ in range(CURSOR_AFTER + 1):
        await store.claim(replace(request, request_id=fresh("claim")))
    return await pages(ledger, store, request, jobs=request.limit)


async def pages(ledger: Ledger, store: Any, request: ClaimRequest, *, jobs: int = 0) -> int:
    """Count the pages that a claim looks at, on its own and in the buffers."""
    request = replace(request, request_id=fresh("claim"))
    if isinstance(store, SqliteStore):
        start = await page_hits(store)
        assert len(await store.claim(request)) == jobs
        return await page_hits(store) - start
    with recorded_postgres() as sent:
        assert len(await store.claim(request)) == jobs
    connection = await connected(ledger.place)
    total = 0
    for statement in sent.values():
        if "claim_order" in statement.text:
            asked = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.text}"
            # Under another request_id, because this one has claimed.
            values = [
                fresh("claim") if one == request.request_id else one for one in statement.values
            ]
            plan = json.loads(await connection.fetchval(asked, *values))[0]["Plan"]
            total += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    await connection.close()
    assert total
    return total


async def page_hits(store: SqliteStore) -> int:
    counter = apsw.SQLITE_DBSTATUS_CACHE_HIT
    return await store._session.perform(lambda turn: turn.connection.status(counter)[0])


async def vacuum(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM jobs")
    await connection.close()
