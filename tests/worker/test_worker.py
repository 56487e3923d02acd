"""What a worker does with a job: run it, retry it, cancel it, time it out, give it back."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import Context, PermanentError, TransientError, ValidationError
from holdfast.app.app import Holdfast
from holdfast.errors import JobCancelled, JobDeadLettered, JobFailed, JobTimedOut
from holdfast.lifecycle.states import State
from holdfast.queries.history import ReadEvent
from holdfast.tasks.handles import JobHandle

LIMIT = 60
"""Seconds after which a test has failed; nothing here takes so long."""


async def types(job: JobHandle[Any]) -> list[str]:
    """Tell a job's history by the types of its events, renewals left out."""
    return [
        event.type.removeprefix("job_")
        for event in await job.events()
        if event.type != "job_lease_renewed"
    ]


async def test_a_coroutine_a_function_and_arguments_of_any_kind(app: Holdfast) -> None:
    @app.task
    async def add(ctx: Context, a: int, *more: int, twice: bool = False) -> int:
        return (a + sum(more)) * (2 if twice else 1)

    @app.task
    def thread_name(ctx: Context) -> str:
        return threading.current_thread().name

    async with app.worker():
        assert await (await add.submit(1, 2, 3, twice=True)).result(LIMIT) == 12
        assert "handler" in await (await thread_name.submit()).result(LIMIT)


async def test_a_short_job_leaves_four_events_and_its_start_folds_into_its_end(
    app: Holdfast,
) -> None:
    @app.task
    async def short() -> None: ...

    async with app.worker():
        job = await short.submit()
        await job.result(LIMIT)
    assert await types(job) == ["created", "claimed", "started", "succeeded"]


@pytest.mark.req("B10", "B26")
async def test_an_error_is_tried_again_and_the_last_one_counts(app: Holdfast) -> None:
    seen: list[int] = []

    @app.task(retries=2, backoff="1ms")
    async def shaky(ctx: Context) -> int:
        seen.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")
        return ctx.attempt

    async with app.worker():
        job = await shaky.submit()
        assert await job.result(LIMIT) == 3
    assert seen == [1, 2, 3]
    assert (await types(job)).count("retrying") == 2
    assert job.record.failures == 2


@pytest.mark.req("B26")
async def test_a_transient_error_says_when_to_try_again(app: Holdfast) -> None:
    @app.task(retries=1)
    async def busy() -> None:
        raise TransientError("busy", retry_in="1h")

    async with app.worker():
        job = await busy.submit()
        await until(job, State.RETRYING)
    assert job.record.run_at is not None
    assert job.record.run_at - job.record.updated_at == 3600 * 1_000_000


@pytest.mark.req("B11", "B26")
@pytest.mark.parametrize(
    ("error", "options", "kind", "code"),
    [
        (PermanentError("no"), {}, JobFailed, "permanent"),
        (ValidationError("no"), {}, JobDeadLettered, "validation_failed"),
        (OSError("no"), {"retries": 0}, JobDeadLettered, "exhausted_retries"),
        (OSError("no"), {"retries": 0, "on_exhausted": "fail"}, JobFailed, "handler_error"),
        (SystemExit(3), {"retries": 0}, JobDeadLettered, "exhausted_retries"),
        (asyncio.CancelledError(), {"retries": 0}, JobDeadLettered, "exhausted_retries"),
        (OSError("no"), {"idempotent": False}, JobDeadLettered, "exhausted_retries"),
    ],
)
async def test_how_errors_end_a_job(
    app: Holdfast, error: BaseException, options: Any, kind: type[Exception], code: str
) -> None:
    @app.task(**options)
    async def fails() -> None:
        raise error

    async with app.worker():
        job = await fails.submit()
        with pytest.raises(kind):
            await job.result(LIMIT)
    assert job.record.error_code == code


@pytest.mark.req("B30")
async def test_arguments_that_no_longer_fit_never_start(app: Holdfast) -> None:
    @app.task
    async def strict(number: int) -> None: ...

    async with Holdfast(app.url) as elsewhere:
        job = await elsewhere.submit("strict", number="seven")
        job = await app.get(job.id)
    async with app.worker():
        assert await job.wait(LIMIT) is State.DEAD_LETTERED
    assert job.record.error_code == "validation_failed"
    assert "started" not in await types(job)
    assert (await job.events())[-1].facts["stage"] == "input"


