"""Opening a SQLite store: what stands in the way is named, and nothing is left open."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.errors import StoreBroken
from holdfast.stores.sql_files import read_migrations
from holdfast.stores.sqlite import database, migrate
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.store_actions import submit_one


def still_open(path: Path) -> bool:
    return any(key[1] == str(path) for key in database._open)


async def test_opened_twice_at_once_it_is_closed_by_one_close(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await asyncio.gather(store.open(), store.open())
    assert await store.size() == 0
    await store.close()
    assert not still_open(sqlite_path)


async def test_the_page_caches_of_a_process_stay_small(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    found = [one for one in apsw.connections() if one.filename == str(sqlite_path)]
    # Negative: in KiB, whatever the size of a page.
    kibibytes = {-one.pragma("cache_size") for one in found}
    await store.close()
    [each] = kibibytes
    assert 1024 <= each * (database.READERS + 1) <= 24 * 1024


async def test_an_open_that_was_cancelled_is_undone_by_close(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    opening = asyncio.create_task(store.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await store.close()
    assert not still_open(sqlite_path)


async def test_an_open_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "later" / "holdfast.db")
    with pytest.raises(StoreBroken):
        await store.open()
    (tmp_path / "later").mkdir()
    await store.open()
    assert await store.size() == 0
    await store.close()


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "holdfast.db"
    with pytest.raises(StoreBroken) as refused:
        await SqliteStore(path).open()
    assert str(path) in str(refused.value)
    assert f"no directory {path.parent}" in str(refused.value)


async def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreBroken, match=f"{tmp_path}: it is a directory"):
        await SqliteStore(tmp_path).open()


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.db"
    path.write_text("a text, and longer than the header of a database file is " * 20)
    with pytest.raises(StoreBroken, match=f"{path}: file is not a database"):
        await SqliteStore(path).open()


async def test_what_stands_in_the_way_of_the_turnstile_is_named(
    tmp_path: Path, sqlite_path: Path
) -> None:
    turnstile = tmp_path / f"{sqlite_path.name}-turn"
    turnstile.mkdir()
    with pytest.raises(StoreBroken, match=f"{turnstile}: it is a directory"):
        await SqliteStore(sqlite_path).open()
    assert not still_open(sqlite_path)

    turnstile.rmdir()
    store = SqliteStore(sqlite_path)
    await store.open()
    await store.close()


async def test_a_directory_that_may_not_be_written_is_named() -> None:
    # Nothing is forbidden to root by permissions; the kernel's own directory is.
    with pytest.raises(StoreBroken, match="/proc"):
        await SqliteStore("/proc/holdfast.db").open()


async def test_whoever_opens_a_new_file_meanwhile_sees_no_half_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.db"
    seen: list[int | None] = []
    whole = list(read_migrations(migrate.PACKAGE))
    assert len(whole) > 1

    def watched(_: str) -> Iterator[tuple[int, str, str]]:
        for one in whole:
            yield one
            other = apsw.Connection(str(path))
            seen.append(migrate.read_last_migration(other))
            other.close()

    monkeypatch.setattr(migrate, "read_migrations", watched)
    monkeypatch.setattr(migrate, "latest", lambda: whole[-1][0])
    store = SqliteStore(path)
    await store.open()
    await store.close()
    assert seen == [None] * len(whole)


def modes_of_a_used_store(path: Path, umask: int) -> dict[str, int]:
    """Open a store, submit one job, and tell the modes of its files."""

    async def use() -> dict[str, int]:
        store = SqliteStore(path)
        await store.open()
        await submit_one(store)
        names = [name for name in os.listdir(path.parent) if name.startswith(path.name)]
        modes = {name: stat.S_IMODE(os.stat(path.parent / name).st_mode) for name in names}
        await store.close()
        return modes

    before = os.umask(umask)
    try:
        return asyncio.run(use())
    finally:
        os.umask(before)


def test_a_new_database_is_for_its_owner_alone(sqlite_path: Path) -> None:
    modes = modes_of_a_used_store(sqlite_path, 0o022)
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}


def test_a_database_that_a_group_shares_stays_shared(sqlite_path: Path) -> None:
    sqlite_path.touch()
    sqlite_path.chmod(0o660)
    assert set(modes_of_a_used_store(sqlite_path, 0o077).values()) == {0o660}
