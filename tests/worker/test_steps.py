"""Durable functions: what an attempt did is remembered, and a later one does not do it again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.errors import (
    BadData,
    JobFailed,
    PermanentError,
    Refused,
    WaitTimeout,
)
from holdfast.lifecycle.record import MISMATCH
from holdfast.lifecycle.states import State
from holdfast.tasks.durable.verdicts import NOT_HAPPENED, UNKNOWN, Happened
from tests.worker.eventually import waits_for
from tests.worker.test_worker import LIMIT, types, until


async def test_a_step_that_is_recorded_is_not_run_again(app: Holdfast) -> None:
    ran: list[str] = []

    def charge(amount: int) -> dict[str, int]:
        ran.append("charge")
        return {"charged": amount}

    async def ship() -> str:
        ran.append("ship")
        return "sent"

    @app.task(backoff="1ms")
    async def order(ctx: Context) -> list[Any]:
        charged = await ctx.step("charge", charge, 7)
        if ctx.attempt == 1:
            raise OSError("the attempt dies here")
        return [charged, await ctx.step("ship", ship)]

    async with app.worker():
        job = await order.submit()
        assert await job.result(LIMIT) == [{"charged": 7}, "sent"]
    assert ran == ["charge", "ship"]


async def test_the_same_name_again_is_another_step(app: Holdfast) -> None:
    ran: list[int] = []

    async def note(number: int) -> int:
        ran.append(number)
        return number

    @app.task(backoff="1ms")
    async def loops(ctx: Context) -> list[int]:
        done = [await ctx.step("note", note, number) for number in range(3)]
        if ctx.attempt == 1:
            raise OSError
        return done

    async with app.worker():
        assert await (await loops.submit()).result(LIMIT) == [0, 1, 2]
    assert ran == [0, 1, 2]


async def test_a_handler_in_a_thread_has_steps_too(app: Holdfast) -> None:
    ran: list[int] = []

    def once() -> int:
        ran.append(1)
        return len(ran)

    @app.task(backoff="1ms")
    def threaded(ctx: Context) -> int:
        value: int = ctx.sync.step("once", once)
        if ctx.attempt == 1:
            raise OSError
        return value

    async with app.worker():
        assert await (await threaded.submit()).result(LIMIT) == 1
    assert ran == [1]


async def test_a_step_is_tried_again_within_its_attempt(app: Holdfast) -> None:
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OSError
        return len(tries)

    @app.task(retries=0)
    async def patient(ctx: Context) -> int:
        value: int = await ctx.step("flaky", flaky, retries=2, backoff="1ms")
        return value

    async with app.worker():
        assert await (await patient.submit()).result(LIMIT) == 3


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["first", "renamed"], "step 'renamed' is new, but an earlier attempt did step 'second'"),
        (["third"], "step 'third' is new, but an earlier attempt did step 'first'"),
        (["first"], "ended without step 'second'"),
    ],
    ids=["renamed", "moved", "removed"],
)
async def test_changed_steps_park_the_job_before_they_run(
    app: Holdfast, names: list[str], message: str
) -> None:
    ran: list[str] = []

    @app.task(retries=1, backoff="1ms")
    async def changing(ctx: Context) -> None:
        for name in ["first", "second"] if ctx.attempt == 1 else names:
            await ctx.step(name, ran.append, name)
        if ctx.attempt == 1:
            raise OSError

    async with app.worker():
        job = await changing.submit()
        await waits_for(job, MISMATCH)
        assert message in (await app.why(job.id)).text
    assert ran == ["first", "second"]


async def test_steps_side_by_side_are_replayed_in_any_order(app: Holdfast) -> None:
    ran: list[str] = []
    both = asyncio.Event()

    async def work(name: str, attempt: int) -> str:
        if name == "slow" and attempt == 1:
            await both.wait()
            raise OSError("only the quick one is recorded")
        ran.append(name)
        return name

    @app.task(backoff="1ms")
    async def beside(ctx: Context) -> list[str]:
        async def quick() -> str:
            name: str = await ctx.step("quick", work, "quick", ctx.attempt)
            both.set()
            return name

        return list(await asyncio.gather(ctx.step("slow", work, "slow", ctx.attempt), quick()))

    async with app.worker():
        assert await (await beside.submit()).result(LIMIT) == ["slow", "quick"]
    assert sorted(ran) == ["quick", "slow"]


@pytest.mark.parametrize(
    ("verdict", "effects"), [(Happened("before"), 1), (NOT_HAPPENED, 2)], ids=["did", "did_not"]
)
async def test_a_verifier_says_whether_an_interrupted_step_happened(
    app: Holdfast, verdict: Any, effects: int
) -> None:
    done: list[int] = []

    async def charge(attempt: int) -> str:
        done.append(attempt)
        if attempt == 1:
            raise asyncio.CancelledError("dies between the effect and its record")
        return "now"

    async def verify(attempt: int) -> Any:
        return verdict

    @app.task(backoff="1ms")
    async def pay(ctx: Context) -> str:
        value: str = await ctx.step("charge", charge, ctx.attempt, verify=verify)
        return value

    async with app.worker():
        job = await pay.submit()
        assert await job.result(LIMIT) == ("before" if effects == 1 else "now")
    assert len(done) == effects


async def test_what_nobody_can_verify_waits_for_a_person(app: Holdfast) -> None:
    done: list[int] = []

    async def charge(attempt: int) -> str:
        done.append(attempt)
        raise asyncio.CancelledError

    async def verify(attempt: int) -> Any:
        return UNKNOWN

    @app.task(backoff="1ms")
    async def pay(ctx: Context) -> str:
        value: str = await ctx.step("charge", charge, ctx.attempt, verify=verify)
        return value

    async with app.worker():
        job = await pay.submit()
        await until(job, State.WAITING)
        assert job.record.wait_for == "resolve:charge"
        await job.signal("resolve:charge", {"happened": True, "result": "receipt 7"})
        assert await job.result(LIMIT) == "receipt 7"
    assert done == [1]


async def test_a_sleep_parks_the_job_and_frees_the_slot(app: Holdfast) -> None:
    @app.task
    async def sleeper(ctx: Context) -> int:
        await ctx.sleep("200ms")
        return ctx.attempt

    @app.task
    async def other() -> str:
        return "meanwhile"

    async with app.worker(concurrency=1, tick=0.05, poll=0.05):
        job = await sleeper.submit()
        await until(job, State.WAITING)
        assert await (await other.submit()).result(LIMIT) == "meanwhile"
        assert await job.result(LIMIT) == 2
    assert await types(job) == [
        *("created", "claimed", "started", "waiting"),
        *("wait_completed", "claimed", "started", "succeeded"),
    ]
    assert job.record.failures == 0


@pytest.mark.req("E5")
@pytest.mark.parametrize("early", [True, False], ids=["before the wait", "after it"])
async def test_a_signal_is_consumed_once_whether_it_came_first_or_not(
    app: Holdfast, early: bool
) -> None:
    gate = asyncio.Event()

    @app.task
    async def asks(ctx: Context) -> list[Any]:
        if early:
            await gate.wait()
        first = await ctx.wait_for("answer")
        return [first, await ctx.wait_for("answer")]

    async with app.worker(poll=0.05):
        job = await asks.submit()
        await until(job, State.RUNNING if early else State.WAITING)
        await job.signal("answer", {"n": 1})
        await job.signal("answer", {"n": 2})
        gate.set()
        assert await job.result(LIMIT) == [{"n": 1}, {"n": 2}]
    assert job.record.signals == ()


async def test_a_wait_that_times_out_raises_in_the_handler(app: Holdfast) -> None:
    @app.task
    async def asks(ctx: Context) -> str:
        try:
            await ctx.wait_for("never", timeout="50ms")
        except WaitTimeout:
            return "went on without"
        return "?"

    async with app.worker(tick=0.05, poll=0.05):
        assert await (await asks.submit()).result(LIMIT) == "went on without"


@pytest.mark.req("B26")
@pytest.mark.parametrize("how", ["sleep", "wait_for", "sync.sleep", "sync.wait_for"])
async def test_a_wait_beyond_what_can_be_kept_ends_the_job_at_its_first_attempt(
    app: Holdfast, how: str
) -> None:
    @app.task(backoff="1ms")
    async def waits(ctx: Context) -> None:
        if how == "sleep":
            await ctx.sleep("6000d")
        else:
            await ctx.wait_for("never", timeout="6000d")

    @app.task(backoff="1ms")
    def waits_in_a_thread(ctx: Context) -> None:
        if how == "sync.sleep":
            ctx.sync.sleep("6000d")
        else:
            ctx.sync.wait_for("never", timeout="6000d")

    async with app.worker():
        job = await (waits_in_a_thread if how.startswith("sync") else waits).submit()
        with pytest.raises(JobFailed, match=r"under 500,000,000 seconds \(15.8 years\)"):
            await job.result(LIMIT)
    assert (job.record.error_code, job.record.attempt) == ("wait_too_long", 1)


async def test_a_handler_may_go_past_a_wait_that_is_too_long(app: Holdfast) -> None:
    @app.task(backoff="1ms")
    async def tries_less(ctx: Context) -> int:
        try:
            await ctx.sleep("6000d")
        except PermanentError:
            await ctx.sleep("1ms")
        return ctx.job.failures

    async with app.worker(tick=0.05, poll=0.05):
        assert await (await tries_less.submit()).result(LIMIT) == 0


async def test_a_signal_that_raced_the_wait_is_not_lost(app: Holdfast) -> None:
    """Signals are sent as fast as the handler can wait for them."""
    rounds = 30

    @app.task
    async def asks(ctx: Context) -> list[int]:
        return [await ctx.wait_for("tick") for _ in range(rounds)]

    async with app.worker(poll=0.02):
        job = await asks.submit()
        await until(job, State.WAITING)
        for number in range(rounds):
            await job.signal("tick", number)
        assert await job.result(LIMIT) == list(range(rounds))
    assert job.record.failures == 0


async def test_a_person_resolves_a_step_from_python(app: Holdfast) -> None:
    async def charge() -> str:
        raise asyncio.CancelledError

    @app.task(backoff="1ms")
    async def pay(ctx: Context) -> str:
        value: str = await ctx.step("charge", charge, verify=lambda: UNKNOWN)
        return value

    async with app.worker(poll="20ms"):
        job = await pay.submit()
        await until(job, State.WAITING)
        with pytest.raises(Refused, match="asks about step 'charge'") as caught:
            await job.resolve("ship", NOT_HAPPENED)
        assert caught.value.code == "not_waiting"
        await job.resolve("charge", Happened("receipt 7"))
        assert await job.result(LIMIT) == "receipt 7"
        with pytest.raises(Refused):
            await job.resolve("charge", Happened("receipt 8"))


async def test_a_sleep_cannot_be_ended_by_a_signal(app: Holdfast) -> None:
    @app.task
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep("1h")

    async with app.worker():
        job = await sleeper.submit()
        await until(job, State.WAITING)
        with pytest.raises(BadData, match="Holdfast's own"):
            await job.signal("holdfast:sleep")


@pytest.mark.parametrize("name", ["charge#2", "#10", "holdfast:x"])
async def test_a_step_cannot_have_the_name_of_another_ones_later_use(
    app: Holdfast, name: str
) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        with pytest.raises(BadData):
            await ctx.step(name, int)
        await ctx.step("invoice#a2", int)
        return "refused"

    async with app.worker():
        assert await (await order.submit()).result(LIMIT) == "refused"
