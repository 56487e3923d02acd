"""What a dead box left in /artifacts is kept: regular files, within limits, and nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
import tracemalloc
from collections.abc import AsyncIterable, Callable
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import ArtifactsTooLarge, BlobsUnavailable
from holdfast.ports.blobs import Blobs, StoredBlob, read_blob
from holdfast.ports.box import Box
from holdfast.queries.artifacts import ArtifactManifest, SkipReason, manifest_key
from holdfast.runners.command import collect_artifacts as collect_module
from holdfast.runners.command.collect_artifacts import ArtifactLimits, collect_artifacts
from holdfast.runners.command.watch_artifacts import find_excess, watch_artifacts
from tests.support.artifacts import FailingBlobs, dead_box, local_blobs, write_files

LIMIT_SECONDS = 30.0
CANARY = b"not for the eyes of a command"


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box whose command has ended."""
    return dead_box(tmp_path)


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """An empty place of blobs."""
    return local_blobs(tmp_path)


async def manifest_of(blobs: Blobs, box: Box) -> ArtifactManifest:
    """Read what was kept of a box."""
    text = await read_blob(blobs, manifest_key(box.job, box.attempt))
    return msgspec.json.decode(text, type=ArtifactManifest)


async def keys_of(blobs: Blobs) -> dict[str, bytes]:
    """Return all artifacts in a place of blobs."""
    found = [one.key async for one in blobs.list("artifacts")]
    return {key: await read_blob(blobs, key) for key in found}


@pytest.mark.req("D13")
async def test_files_are_kept_with_their_digests_in_a_fixed_order(blobs: Blobs, box: Box) -> None:
    large = os.urandom(700_000)
    write_files(box, {"b.txt": b"bee", "a/z": b"", "a/b/c": large, "é ü": b"text"})
    os.link(box.artifacts / "b.txt", box.artifacts / "c.txt")
    kept = await collect_artifacts(blobs, box)
    manifest = await manifest_of(blobs, box)
    assert [(one.path, one.bytes) for one in manifest.files] == [
        ("a/b/c", 700_000),
        ("a/z", 0),
        ("b.txt", 3),
        ("c.txt", 3),
        ("é ü", 4),
    ]
    assert not manifest.skipped_counts
    prefix = f"artifacts/{box.job}/{box.attempt}"
    assert [one.key for one in manifest.files] == [f"{prefix}/{number}" for number in range(5)]
    for one in manifest.files:
        data = await read_blob(blobs, one.key)
        assert data == (box.artifacts / one.path).read_bytes()
        assert one.sha256 == sha256(data).hexdigest()
    text = await read_blob(blobs, f"{prefix}/manifest")
    assert kept is not None
    assert (kept.digest, kept.bytes) == (sha256(text).hexdigest(), 700_010)
    assert not kept.truncated


@pytest.mark.parametrize("made", [[], ["empty", "empty/too"]])
async def test_without_files_nothing_is_kept(blobs: Blobs, box: Box, made: list[str]) -> None:
    for name in made:
        (box.artifacts / name).mkdir()
    assert await collect_artifacts(blobs, box) is None
    assert await keys_of(blobs) == {}


def _link(box: Box, secret: Path) -> None:
    (box.artifacts / "x").symlink_to(secret)


def _link_inside(box: Box, _: Path) -> None:
    (box.artifacts / "x").symlink_to("good")


def _link_to_directory(box: Box, secret: Path) -> None:
    (box.artifacts / "x").symlink_to(secret.parent)


def _link_to_itself(box: Box, _: Path) -> None:
    (box.artifacts / "x").symlink_to("x")


def _fifo(box: Box, _: Path) -> None:
    os.mkfifo(box.artifacts / "x")


def _socket(box: Box, _: Path) -> None:
    # Bound by a short path: that of a socket may have 107 bytes.
    directory = os.open(box.artifacts, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{directory}/x")
    os.close(directory)


def _device(box: Box, _: Path) -> None:
    os.mknod(box.artifacts / "x", 0o644 | 0o020000, os.makedev(1, 3))


def _bytes(box: Box, _: Path) -> None:
    Path(os.fsdecode(os.fsencode(box.artifacts) + b"/x\xff\xfe")).write_bytes(b"1")


def _bytes_of_directory(box: Box, _: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(box.artifacts) + b"/x\xff"))
    directory.mkdir()
    (directory / "file").write_bytes(b"1")


def _newline(box: Box, _: Path) -> None:
    (box.artifacts / "x\ny").write_bytes(b"1")


def _escape(box: Box, _: Path) -> None:
    (box.artifacts / "x\x1b[31m").write_bytes(b"1")


def _backslash(box: Box, _: Path) -> None:
    (box.artifacts / "x\\y").write_bytes(b"1")


def _right_to_left(box: Box, _: Path) -> None:
    (box.artifacts / "x\u202etxt").write_bytes(b"1")


def _decomposed(box: Box, _: Path) -> None:
    (box.artifacts / "xe\u0301").write_bytes(b"1")


