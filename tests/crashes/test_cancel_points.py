"""Cancel at every instant: at each named point of a job's way, from outside, softly and hard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import Context, crash_points
from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from tests.crashes.apps import BRISK as BRISK_LEASES
from tests.crashes.apps import begin, end, make_app
from tests.crashes.test_points import KILLS
from tests.crashes.waiting import all_ended, until
from tests.support.checker import assert_kept
from tests.support.resource import Resource

BRISK: dict[str, Any] = {"tick": "50ms", "poll": "50ms"}
INSIDE_A_WRITE = frozenset({"sqlite.committing", "sqlite.committed"})
"""Nobody else can write before it is over: the cancel is sent there, and comes right behind."""
BEFORE_THE_HANDLER = frozenset(
    {"claim.answered", "attempt.bound", "start.posted", "handler.entering"}
)
CANCELS = [
    pytest.param(engine, point, hard, id=f"{engine}-{point}-{'hard' if hard else 'soft'}")
    for number, (engine, point) in enumerate(KILLS)
    # Each point softly on one engine and hard on the other.
    for hard in [(number + (engine == "postgres")) % 2 == 0]
]


class Canceller:
    """Cancels a job from a loop and a store of its own, while a point is held."""

    def __init__(self, url: str, job_id: str, *, hard: bool) -> None:
        """Be ready to cancel one job."""
        self._app = make_app(url)
        self._job_id = job_id
        self._hard = hard
        self._once = threading.Lock()
        self._pool = ThreadPoolExecutor(1)
        self.sent: Future[State] | None = None

    def cancel(self, *, wait: bool) -> None:
        """Cancel now, the first time; called at a point, in whichever thread comes to it."""
        if not self._once.acquire(blocking=False):
            return
        self.sent = self._pool.submit(asyncio.run, self._cancel())
        if wait:
            self.sent.result(20)

    async def _cancel(self) -> State:
        async with self._app as app:
            handle = await app.get(self._job_id)
            return await handle.cancel(hard=self._hard)

    def close(self) -> None:
        """End its thread."""
        self._pool.shutdown()


@pytest.fixture
async def disarmed() -> AsyncIterator[None]:
    """No point stays armed after a test."""
    yield
    crash_points.disarm()


@pytest.mark.req("B12", "B13")
@pytest.mark.usefixtures("disarmed")
@pytest.mark.parametrize(("url", "point", "hard"), CANCELS, indirect=["url"])
async def test_a_cancel_at_any_instant_ends_the_job_once_and_for_good(
    url: str, resource: Resource, point: str, hard: bool
) -> None:
    running: set[int] = set()
    reasons: list[str | None] = []
    # Where the handler is yet to run it must be asked; else it ends before the cancel is seen.
    must_be_asked = point in BEFORE_THE_HANDLER
    seconds = 20.0 if must_be_asked else 0.4
    app = make_app(url)

    @app.task(retries=5, cancel_grace="50ms", **BRISK_LEASES)
    async def waits(ctx: Context) -> Any:
        running.add(ctx.attempt)
        try:
            begin(ctx)
            # Longer than half a lease, so that the keeper's points are come to as well.
            await asyncio.wait([asyncio.ensure_future(_asked(ctx))], timeout=seconds)
            return end(ctx)
        finally:
            reasons.append(ctx.cancelled.reason)
            running.discard(ctx.attempt)

    async with app:
        job = await waits.submit()
        canceller = Canceller(url, job.id, hard=hard)
        wait = point not in INSIDE_A_WRITE
        async with app.worker(**BRISK):
            # Armed once the worker runs: what it does of itself comes to some points, too.
            crash_points.arm(point, lambda: canceller.cancel(wait=wait))
            [state] = await all_ended([job])
            await until(lambda: canceller.sent is not None, "the point to be reached")
            # A job that says it is cancelled is dead, and whoever asked was told the truth.
            assert state in (State.CANCELLED, State.SUCCEEDED)
            if state is State.CANCELLED:
                assert not running
            if must_be_asked:
                assert reasons in ([], ["cancel"])
            crash_points.disarm()
        assert canceller.sent is not None
        told = await asyncio.wrap_future(canceller.sent)
        assert told in (state, State.CLAIMED, State.RUNNING)
        canceller.close()
        await assert_never_runs_again(app, job.id, resource)
        await assert_kept(await app.store(), resource, [job.id])


async def _asked(ctx: Context) -> None:
    await ctx.cancelled


async def assert_never_runs_again(app: Holdfast, job_id: str, resource: Resource) -> None:
    """A worker that comes later finds another job and not this one."""
    before = resource.of(job_id)
    another = await app.tasks["quick"].submit()
    async with app.worker(**BRISK):
        assert await all_ended([another]) == [State.SUCCEEDED]
    assert resource.of(job_id) == before
