"""Time limits of asyncio around waits: whenever they end, what is recorded is what happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.ids import mint_id
from holdfast.lifecycle.record import Change
from holdfast.lifecycle.states import EventType
from holdfast.ports.models import Outcome
from holdfast.ports.store import Store
from holdfast.tasks.durable.protocol import GatherChildren, NotRecorded, Reply
from holdfast.telemetry import Meters
from holdfast.wiring import make_store, read_address
from holdfast.worker.durable_calls import DurableCalls
from tests.crashes.waiting import until
from tests.crashes.wrapped import Wrapped
from tests.worker.eventually import waits_for
from tests.worker.test_worker import LIMIT

BRISK: dict[str, Any] = {"poll": "20ms", "tick": "50ms"}


class Slow:
    """Which replies of a store are withheld until the time of a handler is up."""

    def __init__(self) -> None:
        """Withhold none."""
        self.kinds: set[EventType] = set()
        """Replies to commits of such events."""
        self.recalls = False
        """Replies to reads of what was recorded."""
        self.limits: list[asyncio.Timeout] = []
        """The time limits that handlers have begun."""
        self.answered = asyncio.Event()
        """Set once a reply that was withheld is given."""

    async def wait(self) -> None:
        """Withhold a reply."""
        await until(self.limits[-1].expired, "the handler's time to be up")
        for _ in range(5):
            # Now its cancel is delivered, and the handler goes on if it can.
            await asyncio.sleep(0)
        self.answered.set()


class SlowStore(Wrapped):
    """A store that answers late."""

    def __init__(self, store: Store, slow: Slow) -> None:
        """Withhold what `slow` says."""
        super().__init__(store)
        self._slow = slow

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Commit, then answer late."""
        outcomes = await self.store.commit(changes)
        if self._slow.kinds & {change.event.type for change in changes}:
            await self._slow.wait()
        return outcomes

    async def step_events(self, *args: Any, **kwargs: Any) -> Any:
        """Read, then answer late."""
        found = await self.store.step_events(*args, **kwargs)
        if self._slow.recalls:
            await self._slow.wait()
        return found

    async def events(self, *args: Any, **kwargs: Any) -> Any:
        """Read, then answer late."""
        found = await self.store.events(*args, **kwargs)
        if self._slow.recalls:
            await self._slow.wait()
        return found


@pytest.fixture
def slow() -> Slow:
    """What is withheld."""
    return Slow()


@pytest.fixture
def slow_app(app: Holdfast, url: str, slow: Slow) -> Holdfast:
    """An app on a store that answers late; `app` verifies all jobs afterwards."""
    return Holdfast(
        store=lambda: SlowStore(make_store(read_address(url)), slow), unbounded_leases=True
    )


async def test_a_timeout_during_a_park_runs_nothing_that_cannot_be_recorded(
    slow_app: Holdfast, slow: Slow
) -> None:
    charges: list[str] = []

    @slow_app.task
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05) as limit:
                slow.limits.append(limit)
                await ctx.wait_for("go")
        except TimeoutError as error:
            await ctx.step("charge", charges.append, ctx.job.id)
            return type(error).__name__
        return "came"

    slow.kinds = {EventType.WAITING}
    async with slow_app, slow_app.worker(**BRISK):
        job = await order.submit()
        assert await job.result(LIMIT) == "WaitTimeout"
        assert charges == [job.id]


async def test_a_wait_that_somebody_cancels_during_a_park_does_not_go_on(
    slow_app: Holdfast, slow: Slow
) -> None:
    charges: list[str] = []

    slow.kinds = {EventType.WAITING}

    @slow_app.task
    async def gives_up(ctx: Context) -> str:
        waiting = asyncio.create_task(ctx.wait_for("go"))
        if ctx.attempt == 1:
            try:
                async with asyncio.timeout(0.05) as limit:
                    slow.limits.append(limit)
                    await asyncio.Event().wait()
            except TimeoutError:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                await ctx.step("charge", charges.append, ctx.job.id)
        return str(await waiting)

    async with slow_app, slow_app.worker(**BRISK):
        job = await gives_up.submit()
        # A signal before the reply would have the job claimed again and this attempt stopped: its
        # time limit would not expire, and the reply would be withheld for ever.
        async with asyncio.timeout(LIMIT):
            await slow.answered.wait()
        await job.signal("go", "ann")
        assert await job.result(LIMIT) == "ann"
        assert charges == [], "the job was parked: no step is run"


