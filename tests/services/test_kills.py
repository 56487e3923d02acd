"""Kills that come at odd moments."""

from __future__ import annotations

import pytest

from holdfast.app import Holdfast
from holdfast.services.attempts import Attempts
from holdfast.services.held import Held


async def test_an_attempt_killed_before_its_first_step_gives_its_slot_back(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(lease="300ms", heartbeat="150ms", retries=5)
    async def short(number: int) -> int:
        return number

    worker = app.worker(concurrency=1, tick="50ms", poll="50ms")
    begin, killed = Attempts.begin, list[Held]()

    def begin_and_lose(attempts: Attempts, held: Held) -> None:
        begin(attempts, held)
        if not killed:
            killed.append(held)
            worker.lost(held, "a test says so")

    monkeypatch.setattr(Attempts, "begin", begin_and_lose)
    jobs = await short.submit_many([(number,) for number in range(3)])
    async with worker:
        assert [await job.result(20) for job in jobs] == [0, 1, 2]
    assert worker.failed is None
    assert len(killed) == 1
