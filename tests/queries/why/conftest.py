"""A store on either engine for each test; the database is shared, the queues are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.postgres import PostgresCluster


@pytest.fixture(scope="session")
def postgres_place(postgres_cluster: PostgresCluster) -> str:
    """One migrated database for all these tests: each has queues of its own."""
    url = postgres_cluster.create_database()
    asyncio.run(migrate(url))
    return url


@pytest.fixture(params=["sqlite", "postgres"])
def unopened(request: pytest.FixtureRequest) -> SqliteStore | PostgresStore:
    """A store on either engine."""
    if request.param == "sqlite":
        return SqliteStore(":memory:")
    return PostgresStore(request.getfixturevalue("postgres_place"))


@pytest.fixture
async def store(unopened: SqliteStore | PostgresStore) -> AsyncIterator[Store]:
    """The same, open."""
    await unopened.open()
    yield unopened
    await unopened.close()
