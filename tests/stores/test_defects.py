"""The contract can fail: each store that is subtly wrong is caught by the tests meant for it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import StoreContract, assert_invariants
from tests.stores.defects import DEFECTS
from tests.stores.defects.wrapped import Wrapped

USED = sorted({name for defect in DEFECTS for name in defect.caught_by})
FAILURES = (AssertionError, pytest.fail.Exception, ValueError)
"""What a test of the contract raises on a store that is wrong."""


@asynccontextmanager
async def wrapped(kind: type[Wrapped]) -> AsyncIterator[Any]:
    inner = SqliteStore(":memory:")
    await inner.open()
    try:
        yield kind(inner)
    finally:
        await inner.close()


async def run(kind: type[Wrapped], name: str) -> None:
    """Run one test of the contract, and what is checked after each."""
    async with wrapped(kind) as store:
        await getattr(StoreContract(), name)(store)
        await assert_invariants(store)


@pytest.mark.req("C14")
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: cast("str", defect.__name__))
async def test_the_contract_catches(defect: type[Wrapped]) -> None:
    assert defect.caught_by
    for name in defect.caught_by:
        with pytest.raises(FAILURES):
            await run(defect, name)


@pytest.mark.parametrize("name", USED)
async def test_the_wrapper_without_a_defect_passes(name: str) -> None:
    await run(Wrapped, name)


def test_no_test_of_the_contract_hides_another() -> None:
    parts = [part for part in StoreContract.__mro__[1:] if part is not object]
    names = [
        name
        for part in parts
        for name, function in vars(part).items()
        if name.startswith("test_") and inspect.iscoroutinefunction(function)
    ]

    assert len(names) == len(set(names))
