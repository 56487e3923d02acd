"""What a worker logs, keeps and reports of failures."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from holdfast import Context, Failure, Holdfast, PermanentError
from holdfast.errors import BadTask
from holdfast.ids import jitter, mint_id
from holdfast.lifecycle.states import State
from holdfast.services.reconciler import Reconciler
from holdfast.tasks.handles import JobHandle
from holdfast.testing.factories import SHORT_RUN
from holdfast.testing.store_actions import passed, running_job
from holdfast.worker import failures
from holdfast.worker.failures import HookThread, RateLimit
from tests.crashes.waiting import until
from tests.worker.silence import Silence, troubled_app
from tests.worker.test_worker import LIMIT

OURS = "holdfast.worker.failures"


def lines(caplog: pytest.LogCaptureFixture, logger: str = OURS) -> list[tuple[int, str]]:
    """What was logged, by level."""
    return [(one.levelno, one.getMessage()) for one in caplog.records if one.name == logger]


async def kept(app: Holdfast, job: JobHandle[Any]) -> list[tuple[int, str]]:
    """A job's own log, by level."""
    found = await (await app.store()).logs(job.record.id)
    return [(line.level, line.message) for line in found]


async def test_an_exception_is_a_log_line_with_what_follows_from_it(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retries=1, backoff="1ms")
    async def charge() -> None:
        raise OSError("card declined")

    async with app.worker():
        job = await charge.submit()
        assert await job.wait(LIMIT) is State.DEAD_LETTERED

    retry, end = lines(caplog)
    assert retry[0] == logging.WARNING
    assert retry[1].startswith(f"job {job.id} (charge): attempt 1 failed: OSError: card declined")
    assert "; retry in 0.0" in retry[1]
    assert end[0] == logging.ERROR
    assert end[1].endswith("attempt 2 failed: OSError: card declined; dead-lettered")
    first, second = (record for record in caplog.records if record.name == OURS)
    assert (first.__dict__["job_id"], first.__dict__["attempt"]) == (job.id, 1)
    assert first.exc_info is not None
    assert isinstance(first.exc_info[1], OSError)
    assert second.exc_info is not None, "another outcome is another kind"


async def test_failures_are_in_the_job_s_own_log_with_their_traceback(app: Holdfast) -> None:
    @app.task(retries=0)
    async def charge() -> None:
        raise PermanentError("no such card")

    async with app.worker():
        job = await charge.submit()
        assert await job.wait(LIMIT) is State.FAILED
    [(level, text)] = await kept(app, job)
    assert level == logging.ERROR
    assert text.startswith("attempt 1 failed: holdfast.errors.PermanentError: no such card; failed")
    assert "in charge" in text


