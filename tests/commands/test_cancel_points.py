"""A cancel at every point of a command's way: one end, lawful, and nothing that runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from holdfast import crash_points
from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import EventType, State
from holdfast.lifecycle.times import SECOND, After
from holdfast.tasks.handles import JobHandle
from tests.commands.support import LIMIT_SECONDS, RUNS, CommandPlace, runs

SQLITE = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
TWO_RUNNERS = pytest.mark.parametrize("runner", ["process", "podman"], indirect=True)
BEFORE_THE_START = ("room.claimed", "attempt.bound", "box.created", "start.posted")
WHILE_IT_RUNS = ("handler.entering", "box.started")
AFTER_ITS_END = ("box.exited", "finish.posted")
LISTENS = "trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
DEAF = "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done"


@contextmanager
def once_at(point: str, act: Callable[[], None]) -> Iterator[Event]:
    """Do something when the worker of this process is at a point; it waits there meanwhile."""
    reached = Event()

    def act_once() -> None:
        if not reached.is_set():
            reached.set()
            act()

    crash_points.arm(point, act_once)
    try:
        yield reached
    finally:
        crash_points.disarm()


def cancel_elsewhere(place: CommandPlace, job: JobHandle[Any], *, hard: bool) -> None:
    """Cancel from another thread and connection, and return once it is on record."""

    async def cancel() -> None:
        async with Holdfast(place.url) as app:
            await (await app.get(job.id)).cancel(hard=hard)

    thread = Thread(target=lambda: asyncio.run(cancel()))
    thread.start()
    thread.join(LIMIT_SECONDS)


async def ends(place: CommandPlace, job: JobHandle[Any]) -> list[EventType]:
    """Return all events that ended the job: there is one."""
    return [event.type for event in await place.events(job) if event.ends]


@SQLITE
@TWO_RUNNERS
@pytest.mark.req("D7", "D8")
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("point", BEFORE_THE_START)
async def test_a_cancel_before_the_start_is_the_end_of_a_command_that_never_ran(
    place: CommandPlace, point: str, hard: bool
) -> None:
    job = await place.submit(RUNS + LISTENS)
    with once_at(point, lambda: cancel_elsewhere(place, job, hard=hard)) as reached:
        # Neither a look at the request nor a sweep for boxes comes within the time of the test.
        async with place.worker(tick="60s", pause_seconds=60.0):
            record = await place.ended(job)
            assert reached.is_set()
            await place.cleared()
    assert (record.state, record.exit_code) == (State.CANCELLED, None)
    assert await runs(place, job) == 0
    assert await ends(place, job) == [EventType.CANCELLED]


@SQLITE
@TWO_RUNNERS
@pytest.mark.req("D7")
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("point", WHILE_IT_RUNS)
async def test_a_cancel_after_the_start_kills_the_command(
    place: CommandPlace, point: str, hard: bool
) -> None:
    job = await place.submit(RUNS + LISTENS)
    with once_at(point, lambda: cancel_elsewhere(place, job, hard=hard)) as reached:
        async with place.worker():
            record = await place.ended(job)
            assert reached.is_set()
            await place.cleared()
    assert record.state is State.CANCELLED
    # SIGTERM may reach the command before it listens, or the runtime before it has handed over to
    # the command (it exits with 2 then), and a kill may come before anything runs. The kernel drops
    # it for the first process of a namespace that does not listen yet: then it is killed.
    assert record.exit_code in ({137, None} if hard else {7, 143, 2, 137, None})
    if record.exit_code is None:
        assert await runs(place, job) == 0
    assert await ends(place, job) == [EventType.CANCELLED]


@SQLITE
@TWO_RUNNERS
@pytest.mark.req("D7")
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("point", AFTER_ITS_END)
async def test_a_cancel_after_the_end_of_a_command_is_too_late(
    place: CommandPlace, point: str, hard: bool
) -> None:
    job = await place.submit(RUNS + "exit 3")
    with once_at(point, lambda: cancel_elsewhere(place, job, hard=hard)) as reached:
        async with place.worker():
            record = await place.ended(job)
            assert reached.is_set()
    assert (record.state, record.exit_code) == (State.FAILED, 3)
    assert await runs(place, job) == 1
    assert await ends(place, job) == [EventType.FAILED]


@SQLITE
@TWO_RUNNERS
@pytest.mark.req("D7", "B13")
async def test_a_hard_cancel_ends_the_grace_of_a_soft_one(place: CommandPlace) -> None:
    async with place.worker(grace_seconds=10 * LIMIT_SECONDS):
        job = await place.submit(DEAF)
        await place.running(job)
        await job.cancel()
        await place.running(job, "term")
        await job.cancel(hard=True)
        record = await place.ended(job)
    assert (record.state, record.exit_code) == (State.CANCELLED, 137)


@SQLITE
@pytest.mark.req("B13")
async def test_a_hard_cancel_sends_no_sigterm(place: CommandPlace) -> None:
    async with place.worker():
        job = await place.submit(DEAF)
        await place.running(job)
        await job.cancel(hard=True)
        record = await place.ended(job)
        output = await place.output(job)
    assert (record.state, record.exit_code) == (State.CANCELLED, 137)
    assert output == ["ready"]


@SQLITE
@TWO_RUNNERS
@pytest.mark.req("D7")
async def test_a_command_is_cancelled_with_its_parent(place: CommandPlace) -> None:
    async with place.worker():
        parent = await place.submit(LISTENS)
        child = await place.app.submit_command(LISTENS, parent=parent, cpus=1, memory_gb=1)
        waits = await place.app.submit_command(LISTENS, parent=parent, cpus=8, memory_gb=1)
        for job in (parent, child):
            await place.running(job)
        await parent.cancel()
        records = [await place.ended(job) for job in (parent, child, waits)]
    assert {record.state for record in records} == {State.CANCELLED}
    assert [record.exit_code for record in records] == [7, 7, None]


@SQLITE
@TWO_RUNNERS
@pytest.mark.req("D6")
async def test_a_deadline_ends_a_command_that_runs_and_one_that_waits(place: CommandPlace) -> None:
    async with place.worker():
        runner = await place.submit(LISTENS, cpus=4, deadline_at=After(6 * SECOND))
        await place.running(runner)
        # Long before there is room for it.
        waiter = await place.submit(LISTENS, cpus=4, deadline_at=After(SECOND))
        records = [await place.ended(job) for job in (runner, waiter)]
    assert {record.state for record in records} == {State.TIMED_OUT}
    assert {record.error_code for record in records} == {"deadline"}
    assert [record.exit_code for record in records] == [7, None]
