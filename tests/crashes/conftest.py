"""A store of either engine, an app on it, the outside resource, and worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.app.app import Holdfast
from holdfast.stores.postgres.migrate import migrate
from tests.crashes import apps
from tests.support.crew import EFFECTS, Crew
from tests.support.postgres import PostgresCluster
from tests.support.proxy import FaultProxy
from tests.support.resource import Resource


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run those of one engine one after the other: each is several processes."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            engine = "postgres" if "postgres" in item.name else "sqlite"
            item.add_marker(pytest.mark.xdist_group(f"crashes on {engine}"))


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database: copying it is quicker than migrating another."""
    return postgres_cluster.make_template("crashes", lambda url: asyncio.run(migrate(url)))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store of either engine is."""
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def proxy(postgres_cluster: PostgresCluster) -> Iterator[FaultProxy]:
    """What stands between a worker and PostgreSQL."""
    with FaultProxy("127.0.0.1", postgres_cluster.port) as proxy:
        yield proxy


@pytest.fixture
def resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resource:
    """The outside resource, which handlers in this process and in all others find."""
    directory = tmp_path / "effects"
    directory.mkdir()
    monkeypatch.setenv(EFFECTS, str(directory))
    return Resource(directory)


@pytest.fixture
async def app(url: str, resource: Resource) -> AsyncIterator[Holdfast]:
    """The app of the worker processes, open on the store."""
    apps.app.use(url)
    async with apps.app:
        yield apps.app


@pytest.fixture
def crew(url: str, resource: Resource) -> Iterator[Crew]:
    """Worker processes, none yet; dead at the end."""
    with Crew(url, resource.directory) as crew:
        yield crew
