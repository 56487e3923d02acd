"""Whatever breaks while a failure is reported, the job has ended and its slot is free."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from holdfast import Context, Failure
from holdfast.app.app import Holdfast
from holdfast.errors import HoldfastError
from holdfast.lifecycle.record import Change
from holdfast.lifecycle.states import EventType, State
from holdfast.ports.models import Outcome, Rejected
from holdfast.wiring import make_store, read_address
from holdfast.worker import shutdown
from holdfast.worker.failures import Failures
from tests.crashes.wrapped import Wrapped
from tests.worker.test_worker import LIMIT

OURS = logging.getLogger("holdfast.worker.failures")


@pytest.fixture
def broken_filter() -> Iterator[None]:
    """A filter of an application that raises for every line about a failed attempt."""

    def broken(record: logging.LogRecord) -> bool:
        if "attempt" in record.getMessage():
            raise ValueError("the filter is broken")
        return True

    OURS.addFilter(broken)
    yield
    OURS.removeFilter(broken)


def tasks(app: Holdfast) -> None:
    """Register one task that fails and one that does not."""

    @app.task(name="fails", retries=0)
    async def fails(ctx: Context) -> None:
        raise OSError("card declined")

    @app.task(name="works")
    async def works(ctx: Context) -> str:
        return "done"


async def a_job_runs_after_a_failed_one(app: Holdfast) -> None:
    """Fail one job, then run another in the only slot that there is."""
    async with app.worker(concurrency=1):
        failed = await app.tasks["fails"].submit()
        assert await failed.wait(LIMIT) is State.DEAD_LETTERED
        assert await (await app.tasks["works"].submit()).result(LIMIT) == "done"


@pytest.mark.usefixtures("broken_filter")
async def test_a_log_filter_that_raises_leaves_the_slot_free(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    tasks(app)
    await a_job_runs_after_a_failed_one(app)
    assert "could not be reported" in caplog.text


@pytest.mark.usefixtures("broken_filter")
async def test_a_log_filter_that_raises_keeps_no_failure_from_the_hooks(app: Holdfast) -> None:
    tasks(app)
    seen: list[str] = []

    @app.on_failure
    def note(failure: Failure) -> None:
        seen.append(failure.outcome)

    await a_job_runs_after_a_failed_one(app)
    assert seen == ["dead_lettered"]


async def test_a_hook_thread_that_cannot_be_started_leaves_the_slot_free(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tasks(app)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "holdfast failure hooks":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    app.on_failure(lambda failure: None)
    await a_job_runs_after_a_failed_one(app)
    assert "could not be reported" in caplog.text


async def test_a_report_that_raises_leaves_the_slot_free(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks(app)

    def broken(*args: object) -> None:
        raise RuntimeError("not even this is caught inside")

    monkeypatch.setattr(Failures, "ended", broken)
    await a_job_runs_after_a_failed_one(app)


async def test_a_hook_that_exits_is_logged_and_called_again(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    tasks(app)
    seen: list[str] = []

    @app.on_failure
    def exits(failure: Failure) -> None:
        seen.append(failure.job_id)
        raise SystemExit(1)

    async with app.worker():
        jobs = [await app.tasks["fails"].submit() for _ in range(3)]
        for job in jobs:
            await job.wait(LIMIT)
    assert sorted(seen) == sorted(job.id for job in jobs)
    assert "on_failure hook" in caplog.text


class RefusesSuccess(Wrapped):
    """A store that refuses every success of a job."""

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Commit, or refuse."""
        if any(change.event.type is EventType.SUCCEEDED for change in changes):
            return [Rejected(code="unfit", message="it does not fit") for _ in changes]
        return await self.store.commit(changes)


async def test_a_job_whose_end_the_store_refuses_is_reported_as_a_dead_letter(
    app: Holdfast, url: str
) -> None:
    refused = Holdfast(store=lambda: RefusesSuccess(make_store(read_address(url))))
    tasks(refused)
    seen: list[Failure] = []
    refused.on_failure(seen.append)
    async with refused, refused.worker():
        job = await refused.tasks["works"].submit()
        assert await job.wait(LIMIT) is State.DEAD_LETTERED
    assert [(one.outcome, one.code) for one in seen] == [
        ("dead_lettered", "infrastructure_failure")
    ]


async def test_a_job_that_its_worker_leaves_behind_is_reported_as_a_dead_letter(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "KILL_LIMIT_SECONDS", 0.1)
    begun, ends = threading.Event(), threading.Event()
    seen: list[Failure] = []
    app.on_failure(seen.append)

    @app.task(idempotent=False)
    def hangs() -> None:
        begun.set()
        ends.wait()

    leaving = app.worker(grace="50ms", exits=True)
    await leaving.__aenter__()
    job = await hangs.submit()
    await asyncio.to_thread(begun.wait)
    with suppress(HoldfastError):
        await leaving.__aexit__(None, None, None)
    ends.set()
    assert (await job.refresh()).state is State.DEAD_LETTERED
    assert [(one.outcome, one.code) for one in seen] == [
        ("dead_lettered", "infrastructure_failure")
    ]
