"""A server in memory, and callers of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from starlette.datastructures import Headers

from holdfast import Holdfast
from holdfast.auth.authorization import Caller, TokenRole
from holdfast.errors import Unauthorized
from holdfast.http.app import make_server
from holdfast.http.limits import ServerLimits
from holdfast.http.router import Application
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.wiring import Address, make_store

tasks = Holdfast(":memory:")


@tasks.task(queue="images", retries=7)
async def resize(image: str, width: int = 100) -> str:
    """A task that the server knows."""
    return f"{image}@{width}"


class Names:
    """Whoever says `role@tenant#queue` is let in as that; for tests of what is behind the door."""

    async def caller(self, headers: Headers) -> Caller:
        """Read the name."""
        authorization = headers.get("authorization")
        if authorization is None:
            return Caller(name="root", token="root", role=TokenRole.ADMIN, tenant=None)
        who, _, queue = authorization.removeprefix("Bearer ").partition("#")
        role, _, tenant = who.partition("@")
        if role not in list(TokenRole):
            raise Unauthorized("no such token")
        name = f"{role}-of-{tenant}"
        return Caller(
            name=name,
            token=name,
            role=TokenRole(role),
            tenant=tenant or None,
            queues=frozenset({queue}) if queue else None,
        )


@pytest.fixture
async def server() -> AsyncIterator[Application]:
    """A running application; every job is verified afterwards."""
    app = make_server(
        make_store(Address(engine="sqlite", place=":memory:")),
        Names(),
        tasks=tasks.tasks,
        limits=ServerLimits(body_bytes=200_000, body_seconds=0.3),
    )
    async with app.lifespan_context(app):
        yield app
        problems: list[LedgerProblem] = []
        await verify(app.state.session.store, on_problem=problems.append)
        assert problems == []


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
