"""Both stores keep the contract: SQLite in memory and in a file, PostgreSQL directly and pooled."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import StoreContract
from tests.support.pgbouncer import PgBouncer


class TestMemoryContract(StoreContract):
    """On SQLite in memory."""

    @pytest_asyncio.fixture
    async def store(self) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(":memory:")
        await store.open()
        yield store
        await store.close()


class TestSqliteContract(StoreContract):
    """On SQLite in a file."""

    @pytest_asyncio.fixture
    async def store(self, sqlite_path: Path) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(sqlite_path)
        await store.open()
        yield store
        await store.close()


class TestPostgresContract(StoreContract):
    """On PostgreSQL, directly."""

    @pytest_asyncio.fixture
    async def store(self, empty_postgres_url: str) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(empty_postgres_url)
        await store.open()
        yield store
        await store.set_sealing(False)
        await store.apply_policy(None, actor="test")
        await store.close()


class TestPgBouncerContract(StoreContract):
    """On PostgreSQL through a PgBouncer in transaction mode."""

    @pytest_asyncio.fixture
    async def store(
        self, pgbouncer: PgBouncer, empty_postgres_url: str
    ) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(pgbouncer.url(empty_postgres_url), pooled=True)
        await store.open()
        yield store
        await store.set_sealing(False)
        await store.apply_policy(None, actor="test")
        await store.close()
