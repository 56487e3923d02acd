"""The pytest plugin: fixtures that are there wherever Holdfast is installed.

`holdfast_app` is a new app; override it to test your own. `holdfast_kit` is the kit around it,
set up by `@pytest.mark.holdfast(inline=True, start=…, url=…, faults=…)` where a test wants to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.app.app import Holdfast
    from holdfast.testing.kit import Kit

try:
    from pytest_asyncio import fixture as async_fixture
except ModuleNotFoundError:
    # Then another plugin (anyio's) awaits fixtures, or nobody asks for this one.
    async_fixture = pytest.fixture  # type: ignore[assignment]  # used alike

_failed = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers", "holdfast(inline, start, url, faults): how `holdfast_kit` is set up for a test"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note that a test failed: its kit then checks nothing more, which would hide why."""
    report = yield
    item.stash[_failed] = item.stash.get(_failed, False) or report.failed
    return report


# What they need is imported when they are asked for: pytest loads this module at every start.


@pytest.fixture
def holdfast_app() -> Holdfast:
    """A new app; override this fixture to put your own under test."""
    from holdfast.app.app import Holdfast

    return Holdfast()


@async_fixture
async def holdfast_kit(
    request: pytest.FixtureRequest, holdfast_app: Holdfast
) -> AsyncIterator[Kit]:
    """The kit around `holdfast_app`."""
    from holdfast.testing.kit import Kit

    marker = request.node.get_closest_marker("holdfast")
    kit = Kit(holdfast_app, **({} if marker is None else marker.kwargs))
    await kit.__aenter__()
    yield kit
    failed = request.node.stash.get(_failed, False)
    await kit.__aexit__(AssertionError if failed else None)
