"""A server in memory on either store, and workers that speak to it by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from holdfast.http.app import make_server
from holdfast.http.router import Application
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.wiring import Address, make_store, read_address
from tests.http.conftest import Names
from tests.support.emptying import empty_ledger
from tests.support.postgres import PostgresCluster
from tests.worker_protocol.hand import Hand


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database."""
    return postgres_cluster.make_template("protocol", lambda url: asyncio.run(migrate(url)))


@pytest.fixture(scope="session")
def shared_postgres_url(postgres_cluster: PostgresCluster, postgres_template: str) -> str:
    """One database for all tests."""
    return postgres_cluster.create_database("protocol_shared", template=postgres_template)


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> Address:
    """Where a store of either engine is."""
    if request.param == "sqlite":
        return Address(engine="sqlite", place=":memory:")
    url = str(request.getfixturevalue("shared_postgres_url"))
    asyncio.run(empty_ledger(url))
    return read_address(url)


@pytest.fixture
async def server(address: Address) -> AsyncIterator[Application]:
    """A running application; every job is verified afterwards."""
    app = make_server(make_store(address), Names())
    async with app.lifespan_context(app):
        yield app
        problems: list[LedgerProblem] = []
        await verify(app.state.session.store, on_problem=problems.append)
        assert problems == []


@pytest.fixture
def store(server: Application) -> Store:
    """The store behind the server."""
    store: Store = server.state.session.store
    return store


@pytest.fixture
async def call(server: Application) -> AsyncIterator[Callable[[str | None], httpx.AsyncClient]]:
    """Make a client of a role and tenant: `call("viewer@mine")`."""
    made: list[httpx.AsyncClient] = []

    def client(who: str | None = None) -> httpx.AsyncClient:
        headers = {} if who is None else {"authorization": f"Bearer {who}"}
        transport = httpx.ASGITransport(server)
        made.append(httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers))
        return made[-1]

    yield client
    for one in made:
        await one.aclose()


@pytest.fixture
def http(call: Callable[[str | None], httpx.AsyncClient]) -> httpx.AsyncClient:
    """Whoever may do everything, for all tenants."""
    return call(None)


@pytest.fixture
async def hand(call: Callable[[str | None], httpx.AsyncClient]) -> Hand:
    """A worker for all tenants."""
    return await Hand.hired(call("worker"))
