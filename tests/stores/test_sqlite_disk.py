"""What the disk may do to a SQLite file: be full, fail, lose its power. Nothing told is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.errors import StoreBroken, StoreError, StoreFull
from holdfast.lifecycle import commands as c
from holdfast.ports.models import Committed, Submitted
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import new_job, owner_of
from holdfast.testing.invariants import assert_invariants
from holdfast.testing.store_actions import chain, claim, submit_one
from tests.stores.faulty_disk import FaultyDisk
from tests.support.disk_model import Loss
from tests.support.power_cut import CrashImage, Recording, crash_images
from tests.support.small_disk import fill, small_disk
from tests.support.unavailable import Unavailable

BIG = b'"' + b"x" * 50_000 + b'"'


@pytest.fixture
def disk() -> Iterator[Path]:
    try:
        with small_disk(megabytes=16) as root:
            yield root
    except Unavailable as reason:
        pytest.skip(str(reason))


def integrity(path: Path) -> object:
    database = apsw.Connection(str(path))
    try:
        return database.pragma("integrity_check")
    finally:
        database.close()


async def submit_many(store: SqliteStore) -> None:
    for _ in range(100):
        await store.submit([new_job(body=BIG)])


async def test_a_full_disk_is_said_and_works_again_once_there_is_room(disk: Path) -> None:
    store = SqliteStore(disk / "holdfast.db")
    await store.open()
    kept = [await submit_one(store) for _ in range(3)]
    ballast = fill(disk, leave_bytes=200_000)
    with pytest.raises(StoreFull):
        await submit_many(store)
    told = await store.size()
    with pytest.raises(StoreFull):
        await store.submit([new_job(body=b"[" + BIG + b"," + BIG + b"]")])

    assert await store.size() == told
    assert await store.get([job.id for job in kept]) == kept
    await assert_invariants(store)
    ballast.unlink()
    await submit_one(store, body=BIG)
    assert await store.size() == told + 1
    await assert_invariants(store)
    await store.close()
    assert integrity(disk / "holdfast.db") == "ok"


@pytest.mark.parametrize("failing", ["write", "sync"])
async def test_an_io_error_is_told_and_the_store_goes_on_afterwards(
    sqlite_path: Path, failing: str
) -> None:
    with FaultyDisk() as faulty:
        store = SqliteStore(sqlite_path, vfs=faulty.vfs_name)
        await store.open()
        kept = await submit_one(store)
        faulty.failing = failing
        with pytest.raises(StoreBroken, match="could not be read or written"):
            await store.submit([new_job()])
        assert faulty.failures

        faulty.failing = None
        assert await store.size() == 1
        after = await submit_one(store)
        assert await store.get([kept.id, after.id]) == [kept, after]
        await assert_invariants(store)
        await store.close()
    assert integrity(sqlite_path) == "ok"


async def test_a_failing_read_is_told_and_does_not_stay(sqlite_path: Path) -> None:
    with FaultyDisk() as faulty:
        store = SqliteStore(sqlite_path, vfs=faulty.vfs_name)
        await store.open()
        kept = await submit_one(store)
        faulty.failing = "read"
        # A connection that was never used has nothing in its cache.
        with pytest.raises(StoreBroken):
            await store.get([kept.id])
        faulty.failing = None
        assert await store.get([kept.id]) == [kept]
        await store.close()


def test_a_file_that_is_no_database_is_told(sqlite_path: Path) -> None:
    sqlite_path.write_bytes(b"this is not what you think it is" * 200)
    with pytest.raises(StoreBroken):
        asyncio.run(SqliteStore(sqlite_path).open())


async def test_a_place_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        await SqliteStore(tmp_path / "nowhere" / "holdfast.db").open()


async def live(path: Path, recording: Recording, synchronous: str) -> None:
    """Live some lives, and mark what each answer told: this job has come at least so far."""
    store = SqliteStore(path, vfs=recording.vfs_name, synchronous=synchronous)
    await store.open()
    await store._session.perform(lambda turn: turn.connection.pragma("wal_autocheckpoint", 20))
    for number in range(40):
        outcomes = await store.submit([new_job(body=b'"%d"' % number) for _ in range(3)])
        for outcome in outcomes:
            assert isinstance(outcome, Submitted)
            recording.mark(f"{outcome.job.id.hex} {outcome.job.rev}")
        claimed = await claim(store, limit=2)
        for one in claimed:
            recording.mark(f"{one.job.id.hex} {one.job.rev}")
        actors = [(one.job, owner_of(one.job)) for one in claimed]
        changes = [
            change
            for job, actor in actors
            for change in chain(job, c.Start(actor=actor), c.Complete(actor=actor))
        ]
        for done in await store.commit(changes):
            assert isinstance(done, Committed)
            recording.mark(f"{done.job.id.hex} {done.job.rev}")
    await store.close()


def lost(image: CrashImage) -> list[str]:
    """Say what was told and is not there; whatever is there must be whole."""
    told: dict[str, int] = {}
    for mark in image.marks:
        id_, _, rev = mark.partition(" ")
        told[id_] = max(told.get(id_, 0), int(rev))
    database = apsw.Connection(str(image.database))
    try:
        assert database.pragma("integrity_check") == "ok", image
        if not database.table_exists(None, "jobs"):
            return list(told)
        revs = dict(database.execute("SELECT lower(hex(id)), rev FROM jobs"))
        logs = "SELECT lower(hex(id)), max(rev), count(*) FROM events GROUP BY id"
        for id_, newest, events in database.execute(logs):
            assert (newest, events) == (revs[id_], revs[id_]), image
    finally:
        database.close()
    return [id_ for id_, rev in told.items() if revs.get(id_, 0) < rev]


def record(path: Path, synchronous: str) -> Recording:
    with Recording() as recording:
        asyncio.run(live(path, recording, synchronous))
    return recording


def test_a_power_cut_loses_nothing_that_was_told(sqlite_path: Path, tmp_path: Path) -> None:
    recording = record(sqlite_path, "FULL")
    seen: Counter[Loss] = Counter()
    for image in crash_images(recording, 7, directory=tmp_path / "images", cuts=100):
        assert not lost(image), image
        seen[image.loss] += 1
    # Each kind of loss had something to lose.
    assert all(seen[loss] > 10 for loss in Loss), seen


def test_with_synchronous_normal_a_power_cut_does_lose_some(
    sqlite_path: Path, tmp_path: Path
) -> None:
    recording = record(sqlite_path, "NORMAL")
    images = crash_images(recording, 7, directory=tmp_path / "images", cuts=60)
    assert sum(bool(lost(image)) for image in images) > 10
