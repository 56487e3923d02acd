"""A directory of blobs: full, removed, and left behind by a writer that was killed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.blobs.local import INCOMING, open_local
from holdfast.errors import BlobsUnavailable
from holdfast.ports.blobs import Blobs, read_blob
from holdfast.testing.blob_contract import (
    SourceFailed,
    broken_stream,
    data_of,
    keys_below,
    stored,
    stream,
)
from tests.support.processes import ProcessGroup
from tests.support.small_disk import fill, small_disk
from tests.support.unavailable import Unavailable
from tests.support.waiting import wait_until


@pytest.fixture
def disk() -> Iterator[Path]:
    try:
        with small_disk(megabytes=16) as root:
            yield root
    except Unavailable as reason:
        pytest.skip(str(reason))


def incoming(directory: Path) -> list[Path]:
    return list((directory / "store" / INCOMING).iterdir())


async def test_a_put_on_a_full_disk_leaves_nothing_and_works_again_with_room(disk: Path) -> None:
    blobs = open_local(disk / "blobs", "store")
    await blobs.put("a/kept", b"kept")
    ballast = fill(disk, leave_bytes=1_000_000)
    data = data_of(3_000_000)

    sources: dict[str, bytes | AsyncIterator[bytes]] = {
        "a/bytes": data,
        "a/stream": stream(data, data),
    }
    for key, source in sources.items():
        with pytest.raises(BlobsUnavailable, match=f"{key} was not written: .*No space left"):
            await blobs.put(key, source)
        assert incoming(disk / "blobs") == []
    fill(disk)
    with pytest.raises(BlobsUnavailable, match="No space left"):
        await blobs.put("b/new", data_of(100_000))

    assert await keys_below(blobs, "a") == ["a/kept"]
    assert await read_blob(blobs, "a/kept") == b"kept"
    ballast.unlink()
    assert await blobs.put("a/bytes", data) == stored(data)


async def test_a_put_that_fails_leaves_no_file(tmp_path: Path) -> None:
    blobs = open_local(tmp_path, "store")
    reached = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        yield data_of(1_000_000)
        reached.set()
        await asyncio.Event().wait()

    with pytest.raises(SourceFailed):
        await blobs.put("a/b", broken_stream(data_of(1_000_000)))
    putting = asyncio.create_task(blobs.put("a/b", stuck()))
    await reached.wait()
    assert len(incoming(tmp_path)) == 1
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting

    assert incoming(tmp_path) == []
    assert await keys_below(blobs, "a") == []


async def put_without_end(directory: str) -> None:
    """Put a blob whose source never ends."""

    async def endless() -> AsyncIterator[bytes]:
        yield data_of(1_000_000)
        await asyncio.Event().wait()

    await open_local(Path(directory), "store").put("a/b", endless())


async def test_the_file_of_a_writer_that_was_killed_is_removed(tmp_path: Path) -> None:
    arguments = [{"directory": str(tmp_path)}] * 2
    with ProcessGroup(put_without_end, arguments) as group:
        group.go()
        (tmp_path / "store" / INCOMING).mkdir(parents=True, exist_ok=True)
        wait_until(
            lambda: len([one for one in incoming(tmp_path) if one.stat().st_size]) == 2, "files"
        )
        group.kill(0)

        blobs = open_local(tmp_path, "store")

        assert len(incoming(tmp_path)) == 1, "that of the writer that lives"
        assert await keys_below(blobs, "a") == []
    open_local(tmp_path, "store")
    assert incoming(tmp_path) == []


async def test_directories_are_removed_with_their_last_blob(tmp_path: Path) -> None:
    blobs = open_local(tmp_path, "store")
    for key in ("logs/j1/1/0", "logs/j1/2/0", "logs/j2/1/0"):
        await blobs.put(key, b"x")

    await blobs.delete(["logs/j1/1/0", "logs/j1/2/0"])

    assert sorted(path.name for path in (tmp_path / "store/logs").iterdir()) == ["j2"]


async def test_a_put_makes_a_directory_again_that_a_delete_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = open_local(tmp_path, "store")
    rename, removed = os.rename, 0

    def after_a_delete(path: str, to: str) -> None:
        nonlocal removed
        if removed < 2:
            removed += 1
            (tmp_path / "store/logs/j1").rmdir()
        rename(path, to)

    monkeypatch.setattr(os, "rename", after_a_delete)

    await blobs.put("logs/j1/0", b"kept")

    assert removed == 2
    assert await read_blob(blobs, "logs/j1/0") == b"kept"


async def test_a_directory_that_is_gone_is_not_a_blob_that_is_gone(tmp_path: Path) -> None:
    blobs: Blobs = open_local(tmp_path / "place", "store")
    await blobs.put("a/b", b"1")
    # As when the disk of the place is no longer mounted: its mount point is there, and empty.
    shutil.rmtree(tmp_path / "place" / "store")

    with pytest.raises(BlobsUnavailable, match="is not there"):
        await blobs.size("a/b")
    with pytest.raises(BlobsUnavailable, match="is not there"):
        await read_blob(blobs, "a/b")
    with pytest.raises(BlobsUnavailable, match="is not there"):
        await keys_below(blobs, "a")
    with pytest.raises(BlobsUnavailable):
        await blobs.put("a/b", b"1")
    await blobs.delete(["a/b"])
    assert not (tmp_path / "place" / "store").exists()


async def test_a_place_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(BlobsUnavailable, match="cannot be used"):
        open_local(tmp_path / "file", "store")


async def test_other_users_of_the_host_cannot_read_blobs(tmp_path: Path) -> None:
    blobs = open_local(tmp_path / "place", "store")
    await blobs.put("a/b", b"1")

    for path in (tmp_path / "place", *(tmp_path / "place").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_users_of_boxes_can_pass_through_the_directories_above_a_new_place(tmp_path: Path) -> None:
    open_local(tmp_path / "commands" / "blobs", "store")
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("commands", "commands/blobs")]
    assert modes == [0o711, 0o700]


async def test_a_directory_that_another_removes_while_it_is_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = open_local(tmp_path / "place", "store")
    await blobs.put("a/b/1", b"1")

    # It is there for mkdir, and gone when somebody looks what it is.
    monkeypatch.setattr(Path, "is_dir", lambda self: self.name not in ("a", "b"))
    await blobs.put("a/b/2", b"2")


PUT_ONE = """
import asyncio, sys
from pathlib import Path
from holdfast.blobs.local import open_local
asyncio.run(open_local(Path(sys.argv[1]), "store").put("a/b/c", b"data"))
"""


@pytest.mark.req("B29")
def test_the_kernel_is_asked_to_sync_the_file_before_its_name_and_then_all_directories(
    tmp_path: Path,
) -> None:
    if (strace := shutil.which("strace")) is None:
        pytest.skip("strace is not installed")
    calls = "trace=openat,write,fsync,rename,renameat,renameat2"
    place = tmp_path / "new" / "place"
    traced = subprocess.run(
        [strace, "-f", "-y", "-e", calls, sys.executable, "-c", PUT_ONE, str(place)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    below = rf"({re.escape(str(tmp_path))}[^>\"]*)"
    done = re.findall(rf"(fsync|rename\w*)\((?:\d+<|\"|AT_FDCWD\S*, \"){below}", traced.stderr)
    names = [(call, Path(path).relative_to(tmp_path)) for call, path in done]
    renamed = next(number for number, (call, _) in enumerate(names) if call.startswith("rename"))
    file = names[renamed][1]
    assert file.parent == Path("new/place/store") / INCOMING
    assert ("fsync", file) in names[:renamed]
    assert [str(path) for _, path in names[renamed + 1 :]] == [
        "new/place/store/a/b",
        "new/place/store/a",
        "new/place/store",
    ]
    made = [("fsync", Path(path)) for path in ("", "new", "new/place")]
    assert set(made) <= set(names[:renamed])
