"""A server in memory with a worker beside it, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers

from holdfast import Client, Holdfast
from holdfast.auth.authorization import Caller, TokenRole
from holdfast.errors import Unauthorized
from holdfast.http.app import make_server
from holdfast.http.router import Application
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.wiring import Address, make_store
from tests.client.tasks import app as tasks


class Names:
    """Whoever says `name@tenant` is let in as that; whoever says nothing is root."""

    async def caller(self, headers: Headers) -> Caller:
        """Read the name."""
        said = headers.get("authorization", "Bearer root")
        name, _, tenant = said.removeprefix("Bearer ").partition("@")
        if name == "nobody":
            raise Unauthorized("no such token")
        return Caller(name=name, token=name, role=TokenRole.ADMIN, tenant=tenant or None)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where the jobs are."""
    return str(tmp_path / "jobs.db")


@pytest.fixture
async def server(place: str) -> AsyncIterator[Application]:
    """A server that knows no task; every job is verified afterwards."""
    made = make_server(make_store(Address(engine="sqlite", place=place)), Names())
    async with made.lifespan_context(made):
        yield made
        problems: list[LedgerProblem] = []
        await verify(made.state.session.store, on_problem=problems.append)
        assert problems == []


@pytest.fixture
async def client(server: Application) -> AsyncIterator[Client]:
    """A client of it that may do everything."""
    async with Client("http://test", transport=httpx.ASGITransport(server)) as made:
        yield made


@pytest.fixture
async def app(place: str, server: Application) -> AsyncIterator[Holdfast]:
    """The tasks' app on the server's store."""
    tasks.use(place)
    async with tasks:
        yield tasks
    tasks.use(":memory:")
