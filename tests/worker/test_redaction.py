"""Secrets in the texts of errors and log lines are neither stored nor logged."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from typing import Any

import pytest

from holdfast import Context, Failure, Holdfast
from holdfast.app.log_format import JsonFormatter
from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle
from holdfast.telemetry.redaction import WITHHELD
from tests.worker.redacted import SECRET, mask
from tests.worker.redacted import app as isolated
from tests.worker.test_worker import LIMIT


@pytest.fixture
def shown() -> Any:
    """What a plain handler and our own formatter write."""
    stream = io.StringIO()
    handlers = [logging.StreamHandler(stream), logging.StreamHandler(stream)]
    handlers[1].setFormatter(JsonFormatter())
    for handler in handlers:
        logging.getLogger().addHandler(handler)
    yield stream
    for handler in handlers:
        logging.getLogger().removeHandler(handler)


async def everything(app: Holdfast, job: JobHandle[Any]) -> str:
    """All that the store has of a job: events with bodies, and its log."""
    store = await app.store()
    events = await store.events(job.record.id)
    log = await store.logs(job.record.id)
    return "\n".join([*(str(event) for event in events), *(str(line) for line in log)])


@pytest.mark.parametrize("step", [False, True])
async def test_a_secret_in_an_error_reaches_neither_events_nor_logs(
    app: Holdfast, shown: io.StringIO, step: bool
) -> None:
    app.redact(mask)
    seen: list[Failure] = []
    app.on_failure(seen.append)

    def connect() -> None:
        try:
            raise OSError(f"{SECRET} at the bottom")
        except OSError as error:
            raise ValueError(f"password {SECRET} is wrong", {"dsn": SECRET}) from error

    @app.task(retries=0)
    async def charge(ctx: Context) -> None:
        ctx.log.warning("connecting with %s", SECRET)
        try:
            await ctx.step("connect", connect) if step else connect()
        except ValueError:
            ctx.log.exception("no connection")
            raise

    async with app.worker():
        job = await charge.submit()
        assert await job.wait(LIMIT) is State.DEAD_LETTERED

    stored, logged = await everything(app, job), shown.getvalue()
    assert "password *** is wrong" in stored
    assert "connecting with ***" in stored
    assert SECRET not in stored
    assert "password *** is wrong" in logged
    assert "connecting with ***" in logged
    assert SECRET not in logged
    assert "ValueError" in seen[0].message
    assert SECRET not in seen[0].message
    assert SECRET in str(seen[0].error), "a hook gets the exception as it is"


async def test_our_formatter_shows_the_type_and_frames_of_a_redacted_error(
    app: Holdfast, shown: io.StringIO
) -> None:
    app.redact(mask)

    @app.task(retries=0)
    async def charge() -> None:
        raise ValueError(f"password {SECRET} is wrong")

    async with app.worker():
        await (await charge.submit()).wait(LIMIT)
    found = [json.loads(line) for line in shown.getvalue().splitlines() if line[:1] == "{"]
    [error] = [line["error"] for line in found if "error" in line]
    assert (error["type"], error["message"]) == ("ValueError", "password *** is wrong")
    assert "in charge" in error["traceback"]


async def test_a_text_is_withheld_where_redacting_it_fails(app: Holdfast) -> None:
    @app.redact
    def broken(text: str) -> str:
        raise RuntimeError("no rules")

    @app.task(retries=0)
    async def charge() -> None:
        raise ValueError(f"password {SECRET} is wrong")

    async with app.worker():
        job = await charge.submit()
        assert await job.wait(LIMIT) is State.DEAD_LETTERED
    stored = await everything(app, job)
    assert SECRET not in stored
    assert WITHHELD in stored


async def test_a_handler_in_a_process_of_its_own_is_redacted_too(
    url: str, app: Holdfast, shown: io.StringIO
) -> None:
    isolated.use(url)
    async with isolated:
        async with isolated.worker():
            job = await isolated.submit("charge_apart")
            assert await job.wait(LIMIT) is State.DEAD_LETTERED
        # A worker that has ended has written all lines.
        stored = await everything(isolated, job)
    assert "password *** is wrong" in stored
    assert "with ***" in stored
    assert SECRET not in stored
    assert SECRET not in shown.getvalue()


async def test_an_app_that_does_not_redact_is_not_redacted_beside_one_that_does(
    app: Holdfast,
) -> None:
    @app.task(retries=0)
    async def charge() -> None:
        raise ValueError(f"password {SECRET} is wrong")

    other = Holdfast(":memory:")
    other.redact(mask)
    async with other.worker(), app.worker():
        job = await charge.submit()
        await asyncio.wait_for(job.wait(), LIMIT)
    assert SECRET in await everything(app, job)


async def test_a_secret_that_a_thread_of_the_handler_logs_is_redacted(
    app: Holdfast, shown: io.StringIO
) -> None:
    app.redact(mask)

    @app.task(retries=0)
    async def charge(ctx: Context) -> None:
        thread = threading.Thread(target=lambda: ctx.log.warning("thread %s", SECRET))
        thread.start()
        await asyncio.to_thread(thread.join)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: ctx.log.warning("executor %s", SECRET))

    async with app.worker():
        job = await charge.submit()
        assert await job.wait(LIMIT) is State.SUCCEEDED

    stored, logged = await everything(app, job), shown.getvalue()
    for text in (stored, logged):
        assert "thread ***" in text
        assert "executor ***" in text
        assert SECRET not in text
