"""Stores for tests: PostgreSQL migrated once and copied per test, directly or through a pooler."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.stores.postgres.migrate import migrate
from tests.support.emptying import empty_ledger
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresCluster


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database: copying it is quicker than migrating another."""
    return postgres_cluster.make_template("migrated", lambda url: asyncio.run(migrate(url)))


@pytest.fixture(scope="session")
def pgbouncer(postgres_cluster: PostgresCluster) -> Iterator[PgBouncer]:
    """A pooler in transaction mode in front of the cluster."""
    with PgBouncer(postgres_cluster) as pooler:
        yield pooler


@pytest.fixture
def pooled_url(pgbouncer: PgBouncer, postgres_url: str) -> str:
    """The way through the pooler to a test's database."""
    return pgbouncer.url(postgres_url)


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_cluster: PostgresCluster, postgres_template: str) -> str:
    """One database for all tests that leave its schema alone; see `empty_postgres_url`."""
    return postgres_cluster.create_database("shared", template=postgres_template)


@pytest.fixture
def empty_postgres_url(shared_postgres_url: str) -> str:
    """The shared database, emptied: a tenth of the time that a fresh one takes.

    Not for a test that stops the server or changes the schema; that is what `postgres_url` is for.
    """
    asyncio.run(empty_ledger(shared_postgres_url))
    return shared_postgres_url
