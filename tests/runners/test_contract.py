"""Both runners keep the contract of runners: functions on the loop and in threads, processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.runners.function import FunctionRunner
from holdfast.runners.process.runner import ProcessRunner
from holdfast.testing import RunnerContract
from holdfast.testing.runner_contract import RunnerBench
from tests.runners.contract_jobs import in_threads, isolated, on_loop, submission
from tests.runners.worlds import children


class TestFunctionsOnTheLoop(RunnerContract):
    @pytest_asyncio.fixture
    async def bench(self) -> AsyncIterator[RunnerBench]:
        runner = FunctionRunner(on_loop.tasks, threads=1)
        yield RunnerBench(runner=runner, submission=submission)
        await runner.close()


class TestFunctionsInThreads(RunnerContract):
    @pytest_asyncio.fixture
    async def bench(self) -> AsyncIterator[RunnerBench]:
        runner = FunctionRunner(in_threads.tasks, threads=2)
        yield RunnerBench(runner=runner, submission=submission)
        await runner.close()


class TestProcesses(RunnerContract):
    @pytest_asyncio.fixture
    async def bench(self) -> AsyncIterator[RunnerBench]:
        before = children()
        runner = ProcessRunner(
            isolated.tasks, lambda: "tests.runners.contract_jobs:isolated", processes=2
        )
        yield RunnerBench(runner=runner, submission=submission, left=lambda: children() - before)
        await runner.close()
