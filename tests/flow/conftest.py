"""A fresh embedded store for each test; every job is verified afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.flow.verify import Problem, verify
from holdfast.ports import Store
from holdfast.wiring import Address, opened


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """SQLite in memory is the fake of every other store."""
    async with opened(Address(engine="sqlite", place=":memory:")) as opened_store:
        yield opened_store
        problems: list[Problem] = []
        await verify(opened_store, on_problem=problems.append)
        assert problems == []
