"""Many processes on one SQLite file: nobody is told that it is locked, everybody is woken."""

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
import pytest_asyncio

from holdfast.errors import StoreUnavailable
from holdfast.lifecycle.states import State
from holdfast.stores.sqlite import notices
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import new_job
from holdfast.testing.invariants import assert_invariants
from holdfast.testing.store_actions import claim, submit_one
from tests.stores import sqlite_targets
from tests.support.processes import ProcessGroup, run_together

PROCESSES = 64
ROUNDS = 2


@pytest_asyncio.fixture
async def store(sqlite_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(sqlite_path, deadline_seconds=20)
    await store.open()
    yield store
    await store.close()


@pytest.mark.crowd
async def test_64_processes_on_a_new_file_are_never_told_that_it_is_locked(
    sqlite_path: Path,
) -> None:
    arguments = [
        {"path": str(sqlite_path), "owner": f"worker-{number}", "rounds": ROUNDS}
        for number in range(PROCESSES)
    ]
    # Whatever a process raised is raised here; opening a file that is not there is part of it.
    longest = await asyncio.to_thread(
        run_together, sqlite_targets.live, arguments, limit_seconds=100
    )
    assert len(longest) == PROCESSES
    store = SqliteStore(sqlite_path)
    await store.open()
    assert [(count.state, count.jobs) for count in await store.counts()] == [
        (State.SUCCEEDED, PROCESSES * ROUNDS)
    ]
    await assert_invariants(store)
    await store.close()


async def test_a_file_that_stays_locked_is_unavailable_at_the_deadline(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path, deadline_seconds=0.2)
    await store.open()
    foreign = apsw.Connection(str(sqlite_path))
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="busy"):
        await store.submit([new_job()])
    foreign.execute("ROLLBACK")
    foreign.close()
    await submit_one(store)
    assert await store.size() == 1
    await store.close()


async def test_a_stopped_process_is_waited_for_once_not_in_every_transaction(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(sqlite_path, deadline_seconds=6)
    await store.open()
    stopped = os.open(f"{sqlite_path}-turn", os.O_RDWR)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    await submit_one(store)
    asked = 0
    flock = fcntl.flock

    def count(file: int, operation: int) -> None:
        nonlocal asked
        asked += 1
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", count)
    await submit_one(store)
    # One look at the line, and one unlock of what it does not have: it is not waited for again.
    assert asked <= 2
    os.close(stopped)
    await submit_one(store)
    before = asked
    await submit_one(store)
    assert asked == before + 2, "the line is used again once it moves"
    await store.close()


async def test_a_process_stopped_in_the_line_keeps_nobody_out(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path, deadline_seconds=1.5)
    await store.open()
    file = os.open(f"{sqlite_path}-turn", os.O_RDWR)
    fcntl.flock(file, fcntl.LOCK_EX)
    await submit_one(store)
    os.close(file)
    await store.close()


@pytest.mark.parametrize("watched", [True, False], ids=["by a notice", "by the clock"])
async def test_a_submit_of_another_process_wakes_a_waiting_worker(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    if not watched:
        monkeypatch.setattr(notices, "_watch", lambda path: None)
    store = SqliteStore(sqlite_path)
    await store.open()
    assert store._session.database.writer._notices.are_watched == watched
    assert await claim(store) == []
    with ProcessGroup(
        sqlite_targets.submit_one, [{"path": str(store._session.place.path)}]
    ) as group:
        waiting = asyncio.create_task(store.wake_up(["default"], limit_seconds=60))
        group.go()
        assert await waiting
        await asyncio.to_thread(group.results)
    assert len(await claim(store)) == 1
    await store.close()


async def test_only_a_commit_that_brings_work_sends_a_notice(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    writer = store._session.database.writer
    monkeypatch.setattr(writer._notices, "send", lambda: sent.append("sent"))
    await submit_one(store)
    assert sent == ["sent"]

    assert len(await claim(store)) == 1
    assert sent == ["sent"]


async def test_a_submit_of_this_process_wakes_only_who_waits_for_its_queue(
    store: SqliteStore,
) -> None:
    await claim(store, "mail")
    await claim(store, "video")
    mail = asyncio.create_task(store.wake_up(["mail"], limit_seconds=60))
    video = asyncio.create_task(store.wake_up(["video"], limit_seconds=0.2))
    await submit_one(store, queue="mail")

    assert await mail
    assert not await video


async def test_work_that_came_between_a_claim_and_the_wait_is_not_missed(
    store: SqliteStore,
) -> None:
    assert await claim(store) == []
    await submit_one(store)
    assert await store.wake_up(["default"], limit_seconds=0)

    assert len(await claim(store)) == 1
    assert not await store.wake_up(["default"], limit_seconds=0)


async def test_a_wait_that_is_given_up_leaves_nothing_behind(store: SqliteStore) -> None:
    await claim(store)
    waiting = asyncio.create_task(store.wake_up(["default"], limit_seconds=60))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert store._session.database.writer.news.next_look_seconds() is None


async def test_a_killed_writer_leaves_an_intact_file(sqlite_path: Path) -> None:
    arguments = [
        {"path": str(sqlite_path), "owner": f"worker-{number}", "rounds": 10_000}
        for number in range(4)
    ]
    with ProcessGroup(sqlite_targets.live, arguments) as group:
        group.go()
        store = SqliteStore(sqlite_path)
        await store.open()
        while await store.size() < 20:
            await store.wake_up(["default"], limit_seconds=5)
        for pid in group.pids:
            os.kill(pid, signal.SIGKILL)
        await submit_one(store)
    await assert_invariants(store)
    await store.close()