async def test_a_result_that_is_not_json_ends_in_the_dead_letters(app: Holdfast) -> None:
    @app.task(retries=0)
    async def odd() -> Any:
        return object()

    async with app.worker():
        job = await odd.submit()
        assert await job.wait(LIMIT) is State.DEAD_LETTERED
    assert job.record.error_code == "validation_failed"
    assert (await job.events())[-1].facts["stage"] == "output"


@pytest.mark.req("B12")
async def test_a_soft_cancel_reaches_the_handler_which_may_end_in_peace(app: Holdfast) -> None:
    begun = asyncio.Event()
    seen: list[str] = []

    @app.task(cancel_grace="60s")
    async def patient(ctx: Context) -> None:
        begun.set()
        seen.append(await ctx.cancelled)
        raise asyncio.CancelledError

    async with app.worker(tick=0.05):
        job = await patient.submit()
        await asyncio.wait_for(begun.wait(), LIMIT)
        await job.cancel(reason="enough")
        with pytest.raises(JobCancelled):
            await job.result(LIMIT)
    assert seen == ["cancel"]


async def test_a_handler_that_returns_after_a_soft_cancel_has_completed(app: Holdfast) -> None:
    begun = asyncio.Event()

    @app.task(cancel_grace="60s")
    async def finishing(ctx: Context) -> str:
        begun.set()
        await ctx.cancelled
        return "done all the same"

    async with app.worker(tick=0.05):
        job = await finishing.submit()
        await asyncio.wait_for(begun.wait(), LIMIT)
        await job.cancel()
        assert await job.result(LIMIT) == "done all the same"


@pytest.mark.req("B13")
async def test_a_hard_cancel_kills_at_once(app: Holdfast) -> None:
    begun = asyncio.Event()
    cleaned = asyncio.Event()

    @app.task(cancel_grace="1h")
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async with app.worker(tick=0.05):
        job = await endless.submit()
        await asyncio.wait_for(begun.wait(), LIMIT)
        await job.cancel(hard=True)
        assert await job.wait(LIMIT) is State.CANCELLED
    assert cleaned.is_set()


async def test_a_hard_cancel_after_a_soft_one_does_not_wait_for_the_grace(app: Holdfast) -> None:
    asked = asyncio.Event()

    @app.task(cancel_grace="1h")
    async def stubborn(ctx: Context) -> None:
        await ctx.cancelled
        asked.set()
        await asyncio.Event().wait()

    async with app.worker(tick=0.05):
        job = await stubborn.submit()
        await until(job, State.RUNNING)
        await job.cancel()
        await asyncio.wait_for(asked.wait(), LIMIT)
        await job.cancel(hard=True)
        assert await job.wait(LIMIT) is State.CANCELLED


async def test_a_thread_that_cannot_be_killed_says_so_and_keeps_its_lease(app: Holdfast) -> None:
    begun, let_go = threading.Event(), threading.Event()

    @app.task(cancel_grace="0s", lease="400ms", heartbeat="200ms")
    def deaf(ctx: Context) -> None:
        begun.set()
        let_go.wait(LIMIT)
        raise OSError("done for")

    async with app.worker(tick=0.05):
        job = await deaf.submit()
        await asyncio.to_thread(begun.wait, LIMIT)
        await until(job, State.RUNNING)
        await job.cancel(hard=True)
        while "unkillable" not in [  # noqa: ASYNC110  the ledger gives no signal
            event.facts.get("kill") for event in await job.events()
        ]:
            await asyncio.sleep(0.05)
        assert (await job.refresh()).state is State.RUNNING
        let_go.set()
        assert await job.wait(LIMIT) is State.CANCELLED
    assert job.record.attempt == 1


async def test_a_timeout_ends_an_attempt_and_the_last_one_the_job(app: Holdfast) -> None:
    seen: list[str | None] = []

    @app.task(timeout="800ms", retries=1, backoff="1ms")
    async def slow(ctx: Context) -> None:
        assert ctx.time_left is not None
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(ctx.cancelled.reason)

    async with app.worker(tick=0.05):
        job = await slow.submit()
        with pytest.raises(JobTimedOut):
            await job.result(LIMIT)
    assert seen == ["timeout", "timeout"]
    assert job.record.error_code == "timeout"
    assert job.record.attempt == 2


