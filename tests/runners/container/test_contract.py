"""Containers keep the contract of boxes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.runners.container.podman import Podman
from holdfast.testing.box_contract import (
    BoxBench,
    IsolatedBoxContract,
    LimitedBoxContract,
    SurvivingBoxContract,
)
from tests.support.podman import IMAGE, PrivatePodman, nothing_left

pytestmark = pytest.mark.req("D4", "D5", "D6", "D7")


class TestPodman(IsolatedBoxContract, LimitedBoxContract, SurvivingBoxContract):
    """Podman in a private storage."""

    @pytest_asyncio.fixture
    async def bench(self, private_podman: PrivatePodman) -> AsyncIterator[BoxBench]:
        """The names of host and store are the contract's own."""
        settings = replace(private_podman.settings, host="host", store="contract")
        boxes = Podman(settings)
        with nothing_left(private_podman):
            yield BoxBench(
                boxes=boxes,
                directory=private_podman.directory / "contract",
                image=IMAGE,
                another=lambda: Podman(settings),
                left=private_podman.left,
            )
            await boxes.close()
