"""The contract of boxes can fail: each runtime that is wrong is caught by the tests for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.testing import BoxBench, box_contract
from tests.runners.box_contract_runs import OF_ALL, OF_ISOLATED, TESTS, assert_fails, run_test
from tests.runners.box_defects import DEFECTS, PODMAN_DEFECTS, WrappedBoxes, WrappedSandboxes
from tests.runners.hosts import leftovers, new_store


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_contract, "LIMIT_SECONDS", 3.0)


@asynccontextmanager
async def bench(kind: type[WrappedBoxes], directory: Path) -> AsyncIterator[BoxBench]:
    store = new_store()
    made: list[Any] = []

    def another() -> Any:
        made.append(kind(kind.wraps.on_this_host(store)))
        return made[-1]

    try:
        yield BoxBench(
            boxes=another(), directory=directory, another=another, left=lambda: leftovers(store)
        )
    finally:
        for boxes in made:
            await _clear(boxes)
    assert not leftovers(store)


async def _clear(boxes: Any) -> None:
    for task in boxes.left:
        task.cancel()
        await asyncio.wait([task])
    boxes.repair()
    for label in await boxes.inner.list():
        await boxes.inner.remove(label.job, label.attempt)
    await boxes.inner.close()


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: cast("str", defect.__name__))
async def test_the_contract_catches(
    defect: type[WrappedBoxes], reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in defect.caught_by:
        async with bench(defect, reachable) as made:
            await assert_fails(name, made, monkeypatch)


@pytest.mark.parametrize("name", sorted({**OF_ALL, **OF_ISOLATED}))
async def test_the_wrapper_without_a_defect_passes(
    name: str, reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box_contract, "LIMIT_SECONDS", 60.0)
    kind = WrappedSandboxes if name in OF_ISOLATED else WrappedBoxes
    async with bench(kind, reachable) as made:
        await run_test(name, made, monkeypatch)


def test_every_test_of_the_contract_is_failed_by_a_defect() -> None:
    caught = {name for defect in (*DEFECTS, *PODMAN_DEFECTS) for name in defect.caught_by}
    assert sorted(caught) == sorted(TESTS)
