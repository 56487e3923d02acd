"""A SQLite file that is removed or replaced while it is open: nothing more is acknowledged."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast import Holdfast
from holdfast.errors import StoreReplaced
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import new_job
from holdfast.testing.store_actions import claim, submit_one


@pytest_asyncio.fixture
async def store(sqlite_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(sqlite_path)
    await store.open()
    await submit_one(store)
    yield store
    await store.close()


def remove(path: Path) -> None:
    path.unlink()


def remove_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def rename(path: Path) -> None:
    path.rename(path.with_suffix(".old"))


def put_back(path: Path) -> None:
    path.with_suffix(".old").rename(path)


def restore_a_copy(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    os.replace(copy, path)


@pytest.mark.req("B29")
@pytest.mark.parametrize("replace", [remove, remove_log, rename, restore_a_copy])
async def test_a_submit_into_a_file_that_is_gone_is_not_acknowledged(
    store: SqliteStore, sqlite_path: Path, replace: Callable[[Path], None]
) -> None:
    replace(sqlite_path)
    with pytest.raises(StoreReplaced) as refused:
        await store.submit([new_job()])
    assert refused.value.code == "store_replaced"
    assert str(sqlite_path) in str(refused.value)
    with pytest.raises(StoreReplaced):
        await claim(store)
    with pytest.raises(StoreReplaced):
        await store.clock()


async def test_a_file_that_is_put_back_serves_again(store: SqliteStore, sqlite_path: Path) -> None:
    rename(sqlite_path)
    with pytest.raises(StoreReplaced):
        await store.size()
    put_back(sqlite_path)
    await submit_one(store)


async def test_a_worker_on_a_file_that_was_replaced_stops_and_names_the_file(
    sqlite_path: Path,
) -> None:
    app = Holdfast(str(sqlite_path))
    worker = app.worker(poll="20ms", grace="100ms")

    async def work() -> None:
        async with worker:
            restore_a_copy(sqlite_path)
            await asyncio.wait_for(worker.stopped(), 20)

    with pytest.raises(StoreReplaced, match=f"{sqlite_path} was replaced"):
        await work()
    await app.close()
