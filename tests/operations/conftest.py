"""One store in memory, and whoever acts on it: a tenant's own people, or everybody's.

At hand or through a server: the same is true of both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

import httpx
import pytest
from starlette.datastructures import Headers

from holdfast import Holdfast
from holdfast.auth.authorization import Caller, TokenRole
from holdfast.client.remote import RemoteOperations
from holdfast.client.transport import Transport, make_headers, make_http
from holdfast.http.app import make_server
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.operations.local import LocalOperations
from holdfast.operations.request import Operations
from holdfast.operations.session import StoreSession
from holdfast.ports.store import Store
from holdfast.wiring import Address, make_store

app = Holdfast(":memory:")
Acting: TypeAlias = Callable[[str, str | None], Operations]
"""Give the operations of somebody, for a tenant or for all."""


@app.task(queue="images", retries=7)
async def resize(image: str, width: int = 100) -> str:
    """A task that the server knows."""
    return f"{image}@{width}"


class Trusting:
    """Whoever says `name@tenant` is let in as that."""

    async def caller(self, headers: Headers) -> Caller:
        """Read the name."""
        name, _, tenant = headers.get("authorization", "").removeprefix("Bearer ").partition("@")
        return Caller(name=name, token=name, role=TokenRole.ADMIN, tenant=tenant or None)


@pytest.fixture
def store() -> Store:
    """Where the jobs are, once somebody acts."""
    return make_store(Address(engine="sqlite", place=":memory:"))


@pytest.fixture(params=["at hand", "through a server"])
async def acting(request: pytest.FixtureRequest, store: Store) -> AsyncIterator[Acting]:
    """Who acts; every job is verified afterwards."""
    async with AsyncExitStack() as stack:
        if request.param == "at hand":
            session = StoreSession(store)
            await session.open()
            stack.push_async_callback(session.close)
            yield _local(session)
        else:
            server = make_server(store, Trusting(), tasks=app.tasks)
            await stack.enter_async_context(server.lifespan_context(server))
            yield _remote(httpx.ASGITransport(server), stack)
        problems: list[LedgerProblem] = []
        await verify(store, on_problem=problems.append)
        assert problems == []


def _local(session: StoreSession) -> Acting:
    return lambda name, tenant: LocalOperations(session, name=name, tenant=tenant, tasks=app.tasks)


def _remote(transport: httpx.ASGITransport, stack: AsyncExitStack) -> Acting:
    def act(name: str, tenant: str | None) -> Operations:
        headers = make_headers(f"{name}@{tenant or ''}", None)
        http = make_http("http://test", headers, transport)
        stack.push_async_callback(http.aclose)
        return RemoteOperations(Transport(http, patience_seconds=5.0))

    return act


@pytest.fixture
def mine(acting: Acting) -> Operations:
    """Whoever acts for tenant `mine`."""
    return acting("ann", "mine")


@pytest.fixture
def theirs(acting: Acting) -> Operations:
    """Whoever acts for tenant `theirs`."""
    return acting("bob", "theirs")


@pytest.fixture
def everybody(acting: Acting) -> Operations:
    """Whoever acts for all."""
    return acting("root", None)
