"""Stores for tests: PostgreSQL migrated once and copied per test, directly or through a pooler."""

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.stores.postgres.migrate import migrate
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
