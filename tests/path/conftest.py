"""A migrated PostgreSQL database."""

import asyncio

import pytest

from holdfast.stores.postgres.migrate import migrate
from tests.support.postgres import PostgresCluster


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database."""
    return postgres_cluster.make_template("path", lambda url: asyncio.run(migrate(url)))
