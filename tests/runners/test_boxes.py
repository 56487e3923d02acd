"""The runtimes of boxes keep their contract: plain processes and sandboxes, on whatever host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.runners.bare.boxes import BareBoxes
from holdfast.runners.local.boxes import LocalBoxes
from holdfast.runners.local.host import find_programs, usable_cgroups
from holdfast.runners.sandbox.boxes import SandboxBoxes
from holdfast.testing.box_contract import (
    BoxBench,
    BoxContract,
    IsolatedBoxContract,
    LimitedBoxContract,
    RecoverableBoxContract,
)
from tests.runners.hosts import leftovers, new_store

pytestmark = pytest.mark.req("D4", "D5", "D6", "D7")


@asynccontextmanager
async def benched(make: Callable[[str], LocalBoxes], directory: Path) -> AsyncIterator[BoxBench]:
    """Give a bench of a runtime for a store of its own."""
    store = new_store()
    boxes = make(store)
    yield BoxBench(
        boxes=boxes,
        directory=directory,
        another=lambda: make(store),
        left=lambda: leftovers(store),
    )
    await boxes.close()
    assert not leftovers(store)


class TestBareBoxes(LimitedBoxContract, RecoverableBoxContract):
    @pytest_asyncio.fixture
    async def bench(self, reachable: Path) -> AsyncIterator[BoxBench]:
        async with benched(BareBoxes.on_this_host, reachable) as bench:
            yield bench


class TestBareBoxesWithoutControlGroups(BoxContract):
    """Killed by their pid namespace alone."""

    @pytest_asyncio.fixture
    async def bench(self, reachable: Path) -> AsyncIterator[BoxBench]:
        def make(_: str) -> BareBoxes:
            return BareBoxes(programs=find_programs(), cgroups=None)

        async with benched(make, reachable) as bench:
            yield bench


class TestBareBoxesWithoutBubblewrap(LimitedBoxContract, RecoverableBoxContract):
    """Killed by their control group alone."""

    @pytest_asyncio.fixture
    async def bench(self, reachable: Path) -> AsyncIterator[BoxBench]:
        def make(store: str) -> BareBoxes:
            cgroups, _ = usable_cgroups(store)
            return BareBoxes(programs=find_programs(), cgroups=cgroups, trouble="not installed")

        async with benched(make, reachable) as bench:
            yield bench


class TestSandboxes(IsolatedBoxContract, LimitedBoxContract, RecoverableBoxContract):
    @pytest_asyncio.fixture
    async def bench(self, reachable: Path) -> AsyncIterator[BoxBench]:
        async with benched(SandboxBoxes.on_this_host, reachable) as bench:
            yield bench


class TestSandboxesOfABusyboxTree(IsolatedBoxContract, LimitedBoxContract, RecoverableBoxContract):
    @pytest_asyncio.fixture
    async def bench(self, reachable: Path, busybox: Path) -> AsyncIterator[BoxBench]:
        def make(store: str) -> SandboxBoxes:
            return SandboxBoxes.on_this_host(store, root=busybox)

        async with benched(make, reachable) as bench:
            yield bench


class TestSandboxesWithoutControlGroups(IsolatedBoxContract):
    @pytest_asyncio.fixture
    async def bench(self, reachable: Path) -> AsyncIterator[BoxBench]:
        def make(_: str) -> SandboxBoxes:
            return SandboxBoxes(programs=find_programs(), cgroups=None)

        async with benched(make, reachable) as bench:
            yield bench
