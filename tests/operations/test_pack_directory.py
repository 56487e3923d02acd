"""A directory becomes an archive: deterministic, bounded, and what is left out is named."""

import io
import os
import socket
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import BadData, UploadRefused
from holdfast.flow.upload_archive import scan_upload
from holdfast.operations import pack_directory as packing
from holdfast.operations.pack_directory import PackedDirectory, pack_directory
from tests.support.archives import UPLOAD, MemoryBlobs


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with a bit of everything."""
    root = tmp_path / "tree"
    (root / "b" / "deep").mkdir(parents=True)
    (root / "b" / "deep" / "data").write_bytes(b"d" * 1000)
    (root / "b" / "run").write_text("#!/bin/sh\n")
    (root / "b" / "run").chmod(0o4711)
    (root / "a").write_text("")
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref")
    (root / "inside").symlink_to("b/deep/data")
    return root


@pytest.mark.parametrize("name", ["a", "inside"])
def test_a_file_that_is_removed_while_it_is_listed_is_named(
    tree: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(path: str, *_: object) -> bool:
        if path == name == "a":
            (tree / name).unlink()
        return False

    def make_entry(root: Path, path: str, *rest: Any) -> Any:
        if path == name == "inside":
            (tree / name).unlink()
        return kept(root, path, *rest)

    kept = packing._make_entry
    monkeypatch.setattr(packing, "_is_excluded", remove)
    monkeypatch.setattr(packing, "_make_entry", make_entry)
    with pytest.raises(BadData, match=f"'{name}' cannot be read"):
        pack_directory(tree)


async def packed(archive: PackedDirectory) -> bytes:
    """Return an archive as a whole."""
    return b"".join([piece async for piece in archive])


async def test_a_directory_becomes_an_archive_that_is_accepted(tree: Path) -> None:
    archive = pack_directory(tree)
    data = await packed(archive)
    assert len(data) == archive.bytes
    manifest = await scan_upload(MemoryBlobs(data), UPLOAD)
    assert manifest.entries == tuple(archive.entries)
    assert {one.path for one in manifest.entries if one.executable} == {"b/run"}
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        assert opened.getnames() == [one.path for one in archive.entries]
        assert all(one.mtime == one.uid == 0 for one in opened)


async def test_equal_directories_are_equal_archives(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "b" / "deep").mkdir(parents=True)
    # In another order, with other times.
    (other / "inside").symlink_to("b/deep/data")
    for path in ("b/run", "a", "b/deep/data"):
        (other / path).write_bytes((tree / path).read_bytes())
    (other / "b" / "run").chmod(0o755)
    os.utime(other / "a", (1, 1))
    assert await packed(pack_directory(other)) == await packed(
        pack_directory(tree, exclude=[".git"])
    )


@pytest.mark.parametrize(
    ("pattern", "gone"),
    [(".git", ".git/HEAD"), ("*.sh", None), ("b/deep/*", "b/deep/data"), ("deep/", "b/deep/data")],
)
def test_what_is_excluded_is_left_out(tree: Path, pattern: str, gone: str | None) -> None:
    every = {one.path for one in pack_directory(tree).entries}
    left = {one.path for one in pack_directory(tree, exclude=[pattern]).entries}
    assert (gone in every - left) if gone else left == every


def test_what_an_upload_cannot_hold_is_left_out_and_named(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "b" / "up").symlink_to("../../x")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(tree / "s"))
        archive = pack_directory(tree)
    leaves = "a link that leaves the directory"
    assert {(one.path, one.reason) for one in archive.skipped} == {
        ("pipe", "a named pipe"),
        ("s", "a socket"),
        ("out", leaves),
        ("b/up", leaves),
    }
    assert not {"pipe", "s", "out", "b/up"} & {one.path for one in archive.entries}


def test_a_name_that_would_be_refused_is_refused_before_anything_is_sent(tree: Path) -> None:
    (tree / "new\nline").write_text("")
    with pytest.raises(UploadRefused, match=r"'new\\nline' has"):
        pack_directory(tree)


@pytest.mark.parametrize("change", [b"", b"d" * 999, b"d" * 1001, None])
async def test_a_file_that_changes_while_it_is_read_is_named(
    tree: Path, change: bytes | None
) -> None:
    archive = pack_directory(tree)
    if change is None:
        (tree / "b" / "deep" / "data").unlink()
    else:
        (tree / "b" / "deep" / "data").write_bytes(change)
    with pytest.raises(BadData, match="'b/deep/data'") as refused:
        await packed(archive)
    assert change is None or refused.value.code == "file_changed"


async def test_a_large_file_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    archive = pack_directory(tmp_path)
    tracemalloc.start()
    try:
        size = sum([len(piece) async for piece in archive])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == archive.bytes
    assert peak < 8 * 1024 * 1024


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"missing.*No such file"):
        pack_directory(tmp_path / "missing")
