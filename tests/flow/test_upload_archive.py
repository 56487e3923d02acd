"""Archives as clients send them: what is accepted, and what is refused before any job sees it."""

import asyncio
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import UploadRefused
from holdfast.flow import tar_reader, upload_archive
from holdfast.flow.tar_format import END, EntryType, write_header
from holdfast.flow.upload_archive import UploadedFile, UploadManifest, read_manifest, scan_upload
from holdfast.queries.blob_keys import upload_file_key
from tests.support.archives import (
    UPLOAD,
    MemoryBlobs,
    directory,
    entry,
    link,
    pack,
    patch_header,
)
from tests.support.hostile_archives import HOSTILE


async def scan(archive: bytes, *, piece_bytes: int = 700) -> UploadManifest:
    """Scan an archive that was uploaded."""
    return await scan_upload(MemoryBlobs(archive, piece_bytes), UPLOAD)


GOOD = pack(
    directory("./"),
    directory("./src"),
    entry("./src/run.sh", b"#!/bin/sh\n", mode=0o755),
    entry("./src/empty"),
    entry("./implied/deep/data.bin", bytes(1300)),
    entry("./" + "long/" * 40 + "näme.txt", b"x"),
    link("./src/again", "../implied/deep/data.bin"),
    link("./src/here", "run.sh"),
)


@pytest.mark.parametrize("piece_bytes", [1, 511, 512, 513, 10_000])
@pytest.mark.parametrize("format_", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
async def test_a_tree_is_listed_however_its_archive_is_cut(piece_bytes: int, format_: int) -> None:
    entries = [
        directory("d"),
        entry("d/run", b"#!", mode=0o750),
        entry("n" * 250, b"abc"),
        link("d/l", "../" + "n" * 250),
    ]
    manifest = await scan(pack(*entries, format_=format_), piece_bytes=piece_bytes)
    assert manifest.entries == (
        UploadedFile(path="d", type="directory"),
        UploadedFile(path="d/run", bytes=2, executable=True),
        UploadedFile(path="n" * 250, bytes=3),
        UploadedFile(path="d/l", type="link", target="../" + "n" * 250),
    )
    assert manifest.bytes == 5


async def test_the_manifest_is_kept_beside_the_archive() -> None:
    blobs = MemoryBlobs(GOOD)
    manifest = await scan_upload(blobs, UPLOAD)
    assert await read_manifest(blobs, UPLOAD) == manifest
    assert {one.path for one in manifest.entries if one.type == "link"} == {"src/again", "src/here"}


async def test_archives_of_the_machines_own_tar_are_read(tmp_path: Path) -> None:
    """GNU tar in its three formats, with names too long for a header."""
    tree = tmp_path / "tree"
    (tree / ("d" * 90) / ("e" * 90)).mkdir(parents=True)
    (tree / ("d" * 90) / ("e" * 90) / "file").write_bytes(b"hello")
    (tree / "link").symlink_to("d" * 90 + "/" + "e" * 90 + "/file")
    for style in ("ustar", "gnu", "posix"):
        line = ["tar", f"--format={style}", "-C", os.fspath(tree), "-c", "."]
        if style == "ustar":
            (tree / "link").unlink()
            (tree / "link").symlink_to("d" * 90)
        made = await scan(await asyncio.to_thread(subprocess.check_output, line))
        assert {one.type for one in made.entries} == {"file", "directory", "link"}
        assert made.bytes == 5


async def test_single_files_are_listed_by_their_paths() -> None:
    blobs = MemoryBlobs()
    paths = ("b.txt", "a/ö.txt")
    for path in paths:
        await blobs.put(upload_file_key(UPLOAD, path), path.encode())
    manifest = await scan_upload(blobs, UPLOAD, files=paths)
    assert [one.path for one in manifest.entries] == ["a/ö.txt", "b.txt"]
    assert manifest.bytes == 13
    await blobs.put(upload_file_key(UPLOAD, "a"), b"")
    await blobs.put(upload_file_key(UPLOAD, "a/x"), b"")
    with pytest.raises(UploadRefused, match="'a/x' is below 'a'") as refused:
        await scan_upload(blobs, UPLOAD, files=["a/x", "a"])
    assert refused.value.code == "entry_duplicate"


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_archive_is_refused_with_a_code_of_its_own(name: str) -> None:
    archive, code = HOSTILE[name]
    blobs = MemoryBlobs(archive)
    with pytest.raises(UploadRefused) as refused:
        await scan_upload(blobs, UPLOAD)
    assert refused.value.code == code
    assert str(refused.value).isprintable()
    assert len(blobs.blobs) == 1, "no manifest of it"


async def test_the_entry_at_fault_is_named() -> None:
    with pytest.raises(UploadRefused, match=r"'b/\.\./x' has '\.\.' in its name"):
        await scan(pack(entry("a"), entry("b/../x")))


async def test_more_entries_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_archive, "MOST_ENTRIES", 10)
    await scan(pack(*(entry(str(number)) for number in range(10))))
    with pytest.raises(UploadRefused) as refused:
        await scan(pack(*(entry(str(number)) for number in range(11))))
    assert refused.value.code == "too_many_entries"
    with pytest.raises(UploadRefused) as refused:
        await scan(pack(entry("a/b/c/d/e/f"), entry("g/h/i/j/k")))
    assert refused.value.code == "too_many_entries", "directories that no entry names count"


