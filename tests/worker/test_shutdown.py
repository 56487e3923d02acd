"""A worker that is stopped ends in its time, whatever becomes of its store meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.worker import shutdown
from holdfast.worker.committer import Committer
from holdfast.worker.worker import Worker
from tests.worker.silence import Silence, troubled_app
from tests.worker.test_worker import LIMIT


@pytest.fixture
def troubled(url: str, silence: Silence, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """An app whose stores can be silenced, and whose workers do not wait for them for long."""
    monkeypatch.setattr(shutdown, "WRITE_LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(shutdown, "LET_GO_SECONDS", 0.5)
    return troubled_app(url, silence)


async def end(worker: Worker) -> None:
    """Stop a worker and wait for its end."""
    await asyncio.wait_for(worker.__aexit__(None, None, None), LIMIT)


@pytest.mark.req("B8")
async def test_a_worker_whose_store_fell_silent_ends_and_its_job_is_run_again(
    app: Holdfast, troubled: Holdfast, silence: Silence
) -> None:
    begun = asyncio.Event()

    async def waits() -> str:
        if silence.on.is_set() or begun.is_set():
            return "again"
        begun.set()
        await asyncio.Event().wait()
        return "never"

    for each in (app, troubled):
        each.task(lease="500ms", heartbeat="250ms", backoff="10ms")(waits)
    job = await app.tasks["waits"].submit()
    worker = troubled.worker(grace="100ms", poll="50ms", tick="50ms")
    await worker.__aenter__()
    await asyncio.wait_for(begun.wait(), LIMIT)
    silence.on.set()
    await end(worker)
    assert worker.failed is not None, "what could not be written is told"
    assert worker.left_running, "what waits for the store is left behind"
    async with app.worker():
        assert await job.result(LIMIT) == "again"


async def test_an_idle_worker_whose_store_fell_silent_ends_and_tells_it(
    troubled: Holdfast, silence: Silence
) -> None:
    worker = troubled.worker(grace="100ms", poll="50ms", tick="50ms")
    await worker.__aenter__()
    silence.on.set()
    await end(worker)
    assert worker.failed is not None
    assert worker.left_running


async def test_a_worker_that_is_hurried_waits_no_longer_for_its_store(
    troubled: Holdfast, silence: Silence
) -> None:
    worker = troubled.worker(grace="1h", poll="50ms", tick="50ms")
    await worker.__aenter__()
    silence.on.set()
    ending = asyncio.create_task(end(worker))
    worker.hurry()
    await ending
    assert worker.failed is not None


async def test_an_idle_worker_can_be_asked_to_stop_twice(app: Holdfast) -> None:
    worker = app.worker()
    await worker.__aenter__()
    await asyncio.sleep(0.05)
    for _ in range(4):
        worker.stop()
        await asyncio.sleep(0)
        worker.hurry()
    await end(worker)
    assert not worker.left_running


async def test_an_embedded_worker_a_part_of_which_died_lets_go_of_its_jobs_and_tells_it(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    @app.task(lease="500ms", heartbeat="250ms", backoff="1ms")
    async def short() -> str:
        runs.append("run")
        return "done"

    def dies(committer: Committer, *_: Any) -> None:
        raise RuntimeError("a part died")

    job = await short.submit()
    worker = app.worker(tick="50ms", grace="1h")
    await worker.__aenter__()
    with monkeypatch.context() as broken:
        broken.setattr(Committer, "_commit", dies)
        await asyncio.wait_for(worker.stopped(), LIMIT)
    # It is not left yet: a keeper that went on would keep the job for ever.
    async with app.worker(tick="50ms"):
        assert await job.result(LIMIT) == "done"
    with pytest.raises(RuntimeError, match="a part died"):
        await end(worker)
    assert len(runs) == 2
    assert isinstance(worker.failed, RuntimeError)