async def test_a_recorded_answer_wins_over_a_timeout_during_the_replay(
    slow_app: Holdfast, slow: Slow
) -> None:
    @slow_app.task(retries=1, backoff="1ms")
    async def order(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(LIMIT if ctx.attempt <= 2 else 0.05) as limit:
                slow.limits.append(limit)
                came = await ctx.wait_for("go")
        except TimeoutError:
            came = "nothing"
        await ctx.step("charge", str, came)
        if ctx.attempt == 2:
            slow.recalls = True
            raise OSError("the attempt dies here")
        return came

    async with slow_app, slow_app.worker(**BRISK):
        job = await waits_for(await order.submit(), "go")
        await job.signal("go", "ann")
        assert await job.result(LIMIT) == "ann"
        assert job.record.attempt == 3


async def test_a_recorded_step_wins_over_a_timeout_during_the_replay(
    slow_app: Holdfast, slow: Slow
) -> None:
    ran: list[str] = []

    @slow_app.task(retries=1, backoff="1ms")
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(LIMIT if ctx.attempt == 1 else 0.05) as limit:
                slow.limits.append(limit)
                await ctx.step("reserve", ran.append, "reserve")
        except TimeoutError:
            return "timed out"
        await ctx.step("charge", ran.append, "charge")
        if ctx.attempt == 1:
            slow.recalls = True
            raise OSError("the attempt dies here")
        return "done"

    async with slow_app, slow_app.worker(**BRISK):
        assert await (await order.submit()).result(LIMIT) == "done"
    assert ran == ["reserve", "charge"]


async def test_a_timeout_that_a_recorded_answer_outran_ends_what_follows_in_its_block(
    slow_app: Holdfast, slow: Slow
) -> None:
    @slow_app.task(retries=1, backoff="1ms")
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(LIMIT if ctx.attempt <= 2 else 0.05) as limit:
                slow.limits.append(limit)
                await ctx.wait_for("go")
                if ctx.attempt == 2:
                    slow.recalls = True
                    raise OSError("the attempt dies here")
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)
            return "timed out"
        return "never"

    async with slow_app, slow_app.worker(**BRISK):
        job = await waits_for(await order.submit(), "go")
        await job.signal("go")
        assert await job.result(LIMIT) == "timed out"


async def test_a_wait_after_a_timeout_that_a_recorded_answer_outran_ends_at_once(
    slow_app: Holdfast, slow: Slow
) -> None:
    @slow_app.task(retries=1, backoff="1ms")
    async def order(ctx: Context) -> str:
        try:
            async with asyncio.timeout(LIMIT if ctx.attempt <= 2 else 0.05) as limit:
                slow.limits.append(limit)
                await ctx.wait_for("go")
                if ctx.attempt == 2:
                    slow.recalls = True
                    raise OSError("the attempt dies here")
                slow.recalls = False
                await ctx.wait_for("never")
        except TimeoutError as error:
            return type(error).__name__
        return "came"

    async with slow_app, slow_app.worker(**BRISK):
        job = await waits_for(await order.submit(), "go")
        await job.signal("go")
        assert await job.result(LIMIT) == "WaitTimeout"


async def _by_wait_for(wait: Callable[[], Awaitable[Any]]) -> None:
    await asyncio.wait_for(wait(), 0.5)


async def _by_gather(wait: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(0.5):
        await asyncio.gather(wait(), asyncio.sleep(0))


async def _by_task(wait: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(0.5):
        await asyncio.ensure_future(wait())


async def _by_group(wait: Callable[[], Awaitable[Any]]) -> None:
    async def waits() -> None:
        await wait()

    try:
        async with asyncio.timeout(0.5), asyncio.TaskGroup() as group:
            group.create_task(waits())
    except* TimeoutError as errors:
        raise errors.exceptions[0] from None


async def _at_once(wait: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(0):
        await wait()


@pytest.mark.parametrize(
    "limited",
    [_by_wait_for, _by_gather, _by_task, _by_group, _at_once],
    ids=lambda one: one.__name__,
)
async def test_a_limit_counts_for_waits_in_the_tasks_that_it_waits_for(
    app: Holdfast, limited: Callable[[Callable[[], Awaitable[Any]]], Awaitable[None]]
) -> None:
    @app.task
    async def order(ctx: Context) -> str:
        try:
            await limited(lambda: ctx.wait_for("go"))
        except TimeoutError as error:
            return type(error).__name__
        return "came"

    async with app.worker(**BRISK):
        assert await (await order.submit()).result(LIMIT) == "WaitTimeout"


async def test_a_limit_of_another_task_does_not_count(app: Holdfast) -> None:
    @app.task
    async def order(ctx: Context) -> Any:
        async def beside() -> None:
            async with asyncio.timeout(LIMIT):
                await asyncio.Event().wait()

        other = asyncio.create_task(beside())
        await asyncio.sleep(0)
        try:
            return await ctx.wait_for("go")
        finally:
            other.cancel()

    async with app.worker(**BRISK):
        job = await waits_for(await order.submit(), "go")
        assert job.record.run_at is None
        await job.signal("go", "ann")
        assert await job.result(LIMIT) == "ann"


async def test_a_durable_call_is_answered_though_the_loop_is_ending() -> None:
    asked = asyncio.Event()

    class Hangs:
        async def get(self, ids: object) -> None:
            asked.set()
            await asyncio.Event().wait()

    replies: list[Reply] = []
    durable_calls = DurableCalls(cast(Any, Hangs()), cast(Any, None), Meters())
    request = GatherChildren(ids=[str(mint_id())])
    held = cast(Any, SimpleNamespace(claimed=SimpleNamespace(job=None)))
    answering = asyncio.create_task(durable_calls.answer(held, request, replies.append))
    await asked.wait()
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert [type(reply) for reply in replies] == [NotRecorded]
