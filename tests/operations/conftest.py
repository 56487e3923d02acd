"""One store in memory, and whoever acts on it: a tenant's own people, or everybody's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import Holdfast
from holdfast.flow.verify import Problem, verify
from holdfast.local import LocalOperations
from holdfast.services.session import Session
from holdfast.wiring import Address, make_store

app = Holdfast(":memory:")


@app.task(queue="images", retries=7)
async def resize(image: str, width: int = 100) -> str:
    """A task that the server knows."""
    return f"{image}@{width}"


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """An open session; every job is verified afterwards."""
    opened = Session(make_store(Address(engine="sqlite", place=":memory:")))
    await opened.open()
    yield opened
    problems: list[Problem] = []
    await verify(opened.store, on_problem=problems.append)
    await opened.close()
    assert problems == []


@pytest.fixture
def mine(session: Session) -> LocalOperations:
    """Whoever acts for tenant `mine`."""
    return LocalOperations(session, name="ann", tenant="mine", tasks=app.tasks)


@pytest.fixture
def theirs(session: Session) -> LocalOperations:
    """Whoever acts for tenant `theirs`."""
    return LocalOperations(session, name="bob", tenant="theirs")


@pytest.fixture
def everybody(session: Session) -> LocalOperations:
    """Whoever acts for all."""
    return LocalOperations(session, name="root", tenant=None)
