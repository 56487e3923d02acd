"""The one writer of a process: callers share a transaction, and fail alone."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import apsw
import pytest
import pytest_asyncio

from holdfast.errors import LawBroken, LeaseConflictError, StoreBroken, StoreError, StoreFull
from holdfast.lifecycle import commands as c
from holdfast.ports.models import Committed, Submitted
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.turn import Turn
from holdfast.testing.factories import new_job, owner_of
from holdfast.testing.invariants import assert_invariants
from holdfast.testing.store_actions import chain, change, claim, claim_one, submit_one


@pytest_asyncio.fixture
async def store(sqlite_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(sqlite_path)
    await store.open()
    yield store
    await assert_invariants(store)
    await store.close()


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


@asynccontextmanager
async def busy_writer(store: SqliteStore) -> AsyncIterator[list[str]]:
    """Keep the writer in one transaction inside the block; tells each commit from then on."""
    commits: list[str] = []
    entered, released = threading.Event(), threading.Event()

    def note_commit() -> bool:
        commits.append("theirs" if commits else "the busy one's")
        return False

    def hold(turn: Turn) -> None:
        turn.connection.set_commit_hook(note_commit)
        entered.set()
        assert released.wait(30)

    holding = asyncio.create_task(store._session.perform(hold))
    assert await asyncio.to_thread(entered.wait, 30)
    try:
        yield commits
    finally:
        released.set()
        await holding


async def asked(*tasks: asyncio.Task[object]) -> None:
    """Let tasks run until each waits for its answer."""
    for _ in tasks:
        await asyncio.sleep(0)


async def test_callers_that_wait_share_one_transaction(store: SqliteStore) -> None:
    async with busy_writer(store) as commits:
        tasks = [asyncio.create_task(store.submit([new_job()])) for _ in range(20)]
        await asked(*tasks)
    outcomes = [outcome for [outcome] in await asyncio.gather(*tasks)]

    assert all(isinstance(outcome, Submitted) and outcome.created for outcome in outcomes)
    assert commits == ["the busy one's", "theirs"]


async def test_a_bad_caller_fails_alone(store: SqliteStore) -> None:
    def break_the_law(turn: Turn) -> None:
        turn.write("count", [("default", "default", 2, 1000)])
        turn.write(
            "event", [(b"x" * 16, 1, 1, None, 13, 0, 0, 0, *[None] * 3, 1, "me", *[None] * 7)]
        )

    async with busy_writer(store) as commits:
        tasks = [asyncio.create_task(store.submit([new_job()])) for _ in range(3)]
        bad = asyncio.create_task(store._session.perform(break_the_law))
        tasks += [asyncio.create_task(store.submit([new_job()])) for _ in range(3)]
        await asked(*tasks, bad)
    answers = await asyncio.gather(*tasks)

    assert all(isinstance(outcome, Submitted) for [outcome] in answers)
    assert commits == ["the busy one's", "theirs"]
    with pytest.raises(LawBroken):
        await bad


async def test_a_refused_caller_leaves_the_others_alone(store: SqliteStore) -> None:
    await submit_one(store)
    held = await claim_one(store, request_id="asked-twice")
    await store.commit(chain(held.job, c.Release(actor=owner_of(held.job))))
    async with busy_writer(store):
        again = asyncio.create_task(claim(store, request_id="asked-twice"))
        other = asyncio.create_task(store.submit([new_job()]))
        await asked(again, other)

    with pytest.raises(LeaseConflictError):
        await again
    assert isinstance((await other)[0], Submitted)


async def test_what_failed_as_a_whole_is_done_again_one_by_one(store: SqliteStore) -> None:
    def fill_the_disk(turn: Turn) -> None:
        raise apsw.FullError("as SQLite does when it has rolled everything back")

    async with busy_writer(store):
        before = asyncio.create_task(store.submit([new_job()]))
        bad = asyncio.create_task(store._session.perform(fill_the_disk))
        after = asyncio.create_task(store.submit([new_job()]))
        await asked(before, bad, after)

    assert isinstance((await before)[0], Submitted)
    assert isinstance((await after)[0], Submitted)
    with pytest.raises(StoreFull):
        await bad
    assert await store.size() == 2


async def test_cancelling_one_caller_cancels_nobody_else(store: SqliteStore) -> None:
    mine, other = new_job(), new_job()
    async with busy_writer(store):
        tasks = [asyncio.create_task(store.submit([job])) for job in (mine, other)]
        await asked(*tasks)
        tasks[0].cancel()
        await asked(*tasks)
    assert isinstance((await tasks[1])[0], Submitted)

    assert tasks[0].cancelled()
    # It shared a transaction: nobody knows for the caller, but the job is there.
    assert all(await store.get([mine.record.id, other.record.id]))


async def test_a_renewal_goes_ahead_of_the_queue(store: SqliteStore) -> None:
    await submit_one(store)
    held = (await claim_one(store)).job
    renewal = change(held, c.Heartbeat(actor=owner_of(held)))
    async with busy_writer(store):
        earlier = asyncio.create_task(store._session.perform(lambda turn: turn.get(held.id)))
        urgent = asyncio.create_task(store.commit([renewal]))
        await asked(earlier, urgent)

    seen = await earlier
    assert isinstance((await urgent)[0], Committed)
    assert seen is not None
    assert seen.rev == held.rev + 1


async def test_stores_of_one_file_share_its_writer(store: SqliteStore, sqlite_path: Path) -> None:
    async with opened(sqlite_path) as second:
        async with busy_writer(store) as commits:
            tasks = [asyncio.create_task(one.submit([new_job()])) for one in (store, second)]
            await asked(*tasks)
        await asyncio.gather(*tasks)
    assert commits == ["the busy one's", "theirs"]
    assert await store.size() == 2


async def test_closing_finishes_what_was_begun(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    async with busy_writer(store):
        begun = asyncio.create_task(store.submit([new_job()]))
        await asked(begun)
        closing = asyncio.create_task(store.close())
        await asked(closing)
    await closing
    assert isinstance((await begun)[0], Submitted)
    with pytest.raises(StoreError, match="not open"):
        await store.submit([new_job()])


async def test_a_store_in_memory_ends_with_its_last_user() -> None:
    first, second = SqliteStore(":memory:"), SqliteStore(":memory:")
    await first.open()
    await second.open()
    await submit_one(first)
    assert await second.size() == 1
    await first.close()
    assert await second.size() == 1
    await second.close()
    await first.open()
    assert await first.size() == 0
    await first.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_fork_is_told_to_open_a_store_of_its_own(store: SqliteStore) -> None:
    child = os.fork()
    if child == 0:
        try:
            store.size().send(None)
        except StoreError as error:
            os._exit(0 if "fork" in str(error) else 2)
        finally:
            os._exit(1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


class FailingConnection:
    """A writer's connection of which some statements fail, as they are sent."""

    def __init__(self, connection: apsw.Connection, *statements: str) -> None:
        self._connection = connection
        self.failing = statements
        self.spared = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *values: Any) -> apsw.Cursor:
        if statement in self.failing:
            self.spared -= 1
        if statement in self.failing and self.spared < 0:
            raise apsw.FullError(f"{statement} failed")
        return self._connection.execute(statement, *values)


