"""Handlers in processes of their own: the full context, and every kind of answer."""

from __future__ import annotations

import asyncio
import logging
import os
import time

import pytest

from holdfast.errors import (
    PermanentError,
    RemoteError,
    TransientError,
    UnfitResult,
    ValidationError,
)
from holdfast.telemetry.tracing import carry
from tests.runners.worlds import World, failure, world

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_sync_and_async_handlers_answer_from_another_process(given: World) -> None:
    assert await given.run("add", a=1, b=2) == 3
    assert await given.run("add_async", a=3, b=4) == 7
    assert await given.run("pid") != os.getpid()


async def test_the_context_works_in_the_process(given: World) -> None:
    told = await given.run("everything", given.context(attempt=2, ends_at=time.monotonic() + 60))

    assert 0 < told.pop("time_left") <= 60
    assert told == {
        "id": "j-1",
        "labels": {"colour": "red"},
        "attempt": 2,
        "token": "j-1/3/2",
        "current": True,
        "cancelled": False,
    }
    assert await given.run("current_in_a_task")


async def test_progress_and_heartbeats_reach_the_worker_in_order(given: World) -> None:
    await given.run("say")

    assert [given.link.said.get_nowait() for _ in range(2)] == [{"done": 1}, {"done": 2}]
    assert given.link.beats == 1


async def test_what_the_process_logs_goes_through_the_workers_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "holdfast.task")
    async with world() as given:
        await given.run("log")

    job, library, failed = (
        record for record in caplog.records if record.name in ("holdfast.task.t", "library")
    )
    assert (job.getMessage(), job.levelno) == ("from the job 7", logging.INFO)
    assert {name: vars(job)[name] for name in ("job_id", "attempt", "amount")} == {
        "job_id": "j-1",
        "attempt": 1,
        "amount": 3,
    }
    assert (job.funcName, job.process != os.getpid()) == ("log", True)
    assert library.getMessage() == "from a library"
    assert "ValueError: odd" in caplog.handler.format(failed)


async def test_an_app_that_logs_by_itself_is_not_heard_twice(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with world("tests.runners.own_logging:app") as given:
        await given.run("log")

    assert capfd.readouterr().err.count("from a library") == 1
    assert "from a library" not in caplog.text


async def test_what_a_handler_prints_goes_where_the_workers_output_goes(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with world() as given:
        await given.run("shout")
    assert capfd.readouterr() == ("on stdout\n", "on stderr\n")


@pytest.mark.req("B12")
@pytest.mark.parametrize("way", ["cancelled_flag", "cancelled_wait", "cancelled_await"])
async def test_a_handler_hears_that_it_shall_end(given: World, way: str) -> None:
    ctx = given.context()
    running = asyncio.create_task(given.run(way, ctx))
    assert await given.heard() == "begun"
    ctx.cancelled.set("deadline")

    assert await running == "deadline"
    assert await given.run("add", a=1, b=2) == 3


async def test_one_that_was_asked_before_it_began_knows(given: World) -> None:
    ctx = given.context()
    ctx.cancelled.set("shutdown")
    assert await given.run("cancelled_await", ctx) == "shutdown"


@pytest.mark.parametrize("task", ["fail", "fail_async"])
async def test_errors_that_decide_what_becomes_of_the_job_keep_class_and_fields(
    given: World, task: str
) -> None:
    transient = await failure(given, task, how="transient")
    permanent = await failure(given, task, how="permanent")
    own = await failure(given, task, how="own")
    invalid = await failure(given, task, how="validation")

    assert isinstance(transient, TransientError)
    assert (str(transient), transient.retry_in) == ("busy", 12.5)
    assert (type(permanent), permanent.code) == (PermanentError, "account_gone")
    assert (type(own), own.code) == (PermanentError, "declined")
    assert own.report is not None
    assert own.report.type == "tests.runners.handlers.Declined"
    assert type(invalid) is ValidationError


async def test_any_other_error_is_told_with_its_traceback_and_causes(given: World) -> None:
    error = await failure(given, "fail_with_cause")

    assert isinstance(error, RemoteError)
    assert str(error) == "ValueError: no account"
    assert error.report is not None
    assert 'raise ValueError("no account") from error' in error.report.traceback
    assert error.report.chain == (
        {"relation": "cause", "type": "KeyError", "message": "'account'"},
    )


@pytest.mark.parametrize("how", ["unreadable", "interrupt"])
async def test_no_exception_is_too_odd_to_be_told(given: World, how: str) -> None:
    for task in ("fail", "fail_async"):
        assert isinstance(await failure(given, task, how=how), RemoteError)
    assert await given.run("add", a=1, b=2) == 3


@pytest.mark.parametrize("task", ["fail", "fail_async"])
async def test_a_handler_that_gives_up_is_cancelled_to_the_worker(given: World, task: str) -> None:
    with pytest.raises(asyncio.CancelledError, match="asked to"):
        await given.run(task, how="cancelled")
    assert await given.run("add", a=1, b=2) == 3


@pytest.mark.req("B23")
async def test_the_workers_trace_goes_on_in_the_process(given: World) -> None:
    traceparent = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
    with carry(traceparent):
        assert await given.run("trace") == traceparent
        assert await given.run("trace_async") == traceparent
    assert await given.run("trace") is None


async def test_endless_recursion_is_an_error_like_any_other(given: World) -> None:
    error = await failure(given, "recurse")
    assert str(error).startswith("RecursionError")
    assert await given.run("add", a=1, b=2) == 3


async def test_a_result_that_cannot_be_kept_is_refused_where_it_was_made(given: World) -> None:
    first = await given.run("pid")
    for task, arguments in (
        ("answer_at_length", {"size": 64 * 1024 * 1024}),
        ("answer_without_looking", {}),
        ("answer_oddly", {}),
    ):
        assert type(await failure(given, task, **arguments)) is UnfitResult
    assert len(await given.run("answer_at_length", size=1024 * 1024 - 2)) == 1024 * 1024 - 2
    assert await given.run("pid") == first


async def test_what_a_job_left_behind_does_not_speak_for_the_next_one(given: World) -> None:
    await given.run("talk_later")
    await given.run("let_the_earlier_one_talk")

    assert given.link.said.get_nowait() == "in time"
    assert given.link.said.empty()
    assert given.link.beats == 0
