"""Fixtures that every test may ask for: databases and places of blobs of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PostgresCluster

pytest_plugins = ["tests.support.no_skips", "tests.support.s3"]


LIVE = ("crashes", "chaos")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` runs apart."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).parts[0] in LIVE:
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """One server per test process, started when first asked for.

    Without fsync: nothing here survives the machine anyway, and a crash of the server alone loses
    nothing that way. A test that measures or that cuts the power makes a cluster of its own.
    """
    with PostgresCluster({"fsync": "off"}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_template() -> str | None:
    """The database that `postgres_url` copies; none here.

    Override it in a nearer conftest with `return postgres_cluster.make_template(name, prepare)`.
    """
    return None


@pytest.fixture
def postgres_url(postgres_cluster: PostgresCluster, postgres_template: str | None) -> Iterator[str]:
    """A fresh database, gone after the test."""
    url = postgres_cluster.create_database(template=postgres_template)
    yield url
    # A test that failed in the middle of an outage may have left the server down.
    if not postgres_cluster.running:
        postgres_cluster.start()
    postgres_cluster.drop_database(url)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where a test may put its database; nothing is there yet."""
    return tmp_path / "holdfast.db"
