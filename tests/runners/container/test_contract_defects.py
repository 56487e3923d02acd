"""The contract of boxes that survive can fail: containers that are wrong are caught by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from msgspec.structs import replace

from holdfast.runners.container.podman import Podman
from holdfast.testing import BoxBench, box_contract
from tests.runners.box_contract_runs import OF_SURVIVING, assert_fails, run_test
from tests.runners.box_defects import PODMAN_DEFECTS, WrappedPodman
from tests.support.podman import IMAGE, PrivatePodman, nothing_left


@asynccontextmanager
async def bench(kind: type[WrappedPodman], private: PrivatePodman) -> AsyncIterator[BoxBench]:
    settings = replace(private.settings, host="host", store="contract")
    good = Podman(settings)

    def another() -> Any:
        return kind(Podman(settings))

    with nothing_left(private):
        yield BoxBench(
            boxes=another(),
            directory=private.directory / "defects",
            image=IMAGE,
            another=another,
            left=private.left,
        )
        for label in await good.list():
            await good.remove(label.job, label.attempt)


@pytest.mark.parametrize("defect", PODMAN_DEFECTS, ids=lambda each: cast("str", each.__name__))
async def test_the_contract_catches(
    defect: type[WrappedPodman], private_podman: PrivatePodman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box_contract, "LIMIT_SECONDS", 10.0)
    for name in defect.caught_by:
        async with bench(defect, private_podman) as made:
            await assert_fails(name, made, monkeypatch)


@pytest.mark.parametrize("name", sorted(OF_SURVIVING))
async def test_the_wrapper_without_a_defect_passes(
    name: str, private_podman: PrivatePodman, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(WrappedPodman, private_podman) as made:
        await run_test(name, made, monkeypatch)
