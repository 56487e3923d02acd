"""An upload becomes the files of an attempt: whole or not at all, and nowhere else."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import BlobsUnavailable, RuntimeTrouble, UploadExpired, UploadRefused
from holdfast.flow.upload_archive import UploadManifest, scan_upload
from holdfast.queries.blob_keys import upload_archive_key, upload_file_key, upload_manifest_key
from holdfast.runners.command import unpack
from holdfast.runners.command.unpack import MARK_FILE, unpack_upload
from tests.support.archives import UPLOAD, MemoryBlobs, directory, entry, link, pack
from tests.support.hostile_archives import HOSTILE
from tests.support.small_disk import fill, small_disk

TREE = pack(
    directory("src", mode=0o700),
    entry("src/run.sh", b"#!/bin/sh\nexit 0\n", mode=0o750),
    entry("src/data.bin", bytes(range(256)) * 9000, mode=0o600),
    entry("implied/deep/x", b"x"),
    link("src/again", "../implied/deep/x"),
    link("nowhere", "missing"),
    entry("empty"),
)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """The directory of an attempt, between canaries that nothing may touch."""
    outside = tmp_path / "canary"
    outside.write_text("alive")
    made = tmp_path / "attempt" / "work"
    made.mkdir(parents=True)
    before = {*tmp_path.iterdir(), *Path("/").iterdir()}
    yield made
    assert {*tmp_path.iterdir(), *Path("/").iterdir()} == before
    assert outside.read_text() == "alive"


async def finalized(archive: bytes) -> MemoryBlobs:
    """Return blobs with an archive that was finalized."""
    blobs = MemoryBlobs(archive, piece_bytes=5000)
    await scan_upload(blobs, UPLOAD)
    return blobs


def listed(work: Path) -> dict[str, tuple[str, object]]:
    """Return what is below a directory: modes, and data or targets."""
    found: dict[str, tuple[str, object]] = {}
    for one in sorted(work.rglob("*")):
        mode = one.lstat().st_mode
        data = os.readlink(one) if one.is_symlink() else None if one.is_dir() else one.read_bytes()
        found[os.fspath(one.relative_to(work))] = (oct(mode), data)
    return found


def owners_of(work: Path) -> set[tuple[int, int]]:
    """Return whose a directory and all below it is."""
    found = [one.lstat() for one in (work, *work.rglob("*"))]
    return {(one.st_uid, one.st_gid) for one in found}


EXPECTED = {
    "empty": ("0o100644", b""),
    "implied": ("0o40755", None),
    "implied/deep": ("0o40755", None),
    "implied/deep/x": ("0o100644", b"x"),
    "nowhere": ("0o120777", "missing"),
    "src": ("0o40755", None),
    "src/again": ("0o120777", "../implied/deep/x"),
    "src/data.bin": ("0o100644", bytes(range(256)) * 9000),
    "src/run.sh": ("0o100755", b"#!/bin/sh\nexit 0\n"),
}


@pytest.mark.req("D3")
async def test_an_attempt_gets_the_files_of_its_upload_whatever_the_umask(work: Path) -> None:
    before = os.umask(0o077)
    try:
        await unpack_upload(await finalized(TREE), UPLOAD, work, owner=None)
    finally:
        os.umask(before)
    assert listed(work) == EXPECTED


async def test_each_attempt_has_a_copy_of_its_own(work: Path) -> None:
    blobs = await finalized(TREE)
    other = work.parent.parent / "attempt" / "second" / "work"
    other.mkdir(parents=True)
    for each in (work, other):
        await unpack_upload(blobs, UPLOAD, each, owner=None)
    (work / "src" / "run.sh").write_text("changed")
    assert listed(other) == EXPECTED


async def test_single_files_are_unpacked(work: Path) -> None:
    blobs = MemoryBlobs()
    for path in ("b", "a/ö"):
        await blobs.put(upload_file_key(UPLOAD, path), path.encode())
    await scan_upload(blobs, UPLOAD, files=["b", "a/ö"])
    await unpack_upload(blobs, UPLOAD, work, owner=None)
    assert (work / "b").read_text() == "b"
    assert (work / "a" / "ö").read_text() == "a/ö"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_all_files_belong_to_the_user_of_the_box(work: Path) -> None:
    await unpack_upload(await finalized(TREE), UPLOAD, work, owner=(250_001, 250_002))
    assert owners_of(work) == {(250_001, 250_002)}


async def test_a_whole_snapshot_is_not_written_again(work: Path) -> None:
    blobs = await finalized(TREE)
    await unpack_upload(blobs, UPLOAD, work, owner=None)
    first = (work / "empty").stat().st_ino
    await unpack_upload(blobs, UPLOAD, work, owner=None)
    assert (work / "empty").stat().st_ino == first


async def test_after_a_boot_a_snapshot_is_written_again(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were not synced: a power cut may have emptied them, and left the mark."""
    blobs = await finalized(TREE)
    await unpack_upload(blobs, UPLOAD, work, owner=None)
    (work / "empty").write_text("torn")
    monkeypatch.setattr(unpack, "BOOT_ID", work.parent / "boot_id")
    unpack.BOOT_ID.write_text("another\n")
    await unpack_upload(blobs, UPLOAD, work, owner=None)
    assert listed(work) == EXPECTED


