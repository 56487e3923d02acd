"""Podman in a private storage; after each test, nothing of its containers is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.runners.container.podman import Podman
from tests.support.podman import PrivatePodman, nothing_left, private_podman

__all__ = ["private_podman"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what starts containers together: starts do not get faster by more processes."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("boxes"))


@pytest_asyncio.fixture
async def podman(private_podman: PrivatePodman) -> AsyncIterator[Podman]:
    """Boxes in the private storage; those of a test that it has not removed are removed."""
    boxes = Podman(private_podman.settings)
    with nothing_left(private_podman):
        yield boxes
        for label in await boxes.list():
            await boxes.remove(label.job, label.attempt)
        await boxes.close()
