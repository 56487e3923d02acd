"""A worker that is stopped ends in its time, whatever becomes of its store meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast.app import Holdfast
from holdfast.ports import Store
from holdfast.services import worker as services_worker
from holdfast.services.worker import Worker
from holdfast.wiring import make_store, read_address
from tests.crashes.waiting import until
from tests.services.test_worker import LIMIT


class Silence:
    """Comes over all stores of an app at once, and goes."""

    def __init__(self) -> None:
        """Let everybody speak."""
        self.on = threading.Event()
        self.stores = 0
        """How many are open."""


class Silent:
    """A store that does what another one does, and answers nothing while there is silence."""

    def __init__(self, store: Store, silence: Silence) -> None:
        """Stand in front of a store."""
        self._store = store
        self._silence = silence

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Let calls through as long as there is somebody to answer them."""

        async def call(*args: Any, **named: Any) -> Any:
            while self._silence.on.is_set():  # noqa: ASYNC110  the keeper's thread has a loop too
                await asyncio.sleep(0.02)
            return await getattr(self._store, name)(*args, **named)

        return call

    async def open(self) -> None:
        """Open the real one."""
        self._silence.stores += 1
        await self._store.open()

    async def close(self) -> None:
        """Close the real one, which takes as long as the silence does."""
        while self._silence.on.is_set():  # noqa: ASYNC110  as above
            await asyncio.sleep(0.02)
        await self._store.close()
        self._silence.stores -= 1


@pytest.fixture
async def silence() -> AsyncIterator[Silence]:
    """What silences a store; at the end all that waits for it goes on, and lets go."""
    silence = Silence()
    yield silence
    silence.on.clear()
    await until(lambda: silence.stores == 0, "what was left behind to end")


@pytest.fixture
def troubled(url: str, silence: Silence, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """An app whose stores can be silenced, and whose workers do not wait for them for long."""
    monkeypatch.setattr(services_worker, "WRITE_LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(services_worker, "LET_GO_SECONDS", 0.5)

    def silent() -> Any:
        return Silent(make_store(read_address(url)), silence)

    return Holdfast(store=silent, unbounded_leases=True)


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