async def test_what_a_dead_worker_left_half_written_is_written_again(work: Path) -> None:
    (work / "src").mkdir()
    (work / "src" / "run.sh").write_text("half")
    (work / "empty").symlink_to(work.parent.parent / "canary")
    await unpack_upload(await finalized(TREE), UPLOAD, work, owner=None)
    assert listed(work) == EXPECTED


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_archive_is_refused_though_its_manifest_was_forged(
    name: str, work: Path
) -> None:
    archive, _ = HOSTILE[name]
    blobs = MemoryBlobs(archive)
    forged = UploadManifest(entries=(), bytes=2**40, digest="")
    await blobs.put(upload_manifest_key(UPLOAD), msgspec.json.encode(forged))
    with pytest.raises(UploadRefused):
        await unpack_upload(blobs, UPLOAD, work, owner=None)
    assert listed(work) == {}


async def test_an_archive_that_was_replaced_since_is_refused(work: Path) -> None:
    blobs = await finalized(pack(entry("a", b"one")))
    blobs.blobs[upload_archive_key(UPLOAD)] = pack(entry("a", b"two"))
    with pytest.raises(UploadRefused, match="is not what it was") as refused:
        await unpack_upload(blobs, UPLOAD, work, owner=None)
    assert refused.value.code == "upload_changed"
    assert listed(work) == {}


@pytest.mark.parametrize("gone", [upload_manifest_key(UPLOAD), upload_archive_key(UPLOAD)])
async def test_an_upload_that_is_gone_is_refused_as_expired(gone: str, work: Path) -> None:
    blobs = await finalized(TREE)
    await blobs.delete([gone])
    with pytest.raises(UploadExpired, match="has expired"):
        await unpack_upload(blobs, UPLOAD, work, owner=None)
    assert not (work.parent / MARK_FILE).exists()


async def test_a_full_disk_leaves_nothing_half_written_and_recovers() -> None:
    with small_disk(8) as disk:
        work = disk / "attempt" / "work"
        work.mkdir(parents=True)
        blobs = await finalized(TREE)
        ballast = fill(disk, leave_bytes=1 << 20)
        with pytest.raises(RuntimeTrouble, match=os.strerror(errno.ENOSPC)):
            await unpack_upload(blobs, UPLOAD, work, owner=None)
        assert listed(work) == {}
        ballast.unlink()
        await unpack_upload(blobs, UPLOAD, work, owner=None)
        assert listed(work) == EXPECTED


class FailingBlobs(MemoryBlobs):
    """Blobs whose place fails in the middle of an archive."""

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Fail after some pieces."""
        count = 0
        async for piece in super().read(key, start=start, end=end):
            yield piece
            count += 1
            if count > 20:
                raise BlobsUnavailable("the place of blobs does not answer")


async def test_a_place_of_blobs_that_fails_releases_the_job(work: Path) -> None:
    good = await finalized(TREE)
    failing = FailingBlobs(piece_bytes=5000)
    failing.blobs = good.blobs
    with pytest.raises(RuntimeTrouble, match="does not answer"):
        await unpack_upload(failing, UPLOAD, work, owner=None)
    assert listed(work) == {}


async def test_a_cancelled_attempt_leaves_no_thread_behind(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    original = unpack._do_all

    def held(steps: list[object]) -> None:
        entered.set()
        assert leave.wait(30)
        original(steps)  # type: ignore[arg-type]

    monkeypatch.setattr(unpack, "_do_all", held)
    blobs = await finalized(TREE)
    task = asyncio.create_task(unpack_upload(blobs, UPLOAD, work, owner=None))
    await asyncio.to_thread(entered.wait, 30)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done(), "it waits for the thread that writes"
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (work.parent / MARK_FILE).exists()
