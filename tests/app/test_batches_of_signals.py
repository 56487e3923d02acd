"""Signals of many callers at once gather as submits do; each is decided for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import BadData, LawBroken, Refused, StoreBroken, StoreUnavailable
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.record import Change, JobId
from holdfast.lifecycle.states import State
from holdfast.operations import batches
from holdfast.tasks.handles import JobHandle
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import claim, do
from tests.app.acts import Gate, Watched
from tests.app.test_submit import greeter


@pytest.fixture
async def jobs(watched: tuple[Holdfast, Watched]) -> list[JobHandle[Any]]:
    """Jobs that nobody has taken yet."""
    app, store = watched
    jobs = await greeter(app).submit_many([(str(number),) for number in range(100)])
    store.looks.clear()
    return list(jobs)


async def signals_of(job: JobHandle[Any]) -> list[str]:
    """Read what signals a job was sent."""
    return [signal.name for signal in (await job.refresh()).record.signals]


async def test_100_concurrent_signals_are_few_calls_of_the_store(
    jobs: list[JobHandle[Any]], store: Watched
) -> None:
    await asyncio.gather(*(job.signal("go") for job in jobs))
    assert sum(store.commits) == 100
    assert len(store.commits) <= 2
    assert len(store.looks) <= 4
    assert [await signals_of(job) for job in jobs[::25]] == [["go"]] * 4


@pytest.mark.req("E5")
async def test_each_of_them_wakes_the_job_that_waits_for_it_in_the_same_commit(
    watched: tuple[Holdfast, Watched], jobs: list[JobHandle[Any]]
) -> None:
    app, store = watched
    for claimed in await claim(await app.store(), "default", limit=100):
        running = await do(store, claimed.job, c.Start(actor=owner_of(claimed.job)))
        await do(store, running, c.Wait(actor=owner_of(running), signal="go"))
    store.commits.clear()
    await asyncio.gather(*(job.signal("go") for job in jobs))
    assert sum(store.commits) == 200
    assert len(store.commits) <= 2
    assert {(await job.refresh()).state for job in jobs} == {State.QUEUED}


async def test_signals_to_one_job_at_once_are_all_there(jobs: list[JobHandle[Any]]) -> None:
    # More than a command is decided anew where others came first.
    names = [f"s{number}" for number in range(REBASES + 115)]
    await asyncio.gather(*(jobs[0].signal(name) for name in names))
    assert sorted(await signals_of(jobs[0])) == sorted(names)


async def test_a_signal_and_the_waking_stay_together_where_the_body_fills_a_batch(
    watched: tuple[Holdfast, Watched],
    jobs: list[JobHandle[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, store = watched
    [claimed] = await claim(await app.store(), "default", limit=1)
    running = await do(store, claimed.job, c.Start(actor=owner_of(claimed.job)))
    await do(store, running, c.Wait(actor=owner_of(running), signal="go"))
    store.commits.clear()
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    job = await app.get(claimed.job.id)
    await asyncio.gather(job.signal("go", "x" * 5000), jobs[-1].signal("go", "x" * 900))
    assert sorted(store.commits) == [1, 2]
    assert (await job.refresh()).state is State.QUEUED


async def test_one_that_is_refused_fails_alone(jobs: list[JobHandle[Any]]) -> None:
    await jobs[3].cancel()
    answers = await asyncio.gather(
        jobs[0].signal("go"),
        jobs[3].signal("go"),
        jobs[1].signal("holdfast:mine"),
        jobs[2].signal("go"),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers[1:3]] == [Refused, BadData]
    assert [await signals_of(job) for job in jobs[:3]] == [["go"], [], ["go"]]


async def test_a_caller_that_goes_away_does_not_take_the_others_along(
    jobs: list[JobHandle[Any]], store: Watched
) -> None:
    gate = store.committing = Gate()
    leaving = asyncio.create_task(jobs[0].signal("go"))
    staying = asyncio.create_task(jobs[1].signal("go"))
    await gate.reached.wait()
    assert store.commits == [2]
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.opened.set()
    await staying
    assert await signals_of(jobs[1]) == ["go"]


async def test_each_caller_is_told_of_its_own_job_when_the_store_is_away(
    jobs: list[JobHandle[Any]], store: Watched
) -> None:
    async def away(changes: Sequence[Change]) -> None:
        raise StoreUnavailable("away")

    store.committing = away
    answers = await asyncio.gather(*(job.signal("go") for job in jobs[:3]), return_exceptions=True)
    assert store.commits == [3]
    assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert {getattr(answer, "job_id", None) for answer in answers} == {job.id for job in jobs[:3]}
    store.committing = None
    await jobs[0].signal("go")
    assert await signals_of(jobs[0]) == ["go"]


async def test_a_batch_that_failed_after_it_was_written_is_written_once(
    jobs: list[JobHandle[Any]], store: Watched
) -> None:
    async def poison(changes: Sequence[Change]) -> None:
        if len(changes) > 1:
            raise LawBroken("one of them cannot be told")

    store.committed = poison
    await asyncio.gather(*(job.signal("pay") for job in jobs[:3]))
    assert store.commits == [3, 1, 1, 1]
    assert [await signals_of(job) for job in jobs[:3]] == [["pay"]] * 3


async def test_a_row_that_cannot_be_read_fails_nobody_else(
    jobs: list[JobHandle[Any]], store: Watched
) -> None:
    async def broken(ids: Sequence[JobId]) -> None:
        if jobs[1].record.id in ids:
            raise StoreBroken("a page of it is damaged")

    store.looking = broken
    answers = await asyncio.gather(*(job.refresh() for job in jobs[:3]), return_exceptions=True)
    assert [type(answer) for answer in answers].count(StoreBroken) == 1
    assert isinstance(answers[1], StoreBroken)


class Stuck(Gate):
    """Holds only the first call up."""

    async def __call__(self, sent: Any) -> None:
        """Wait, or go past whoever waits."""
        if not self.reached.is_set():
            await super().__call__(sent)


async def test_a_batch_that_is_stuck_holds_nobody_else_up(
    jobs: list[JobHandle[Any]], store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "STUCK_SECONDS", 0.05)
    gate = store.committing = Stuck()
    first = asyncio.create_task(jobs[0].signal("go"))
    await gate.reached.wait()
    # Those that wait already, and those that come when it is known to be stuck.
    await asyncio.gather(*(job.signal("go") for job in jobs[1:4]))
    await asyncio.gather(*(job.signal("go") for job in jobs[4:7]))
    assert not first.done()
    gate.opened.set()
    await first
    assert [await signals_of(job) for job in jobs[:7]] == [["go"]] * 7
    await jobs[7].signal("go")


async def test_nobody_waits_for_a_turn_without_a_limit(
    jobs: list[JobHandle[Any]], store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "STUCK_SECONDS", 0.05)
    monkeypatch.setattr(batches, "TURN_SECONDS", 0.05)
    gate = store.committing = Stuck()
    first = asyncio.create_task(jobs[0].signal("first"))
    await gate.reached.wait()
    await jobs[0].signal("second")
    assert not first.done()
    gate.opened.set()
    await first
    assert sorted(await signals_of(jobs[0])) == ["first", "second"]


async def test_whoever_goes_away_in_a_turn_lets_the_next_one_in(
    jobs: list[JobHandle[Any]], store: Watched
) -> None:
    gate = store.committing = Stuck()
    holding = asyncio.create_task(jobs[0].signal("holding"))
    await gate.reached.wait()
    waiting, last = (asyncio.create_task(jobs[0].signal(name)) for name in ("waiting", "last"))
    await asyncio.sleep(0.05)
    waiting.cancel()
    holding.cancel()
    gate.opened.set()
    await last
    assert "waiting" not in await signals_of(jobs[0])
    assert "last" in await signals_of(jobs[0])