async def test_headers_that_name_nothing_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_reader, "MOST_HEADERS", 10)
    with pytest.raises(UploadRefused, match="more than 10 headers") as refused:
        await scan(pack(*(directory("./") for _ in range(11))))
    assert refused.value.code == "too_many_entries"


@pytest.mark.parametrize(
    "archive",
    [pack(*(directory("./") for _ in range(2000))), pack(entry("a")) + bytes(2000 * 512)],
    ids=["headers", "zeros"],
)
async def test_a_long_run_of_headers_lets_the_rest_of_the_process_run(archive: bytes) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await scan(archive, piece_bytes=len(archive))
    counting.cancel()
    assert turns >= 20


async def test_more_bytes_of_names_than_the_limit_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upload_archive, "MOST_NAME_BYTES", 1000)
    with pytest.raises(UploadRefused, match="all names") as refused:
        await scan(pack(*(entry(f"{number}" * 100) for number in range(11))))
    assert refused.value.code == "too_many_entries"


async def test_more_bytes_than_the_limit_are_refused() -> None:
    archive = pack(entry("a", bytes(600)), entry("b", bytes(500)))
    assert (await scan_upload(MemoryBlobs(archive), UPLOAD, most_bytes=1100)).bytes == 1100
    with pytest.raises(UploadRefused, match="'b' makes the upload larger than 1,099") as refused:
        await scan_upload(MemoryBlobs(archive), UPLOAD, most_bytes=1099)
    assert refused.value.code == "upload_too_large"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
async def test_damage_is_refused_and_nothing_else_is_raised(
    changes: list[tuple[int, bytes]], with_checksums: bool
) -> None:
    archive = bytearray(GOOD)
    for at, data in changes:
        archive[at : at + len(data)] = data
        if with_checksums:
            start = at // 512 * 512
            archive[start:] = patch_header(bytes(archive[start:]), 0, b"")
    try:
        manifest = await scan(bytes(archive))
    except UploadRefused:
        return
    for one in manifest.entries:
        assert not one.path.startswith("/")
        assert ".." not in one.path.split("/")


ENOUGH = -(-len(GOOD.rstrip(b"\0")) // 512) * 512 + len(END)
"""Where the end mark is complete; only padding follows."""


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(GOOD)))
async def test_a_cut_is_refused_wherever_it_is(at: int) -> None:
    if at < ENOUGH:
        with pytest.raises(UploadRefused) as refused:
            await scan(GOOD[:at])
        assert refused.value.code == "archive_truncated"
    else:
        await scan(GOOD[:at])


async def test_our_own_headers_are_read_by_other_programs() -> None:
    """Names beyond a header's room, and a size beyond octal digits."""
    long_name, long_target = "d/" * 60 + "name", "t" * 150
    archive = (
        write_header("plain", EntryType.FILE, size=3, executable=True)
        + b"abc".ljust(512, b"\0")
        + write_header(long_name, EntryType.LINK, target=long_target)
        + write_header("dir", EntryType.DIRECTORY)
        + END
    )
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        names = [(one.name, one.mode, one.linkname) for one in opened.getmembers()]
    assert names == [
        ("plain", 0o755, ""),
        (long_name, 0o644, long_target),
        ("dir", 0o755, ""),
    ]
    assert [one.path for one in (await scan(archive)).entries] == ["plain", long_name, "dir"]
    huge = write_header("huge", EntryType.FILE, size=8**11)
    with tarfile.open(fileobj=io.BytesIO(huge + END)) as opened:
        first = opened.next()
    assert first is not None
    assert first.size == 8**11
