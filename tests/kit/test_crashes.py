"""Crashes and faults on purpose: what one's own handlers do about them can be tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Holdfast, JobDeadLettered, JobTimedOut, PermanentError
from holdfast.lifecycle.states import State
from holdfast.tasks.durable.verdicts import NOT_HAPPENED, Happened
from holdfast.testing import Faults, Kit


@pytest.fixture
def app() -> Holdfast:
    return Holdfast()


class Ledger:
    """A world outside, in which effects are counted."""

    def __init__(self) -> None:
        """Begin without any."""
        self.effects: list[str] = []

    def task(self, app: Holdfast, **options: Any) -> Any:
        """Register a handler of two steps."""

        @app.task(**options)
        async def order(ctx: Context) -> str:
            await ctx.step("charge", self.effects.append, "charge")
            await ctx.step("mail", self.effects.append, "mail")
            self.effects.append("end")
            return "done"

        return order

    def sync_task(self, app: Holdfast) -> Any:
        """Register the same handler as a function that runs in a thread."""

        @app.task
        def order(ctx: Context) -> str:
            ctx.sync.step("charge", self.effects.append, "charge")
            ctx.sync.step("mail", self.effects.append, "mail")
            self.effects.append("end")
            return "done"

        return order


CASES = [
    ("crash_before", "charge", ["charge", "mail", "end"]),
    ("crash_during", "charge", ["charge", "charge", "mail", "end"]),
    ("crash_after", "charge", ["charge", "mail", "end"]),
    ("crash_before", "mail", ["charge", "mail", "end"]),
    ("crash_during", "mail", ["charge", "mail", "mail", "end"]),
    ("crash_after", "mail", ["charge", "mail", "end"]),
    ("crash_before", "order", ["charge", "mail", "end"]),
    ("crash_during", "order", ["charge", "mail", "end", "end"]),
]


@pytest.mark.parametrize("make", [Ledger.task, Ledger.sync_task])
@pytest.mark.parametrize(("crash", "where", "effects"), CASES)
async def test_a_worker_dies_and_another_goes_on_where_the_record_ends(
    app: Holdfast, make: Callable[..., Any], crash: str, where: str, effects: list[str]
) -> None:
    world = Ledger()
    order = make(world, app)
    async with Kit(app) as kit:
        getattr(kit, crash)(where)
        job = await order.submit()
        drained = await kit.drain()
        assert await job.result() == "done"
        assert world.effects == effects
        assert [run.crashed for run in drained.runs] == [True, False]
        types = [event.type for event in await job.events()]
        assert types.count("job_stalled") == 1


async def test_a_dead_attempt_neither_cleans_up_nor_says_anything(app: Holdfast) -> None:
    said: list[str] = []

    @app.task
    async def careful(ctx: Context) -> None:
        try:
            await ctx.step("work", lambda: None)
        except BaseException:
            said.append("caught")
            raise
        finally:
            if ctx.attempt == 1:
                said.append("cleaned up")

    async with Kit(app) as kit:
        kit.crash_after("work")
        job = await careful.submit()
        await kit.drain()
        assert (await job.refresh()).state is State.SUCCEEDED
        assert said == []


@pytest.mark.parametrize("make", [Ledger.task, Ledger.sync_task])
async def test_a_worker_that_dies_after_an_outcome_changes_nothing_of_it(
    app: Holdfast, make: Callable[..., Any]
) -> None:
    world = Ledger()
    order = make(world, app)
    async with Kit(app) as kit:
        kit.crash_after("order")
        first, second = await order.submit(), await order.submit()
        drained = await kit.drain()
        assert [await first.result(), await second.result()] == ["done", "done"]
        assert [run.crashed for run in drained.runs] == [True, False]
        assert first.record.attempt == second.record.attempt == 1
    assert world.effects == ["charge", "mail", "end"] * 2


async def test_a_crash_costs_a_try_and_the_last_one_ends_the_job(app: Holdfast) -> None:
    order = Ledger().task(app, retries=1)
    async with Kit(app) as kit:
        kit.crash_before("mail", times=2)
        job = await order.submit()
        await kit.drain()
        with pytest.raises(JobDeadLettered):
            await job.result()
        assert job.record.attempt == 2


async def test_a_verifier_is_asked_after_a_crash_between_effect_and_record(app: Holdfast) -> None:
    charges: list[int] = []

    async def charge(amount: int) -> str:
        charges.append(amount)
        return f"receipt {len(charges)}"

    def was_charged(amount: int) -> Any:
        return Happened("found") if amount in charges else NOT_HAPPENED

    @app.task
    async def order(ctx: Context) -> str:
        return str(await ctx.step("charge", charge, 5, verify=was_charged))

    async with Kit(app) as kit:
        kit.crash_during("charge")
        job = await order.submit()
        assert await job.result() == "found"
        assert charges == [5]


async def test_a_misspelt_crash_is_no_silent_success(app: Holdfast) -> None:
    order = Ledger().task(app)
    kit = await Kit(app).__aenter__()
    kit.crash_after("chrage")
    await (await order.submit()).result()
    with pytest.raises(AssertionError, match=r"crash after 'chrage'.*charge, mail, order"):
        await kit.__aexit__(None)


async def test_planned_errors_come_as_often_as_planned(app: Holdfast) -> None:
    world = Ledger()
    order = world.task(app, retries=3)
    faults = Faults().fail("charge", times=2, error=OSError("down")).fail("order")
    async with Kit(app, faults=faults) as kit:
        job = await order.submit()
        drained = await kit.drain()
        assert await job.result() == "done"
        assert [str(error) for error in drained.errors] == [
            "a planned fault in 'order'", "down", "down",
        ]  # fmt: skip
    assert world.effects == ["charge", "mail", "end"]


async def test_a_steps_own_retries_wait_by_the_tests_clock(app: Holdfast) -> None:
    calls: list[int] = []

    @app.task
    async def order(ctx: Context) -> int:
        await ctx.step("charge", calls.append, 1, retries=3, backoff="1h")
        return ctx.attempt

    async with Kit(app, faults=Faults().fail("charge", times=2)) as kit:
        before = kit.clock.now
        assert await (await order.submit()).result() == 1
        assert (kit.clock.now - before).total_seconds() == 3 * 3600
    assert calls == [1]


async def test_an_answer_that_is_lost_fails_after_the_effect(app: Holdfast) -> None:
    world = Ledger()
    order = world.task(app)
    async with Kit(app, faults=Faults().fail("charge", moment="during")) as kit:
        await order.submit()
        await kit.drain()
    assert world.effects == ["charge", "charge", "mail", "end"]


async def test_a_delay_passes_on_the_tests_clock_and_keeps_the_lease(app: Holdfast) -> None:
    order = Ledger().task(app)
    async with Kit(app, faults=Faults().delay("charge", "10m")) as kit:
        before = kit.clock.now
        job = await order.submit()
        await kit.drain()
        assert await job.result() == "done"
        assert job.record.attempt == 1
        assert (kit.clock.now - before).total_seconds() == 600


@pytest.mark.parametrize("make", [Ledger.task, Ledger.sync_task])
async def test_a_delay_beyond_the_timeout_ends_the_attempt(
    app: Holdfast, make: Callable[..., Any]
) -> None:
    order = make(Ledger(), app)
    async with Kit(app, faults=Faults().delay("mail", "10m")) as kit:
        job = await order.options(timeout="1m", retries=0).submit()
        await kit.drain()
        with pytest.raises(JobTimedOut):
            await job.result()


async def storm(seed: int) -> tuple[list[str], list[str]]:
    """Let a plan with chance loose on ten orders."""
    app, world = Holdfast(), Ledger()
    order = world.task(app, retries=50, backoff="1ms")
    faults = Faults(seed).crash(rate=0.2, times=30).fail("mail", rate=0.3, times=30)
    async with Kit(app, faults=faults) as kit:
        jobs = await order.submit_many([()] * 10)
        await kit.drain()
        assert [await job.result() for job in jobs] == ["done"] * 10
    return faults.log, world.effects


async def test_the_same_seed_brings_the_same_faults() -> None:
    first, again, other = await storm(7), await storm(7), await storm(8)
    assert first == again
    assert first[0] != other[0]
    assert any("crash" in line for line in first[0])
    assert any("fail" in line for line in first[0])


async def test_a_planned_error_decides_like_any_other(app: Holdfast) -> None:
    order = Ledger().task(app)
    async with Kit(app, faults=Faults().fail("mail", error=PermanentError)) as kit:
        job = await order.submit()
        await kit.drain()
        assert (await job.refresh()).state is State.FAILED
