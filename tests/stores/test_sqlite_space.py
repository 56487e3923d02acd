"""What a purge frees, SQLite gives back to the file system, some pages at a time."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.flow.purge import PurgeTerms, purge_all
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import State
from holdfast.ports.models import Committed
from holdfast.stores.sqlite import upkeep
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import CONTROL, JANITOR, new_job
from holdfast.testing.store_actions import all_jobs, change, job_in, submit_one
from tests.stores.ledgers import problems_of

AT_ONCE = PurgeTerms(succeeded=0, unsuccessful=0)
JOBS = 1000


async def _filled(path: Path) -> SqliteStore:
    """A store of many jobs that have ended."""
    store = SqliteStore(path)
    await store.open()
    await store.submit([new_job(body=b'"%s"' % (b"x" * 2000)) for _ in range(JOBS)])
    ended = [change(job, c.Cancel(actor=CONTROL)) for job in await all_jobs(store)]
    assert all(isinstance(one, Committed) for one in await store.commit(ended))
    await submit_one(store, queue="newest")
    return store


async def test_the_file_shrinks_when_jobs_are_purged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "GIVE_BACK_PAGES", 50)
    path = tmp_path / "jobs.db"
    store = await _filled(path)
    await store.close()
    before = path.stat().st_size

    await store.open()
    report = await purge_all(store, JANITOR, AT_ONCE)
    assert report.jobs >= JOBS - 1
    assert report.bytes > 0
    assert await store.give_back_space() == 0
    assert await problems_of(store) == []
    await store.close()
    assert path.stat().st_size < before / 5


async def test_a_transaction_gives_back_a_bounded_number_of_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    store = await _filled(path)
    await store.close()
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE mine AS SELECT * FROM events; DROP TABLE mine")
    page = connection.pragma("page_size")
    assert connection.pragma("freelist_count") > 100
    connection.close()

    monkeypatch.setattr(upkeep, "GIVE_BACK_PAGES", 10)
    await store.open()
    assert [await store.give_back_space() for _ in range(3)] == [10 * page] * 3
    await store.close()


async def test_a_file_that_was_made_without_auto_vacuum_keeps_its_free_pages(
    tmp_path: Path,
) -> None:
    path = tmp_path / "old.db"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA auto_vacuum = NONE")
    connection.execute("CREATE TABLE mine (x); DROP TABLE mine")
    connection.close()
    store = await _filled(path)
    report = await purge_all(store, JANITOR, AT_ONCE)
    assert (report.jobs >= JOBS - 1, report.bytes) == (True, 0)
    await store.close()


async def test_no_position_of_the_tail_is_given_twice_after_a_purge(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.open()
    await job_in(store, State.SUCCEEDED)
    last = await job_in(store, State.SUCCEEDED)
    await purge_all(store, JANITOR, AT_ONCE)
    cursor = await store.tail_end()
    # Nothing came since: the job of the newest event is kept.
    report = await purge_all(store, JANITOR, AT_ONCE)
    assert (report.jobs, report.kept) == (0, 1)
    assert await store.get([last.id]) != [None]

    new = await submit_one(store)
    assert [event.id for event in (await store.tail(cursor)).events] == [new.id]
    assert (await purge_all(store, JANITOR, AT_ONCE)).jobs == 1
    await store.close()
