"""Kills that come at odd moments."""

from __future__ import annotations

import pytest

from holdfast.app.app import Holdfast
from holdfast.worker.executor import Executor
from holdfast.worker.owned_job import OwnedJob


async def test_an_attempt_killed_before_its_first_step_gives_its_slot_back(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(lease="300ms", heartbeat="150ms", retries=5)
    async def short(number: int) -> int:
        return number

    worker = app.worker(concurrency=1, tick="50ms", poll="50ms")
    start, killed = Executor.start, list[OwnedJob]()

    def start_and_lose(executor: Executor, job: OwnedJob) -> None:
        start(executor, job)
        if not killed:
            killed.append(job)
            executor.stopper.lose(job, "a test says so")

    monkeypatch.setattr(Executor, "start", start_and_lose)
    jobs = await short.submit_many([(number,) for number in range(3)])
    async with worker:
        assert [await job.result(20) for job in jobs] == [0, 1, 2]
    assert worker.failed is None
    assert len(killed) == 1
