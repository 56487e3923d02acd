"""Apps on either engine; every job is verified afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.stores.postgres.migrate import migrate
from tests.app.acts import Watched, watched_app
from tests.support.emptying import empty_ledger
from tests.support.postgres import PostgresCluster


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database: copying it is quicker than migrating another."""
    return postgres_cluster.make_template("api", lambda url: asyncio.run(migrate(url)))


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_cluster: PostgresCluster, postgres_template: str) -> str:
    """One database for all tests here."""
    return postgres_cluster.create_database("shared_api", template=postgres_template)


@pytest.fixture
def empty_postgres_url(shared_postgres_url: str) -> str:
    """The shared database, emptied."""
    asyncio.run(empty_ledger(shared_postgres_url))
    return shared_postgres_url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    """Where a store of either engine is."""
    if request.param == "sqlite":
        return str(sqlite_path)
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
async def app(url: str) -> AsyncIterator[Holdfast]:
    """An open app."""
    async with Holdfast(url) as opened:
        yield opened
        problems: list[LedgerProblem] = []
        await verify(await opened.store(), on_problem=problems.append)
        assert problems == []


@pytest.fixture
async def watched(url: str) -> AsyncIterator[tuple[Holdfast, Watched]]:
    """An open app, and the store that it uses."""
    app, store = watched_app(url)
    async with app:
        yield app, store


@pytest.fixture
def store(watched: tuple[Holdfast, Watched]) -> Watched:
    """The store alone."""
    return watched[1]
