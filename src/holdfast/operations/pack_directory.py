"""A directory of the client as an archive to upload: always in the same order, never in memory.

Times, owners and modes stay at home, but for the executable bit: two equal trees are one archive.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from msgspec import Struct

from holdfast.errors import BadData, UploadRefused
from holdfast.flow.tar_format import BLOCK, END, EntryType, UploadFault, padding, write_header
from holdfast.flow.tar_reader import TarEntry
from holdfast.flow.upload_archive import UPLOAD_BYTES, UploadedFile, UploadTree
from holdfast.ports.blobs import CHUNK_BYTES

FILE_CHANGED = "file_changed"
_SPECIAL: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class SkippedFile(Struct, frozen=True):
    """What an archive leaves out, and why."""

    path: str
    reason: str


class PackedDirectory:
    """The archive of a directory. It can be read several times, and is the same each time."""

    def __init__(
        self, root: Path, entries: Sequence[UploadedFile], skipped: Sequence[SkippedFile]
    ) -> None:
        self._root = root
        self.entries = entries
        self.skipped = skipped
        self.bytes = sum(map(_length_of, entries)) + len(END)
        """The length of the archive."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the archive in pieces; BadData if a file is not as it was listed."""
        pieces = self._pack()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    def _pack(self) -> Iterator[bytes]:
        """Return pieces of about `CHUNK_BYTES`: small files share one."""
        gathered = bytearray()
        for part in self._parts():
            gathered += part
            if len(gathered) >= CHUNK_BYTES:
                yield bytes(gathered)
                gathered.clear()
        gathered += END
        yield bytes(gathered)

    def _parts(self) -> Iterator[bytes]:
        for entry in self.entries:
            yield _header_of(entry)
            if entry.type == "file":
                yield from self._read_file(entry)
                yield bytes(padding(entry.bytes))

    def _read_file(self, entry: UploadedFile) -> Iterator[bytes]:
        left = entry.bytes
        with _translate_os_errors(entry.path):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(self._root / entry.path, flags), "rb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise _changed_error(entry.path)
                # One byte more than it had: a file that grew is noticed, too.
                while piece := file.read(min(CHUNK_BYTES, left + 1)):
                    left -= len(piece)
                    if left < 0:
                        break
                    yield piece
        if left != 0:
            raise _changed_error(entry.path)


def pack_directory(root: Path, *, exclude: Sequence[str] = ()) -> PackedDirectory:
    """List what of a directory goes into its archive; what an upload cannot hold is refused.

    `exclude` has patterns as a shell's, for a path or a name. Sockets, pipes, devices and links
    that leave are left out. Blocks: it reads the directory.
    """
    tree, skipped = UploadTree(UPLOAD_BYTES), list[SkippedFile]()
    for path, status in _walk(root, exclude):
        reason = next((name for is_one, name in _SPECIAL if is_one(status.st_mode)), None)
        try:
            if reason is None:
                tree.add_entry(_make_entry(root, path, status))
        except UploadRefused as refused:
            if refused.code != UploadFault.LINK:
                raise
            reason = "a link that leaves the directory"
        if reason is not None:
            skipped.append(SkippedFile(path, reason))
    return PackedDirectory(root, tree.entries, skipped)


def _walk(root: Path, exclude: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Return all that is below a directory, each directory before what is in it."""
    todo = [""]
    while todo:
        below = todo.pop()
        try:
            with os.scandir(root / below) as scanned:
                found = sorted(scanned, key=lambda one: one.name)
        except OSError as error:
            raise BadData(f"{str(root / below)!r} cannot be listed: {error.strerror}") from error
        directories = []
        for one in found:
            path = f"{below}/{one.name}" if below else one.name
            if _is_excluded(path, one.name, exclude):
                continue
            with _translate_os_errors(path):
                status = one.stat(follow_symlinks=False)
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                directories.append(path)
        todo += reversed(directories)


def _is_excluded(path: str, name: str, exclude: Sequence[str]) -> bool:
    return any(
        fnmatch(path, pattern) or fnmatch(name, pattern)
        for pattern in (one.rstrip("/") for one in exclude)
    )


def _make_entry(root: Path, path: str, status: os.stat_result) -> TarEntry:
    """Return an entry as an archive has it."""
    kind, target = EntryType.FILE, ""
    if stat.S_ISDIR(status.st_mode):
        kind = EntryType.DIRECTORY
    elif stat.S_ISLNK(status.st_mode):
        with _translate_os_errors(path):
            kind, target = EntryType.LINK, os.readlink(root / path)
    return TarEntry(
        path=path,
        type=kind,
        size=status.st_size if kind is EntryType.FILE else 0,
        mode=status.st_mode & 0o777,
        target=target,
    )


_TYPES = {"file": EntryType.FILE, "directory": EntryType.DIRECTORY, "link": EntryType.LINK}


def _header_of(entry: UploadedFile) -> bytes:
    return write_header(
        entry.path,
        _TYPES[entry.type],
        size=entry.bytes,
        executable=entry.executable,
        target=entry.target or "",
    )


def _length_of(entry: UploadedFile) -> int:
    return len(_header_of(entry)) + -(-entry.bytes // BLOCK) * BLOCK


@contextmanager
def _translate_os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadData(f"{path!r} cannot be read: {error.strerror}") from error


def _changed_error(path: str) -> BadData:
    text = f"{path!r} changed while it was read; upload the directory again"
    return BadData(text, code=FILE_CHANGED, field=path)