async def test_a_timeout_is_a_log_line(app: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(timeout="50ms", retries=0)
    async def hangs() -> None:
        await asyncio.Event().wait()

    async with app.worker():
        job = await hangs.submit()
        assert await job.wait(LIMIT) is State.TIMED_OUT
    [(level, text)] = lines(caplog)
    assert level == logging.ERROR
    assert "attempt 1 failed: TimeoutError: ran longer than 0.05 seconds; timed-out" in text
    assert [one[0] for one in await kept(app, job)] == [logging.ERROR]


async def test_a_lost_lease_is_a_log_line(
    app: Holdfast, url: str, silence: Silence, caplog: pytest.LogCaptureFixture
) -> None:
    troubled, begun = troubled_app(url, silence), asyncio.Event()
    seen: list[Failure] = []
    troubled.on_failure(seen.append)

    @troubled.task(lease="400ms", heartbeat="200ms", queue="troubled")
    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with troubled, troubled.worker(queues=["troubled"], tick="50ms", grace="0s") as worker:
        job = await long.submit()
        await asyncio.wait_for(begun.wait(), LIMIT)
        silence.on.set()
        await until(lambda: worker.meters.fences == 1, "the lease to be lost")
        silence.on.clear()
        assert (
            logging.WARNING,
            f"job {job.id} (long): attempt 1 is lost: its lease could not be renewed in time",
        ) in lines(caplog)
        await until(lambda: bool(seen), "the hook")
    assert (seen[0].outcome, seen[0].error) == ("lost", None)


async def test_what_a_sweep_ends_or_takes_back_is_a_log_line(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    store = await app.store()
    job = await running_job(store, policy=SHORT_RUN, owner="worker-7")
    await passed(store, job.lease_expires_at)
    await Reconciler(store, "r", jitter=jitter).sweep()

    said = "attempt 1 by worker-7 was lost (lease expired); it is due again"
    found = lines(caplog, "holdfast.services.reconciler")
    assert found == [(logging.WARNING, f"job {job.id} (greet): {said}")]
    assert [(one.level, one.message) for one in await store.logs(job.id)] == [
        (logging.WARNING, said)
    ]


async def test_many_failures_at_once_are_few_lines(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retries=0)
    async def charge(number: int) -> None:
        raise OSError(f"card {number} declined")

    async with app.worker():
        jobs = await charge.submit_many([(number,) for number in range(50)])
        for job in jobs:
            await job.wait(LIMIT)
    assert len(lines(caplog)) == failures.LINES
    with_traceback = [one for one in caplog.records if one.name == OURS and one.exc_info]
    assert len(with_traceback) == 1
    assert [len(await kept(app, job)) for job in jobs] == [1] * 50


def test_a_line_after_the_limit_says_how_many_were_left_out() -> None:
    now = 0.0
    limit = RateLimit(lambda: now)
    passes = [limit.passes("kind") for _ in range(failures.LINES + 5)]
    assert [one is not None for one in passes] == [True] * failures.LINES + [False] * 5
    assert limit.passes("another") is not None
    now = failures.WINDOW_SECONDS
    again = limit.passes("kind")
    assert again is not None
    assert (again.first, again.left_out) == (True, 5)


async def test_hooks_receive_each_failure_with_its_exception(app: Holdfast) -> None:
    seen: list[Failure] = []
    app.on_failure(seen.append)

    @app.task(retries=1, backoff="1ms", queue="money")
    async def charge() -> None:
        raise OSError("card declined")

    async with app.worker(queues=["money"]):
        job = await charge.options(correlation_id="c-1", labels={"of": "ann"}).submit()
        await job.wait(LIMIT)
    assert [(one.outcome, one.attempt) for one in seen] == [("retrying", 1), ("dead_lettered", 2)]
    first = seen[0]
    assert (first.job_id, first.task, first.queue) == (job.id, "charge", "money")
    assert (first.code, first.message) == ("handler_error", "OSError: card declined")
    assert (first.correlation_id, first.labels) == ("c-1", {"of": "ann"})
    assert isinstance(first.error, OSError)
    assert first.retry_in_seconds is not None


async def test_a_hook_that_raises_or_hangs_does_not_hurt_the_job(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failures, "HOOK_LIMIT_SECONDS", 0.05)
    release, entered = threading.Event(), threading.Event()

    @app.on_failure
    def raises(failure: Failure) -> None:
        raise RuntimeError("the reporter is down")

    @app.on_failure
    def hangs(failure: Failure) -> None:
        entered.set()
        release.wait(LIMIT)

    @app.task(retries=1, backoff="1ms")
    async def charge() -> None:
        raise OSError("card declined")

    try:
        async with app.worker():
            jobs = await charge.submit_many([()] * 5)
            assert [await job.wait(LIMIT) for job in jobs] == [State.DEAD_LETTERED] * 5
    finally:
        release.set()
    assert entered.is_set()
    assert {job.record.attempt for job in jobs} == {2}
    said = [text for _, text in lines(caplog)]
    assert any("hook" in text and "raised for job" in text for text in said)
    assert "on_failure hooks are stuck: the worker stops without them" in said


def test_hooks_that_are_stuck_miss_failures_and_hold_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failures, "MOST_WAITING", 3)
    release = threading.Event()
    hooks = HookThread([lambda failure: release.wait(LIMIT)])
    failure = Failure(
        job_id=str(mint_id()), task="t", queue="q", tenant="default", attempt=1,
        outcome="failed", code="boom", message="boom", error=None,
    )  # fmt: skip
    for _ in range(10):
        hooks.call(failure)
    release.set()
    assert "on_failure hooks are stuck: they miss failures" in [text for _, text in lines(caplog)]


def test_a_hook_must_be_a_plain_function() -> None:
    async def hook(failure: Failure) -> None: ...

    with pytest.raises(BadTask, match="plain function"):
        Holdfast(":memory:").on_failure(hook)


class Outbox(Transport):
    """Sentry's transport, which keeps what it would send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            self.events.append(event)


async def test_sentry_gets_the_exception_with_its_job(app: Holdfast) -> None:
    outbox = Outbox()
    client = sentry_sdk.Client(
        dsn="http://key@localhost/1", transport=outbox, default_integrations=False
    )

    @app.on_failure
    def report(failure: Failure) -> None:
        with sentry_sdk.new_scope() as scope:
            scope.set_client(client)
            scope.set_tag("job", failure.job_id)
            scope.set_tag("outcome", failure.outcome)
            sentry_sdk.capture_exception(failure.error)

    @app.task(retries=0)
    async def charge(ctx: Context) -> None:
        raise ValueError("card declined")

    async with app.worker():
        job = await charge.submit()
        await job.wait(LIMIT)
    client.flush(LIMIT)
    [event] = outbox.events
    [value] = event["exception"]["values"]
    assert (value["type"], value["value"]) == ("ValueError", "card declined")
    assert value["stacktrace"]["frames"][-1]["function"] == "charge"
    assert (event["tags"]["job"], event["tags"]["outcome"]) == (job.id, "dead_lettered")