async def test_a_deadline_ends_the_job_whatever_tries_are_left(app: Holdfast) -> None:
    @app.task(retries=5)
    async def slow(ctx: Context) -> None:
        await asyncio.Event().wait()

    async with app.worker(tick=0.05, reconcile=False):
        job = await slow.options(deadline="300ms").submit()
        assert await job.wait(LIMIT) is State.TIMED_OUT
    assert job.record.error_code == "deadline"


async def test_progress_is_kept_and_hurried_progress_is_folded(app: Holdfast) -> None:
    @app.task
    async def counting(ctx: Context) -> None:
        for number in range(1000):
            ctx.progress({"done": number})
        ctx.progress({"done": "all"})

    async with app.worker():
        job = await counting.submit()
        await job.result(LIMIT)
    said = [event.payload for event in await job.events() if event.type == "job_progressed"]
    assert said[-1] == {"done": "all"}
    assert len(said) < 10


async def test_what_a_handler_sets_is_not_seen_by_the_next(app: Holdfast) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="clean")

    @app.task
    async def leaves(name: str) -> str:
        before = variable.get()
        variable.set(name)
        return before

    async with app.worker(concurrency=1):
        jobs = [await leaves.submit(name) for name in "abc"]
        assert [await job.result(LIMIT) for job in jobs] == ["clean"] * 3


async def test_shutdown_finishes_what_runs_and_gives_back_what_does_not(app: Holdfast) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def waits(number: int) -> int:
        begun.set()
        await go_on.wait()
        return number

    jobs = await waits.submit_many([(number,) for number in range(5)])
    async with app.worker(concurrency=1):
        await asyncio.wait_for(begun.wait(), LIMIT)
        go_on.set()
    states = [(await job.refresh()).state for job in jobs]
    assert states[0] is State.SUCCEEDED
    assert all(state in (State.SUCCEEDED, State.QUEUED, State.STALLED) for state in states)
    assert all(job.record.failures == 0 for job in jobs)


@pytest.mark.parametrize(
    ("idempotent", "state"), [(True, State.STALLED), (False, State.DEAD_LETTERED)]
)
async def test_what_outlasts_the_grace_is_killed_and_given_back_or_ended(
    app: Holdfast, idempotent: bool, state: State
) -> None:
    begun = asyncio.Event()

    @app.task(idempotent=idempotent)
    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await endless.submit()
    async with app.worker(grace=0):
        await asyncio.wait_for(begun.wait(), LIMIT)
    assert (await job.refresh()).state is state
    assert job.record.failures == (0 if idempotent else 1)


async def test_an_attempt_whose_job_was_taken_away_is_stopped(app: Holdfast) -> None:
    begun = asyncio.Event()
    stopped: list[str | None] = []

    @app.task(cancel_grace="1h")
    async def taken(ctx: Context) -> int:
        if ctx.attempt == 1:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(ctx.cancelled.reason)
        return ctx.attempt

    async with app.worker(tick=0.05):
        job = await taken.submit()
        await asyncio.wait_for(begun.wait(), LIMIT)
        await until(job, State.RUNNING)
        await (await app.store()).bump_epoch()
        assert await job.result(LIMIT) == 2
    assert stopped == ["lease_lost"]


async def test_a_lease_that_the_start_cut_short_is_renewed_in_time(app: Holdfast) -> None:
    opened = asyncio.Event()

    # A claim's lease lasts far longer than a run's, as it does by default.
    @app.task(lease="60s", heartbeat="1500ms")
    async def long() -> str:
        await opened.wait()
        return "done"

    async with app.worker():
        job = await long.submit()
        async with asyncio.timeout(LIMIT):
            while not await renewals(job):  # noqa: ASYNC110  the ledger gives no signal
                await asyncio.sleep(0.05)
        opened.set()
        assert await job.result(LIMIT) == "done"
    assert (await job.refresh()).record.attempt == 1


async def renewals(job: JobHandle[Any]) -> list[ReadEvent]:
    return [event for event in await job.events() if event.type == "job_lease_renewed"]


async def until(job: JobHandle[Any], state: State) -> None:
    """Look until a job is in a state."""
    async with asyncio.timeout(LIMIT):
        while (await job.refresh()).state is not state:  # noqa: ASYNC110  the ledger gives no signal
            await asyncio.sleep(0.01)