def failing(store: SqliteStore, *statements: str) -> FailingConnection:
    """Let these statements of the writer fail from now on."""
    writer = store._session.database.writer
    connection = FailingConnection(writer._connection, *statements)
    writer._connection = cast("Any", connection)
    return connection


async def test_when_commit_and_rollback_fail_callers_are_told_and_the_next_is_served(
    store: SqliteStore,
) -> None:
    disk = failing(store, "COMMIT", "ROLLBACK")
    for _ in range(2):
        with pytest.raises(StoreFull):
            await asyncio.wait_for(store.submit([new_job()]), 30)

    disk.failing = ()
    assert isinstance((await store.submit([new_job()]))[0], Submitted)
    assert await store.size() == 1


async def test_a_writer_that_stops_tells_all_who_wait_and_all_who_come(sqlite_path: Path) -> None:
    def stop(turn: Turn) -> None:
        raise SystemExit

    store = SqliteStore(sqlite_path)
    await store.open()
    async with busy_writer(store):
        others = [asyncio.create_task(store.submit([new_job()])) for _ in range(3)]
        stopping = asyncio.create_task(store._session.perform(stop))
        await asked(*others, stopping)
    for task in (*others, stopping):
        with pytest.raises(StoreBroken, match="open them again"):
            await asyncio.wait_for(task, 30)
    with pytest.raises(StoreBroken, match="open them again"):
        await asyncio.wait_for(store.submit([new_job()]), 30)
    await store.close()

    await store.open()
    assert isinstance((await store.submit([new_job()]))[0], Submitted)
    await store.close()


async def test_needs_that_were_rolled_back_do_not_hide_others(store: SqliteStore) -> None:
    disk = failing(store)
    able = frozenset({"gpu", "cpu"})
    async with busy_writer(store):
        lost = asyncio.create_task(store.submit([new_job(needs=frozenset({"gpu"}))]))
        seen = asyncio.create_task(claim(store, capabilities=able))
        await asked(lost, seen)
        disk.failing, disk.spared = ("COMMIT",), 1
    for task in (lost, seen):
        with pytest.raises(StoreFull):
            await task

    disk.failing = ()
    job = await submit_one(store, needs=frozenset({"cpu"}))
    assert [one.job.id for one in await claim(store, capabilities=able)] == [job.id]


async def test_a_claim_is_planned_once_and_not_for_each_time_of_the_clock(
    store: SqliteStore,
) -> None:
    planned: list[str | None] = []

    def note(operation: int, table: str | None, *_: str | None) -> int:
        # SQLite asks whenever it plans a statement.
        planned.append(table)
        return apsw.SQLITE_OK

    def watch(turn: Turn) -> None:
        turn.connection.authorizer = note

    await store._session.perform(watch)
    await claim(store)
    assert "jobs" in planned
    planned.clear()
    await claim(store)
    assert "jobs" not in planned
