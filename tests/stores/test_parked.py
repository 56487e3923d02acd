"""Parked jobs cost nothing while they are parked, and are resumed in order, a batch at a time.

`PARKED=100000` in the environment makes it as many as a ledger may really have.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
import pytest_asyncio

from holdfast.flow.recover import sweep
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import EventType, State
from holdfast.lifecycle.times import SECOND, After
from holdfast.ports.models import ClaimRequest, Committed, Submitted
from holdfast.ports.store import Store
from holdfast.stores.sqlite import connections, database
from holdfast.testing.factories import RECONCILER, fresh, new_job, owner_of
from holdfast.testing.store_actions import chain
from holdfast.wiring import opened, read_address
from tests.stores.plans import connected, recorded_postgres, walk

PARKED = int(os.environ.get("PARKED", "2000"))
BATCH = 500
FAR = 30 * 24 * 3600 * SECOND


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of either engine."""
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest_asyncio.fixture
async def store(place: str) -> AsyncIterator[Store]:
    """The store, open."""
    async with opened(read_address(place)) as store:
        yield store


async def park(store: Store, jobs: int, *untils: After | None) -> list[Job]:
    """Park so many jobs, with these limits in turn, and tell them in that order."""
    parked: list[Job] = []
    while len(parked) < jobs:
        size = min(BATCH, jobs - len(parked))
        parked += await _park_some(store, size, untils, len(parked))
    return parked


async def _park_some(
    store: Store, size: int, untils: tuple[After | None, ...], number: int
) -> list[Job]:
    outcomes = await store.submit([new_job(queue="parked") for _ in range(size)])
    assert all(isinstance(one, Submitted) for one in outcomes)
    request = ClaimRequest(
        request_id=fresh("claim"), owner="worker-1", queues=("parked",), limit=size
    )
    changes = []
    for at, claimed in enumerate(await store.claim(request), start=number):
        owner, until = owner_of(claimed.job), untils[at % len(untils)]
        wait = c.Wait(actor=owner, signal="go", until=until)
        changes += chain(claimed.job, c.Start(actor=owner), wait)
    ends = (await store.commit(changes))[1::2]
    return [end.job for end in ends if isinstance(end, Committed)]


async def idle_round(store: Store, queue: str = "parked") -> None:
    """Do what workers and reconcilers do all the time."""
    request = ClaimRequest(
        request_id=fresh("claim"), owner="worker-2", queues=(queue, "other"), limit=20
    )
    assert await store.claim(request) == []
    assert (await store.due()).jobs == []
    assert await store.owned("worker-2") == []


@pytest.mark.req("E5")
async def test_on_sqlite_idle_rounds_take_no_more_steps_with_many_parked(tmp_path: Path) -> None:
    place = str(tmp_path / "jobs.db")
    taken = []
    for jobs in (10, PARKED):
        async with opened(read_address(place)) as store:
            await park(store, jobs, None, After(FAR))
        # Opened anew: a statement that is kept counts on from its last use.
        with counted_steps() as steps:
            async with opened(read_address(place)) as store:
                steps.clear()
                await idle_round(store)
                taken.append(sum(steps))
    few, many = taken
    assert 0 < few == many


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Count the steps that SQLite's machine takes for each statement: rows that it looks at."""
    steps: list[int] = []
    connect = connections.connect

    def count(event: dict[str, Any]) -> None:
        steps.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])

    def traced(*arguments: Any, **more: Any) -> apsw.Connection:
        connection = connect(*arguments, **more)
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "connect", traced)
        yield steps


@pytest.mark.req("E5")
async def test_on_postgres_idle_rounds_read_no_parked_job(empty_postgres_url: str) -> None:
    async with opened(read_address(empty_postgres_url)) as store:
        await park(store, PARKED, None, After(FAR))
    with recorded_postgres() as sent:
        async with opened(read_address(empty_postgres_url)) as store:
            await idle_round(store)
    read = 0
    connection = await connected(empty_postgres_url)
    for statement in list(sent.values()):
        if "jobs" in statement.text:
            read += await _rows_of_jobs(connection, statement.text, statement.values)
    await connection.close()
    assert any("claim" in text for text in sent)
    assert read <= 10, "the claims of those who parked them are let go of, and nothing else"


async def _rows_of_jobs(connection: Any, text: str, values: Any) -> int:
    """Run a statement again, undo it, and count the rows of jobs that it looked at."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        asked = f"EXPLAIN (ANALYZE, FORMAT JSON) {text}"
        plan = json.loads(await connection.fetchval(asked, *values))[0]["Plan"]
    finally:
        await transaction.rollback()
    scans = [node for node, _ in walk(plan) if node.get("Relation Name") == "jobs"]
    return sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for node in scans
        if node["Node Type"] != "ModifyTable"
    )


@pytest.mark.req("E5")
async def test_timers_due_at_once_are_resumed_in_order_a_batch_at_a_time(store: Store) -> None:
    """The sweeps of two reconcilers, which do not know of each other."""
    parked = await park(store, PARKED, *(After(number) for number in range(PARKED)))
    order: list[Any] = []
    sizes: list[int] = []
    while sum(sizes) < PARKED:
        before = {job.id for job in (await store.due(limit=BATCH)).jobs}
        reports = await asyncio.gather(*(_sweep(store) for _ in range(2)))
        written = [report.written.get(EventType.WAIT_COMPLETED, 0) for report in reports]
        assert 0 < max(written) <= BATCH
        sizes.append(sum(written))
        now = await store.get([job.id for job in parked])
        queued = {job.id for job in now if job is not None and job.state is State.QUEUED}
        assert before <= queued, "the oldest timers come first"
        order = [job.id for job in parked[: sum(sizes)]]
        assert queued == set(order)
    events = [await store.events(job.id) for job in parked[:20]]
    assert all([event.type for event in log].count(EventType.WAIT_COMPLETED) == 1 for log in events)


async def _sweep(store: Store) -> Any:
    return await sweep(store, RECONCILER, jitter=lambda: 0.0, limit=BATCH)
