"""A database that holds Holdfast and a caller's own tables; every job is verified afterwards.

Some of the caller's tables have the names of Holdfast's, and its search_path leads to these.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.stores.postgres.migrate import migrate
from tests.caller_transaction.callers import CALLERS, DRIVERS, Caller
from tests.stores.ledgers import assert_proven
from tests.support.emptying import empty_ledger
from tests.support.postgres import PostgresCluster


async def _prepare(url: str) -> None:
    await migrate(url)
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE public.orders (number integer PRIMARY KEY)")
    for name in ("jobs", "events", "keys", "policies", "needs", "counts", "migrations"):
        await connection.execute(f"CREATE TABLE public.{name} (theirs integer)")
    await connection.close()


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated database with a table of the caller's."""
    return postgres_cluster.make_template("enlisting", lambda url: asyncio.run(_prepare(url)))


@pytest.fixture(scope="session")
def shared_url(postgres_cluster: PostgresCluster, postgres_template: str) -> str:
    """One database for all tests here that leave its schema alone."""
    url = postgres_cluster.create_database("shared_enlisting", template=postgres_template)
    postgres_cluster.sql("ALTER DATABASE shared_enlisting SET search_path = public")
    return url


@pytest.fixture
def url(shared_url: str) -> str:
    """It, emptied."""
    asyncio.run(empty_ledger(shared_url))
    return shared_url


@pytest.fixture
async def app(url: str) -> AsyncIterator[Holdfast]:
    """An app on PostgreSQL with a task."""
    async with Holdfast(url) as opened:
        opened.task(ship)
        yield opened
        await assert_proven(await opened.store())


@pytest.fixture
async def small_app(sqlite_path: Path) -> AsyncIterator[Holdfast]:
    """An app on SQLite with a task, and a table of the caller's."""
    async with Holdfast(str(sqlite_path)) as opened:
        opened.task(ship)
        async with opened.transaction() as tx:
            tx.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
        yield opened
        await assert_proven(await opened.store())


@pytest.fixture(params=CALLERS, ids=lambda made: made.__name__)
async def any_caller(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Caller]:
    """A caller's connection, of every kind in turn."""
    made: Caller = request.param(url)
    await made.open()
    yield made
    await made.close()


@pytest.fixture(params=DRIVERS, ids=lambda made: made.__name__)
async def caller(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Caller]:
    """A caller's connection, one for each way to ask and to be refused."""
    made: Caller = request.param(url)
    await made.open()
    yield made
    await made.close()


def ship(number: int) -> int:
    """Do the work."""
    return number