def _deep(box: Box, _: Path) -> None:
    deepest = box.artifacts.joinpath(*["x"] * 32)
    deepest.mkdir(parents=True)
    (deepest / "file").write_bytes(b"1")


def _long(box: Box, _: Path) -> None:
    inner = box.artifacts / ("x" * 250)
    for _number in range(4):
        inner.mkdir()
        inner /= "x" * 250
    inner.write_bytes(b"1")


HOSTILE: dict[Callable[[Box, Path], None], SkipReason] = {
    _link: SkipReason.LINK,
    _link_inside: SkipReason.LINK,
    _link_to_directory: SkipReason.LINK,
    _link_to_itself: SkipReason.LINK,
    _fifo: SkipReason.FIFO,
    _socket: SkipReason.SOCKET,
    _device: SkipReason.DEVICE,
    _bytes: SkipReason.NAME_NOT_TEXT,
    _bytes_of_directory: SkipReason.NAME_NOT_TEXT,
    _newline: SkipReason.NAME_NOT_TEXT,
    _escape: SkipReason.NAME_NOT_TEXT,
    _backslash: SkipReason.NAME_NOT_TEXT,
    _right_to_left: SkipReason.NAME_NOT_TEXT,
    _decomposed: SkipReason.NAME_NOT_TEXT,
    _deep: SkipReason.TOO_DEEP,
    _long: SkipReason.PATH_TOO_LONG,
}


@pytest.mark.req("D13")
@pytest.mark.parametrize("make", HOSTILE, ids=lambda one: one.__name__.strip("_"))
async def test_what_is_not_a_plain_file_is_skipped_and_counted(
    blobs: Blobs, box: Box, tmp_path: Path, make: Callable[[Box, Path], None]
) -> None:
    secret = tmp_path / "outside" / "secret"
    secret.parent.mkdir()
    secret.write_bytes(CANARY)
    write_files(box, {"good": b"good"})
    make(box, secret)
    async with asyncio.timeout(LIMIT_SECONDS):
        kept = await collect_artifacts(blobs, box)
    manifest = await manifest_of(blobs, box)
    assert [one.path for one in manifest.files] == ["good"]
    assert manifest.skipped_counts == {HOSTILE[make]: 1}
    [skipped] = manifest.skipped
    assert skipped.path.startswith("x")
    assert len(skipped.path) <= 255
    assert kept is not None
    assert kept.truncated == (make in (_deep, _long))
    assert not any(CANARY in data for data in (await keys_of(blobs)).values())


async def test_a_directory_that_was_replaced_by_a_link_is_not_followed(
    blobs: Blobs, box: Box, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(CANARY)
    box.artifacts.rmdir()
    box.artifacts.symlink_to(tmp_path / "outside")
    await collect_artifacts(blobs, box)
    assert (await manifest_of(blobs, box)).files == ()


async def test_the_absence_of_the_whole_attempt_is_not_taken_for_no_artifacts(
    blobs: Blobs, box: Box
) -> None:
    box.artifacts.rmdir()
    assert await collect_artifacts(blobs, box) is None
    box.directory.rmdir()
    with pytest.raises(FileNotFoundError):
        await collect_artifacts(blobs, box)


async def test_what_is_gone_while_it_is_looked_at_is_not_taken_for_a_removed_directory(
    blobs: Blobs, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    (box.artifacts / "a").write_bytes(b"1")
    monkeypatch.setattr(collect_module._Scan, "_list", lambda *_: ["a", "gone"])
    with pytest.raises(FileNotFoundError):
        await collect_artifacts(blobs, box)


async def test_files_without_permissions_are_kept(blobs: Blobs, box: Box) -> None:
    assert os.geteuid() == 0, "boxes are run by root"
    write_files(box, {"shut/file": b"1"})
    (box.artifacts / "shut" / "file").chmod(0)
    (box.artifacts / "shut").chmod(0)
    os.chown(box.artifacts / "shut", 200_000, 200_000)
    await collect_artifacts(blobs, box)
    assert [one.path for one in (await manifest_of(blobs, box)).files] == ["shut/file"]


SMALL = ArtifactLimits(files=3, file_bytes=1000, total_bytes=1500, entries=6)


@pytest.mark.req("D13")
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({f"f{number}": b"" for number in range(4)}, "more than 3 files"),
        ({"large": b"x" * 1001}, "'large' has 1,001 bytes"),
        ({"one": b"x" * 800, "two": b"x" * 701}, "more than 1,500 bytes"),
        ({f"d{number}/f{number}/g": b"" for number in range(3)}, "more than 6 entries"),
    ],
)
async def test_more_than_may_be_kept_keeps_nothing(
    blobs: Blobs, box: Box, files: dict[str, bytes], message: str
) -> None:
    write_files(box, files)
    with pytest.raises(ArtifactsTooLarge, match=message):
        await collect_artifacts(blobs, box, SMALL)
    assert await keys_of(blobs) == {}


