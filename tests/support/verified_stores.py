"""Fixtures of fresh stores for each test; every job is verified afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.wiring import Address, opened, read_address
from tests.support.emptying import empty_ledger
from tests.support.postgres import PostgresCluster


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """SQLite in memory is the fake of every other store."""
    async with opened(Address(engine="sqlite", place=":memory:")) as opened_store:
        yield opened_store
        await _check(opened_store)


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database: copying it is quicker than migrating another."""
    return postgres_cluster.make_template("flow", lambda url: asyncio.run(migrate(url)))


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_cluster: PostgresCluster, postgres_template: str) -> str:
    """One database for all tests that leave its schema alone."""
    return postgres_cluster.create_database(template=postgres_template)


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> Address:
    """Where a store of either engine is."""
    if request.param == "sqlite":
        return Address(engine="sqlite", place=":memory:")
    url = str(request.getfixturevalue("shared_postgres_url"))
    asyncio.run(empty_ledger(url))
    return read_address(url)


@pytest.fixture
async def either_store(address: Address) -> AsyncIterator[Store]:
    """Each engine in turn, for what hangs on what a store really does."""
    async with opened(address) as opened_store:
        yield opened_store
        await _check(opened_store)


async def _check(store: Store) -> None:
    problems: list[LedgerProblem] = []
    await verify(store, on_problem=problems.append)
    assert problems == []
