"""What tests of runners share: warm processes, and directories for boxes."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.runners.process.pool import ProcessPool
from tests.runners.hosts import build_busybox_tree
from tests.runners.worlds import APP, World


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm() -> AsyncIterator[ProcessPool]:
    """Processes that a module's tests share: starting one is what costs."""
    runner = ProcessPool(APP, processes=1)
    yield runner
    await runner.close()


@pytest.fixture
def given(warm: ProcessPool) -> World:
    """Jobs of one test for the shared processes. The test's loop is the module's."""
    return World(warm)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that a box's own user can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield directory


@pytest.fixture(scope="session")
def busybox() -> Iterator[Path]:
    """A root tree of busybox alone."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        build_busybox_tree(root)
        yield root
