"""Ledgers on either engine for tests: stores and raw SQL on them, and the proof afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.store import Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.migrate import migrate as migrate_sqlite
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.invariants import assert_invariants
from tests.stores.raw import POSTGRES, SQLITE, Raw, RawPostgres, RawSqlite
from tests.support.postgres import PostgresCluster
from tests.support.waiting import wait_until


class Ledger(Struct, frozen=True):
    """A migrated database: where it is, and the ways to it."""

    engine: str
    place: str

    @asynccontextmanager
    async def store(self) -> AsyncIterator[PostgresStore | SqliteStore]:
        """An open store on it."""
        made = {POSTGRES: PostgresStore, SQLITE: SqliteStore}[self.engine]
        store: PostgresStore | SqliteStore = made(self.place)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[Raw]:
        """A connection behind the store's back; what it does is undone unless committed."""
        raw: Raw
        if self.engine == POSTGRES:
            raw = await RawPostgres.open(self.place)
        else:
            raw = RawSqlite(Path(self.place))
        try:
            yield raw
        finally:
            await raw.close()


def make_ledger(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: str = ""
) -> Ledger:
    """An empty ledger on the engine that a fixture is parametrised with, or on this one."""
    if (engine or request.param) == SQLITE:
        path = tmp_path_factory.mktemp("ledger") / "holdfast.db"
        migrate_sqlite(path)
        return Ledger(SQLITE, str(path))
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    template: str = request.getfixturevalue("postgres_template")
    url = cluster.create_database(template=template)
    request.addfinalizer(lambda: cluster.drop_database(url))
    return Ledger(POSTGRES, url)


@asynccontextmanager
async def postgres_store(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    """An open store; its waits are short enough for a test."""
    given: dict[str, Any] = {"deadline_seconds": 30.0, "attempt_seconds": 5.0}
    store = PostgresStore(url, **given | options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def problems_of(store: Store) -> list[LedgerProblem]:
    """Verify every job, as `holdfast verify` does."""
    found: list[LedgerProblem] = []
    await verify(store, on_problem=found.append)
    return found


async def assert_proven(store: Store) -> None:
    """Every job is what its events say, every key is held by whom it should, all are counted."""
    assert await problems_of(store) == []
    await assert_invariants(store)


async def somebody_waits_for(raw: Any, cluster: PostgresCluster) -> None:
    """Return once a backend waits for a lock of this connection: the other side is blocked."""
    question = (
        "SELECT count(*) > 0 FROM pg_stat_activity"
        f" WHERE {raw.get_server_pid()} = ANY (pg_blocking_pids(pid))"
    )
    await asyncio.to_thread(
        wait_until, lambda: cluster.sql(question) == "t", "somebody to wait for a lock"
    )
