"""A redrive resumes: what a dead job recorded is not done again by the job that takes its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import NOT_HAPPENED, UNKNOWN, Context, Happened
from holdfast.app.app import Holdfast
from holdfast.errors import JobDeadLettered, JobFailed, PermanentError, Refused
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.linked import compensation_id
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Letter, Link, Role, State
from holdfast.tasks.handles import JobHandle
from tests.worker.eventually import eventually, reaches_attempt, waits_for
from tests.worker.test_worker import LIMIT

BRISK: dict[str, Any] = {"poll": "20ms", "tick": "50ms"}


class Bank:
    """What is charged outside, by key; and whether a job may go past its charge."""

    def __init__(self) -> None:
        """Refuse to go on until told otherwise."""
        self.charges: list[str] = []
        self.asked: list[str] = []
        self.open = False

    def charge(self, key: str) -> str:
        """Have the effect."""
        self.charges.append(key)
        return f"receipt {len(self.charges)}"

    def was_charged(self, key: str) -> object:
        """Answer a verifier."""
        self.asked.append(key)
        return Happened("receipt found") if key in self.charges else NOT_HAPPENED

    def check_open(self) -> None:
        """Fail a job that went past its charge too early."""
        if not self.open:
            raise OSError("the parcel service is closed")


async def died(job: JobHandle[Any]) -> JobHandle[Any]:
    """Wait until a job has ended in the dead letters."""
    assert await job.wait(LIMIT) is State.DEAD_LETTERED
    return job


@pytest.mark.req("D9")
async def test_a_redrive_does_not_run_a_recorded_step_again(app: Holdfast) -> None:
    bank = Bank()

    @app.task(retries=1, backoff="1ms")
    async def order(ctx: Context) -> list[str]:
        receipt = await ctx.step("charge", bank.charge, ctx.effect_key("charge"))
        bank.check_open()
        return [receipt, await ctx.step("ship", bank.charge, ctx.effect_key("ship"))]

    async with app.worker(**BRISK):
        dead = await died(await order.submit())
        bank.open = True
        again = await dead.redrive()
        assert await again.result(LIMIT) == ["receipt 1", "receipt 2"]
    assert bank.charges == [f"{dead.record.id}/charge", f"{dead.record.id}/ship"]
    assert (again.record.parent_id, again.record.link_kind) == (dead.record.id, Link.REDRIVE)


async def test_a_redrive_of_a_redrive_keeps_what_both_have_recorded(app: Holdfast) -> None:
    ran: list[str] = []
    stop_after = ["one", "two"]

    async def note(name: str) -> str:
        ran.append(name)
        return name

    @app.task(retries=0)
    async def three_steps(ctx: Context) -> list[str]:
        done: list[str] = []
        for name in ("one", "two", "three"):
            done.append(await ctx.step(name, note, name))
            if stop_after[:1] == [name]:
                stop_after.pop(0)
                raise OSError(f"dies after {name}")
        return done

    async with app.worker(**BRISK):
        first = await died(await three_steps.submit())
        second = await died(await first.redrive())
        third = await second.redrive()
        assert await third.result(LIMIT) == ["one", "two", "three"]
    assert ran == ["one", "two", "three"]


async def test_from_start_runs_recorded_steps_again_under_the_same_key(app: Holdfast) -> None:
    bank = Bank()

    @app.task(retries=0)
    async def order(ctx: Context) -> str:
        receipt: str = await ctx.step("charge", lambda: bank.charge(ctx.effect_key()))
        bank.check_open()
        return receipt

    async with app.worker(**BRISK):
        dead = await died(await order.submit())
        bank.open = True
        assert await (await dead.redrive(from_start=True)).result(LIMIT) == "receipt 2"
    assert bank.charges == [f"{dead.record.id}/charge"] * 2


async def test_the_key_of_an_effect_is_the_same_in_attempts_retries_and_redrives(
    app: Holdfast,
) -> None:
    keys: list[str] = []

    @app.task(retries=1, backoff="1ms")
    async def attempts(ctx: Context) -> None:
        keys.append(ctx.effect_key("charge"))
        raise OSError

    @app.task(retries=1, backoff="1ms", idempotent=False)
    async def jobs(ctx: Context) -> None:
        keys.append(ctx.effect_key("charge"))
        raise OSError

    async with app.worker(**BRISK):
        for task in (attempts, jobs):
            keys.clear()
            job = await task.options(job_id=f"order of {task.name}").submit()
            with pytest.raises(JobDeadLettered):
                await job.result(LIMIT)
            last = await job.retried_as() or job
            await died(last)
            await died(await last.redrive())
            assert keys == [f"{job.record.id}/charge"] * (4 if task is attempts else 3), keys


async def test_uses_of_one_name_have_keys_of_their_own_also_side_by_side(app: Holdfast) -> None:
    @app.task
    async def pays(ctx: Context) -> list[str]:
        def pay(key: str) -> list[str]:
            return [key, ctx.effect_key(), ctx.effect_key("pay")]

        async def other() -> str:
            return ctx.effect_key("pay")

        one = await ctx.step("pay", pay, ctx.effect_key("pay"))
        more = [ctx.step("pay", pay, ctx.effect_key("pay")) for _ in range(2)]
        both = await asyncio.gather(*more)
        return [*one, *both[0], *both[1], await ctx.step("other", other)]

    async with app.worker(**BRISK):
        job = await pays.submit()
        told = await job.result(LIMIT)
    name = f"{job.record.id}/pay"
    assert told == [name] * 3 + [f"{name}#2"] * 3 + [f"{name}#3"] * 3 + [f"{name}#4"]


async def test_a_redrive_asks_the_verifier_of_a_step_whose_outcome_is_unknown(
    app: Holdfast,
) -> None:
    bank = Bank()

    def charge(key: str) -> str:
        bank.charge(key)
        raise OSError("the reply was lost")

    @app.task(retries=0)
    async def order(ctx: Context) -> str:
        fn = bank.charge if bank.open else charge
        key = ctx.effect_key("charge")
        receipt: str = await ctx.step("charge", fn, key, verify=bank.was_charged)
        return receipt

    async with app.worker(**BRISK):
        dead = await died(await order.submit())
        bank.open = True
        assert await (await dead.redrive()).result(LIMIT) == "receipt found"
    assert bank.charges == bank.asked == [f"{dead.record.id}/charge"]


async def test_a_person_is_asked_about_an_unknown_step_of_the_dead_job(app: Holdfast) -> None:
    ran: list[int] = []

    def charge() -> str:
        ran.append(1)
        raise OSError("the reply was lost")

    @app.task(retries=0)
    async def order(ctx: Context) -> str:
        receipt: str = await ctx.step("charge", charge, verify=lambda: UNKNOWN)
        return receipt

    async with app.worker(**BRISK):
        again = await (await died(await order.submit())).redrive()
        await waits_for(again, "resolve:charge")
        await again.resolve("charge", Happened("receipt 1"))
        assert await again.result(LIMIT) == "receipt 1"
    assert ran == [1]


async def test_waits_that_ended_are_carried_over_and_later_ones_are_not_taken_for_them(
    app: Holdfast,
) -> None:
    bank = Bank()

    @app.task(retries=0)
    async def approvals(ctx: Context) -> list[Any]:
        await ctx.sleep(0.01)
        said = [await ctx.wait_for("approve"), await ctx.wait_for("approve")]
        bank.check_open()
        return [*said, await ctx.wait_for("approve")]

    async with app.worker(**BRISK):
        job = await approvals.submit()
        await job.signal("approve", "ann")
        await job.signal("approve", "bob")
        await died(job)
        bank.open = True
        again = await job.redrive()
        await again.signal("approve", "cid")
        assert await again.result(LIMIT) == ["ann", "bob", "cid"]


async def test_a_failed_job_can_be_redriven_and_resumes(app: Holdfast) -> None:
    bank = Bank()

    @app.task
    async def order(ctx: Context) -> str:
        receipt: str = await ctx.step("charge", bank.charge, "k")
        if not bank.open:
            raise PermanentError("out of stock")
        return receipt

    async with app.worker(**BRISK):
        job = await order.submit()
        with pytest.raises(JobFailed):
            await job.result(LIMIT)
        bank.open = True
        again = await job.redrive(reason="restocked")
        assert await again.result(LIMIT) == "receipt 1"
        assert (await job.redrive()).id == again.id, "repeated, it is the same one"
    assert (await job.refresh()).record.letter is Letter.REDRIVEN
    assert (job.state, bank.charges) == (State.FAILED, ["k"])


async def test_a_job_that_goes_on_in_a_linked_retry_is_not_redriven_beside_it(
    app: Holdfast,
) -> None:
    ran: list[str] = []

    @app.task(retries=1, backoff="1ms", idempotent=False)
    async def order(ctx: Context) -> str:
        await ctx.step("charge", ran.append, ctx.job.id)
        if ctx.job.id == ran[0]:
            raise OSError("the reply was lost")
        return "paid"

    async with app.worker(**BRISK):
        job = await order.submit()
        assert await job.result(LIMIT) == "paid"
        with pytest.raises(Refused, match="redrive the last retry instead") as refusal:
            await job.redrive()
    assert refusal.value.code == "retried"
    assert ran == [job.id], "the linked retry knows the recorded step"


async def test_what_a_job_did_by_its_linked_retries_is_resumed_by_a_redrive_of_the_last(
    app: Holdfast,
) -> None:
    bank = Bank()

    @app.task(retries=1, backoff="1ms", idempotent=False)
    async def order(ctx: Context) -> str:
        receipt: str = await ctx.step("charge", bank.charge, "k")
        bank.check_open()
        return receipt

    async with app.worker(**BRISK):
        job = await order.submit()
        with pytest.raises(JobDeadLettered):
            await job.result(LIMIT)
        last = await job.retried_as()
        assert last is not None
        bank.open = True
        assert await (await last.redrive()).result(LIMIT) == "receipt 1"
    assert bank.charges == ["k"]


async def test_a_job_redriven_again_continues_from_its_newest_successor(app: Holdfast) -> None:
    ran: list[str] = []
    dies = [True, True, False]

    @app.task(retries=0)
    async def order(ctx: Context) -> list[str]:
        await ctx.step("first", ran.append, "first")
        if len(ran) > 1 or len(dies) < 3:
            await ctx.step("second", ran.append, "second")
        if dies.pop(0):
            raise OSError
        return ran

    async with app.worker(**BRISK):
        job = await died(await order.submit())
        await died(await job.redrive())
        again = await job.redrive(again=True)
        assert await again.result(LIMIT) == ["first", "second"]
    assert again.record.parent_id == job.record.id


async def test_a_compensated_job_is_redriven_only_from_the_start_under_new_keys(
    app: Holdfast,
) -> None:
    bank = Bank()
    refunds: list[str] = []

    @app.task(retries=0, compensate_steps={"charge": refunds.append})
    async def order(ctx: Context) -> str:
        receipt: str = await ctx.step("charge", bank.charge, ctx.effect_key("charge"))
        bank.check_open()
        return receipt

    async with app.worker(**BRISK):
        job = await died(await order.submit())
        undoing = compensation_id(job.record.id)
        await (await app.get(str(undoing))).result(LIMIT)
        with pytest.raises(Refused, match="nothing to resume") as refusal:
            await job.redrive()
        assert refusal.value.code == "compensated"
        bank.open = True
        again = await job.redrive(from_start=True)
        assert await again.result(LIMIT) == "receipt 2"
    assert refunds == ["receipt 1"]
    assert bank.charges == [f"{job.record.id}/charge", f"{again.record.id}/charge"]


async def test_children_that_succeeded_are_not_spawned_again_by_a_redrive(app: Holdfast) -> None:
    bank, ran = Bank(), list[int]()

    @app.task
    async def child(number: int) -> int:
        ran.append(number)
        return 10 * number

    @app.task(retries=0)
    async def parent(ctx: Context) -> list[int]:
        results = await ctx.gather(*[await ctx.spawn(child, number) for number in range(3)])
        bank.check_open()
        return results + await ctx.gather(await ctx.spawn(child, 3))

    async with app.worker(**BRISK):
        job = await died(await parent.submit())
        bank.open = True
        again = await job.redrive()
        assert await again.result(LIMIT) == [0, 10, 20, 30]
    assert sorted(ran) == [0, 1, 2, 3]
    [new] = await (await app.store()).children([again.record.id], limit=10)
    assert (new.step_index, new.link_kind) == (3, Link.CHILD)


async def test_children_that_ended_with_their_parent_are_resumed_by_its_redrive(
    app: Holdfast,
) -> None:
    bank, ran = Bank(), list[str]()

    @app.task
    async def child(ctx: Context, name: str) -> str:
        await ctx.step("charge", ran.append, f"charge {name}")
        if name == "slow":
            await ctx.wait_for("go")
        return name

    @app.task(retries=0)
    async def parent(ctx: Context) -> list[str]:
        quick, slow = await ctx.spawn(child, "quick"), await ctx.spawn(child, "slow")
        await ctx.gather(quick)
        await ctx.wait_for("both are there")
        bank.check_open()
        return await ctx.gather(quick, slow)

    async def both_are_there() -> bool:
        return len(ran) == 2

    async with app.worker(**BRISK):
        job = await parent.submit()
        store = await app.store()
        await eventually(both_are_there)
        await job.signal("both are there")
        await died(job)
        bank.open = True
        again = await job.redrive()
        await waits_for(again, "holdfast:children:0-1")
        children = await store.children([again.record.id], limit=10)
        await (await app.get(str(children[0].id))).signal("go")
        assert await again.result(LIMIT) == ["quick", "slow"]
    assert sorted(ran) == ["charge quick", "charge slow"]
    [resumed] = children
    assert resumed.step_index == 1
    [first] = await store.events(resumed.id, limit=1)
    [_, old] = await store.children([job.record.id], limit=10)
    assert first.created is not None
    assert (old.state, first.created.resumes, first.created.lineage) == (
        State.CANCELLED,
        old.id,
        old.id,
    )


async def test_a_child_whose_failure_killed_its_parent_is_resumed_by_the_parents_redrive(
    app: Holdfast,
) -> None:
    bank, ran = Bank(), list[str]()

    @app.task(retries=0)
    async def child(ctx: Context) -> str:
        await ctx.step("charge", ran.append, "charge")
        bank.check_open()
        return "sent"

    @app.task(retries=1, backoff="1ms")
    async def parent(ctx: Context) -> list[str]:
        return await ctx.gather(await ctx.spawn(child))

    async with app.worker(**BRISK):
        job = await died(await parent.submit())
        bank.open = True
        assert await (await job.redrive()).result(LIMIT) == ["sent"]
    assert ran == ["charge"]


async def test_a_child_whose_failure_the_handler_went_past_stays_as_it_ended(
    app: Holdfast,
) -> None:
    bank, ran = Bank(), list[str]()

    @app.task(retries=0)
    async def child() -> str:
        ran.append("child")
        bank.check_open()
        return "sent"

    @app.task(retries=0)
    async def parent(ctx: Context) -> str:
        try:
            await ctx.gather(await ctx.spawn(child))
        except JobDeadLettered:
            await ctx.step("instead", ran.append, "instead")
        bank.check_open()
        return "done"

    async with app.worker(**BRISK):
        job = await died(await parent.submit())
        bank.open = True
        assert await (await job.redrive()).result(LIMIT) == "done"
    assert ran == ["child", "instead"]


async def test_a_redriven_parent_waits_for_a_child_that_was_redriven_by_hand(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.lifecycle.retry.RECHECK_FIRST", 50_000)
    bank, ran = Bank(), list[str]()

    @app.task(retries=0)
    async def child(ctx: Context) -> str:
        await ctx.step("charge", ran.append, "charge")
        bank.check_open()
        await ctx.wait_for("go")
        return "sent"

    @app.task(retries=0)
    async def parent(ctx: Context) -> list[str]:
        return await ctx.gather(await ctx.spawn(child))

    async with app.worker(**BRISK):
        job = await died(await parent.submit())
        bank.open = True
        store = await app.store()
        [dead] = await store.children([job.record.id], limit=10)
        by_hand = await (await app.get(str(dead.id))).redrive()
        again = await job.redrive()
        await reaches_attempt(again, 3)
        await by_hand.signal("go")
        assert await again.result(LIMIT) == ["sent"]
        assert await store.children([again.record.id], limit=10) == []
    assert ran == ["charge"]


async def test_a_job_does_not_run_steps_again_whose_records_are_gone(app: Holdfast) -> None:
    ran: list[int] = []

    @app.task(retries=0)
    async def order(ctx: Context) -> None:
        await ctx.step("charge", ran.append, 1)
        raise OSError

    async with app.worker(**BRISK):
        job = await died(await order.submit())
        await app.pause("default")
        again = await job.redrive()
        store, janitor = await app.store(), Actor(Role.JANITOR, "janitor")
        await perform(store, job.record.id, c.Clean(actor=janitor))
        await store.erase_bodies([job.record.id])
        await app.resume("default")
        with pytest.raises(JobFailed, match="erased by retention"):
            await again.result(LIMIT)
    assert ran == [1]
    assert again.record.error_code == "records_gone"
