"""One set of warm processes for the tests that only ask something of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from holdfast.runners.processes import ProcessRunner
from tests.runners.worlds import APP, World


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def warm() -> AsyncIterator[ProcessRunner]:
    """Processes that a module's tests share: starting one is what costs."""
    runner = ProcessRunner(APP, processes=1)
    yield runner
    await runner.close()


@pytest.fixture
def given(warm: ProcessRunner) -> World:
    """Jobs of one test for the shared processes. The test's loop is the module's."""
    return World(warm)
