"""The contract can fail: each runner that is subtly wrong is caught by the tests meant for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.runners.function import FunctionRunner
from holdfast.testing import RunnerContract, runner_contract
from holdfast.testing.runner_contract import RunnerBench, trials
from holdfast.wiring import opened, read_address
from tests.runners.contract_jobs import on_loop, submission
from tests.runners.defects import DEFECTS, Wrapped

TESTS = sorted(
    name
    for name, function in vars(RunnerContract).items()
    if name.startswith("test_") and inspect.iscoroutinefunction(function)
)
FAILURES = (AssertionError, pytest.fail.Exception, TimeoutError, asyncio.CancelledError, OSError)
"""What a test of the contract raises on a runner that is wrong."""


@pytest.fixture(autouse=True)
def _short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_contract, "LIMIT_SECONDS", 2.0)


@asynccontextmanager
async def bench(kind: type[Wrapped]) -> AsyncIterator[RunnerBench]:
    runner: Any = kind(FunctionRunner(on_loop.tasks, threads=1))
    yield RunnerBench(runner=runner, submission=submission, left=lambda: _running(runner.left))
    await runner.inner.close()
    if runner.left is not None:
        runner.left.cancel()
        await asyncio.wait([runner.left])


def _running(left: asyncio.Future[Any] | None) -> bool:
    return left is not None and not left.done()


async def run(kind: type[Wrapped], name: str, directory: Path) -> None:
    """Run one test of the contract, with what it asks for."""
    async with bench(kind) as made, opened(read_address(":memory:")) as ledger:
        test = getattr(RunnerContract(), name)
        given = {
            "bench": made,
            "ledger": ledger,
            "tmp_path": directory,
            "trial": trials(made, ledger, directory),
        }
        await test(**{each: given[each] for each in inspect.signature(test).parameters})


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: cast("str", defect.__name__))
async def test_the_contract_catches(defect: type[Wrapped], tmp_path: Path) -> None:
    for name in defect.caught_by:
        directory = tmp_path / name
        directory.mkdir()
        with pytest.raises(FAILURES):
            await run(defect, name, directory)


@pytest.mark.parametrize("name", TESTS)
async def test_the_wrapper_without_a_defect_passes(name: str, tmp_path: Path) -> None:
    await run(Wrapped, name, tmp_path)


def test_every_test_of_the_contract_is_failed_by_a_defect() -> None:
    assert sorted({name for defect in DEFECTS for name in defect.caught_by}) == TESTS
