"""`drain` runs what is due, passes time where only time is in the way, and says what is left."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Holdfast, JobDeadLettered, JobTimedOut, PermanentError
from holdfast.lifecycle.states import State
from holdfast.testing import Kit, NotDrained, assert_invariants, drain

START = datetime(2026, 2, 27, 9, 30, tzinfo=UTC)


@pytest.fixture
def app() -> Holdfast:
    return Holdfast()


async def test_everything_that_is_due_runs_in_the_order_of_its_claims(app: Holdfast) -> None:
    seen: list[str] = []

    @app.task
    async def first(name: str) -> None:
        seen.append(name)
        await second.submit(f"after {name}")

    @app.task(queue="other", priority="batch", needs=["gpu"])
    def second(name: str) -> None:
        seen.append(name)

    async with Kit(app) as kit:
        await first.submit("a")
        await first.options(priority="critical").submit("b")
        drained = await kit.drain()
        assert seen == ["b", "a", "after b", "after a"]
        assert [run.task for run in drained.runs] == ["first", "first", "second", "second"]
        assert drained.left == []


async def test_a_handler_in_a_process_of_its_own_runs_in_the_tests(app: Holdfast) -> None:
    @app.task(isolate="process")
    def where() -> int:
        return threading.get_native_id()

    async with Kit(app):
        assert await (await where.submit()).result() > 0


async def test_the_clock_stands_still_and_jumps_where_only_time_is_in_the_way(
    app: Holdfast,
) -> None:
    @app.task(retries=2, backoff="1h")
    async def shaky(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise OSError("not yet")
        return ctx.attempt

    @app.task
    async def long(ctx: Context) -> None:
        await ctx.sleep("3d")

    async with Kit(app, start=START) as kit:
        job = await shaky.options(delay="30m").submit()
        await kit.drain()
        assert await job.result() == 3
        assert kit.clock.now == START + timedelta(hours=2, minutes=30)
        slept = await long.submit()
        await drain(app)
        assert slept.record.created_at == job.record.updated_at
        assert (await slept.refresh()).state is State.SUCCEEDED
        assert kit.clock.now == START + timedelta(days=3, hours=2, minutes=30)


async def test_without_jumping_only_what_is_due_now_runs(app: Holdfast) -> None:
    @app.task
    async def later() -> None: ...

    async with Kit(app, start=START) as kit:
        await later.options(delay="1s").submit()
        drained = await kit.drain(jump=False)
        assert drained.runs == []
        assert [one.reason.code for one in drained.left] == ["not_due"]
        assert kit.clock.now == START


async def test_a_wait_for_a_signal_is_not_jumped_over(app: Holdfast) -> None:
    @app.task
    async def asks(ctx: Context) -> str:
        try:
            return str(await ctx.wait_for("answer", timeout="7d"))
        except TimeoutError:
            return "nobody came"

    async with Kit(app, start=START) as kit:
        answered, forgotten = await asks.submit(), await asks.submit()
        drained = await kit.drain()
        assert [one.reason.code for one in drained.left] == ["waiting", "waiting"]
        assert kit.clock.now == START
        await answered.signal("answer", "yes")
        assert await answered.result() == "yes"
        await kit.advance("8d")
        assert await forgotten.result() == "nobody came"
        assert kit.clock.now == START + timedelta(days=8)


async def test_what_falls_due_while_time_passes_runs_at_its_time(app: Holdfast) -> None:
    seen: dict[str, datetime] = {}

    async with Kit(app, start=START) as kit:

        @app.task
        async def note(name: str) -> None:
            seen[name] = kit.clock.now

        for days in (1, 3, 9):
            await note.options(delay=timedelta(days=days)).submit(f"{days}")
        await kit.advance("5d")
        assert seen == {"1": START + timedelta(days=1), "3": START + timedelta(days=3)}
        await kit.skip("10d")
        await kit.drain()
        assert seen["9"] == START + timedelta(days=15)


async def test_a_deadline_comes_while_time_passes(app: Holdfast) -> None:
    @app.task
    async def asks(ctx: Context) -> None:
        await ctx.wait_for("never")

    async with Kit(app) as kit:
        job = await asks.options(deadline="1h").submit()
        await kit.advance("2h")
        with pytest.raises(JobTimedOut):
            await job.result()


async def test_whoever_waits_for_a_job_has_it_run(app: Holdfast) -> None:
    @app.task
    async def inner(number: int) -> int:
        return number * 2

    @app.task
    async def outer(number: int) -> int:
        return 1 + await (await inner.submit(number)).result()

    async with Kit(app):
        assert await (await outer.submit(3)).result() == 7


async def test_whoever_waits_for_a_job_that_cannot_end_is_told_why(app: Holdfast) -> None:
    @app.task
    async def asks(ctx: Context) -> None:
        await ctx.wait_for("answer")

    async with Kit(app) as kit:
        job = await asks.submit()
        with pytest.raises(NotDrained, match=r"asks, waiting.*\[waiting\].*'answer'"):
            await job.result()
        await job.signal("answer")
        await kit.drain()


async def test_work_without_end_is_named_with_the_reason(app: Holdfast) -> None:
    @app.task
    async def again(number: int) -> None:
        await again.submit(number + 1)

    async with Kit(app) as kit:
        await again.submit(0)
        with pytest.raises(NotDrained) as told:
            await kit.drain(limit=20)
    assert "after 20 attempts" in str(told.value)
    assert "again: 20 attempts" in str(told.value)
    assert "(again, queued): [ready]" in str(told.value)


async def test_a_handler_that_hangs_is_named(app: Holdfast) -> None:
    @app.task
    async def hangs() -> None:
        await asyncio.Event().wait()

    async with Kit(app) as kit:
        job = await hangs.submit()
        with pytest.raises(NotDrained, match=f"{job.id} .hangs. still runs"):
            await kit.drain(patience="30ms")


async def test_what_handlers_raised_is_kept_as_it_was(app: Holdfast) -> None:
    error = ZeroDivisionError("by hand")

    @app.task(retries=0)
    async def fails() -> None:
        raise error

    async with Kit(app) as kit:
        job = await fails.submit()
        assert (await kit.drain()).errors == [error]
        with pytest.raises(JobDeadLettered, match="by hand"):
            await job.result()


async def test_jobs_of_other_services_are_left_alone(app: Holdfast) -> None:
    @app.task
    async def mine() -> int:
        return 1

    async with Kit(app) as kit:
        foreign = await app.submit("resize", image="a.png")
        job = await mine.submit()
        drained = await kit.drain()
        assert await job.result() == 1
        assert (await foreign.refresh()).state is State.QUEUED
        assert foreign.record.held_by == ()
        assert [one.reason.code for one in drained.left] == ["task_unknown"]


async def test_some_queues_only(app: Holdfast) -> None:
    @app.task
    async def work() -> None: ...

    async with Kit(app) as kit:
        mail = await work.options(queue="mail").submit()
        other = await work.submit()
        await kit.drain(queues=["mail"])
        assert (await mail.refresh()).state is State.SUCCEEDED
        assert (await other.refresh()).state is State.QUEUED


async def test_paused_queues_and_a_cancel_hold_as_always(app: Holdfast) -> None:
    @app.task
    async def work() -> None: ...

    async with Kit(app) as kit:
        await app.pause("default", reason="full disk")
        job, unwanted = await work.submit(), await work.submit()
        await unwanted.cancel()
        drained = await kit.drain()
        assert [(one.job_id, one.reason.code) for one in drained.left] == [(job.id, "queue_paused")]


async def test_a_job_that_runs_can_be_cancelled(app: Holdfast) -> None:
    running = asyncio.Event()

    @app.task
    async def obedient(ctx: Context) -> None:
        running.set()
        await ctx.cancelled
        raise asyncio.CancelledError

    async with Kit(app) as kit:
        job = await obedient.submit()
        draining = asyncio.create_task(kit.drain())
        await running.wait()
        await job.cancel()
        await draining
        assert (await job.refresh()).state is State.CANCELLED


async def test_beside_a_real_worker_the_kit_waits_for_it(app: Holdfast) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with Kit(app), app.worker(poll="10ms"):
        assert await (await work.submit()).result(timeout="20s") == "done"


def test_a_test_without_an_event_loop(app: Holdfast) -> None:
    @app.task
    def double(number: int) -> int:
        return number * 2

    with Kit(app) as kit:
        job = double.submit_sync(21)
        drained = kit.run(kit.drain())
        assert len(drained.runs) == 1
        assert job.result_sync() == 42
        kit.crash_before("double")
        assert double.submit_sync(4).result_sync() == 8


def test_a_thread_that_submits_inside_a_handler_has_it_run_too(app: Holdfast) -> None:
    @app.task
    def inner(number: int) -> int:
        return number * 2

    @app.task
    def outer(number: int) -> int:
        return 1 + inner.submit_sync(number).result_sync()

    with Kit(app) as kit:
        kit.faults.delay("inner", "10m")
        assert outer.submit_sync(3).result_sync() == 7


async def test_the_app_is_put_back_where_it_was(app: Holdfast) -> None:
    before = app.url, app.make_store
    async with Kit(app):
        assert app.url.startswith(":memory:")
    assert (app.url, app.make_store) == before
    with pytest.raises(Exception, match="not under test"):
        await drain(app)


async def test_two_apps_under_test_share_nothing() -> None:
    one, two = Holdfast(), Holdfast()
    async with Kit(one), Kit(two):
        await one.submit("something")
        assert [job async for job in two.jobs()] == []


async def test_one_kit_at_a_time(app: Holdfast) -> None:
    async with Kit(app):
        with pytest.raises(Exception, match="under test already"):
            await Kit(app).__aenter__()


async def test_a_permanent_error_ends_a_job_and_the_ledger_is_sound(app: Holdfast) -> None:
    @app.task
    async def fails() -> None:
        raise PermanentError("gone")

    async with Kit(app) as kit:
        job = await fails.submit()
        await kit.drain()
        assert (await job.refresh()).state is State.FAILED
        await assert_invariants(await app.store())