async def test_exactly_as_much_as_may_be_kept_is_kept(blobs: Blobs, box: Box) -> None:
    write_files(box, {"a/b/one": b"x" * 1000, "a/c/two": b"x" * 500, "three": b""})
    kept = await collect_artifacts(blobs, box, SMALL)
    assert kept is not None
    assert kept.bytes == 1500


async def test_a_flood_of_files_and_a_huge_hole_are_refused_at_once(blobs: Blobs, box: Box) -> None:
    with (box.artifacts / "hole").open("wb") as file:
        file.truncate(5 * 1024**3)
    with pytest.raises(ArtifactsTooLarge, match="hole"):
        await collect_artifacts(blobs, box)
    (box.artifacts / "hole").unlink()
    directory, first = os.open(box.artifacts, os.O_RDONLY), ""
    for number in range(100_000):
        # Names of one file: they are quicker to make than files.
        if number % 30_000 == 0:
            os.close(os.open(f"first{number}", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
            first = f"first{number}"
        os.link(first, f"{number}", src_dir_fd=directory, dst_dir_fd=directory)
    os.close(directory)
    tracemalloc.start()
    try:
        with pytest.raises(ArtifactsTooLarge, match="entries"):
            await collect_artifacts(blobs, box)
        assert find_excess(box.artifacts, ArtifactLimits()) is not None
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.req("B29")
@pytest.mark.parametrize("fails_at", [1, 2, 4, 5])
async def test_a_repetition_after_a_crash_keeps_the_same(
    blobs: Blobs, box: Box, tmp_path: Path, fails_at: int
) -> None:
    write_files(box, {f"f{number}": b"%d" % number for number in range(3)})
    write_files(box, {"large": b"x" * 600_000})
    (box.artifacts / "link").symlink_to("f0")
    untroubled = local_blobs(tmp_path / "other")
    expected = await collect_artifacts(untroubled, box)
    with pytest.raises(BlobsUnavailable):
        await collect_artifacts(FailingBlobs(blobs, fails_at), box)
    # Without a manifest there is nothing that could be taken for all of it.
    assert await blobs.size(manifest_key(box.job, box.attempt)) is None
    assert await collect_artifacts(blobs, box) == expected
    assert await collect_artifacts(blobs, box) == expected
    assert await keys_of(blobs) == await keys_of(untroubled)


async def test_a_file_that_changes_meanwhile_is_an_error(blobs: Blobs, box: Box) -> None:
    """It cannot happen to a dead box: if it does, what was collected must not pass for all."""
    write_files(box, {"a": b"x" * 600_000, "b": b"1"})

    class Growing(FailingBlobs):
        async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
            with (box.artifacts / "a").open("ab") as file:
                file.write(b"more")
            return await super().put(key, data)

    with pytest.raises((OSError, BlobsUnavailable), match="'a' changed"):
        await collect_artifacts(Growing(blobs, 0), box)
    assert await blobs.size(manifest_key(box.job, box.attempt)) is None


async def test_a_large_file_is_kept_in_bounded_memory(blobs: Blobs, box: Box) -> None:
    with (box.artifacts / "large").open("wb") as file:
        file.truncate(64 * 1024**2)
    tracemalloc.start()
    try:
        kept = await collect_artifacts(blobs, box)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept is not None
    assert kept.bytes == 64 * 1024**2
    assert peak < 16 * 1024**2


async def test_the_watch_returns_when_a_running_command_has_left_too_much(box: Box) -> None:
    write_files(box, {f"f{number}": b"" for number in range(6)})
    watching = asyncio.create_task(watch_artifacts(box.artifacts, SMALL))
    # Twice the limit is not more than that.
    assert find_excess(box.artifacts, SMALL) is None
    write_files(box, {"f7": b""})
    async with asyncio.timeout(LIMIT_SECONDS):
        assert await watching == "more than 6 files while it ran; the limit is 3"


@pytest.mark.parametrize(
    ("files", "limits", "what"),
    [
        ({"one": b"x" * 8193}, ArtifactLimits(file_bytes=4096), "bytes in one file"),
        ({"d/e/f/g": b""}, ArtifactLimits(entries=2), "entries"),
        ({"a": b"x" * 4097, "b": b"x"}, ArtifactLimits(total_bytes=4096), "bytes in all"),
        ({"d/e/f": b""}, ArtifactLimits(depth=1), "directories in each other"),
    ],
)
def test_the_watch_counts_what_the_disk_holds(
    box: Box, files: dict[str, bytes], limits: ArtifactLimits, what: str
) -> None:
    write_files(box, files)
    (box.artifacts / "link").symlink_to("/")
    excess = find_excess(box.artifacts, limits)
    assert excess is not None
    assert what in excess


def test_the_watch_does_not_count_holes_or_one_file_twice(box: Box) -> None:
    with (box.artifacts / "hole").open("wb") as file:
        file.truncate(10**9)
    limits = ArtifactLimits(total_bytes=10_000, file_bytes=10_000)
    write_files(box, {"one": b"x" * 16_000})
    os.link(box.artifacts / "one", box.artifacts / "two")
    assert find_excess(box.artifacts, limits) is None
