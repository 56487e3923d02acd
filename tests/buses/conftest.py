"""A bus of each kind on a store of each engine; every job is verified afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.buses import nats
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate as migrate_postgres
from holdfast.wiring import migrate, opened, read_address
from tests.buses.site import Site
from tests.support.emptying import empty_ledger
from tests.support.nats import NatsServer, RedisServer
from tests.support.postgres import PostgresCluster


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database."""
    return postgres_cluster.make_template("buses", lambda url: asyncio.run(migrate_postgres(url)))


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_cluster: PostgresCluster, postgres_template: str) -> str:
    """One database for all tests."""
    return postgres_cluster.create_database("buses_shared", template=postgres_template)


@pytest.fixture
def engine() -> str:
    """The engine of the store; parametrize it where both matter."""
    return "sqlite"


@pytest.fixture
def jetstream() -> bool:
    """Whether the server has streams; parametrize it where both matter."""
    return True


@pytest.fixture
def url(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the store is, migrated and empty."""
    if engine == "postgres":
        url = str(request.getfixturevalue("shared_postgres_url"))
        asyncio.run(empty_ledger(url))
        return url
    url = str(tmp_path / "jobs.db")
    asyncio.run(migrate(read_address(url)))
    return url


@pytest.fixture
def server(jetstream: bool, tmp_path: Path) -> Iterator[NatsServer]:
    """A private server."""
    with NatsServer(tmp_path / "nats", jetstream=jetstream) as server:
        yield server


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A private redis."""
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def short_redelivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a bridge of this process took and did not acknowledge soon comes again."""
    monkeypatch.setattr(nats, "ACK_SECONDS", 2.0)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """The store; what its events say is what its rows say, at the end."""
    async with opened(read_address(url)) as store:
        yield store
        problems: list[LedgerProblem] = []
        await verify(store, on_problem=problems.append)
        assert problems == []


@pytest.fixture
async def site(server: NatsServer, store: Store) -> AsyncIterator[Site]:
    """The bus, without a bridge."""
    site = Site(server, store)
    await site.open()
    yield site
    await site.close()
