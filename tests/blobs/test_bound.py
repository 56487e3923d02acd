"""One store has one place of blobs; another one is refused."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.blobs.bound import MARKER, NOTE, BoundBlobs, read_note
from holdfast.blobs.local import open_local
from holdfast.blobs.place import read_place
from holdfast.errors import BlobsElsewhere, NoSuchBlob
from holdfast.ports.blobs import read_blob
from holdfast.ports.store import Store
from holdfast.queries.box_files import store_identity
from holdfast.testing.blob_contract import keys_below
from holdfast.wiring import migrate, open_place, opened, plan_blobs, read_address
from tests.blobs.defects import WrappedBlobs
from tests.support.processes import run_together


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_path" if request.param == "sqlite" else "postgres_url"
    return str(request.getfixturevalue(name))


@pytest_asyncio.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    address = read_address(store_url)
    await migrate(address)
    async with opened(address) as store:
        yield store


async def test_a_worker_with_a_directory_of_its_own_is_refused(
    store: Store, tmp_path: Path
) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    blobs = await plan_blobs(first, for_worker=True)(store)
    await blobs.put("logs/x", b"kept")

    with pytest.raises(BlobsElsewhere, match=rf"{first}.* not at .*{second}.*--blobs"):
        await plan_blobs(second, for_worker=True)(store)

    again = await plan_blobs(first, for_worker=True)(store)
    assert await read_blob(again, "logs/x") == b"kept"


async def test_a_reader_with_another_place_is_refused(
    store: Store, blobs_address: str, tmp_path: Path
) -> None:
    await plan_blobs(blobs_address, for_worker=True)(store)

    await plan_blobs(blobs_address)(store)
    noted = read_note(await store.note(NOTE) or "").address
    with pytest.raises(BlobsElsewhere, match=re.escape(noted)):
        await plan_blobs(str(tmp_path / "another"))(store)


async def test_who_only_reads_gives_a_store_no_place(store: Store, tmp_path: Path) -> None:
    reader = await plan_blobs(str(tmp_path / "reader"))(store)
    assert await reader.size("logs/x") is None
    assert await keys_below(reader, "logs") == []
    with pytest.raises(NoSuchBlob):
        await read_blob(reader, "logs/x")
    await reader.delete(["logs/x"])
    assert await store.note(NOTE) is None

    worker = await plan_blobs(str(tmp_path / "worker"), for_worker=True)(store)
    await worker.put("logs/x", b"1")

    # One that was open before notices, and does not take the log for missing.
    for refused in (reader.size("logs/x"), reader.put("logs/y", b""), reader.delete(["a"])):
        with pytest.raises(BlobsElsewhere):
            await refused
    with pytest.raises(BlobsElsewhere):
        await read_blob(reader, "logs/x")


async def test_the_first_write_gives_a_store_its_place(store: Store, blobs_address: str) -> None:
    blobs = await plan_blobs(blobs_address)(store)
    await blobs.put("uploads/x", b"1")

    note = read_note(await store.note(NOTE) or "")
    assert note.id.encode() == await read_blob(blobs, MARKER)


async def test_a_crash_before_the_note_is_made_up_for(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "place"
    dead = BoundBlobs(open_local(place, await store_identity(store)), store, "dead")
    id_ = await dead._mark()

    await plan_blobs(str(place), for_worker=True)(store)

    assert read_note(await store.note(NOTE) or "").id == id_


async def test_a_place_that_lost_the_race_is_refused(store: Store, tmp_path: Path) -> None:
    """Both have marked their places before either has noted it."""
    identity = await store_identity(store)
    bounds = []
    for name in ("one", "two"):
        blobs = open_local(tmp_path / name, identity)
        bound = BoundBlobs(blobs, store, name)
        await bound._mark()
        bounds.append(bound)

    outcomes = await asyncio.gather(*(one.bind() for one in bounds), return_exceptions=True)

    assert sorted(type(one).__name__ for one in outcomes) == ["BlobsElsewhere", "NoneType"]
    winner = ("one", "two")[outcomes.index(None)]
    assert read_note(await store.note(NOTE) or "").address == winner


async def test_of_two_that_mark_one_place_both_have_the_same_id(
    store: Store, blobs_address: str
) -> None:
    """Both have found no mark before either has written one."""
    place = await open_place(read_place(blobs_address), "store")
    both = asyncio.Barrier(2)

    class Together(WrappedBlobs):
        async def create(self, key: str, data: bytes) -> bool:
            await both.wait()
            return await self.inner.create(key, data)

    bounds = [BoundBlobs(Together(place), store, "place") for _ in range(2)]

    await asyncio.gather(*(one.put(f"a/{n}", b"") for n, one in enumerate(bounds)))

    assert await keys_below(place, "a") == ["a/0", "a/1"]


async def race_to_open(url: str, place: str) -> str:
    """Open a place of a store as a worker; return how that ended."""
    async with opened(read_address(url)) as store:
        try:
            blobs = await plan_blobs(place, for_worker=True)(store)
        except BlobsElsewhere:
            return "refused"
        await blobs.put("a/b", place.encode())
        return place


async def test_of_processes_that_open_first_those_at_one_place_are_let_in(
    store: Store, store_url: str, tmp_path: Path
) -> None:
    places = [str(tmp_path / name) for name in ("one", "two")]
    arguments = [{"url": store_url, "place": place} for place in places * 2]

    outcomes = await asyncio.to_thread(run_together, race_to_open, arguments)

    address = read_note(await store.note(NOTE) or "").address
    winner = next(place for place in places if address.endswith(place))
    assert outcomes == [place if place == winner else "refused" for place in places * 2]


async def test_blobs_that_were_moved_with_their_mark_are_found(
    store: Store, tmp_path: Path
) -> None:
    before = await plan_blobs(str(tmp_path / "before"), for_worker=True)(store)
    await before.put("logs/x", b"kept")
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    shutil.rmtree(tmp_path / "before")

    after = await plan_blobs(str(tmp_path / "after"))(store)

    assert await read_blob(after, "logs/x") == b"kept"
    assert read_note(await store.note(NOTE) or "").address.endswith("/after")


async def test_blobs_that_were_moved_without_their_mark_are_refused(
    store: Store, tmp_path: Path
) -> None:
    before = await plan_blobs(str(tmp_path / "before"), for_worker=True)(store)
    await before.put("logs/x", b"kept")
    logs = f"{await store_identity(store)}/logs"
    shutil.copytree(tmp_path / "before" / logs, tmp_path / "after" / logs)

    with pytest.raises(BlobsElsewhere, match="'place'"):
        await plan_blobs(str(tmp_path / "after"))(store)


async def test_two_stores_share_a_place_and_do_not_see_each_other(
    store: Store, blobs_address: str, tmp_path: Path
) -> None:
    other_address = read_address(str(tmp_path / "other.db"))
    await migrate(other_address)
    async with opened(other_address) as other:
        mine = await plan_blobs(blobs_address, for_worker=True)(store)
        theirs = await plan_blobs(blobs_address, for_worker=True)(other)
        await mine.put("logs/x", b"mine")
        await theirs.put("logs/x", b"theirs")
        await theirs.put("logs/y", b"theirs")

        assert await read_blob(mine, "logs/x") == b"mine"
        assert await keys_below(mine, "logs") == ["logs/x"]
        await theirs.delete(["logs/x"])
        assert await keys_below(mine, "logs") == ["logs/x"]


async def test_a_mark_that_appears_between_two_looks_is_not_that_of_another_place(
    store: Store, tmp_path: Path
) -> None:
    """Several first writes at once: one finds no mark, and then the note of another."""
    place = open_local(tmp_path / "place", await store_identity(store))
    first = BoundBlobs(place, store, "place")

    class Overtaken(WrappedBlobs):
        async def read(
            self, key: str, *, start: int = 0, end: int | None = None
        ) -> AsyncIterator[bytes]:
            was_there = await self.inner.size(key) is not None
            await first.bind()
            if not was_there:
                raise NoSuchBlob(key)
            async for piece in self.inner.read(key, start=start, end=end):
                yield piece

    await BoundBlobs(Overtaken(place), store, "place").put("a/b", b"")

    assert await keys_below(place, "a") == ["a/b"]
