"""From ordinary threads: the same calls over one background loop, and lazy opening."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast import NOT_HAPPENED, Holdfast, ResultTimeout
from holdfast.errors import Refused, StoreError, ValidationError
from holdfast.lifecycle.states import State
from tests.app.acts import watched_app
from tests.app.test_submit import greeter


def bridges() -> int:
    """Count the background threads."""
    return sum(thread.name == "holdfast bridge" for thread in threading.enumerate())


def test_a_thread_submits_and_waits_without_a_loop(url: str) -> None:
    app = Holdfast(url)
    greet = greeter(app)
    job = greet.submit_sync("Ada")
    assert (job.created, job.state) == (True, State.QUEUED)
    with pytest.raises(ResultTimeout):
        job.result_sync(0.01)
    job.signal_sync("approved", {"by": "ann"})
    assert [one.name for one in job.record.signals] == ["approved"]
    with pytest.raises(Refused, match="waits for nothing"):
        job.resolve_sync("charge", NOT_HAPPENED)
    job.hold_sync(reason="look first")
    assert list(job.record.held_by) == ["operator"]
    job.unhold_sync()
    job.reschedule_sync(delay="5m")
    assert list(job.record.held_by) == []
    assert job.record.run_at is not None
    assert job.cancel_sync(reason="enough") is State.CANCELLED
    assert job.wait_sync() is State.CANCELLED
    assert app.get_sync(job.id).refresh_sync().state is State.CANCELLED
    many = greet.submit_many_sync([("a",), ("b",)])
    assert len({one.id for one in many}) == 2
    assert app.submit_sync("other", n=1).record.task == "other"
    app.close_sync()


def test_threads_share_one_loop_and_their_submits_gather(url: str) -> None:
    app, store = watched_app(url)
    greet = greeter(app)
    before = bridges()
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(greet.submit_sync, map(str, range(64))))
    assert len({job.id for job in jobs}) == 64
    assert sum(store.batches) == 64
    assert bridges() == before + 1
    app.close_sync()
    assert bridges() == before


def test_a_bad_argument_is_told_to_the_thread(url: str) -> None:
    app = Holdfast(url)
    greet: Any = greeter(app)
    with pytest.raises(ValidationError, match="name"):
        greet.submit_sync(3)
    app.close_sync()


async def test_within_a_loop_the_way_to_await_is_told() -> None:
    app = Holdfast(":memory:")
    with pytest.raises(RuntimeError, match=r"await greet\.submit\(…\) instead"):
        greeter(app).submit_sync("Ada")


async def test_a_thread_beside_the_loop_has_the_same_jobs(app: Holdfast) -> None:
    greet = greeter(app)
    job = await asyncio.to_thread(greet.submit_sync, "Ada")
    assert (await app.get(job.id)).record == job.record
    # A handle belongs to no loop: either side may ask.
    assert await job.cancel() is State.CANCELLED


def test_an_app_closes_with_each_loop_that_used_it(url: str) -> None:
    app, store = watched_app(url)
    greet = greeter(app)

    async def use() -> bool:
        return (await greet.submit("Ada")).created

    async def closed() -> None:
        with pytest.raises(StoreError):
            await store.counts()

    assert asyncio.run(use())
    asyncio.run(closed())
    assert asyncio.run(use())


async def test_an_app_is_usable_again_after_it_was_closed(url: str) -> None:
    app = Holdfast(url)
    greet = greeter(app)
    async with app:
        async with app:
            await greet.submit("a")
        assert (await greet.submit("b")).created
    assert (await greet.submit("c")).created
    await app.close()


async def test_what_could_not_be_opened_is_tried_anew(url: str) -> None:
    app, store = watched_app(url)

    async def away() -> None:
        raise StoreError("away")

    store.opening = away
    greet = greeter(app)
    answers = await asyncio.gather(greet.submit("a"), greet.submit("b"), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreError}
    store.opening = None
    assert (await greet.submit("c")).created
    await app.close()


def test_an_app_does_not_tell_its_password() -> None:
    for url in ("postgresql://me:secret@host/jobs", "postgresql://host/jobs?password=secret"):
        assert "host/jobs>" in repr(Holdfast(url))
        assert "secret" not in repr(Holdfast(url))
