"""A signal costs the same however many the job keeps: counted by the server and the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from hashlib import sha512
from pathlib import Path

import pytest
from msgspec import Struct

from holdfast.flow.signal import signal
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import State
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import CONTROL
from holdfast.testing.store_actions import job_in
from tests.budgets.file import counting_disk, watch
from tests.budgets.server import SETTINGS, Server
from tests.support.postgres import PostgresCluster

pytestmark = pytest.mark.xdist_group("budgets")

KEPT, SENT = 900, 50
STATES = (State.QUEUED, State.RUNNING, State.WAITING)
SHARE = 1.25
"""How much more a signal may cost where its job keeps many: pages fill and split."""


class Cost(Struct, frozen=True):
    """What some signals cost a store."""

    statements: int
    """Those that were run for each signal: others are as many as the machine has time for."""
    rows: int
    """Written."""
    read: int
    """Instructions that read, on SQLite; on PostgreSQL, rows that were read."""
    written: int
    """Bytes."""


async def _send(store: Store, id_: JobId, count: int) -> None:
    for number in range(count):
        # As long as a name may be, and nothing that a database could compress.
        await signal(store, id_, CONTROL, sha512(str(number).encode()).hexdigest())


async def _make(store: Store, state: State, kept: int) -> JobId:
    job = await job_in(store, state)
    await _send(store, job.id, kept)
    return job.id


@asynccontextmanager
async def _opened(store: Store) -> AsyncGenerator[Store]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _run(make: Callable[[], Store], work: Callable[[Store], object]) -> object:
    async def main() -> object:
        async with _opened(make()) as store:
            return await work(store)  # type: ignore[misc]

    return asyncio.run(main())


def cost_on_sqlite(path: Path, state: State, kept: int) -> Cost:
    """Count what signals cost SQLite where the job keeps so many."""
    with counting_disk() as disk:

        def make() -> Store:
            return SqliteStore(path, vfs=disk.name)

        id_ = _run(make, lambda store: _make(store, state, kept))
        done = watch(disk, lambda: _run(make, lambda store: _send(store, id_, SENT)))  # type: ignore[arg-type]
    return Cost(
        statements=sum(calls for calls in done.statements.values() if calls >= SENT),
        rows=done.rows,
        read=done.read_steps,
        written=done.written,
    )


def cost_on_postgres(cluster: PostgresCluster, state: State, kept: int) -> Cost:
    """Count what signals cost PostgreSQL where the job keeps so many."""
    url = cluster.create_database()
    asyncio.run(migrate(url))
    server = Server.looking_at(cluster, url)

    def make() -> Store:
        return PostgresStore(url)

    id_ = _run(make, lambda store: _make(store, state, kept))
    seen = server.watch(lambda: _run(make, lambda store: _send(store, id_, SENT)))  # type: ignore[arg-type]
    return Cost(
        statements=sum(calls for calls in seen.statements.values() if calls >= SENT),
        rows=sum(rows.written for rows in seen.rows.values()),
        read=sum(rows.read for rows in seen.rows.values()),
        written=seen.wal_bytes,
    )


@pytest.fixture(scope="module")
def counting_cluster() -> Iterator[PostgresCluster]:
    """A server that counts; a page that is touched for the first time is not written whole."""
    with PostgresCluster(SETTINGS | {"full_page_writes": "off"}) as cluster:
        yield cluster


def assert_the_same(few: Cost, many: Cost) -> None:
    """Compare what signals cost a job that keeps none with one that keeps many."""
    assert few.statements >= SENT
    for name in Cost.__struct_fields__:
        assert getattr(many, name) <= getattr(few, name) * SHARE, (name, few, many)


@pytest.mark.parametrize("state", STATES)
def test_a_signal_costs_sqlite_the_same_however_many_the_job_keeps(
    tmp_path: Path, state: State
) -> None:
    few = cost_on_sqlite(tmp_path / "few.db", state, 0)
    many = cost_on_sqlite(tmp_path / "many.db", state, KEPT)
    assert_the_same(few, many)


@pytest.mark.parametrize("state", STATES)
def test_a_signal_costs_postgres_the_same_however_many_the_job_keeps(
    counting_cluster: PostgresCluster, state: State
) -> None:
    few = cost_on_postgres(counting_cluster, state, 0)
    many = cost_on_postgres(counting_cluster, state, KEPT)
    assert_the_same(few, many)
