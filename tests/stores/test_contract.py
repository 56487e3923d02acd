"""Both stores keep the contract: on SQLite in memory and in a file, on PostgreSQL and pooled."""

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing import StoreContract


class TestPostgresContract(StoreContract):
    """On PostgreSQL, directly."""

    @pytest_asyncio.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(postgres_url)
        await store.open()
        yield store
        await store.close()


class TestPgBouncerContract(StoreContract):
    """On PostgreSQL through a PgBouncer in transaction mode."""

    @pytest_asyncio.fixture
    async def store(self, pooled_url: str) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(pooled_url, pooled=True)
        await store.open()
        yield store
        await store.close()
