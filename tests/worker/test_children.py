"""Children: spawned once, gathered when they have ended, and ended with their parent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.errors import BadData, JobCancelled, JobDeadLettered, JobFailed, PermanentError
from holdfast.flow.command import perform
from holdfast.flow.submit import build_child
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import CancelMode, Link, State
from holdfast.ports.models import Query
from holdfast.queries.why.why import why
from tests.worker.test_worker import LIMIT, types, until

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def children_of(app: Holdfast, job: Any) -> list[Any]:
    return await (await app.store()).children([job.record.id], limit=1000)


async def test_a_parent_gets_its_childrens_results_in_order(app: Holdfast) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent(ctx: Context) -> list[int]:
        children = [await ctx.spawn(double, number) for number in range(5)]
        return await ctx.gather(*reversed(children))

    async with app.worker():
        job = await parent.submit()
        assert await job.result(LIMIT) == [8, 6, 4, 2, 0]
    assert [child.step_index for child in await children_of(app, job)] == [0, 1, 2, 3, 4]
    assert (await job.refresh()).record.failures == 0


async def test_a_parent_in_a_thread_has_children_too(app: Holdfast) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    def parent(ctx: Context) -> list[int]:
        return ctx.sync.gather(*[ctx.sync.spawn(double, number) for number in range(3)])

    async with app.worker():
        assert await (await parent.submit()).result(LIMIT) == [0, 2, 4]


async def test_a_child_that_the_store_refuses_fails_its_parent_and_not_the_worker(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def leaf(number: int) -> str:
        return f"done {number}"

    @app.task(retries=0)
    async def parent(ctx: Context) -> str:
        return str(await ctx.spawn(leaf, 2))

    taken = (await leaf.submit(1)).record.id
    monkeypatch.setattr(
        "holdfast.tasks.durable.children.build_child",
        lambda *asked: replace(build_child(*asked), id=taken),
    )
    async with app.worker() as worker:
        with pytest.raises(JobDeadLettered, match="belongs to another job"):
            await (await parent.submit()).result(LIMIT)
        assert await (await leaf.submit(3)).result(LIMIT) == "done 3"
    assert worker.died is None


async def test_a_slot_is_free_while_a_parent_waits(app: Holdfast) -> None:
    @app.task
    async def leaf() -> str:
        return "done"

    @app.task
    async def nested(ctx: Context, depth: int) -> str:
        child = await (ctx.spawn(nested, depth - 1) if depth else ctx.spawn(leaf))
        [result] = await ctx.gather(child)
        return result

    async with app.worker(concurrency=1):
        assert await (await nested.submit(3)).result(LIMIT) == "done"


async def test_errors_of_children_are_raised_or_returned(app: Holdfast) -> None:
    @app.task(retries=0)
    async def fails(how: str) -> str:
        raise PermanentError("broken") if how == "fail" else OSError("away")

    @app.task
    async def works() -> str:
        return "fine"

    @app.task(retries=0)
    async def careful(ctx: Context) -> list[str]:
        children = [
            await ctx.spawn(fails, "fail"),
            await ctx.spawn(works),
            await ctx.spawn(fails, "exhaust"),
        ]
        results = await ctx.gather(*children, return_errors=True)
        kinds = [type(one) if isinstance(one, Exception) else one for one in results]
        assert kinds == [JobFailed, "fine", JobDeadLettered]
        return [str(one) for one in results]

    @app.task(retries=0)
    async def careless(ctx: Context) -> None:
        await ctx.gather(await ctx.spawn(works), await ctx.spawn(fails, "fail"))

    async with app.worker():
        failed, fine, exhausted = await (await careful.submit()).result(LIMIT)
        assert ("PermanentError: broken" in failed, fine) == (True, "fine")
        assert "OSError: away" in exhausted
        with pytest.raises(JobDeadLettered, match="JobFailed"):
            await (await careless.submit()).result(LIMIT)


async def test_a_later_attempt_gets_the_same_children(app: Holdfast) -> None:
    @app.task
    async def leaf(number: int) -> int:
        return number

    @app.task(backoff="1ms")
    async def parent(ctx: Context) -> list[int]:
        children = [await ctx.spawn(leaf, number) for number in range(2)]
        if ctx.attempt == 1:
            raise OSError("dies between spawn and gather")
        children.append(await ctx.spawn(leaf, 2))
        results = await ctx.gather(*children)
        if ctx.job.failures == 1:
            raise OSError("dies after the gather")
        return results

    async with app.worker():
        job = await parent.submit()
        assert await job.result(LIMIT) == [0, 1, 2]
    assert len(await children_of(app, job)) == 3


async def test_children_can_be_gathered_in_groups(app: Holdfast) -> None:
    opened = asyncio.Event()

    @app.task
    async def slow() -> str:
        await opened.wait()
        return "slow"

    @app.task
    async def quick() -> str:
        return "quick"

    @app.task
    async def parent(ctx: Context) -> list[str]:
        first = await ctx.spawn(slow)
        second = await ctx.spawn(quick)
        quick_ones = await ctx.gather(second)
        # Only now: were the first gather to wait for all, this would never come.
        opened.set()
        return [*quick_ones, *await ctx.gather(first)]

    async with app.worker():
        assert await (await parent.submit()).result(LIMIT) == ["quick", "slow"]


async def test_children_far_apart_are_gathered_without_those_between(app: Holdfast) -> None:
    opened = asyncio.Event()

    @app.task
    async def numbered(number: int) -> int:
        if number % 2:
            await opened.wait()
        return number

    @app.task
    async def parent(ctx: Context) -> list[list[int]]:
        children = await asyncio.gather(*(ctx.spawn(numbered, n) for n in range(400)))
        even = await ctx.gather(*reversed(children[::2]))
        # Only now: were the first gather to wait for those between, this would never come.
        opened.set()
        return [even[:2], (await ctx.gather(*children))[:3]]

    async with app.worker(concurrency=250):
        assert await (await parent.submit()).result(LIMIT) == [[398, 396], [0, 1, 2]]


async def test_a_wake_from_outside_makes_nobody_believe_that_children_have_ended(
    app: Holdfast,
) -> None:
    opened = asyncio.Event()

    @app.task
    async def slow() -> str:
        await opened.wait()
        return "slow"

    @app.task
    async def parent(ctx: Context) -> list[str]:
        return await ctx.gather(await ctx.spawn(slow))

    async with app.worker():
        job = await parent.submit()
        await until(job, State.WAITING)
        # Nobody may send it through the app; whoever can write to the ledger might.
        wake = c.SignalJob(actor=app.control, name="holdfast:children:0")
        await perform(await app.store(), job.record.id, wake, follow=c.Resume(actor=app.control))
        await waited_twice(job)
        opened.set()
        assert await job.result(LIMIT) == ["slow"]


async def waited_twice(job: Any) -> None:
    async with asyncio.timeout(LIMIT):
        while (await types(job)).count("waiting") < 2:  # noqa: ASYNC110  the ledger gives no signal
            await asyncio.sleep(0.01)


async def test_a_tree_has_one_tenant_correlation_and_trace(app: Holdfast) -> None:
    @app.task
    async def leaf() -> None: ...

    @app.task
    async def middle(ctx: Context) -> None:
        await ctx.gather(await ctx.spawn(leaf))

    @app.task
    async def top(ctx: Context) -> None:
        await ctx.gather(await ctx.spawn(middle.options(labels={"a": "b"})))

    async with app.worker():
        terms = top.options(
            correlation_id="order-7", tenant="acme", env={"traceparent": TRACE}, workflow_id="flow"
        )
        job = await terms.submit()
        await job.result(LIMIT)
    store = await app.store()
    [one] = await children_of(app, job)
    [other] = await store.children([one.id])
    for descendant in (one, other):
        first = (await store.events(descendant.id, limit=1))[0]
        assert first.created is not None
        assert (descendant.tenant, descendant.workflow_id) == ("acme", "flow")
        assert (descendant.link_kind, first.correlation_id) == (Link.CHILD, "order-7")
        assert first.created.trace_id == TRACE.split("-")[1]
    assert len((await store.find(Query(correlation_id="order-7"))).jobs) == 3


async def test_a_child_has_no_later_deadline_than_its_parent(app: Holdfast) -> None:
    @app.task(queue="nobody")
    async def leaf() -> None: ...

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.spawn(leaf)
        await ctx.spawn(leaf.options(deadline="1s"))
        await ctx.spawn(leaf.options(deadline="9h"))

    async with app.worker():
        job = await parent.options(deadline="1h").submit()
        await job.result(LIMIT)
    plain, sooner, later = [child.deadline_at for child in await children_of(app, job)]
    assert plain == later == job.record.deadline_at
    assert sooner < plain


async def test_a_child_is_known_by_its_parent_and_has_no_key_of_its_own(app: Holdfast) -> None:
    @app.task
    async def leaf() -> None: ...

    wishes: dict[str, Any] = {
        "dedupe_key": "k",
        "job_id": "k",
        "request_id": "k",
        "parent": "k",
        "tenant": "k",
    }

    @app.task(retries=0)
    async def parent(ctx: Context) -> str:
        for name, value in wishes.items():
            wish: Any = {name: value}
            with pytest.raises(BadData, match=name):
                await ctx.spawn(leaf.options(**wish))
        return "told"

    async with app.worker():
        assert await (await parent.submit()).result(LIMIT) == "told"


async def test_bad_arguments_are_told_before_a_child_is_made(app: Holdfast) -> None:
    @app.task
    async def leaf(number: int) -> None: ...

    @app.task(retries=0)
    async def parent(ctx: Context) -> str:
        with pytest.raises(BadData):
            await ctx.spawn(leaf, "many")  # type: ignore[arg-type]
        return "told"

    async with app.worker():
        job = await parent.submit()
        assert await job.result(LIMIT) == "told"
    assert await children_of(app, job) == []


@pytest.mark.req("A18")
async def test_a_cancel_ends_the_whole_tree(app: Holdfast) -> None:
    running = asyncio.Event()

    @app.task(cancel_grace="10ms")
    async def leaf() -> None:
        running.set()
        await asyncio.Event().wait()

    @app.task
    async def middle(ctx: Context) -> None:
        await ctx.gather(await ctx.spawn(leaf))

    @app.task
    async def top(ctx: Context) -> None:
        await ctx.gather(await ctx.spawn(middle))

    async with app.worker():
        job = await top.submit()
        await asyncio.wait_for(running.wait(), LIMIT)
        await job.cancel()
        with pytest.raises(JobCancelled):
            await job.result(LIMIT)
        [one] = await children_of(app, job)
        [other] = await (await app.store()).children([one.id])
        for descendant in (one, other):
            assert await (await app.get(str(descendant.id))).wait(LIMIT) is State.CANCELLED


@pytest.mark.req("A18", "B13")
async def test_a_hard_cancel_kills_who_ignores_the_soft_one_that_ended_the_parent(
    app: Holdfast,
) -> None:
    running = asyncio.Event()

    @app.task(cancel_grace="1h")
    async def leaf() -> None:
        running.set()
        await asyncio.Event().wait()

    @app.task
    async def top(ctx: Context) -> None:
        await ctx.gather(await ctx.spawn(leaf))

    async with app.worker():
        job = await top.submit()
        await asyncio.wait_for(running.wait(), LIMIT)
        await until(job, State.WAITING)
        assert await job.cancel() is State.CANCELLED
        [child] = await children_of(app, job)
        assert child.cancel_requested is CancelMode.SOFT
        assert await job.cancel(hard=True) is State.CANCELLED
        assert await (await app.get(str(child.id))).wait(LIMIT) is State.CANCELLED


async def test_why_names_the_children_that_a_parent_waits_for(app: Holdfast) -> None:
    @app.task(queue="nobody")
    async def leaf() -> None: ...

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.gather(*[await ctx.spawn(leaf) for _ in range(7)])

    async with app.worker():
        job = await parent.submit()
        await until(job, State.WAITING)
    told = await why(await app.store(), job.record.id)
    first = (await children_of(app, job))[0]
    assert told.reason.code == "waits_for_children"
    assert "7 children" in told.text
    assert f"{first.id} (leaf, queued)" in told.text


async def test_a_thousand_children_are_gathered(app: Holdfast) -> None:
    @app.task
    async def leaf(number: int) -> int:
        return number

    @app.task
    async def parent(ctx: Context) -> int:
        # Side by side: their commits are gathered.
        children = await asyncio.gather(*(ctx.spawn(leaf, number) for number in range(1000)))
        return sum(await ctx.gather(*children))

    async with app.worker(concurrency=100):
        job = await parent.submit()
        assert await job.result(60) == 499_500
    assert (await types(job)).count("wait_completed") <= 1
