"""Collect what a command left in /artifacts, once nothing of its box can run any more.

The tree was made by a program that nobody trusts. It is walked by open directories, never by path:
no link is followed, and only regular files are read. What is left out is counted with its reason.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from holdfast.crash_points import reach
from holdfast.errors import ArtifactsTooLarge
from holdfast.lifecycle.record import KeptOutput
from holdfast.ports.blobs import CHUNK_BYTES, Blobs, StoredBlob
from holdfast.ports.box import Box
from holdfast.ports.threads import to_end
from holdfast.queries.artifacts import (
    ArtifactManifest,
    KeptArtifact,
    SkippedArtifact,
    SkipReason,
    is_artifact_name,
    manifest_key,
)
from holdfast.queries.blob_keys import artifacts_prefix

SMALL_PUTS = 16
"""How many small files are written at a time; each is in memory as a whole, up to a chunk."""
SHOWN_PATH = 255
"""Characters of the path of something that was skipped."""
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without waiting: what was a file may have become a FIFO, if something still runs after all.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class ArtifactLimits(Struct, frozen=True, kw_only=True):
    """How much a command may leave in /artifacts. More than that ends its job as failed."""

    files: int = 200
    file_bytes: int = 1024**3
    total_bytes: int = 2 * 1024**3
    entries: int = 2000
    """Entries of any kind, directories included, that are looked at."""
    depth: int = 32
    """How many names a path may have; what is deeper is skipped."""
    path_bytes: int = 1024
    """How long a path may be; a longer one is skipped."""
    listed_skips: int = 100
    """How many of the skipped are listed by name; all are counted."""


DEFAULT_LIMITS = ArtifactLimits()


async def collect_artifacts(
    blobs: Blobs, box: Box, limits: ArtifactLimits = DEFAULT_LIMITS
) -> KeptOutput | None:
    """Keep the files of a box that is proven dead; None if it left nothing.

    Repeated after a crash it writes the same blobs and returns the same. Raise ArtifactsTooLarge
    beyond a limit, BlobsUnavailable or OSError where it can be repeated.
    """
    scan = await to_end(_scan, box, limits)
    if not scan.files and not scan.skipped_counts:
        return None
    prefix = artifacts_prefix(box.job, box.attempt)
    manifest = ArtifactManifest(
        files=tuple(await _put_files(blobs, box.artifacts, prefix, scan.files)),
        skipped=tuple(scan.skipped),
        skipped_counts=dict(sorted(scan.skipped_counts.items())),
    )
    reach("artifacts.put")
    text = msgspec.json.encode(manifest)
    # Last: a manifest that can be read names only files that are there.
    await blobs.put(manifest_key(box.job, box.attempt), text)
    return KeptOutput(
        digest=sha256(text).hexdigest(), bytes=manifest.total_bytes, truncated=manifest.truncated
    )


class _FoundFile(Struct, frozen=True):
    """A regular file that a scan found, and how it is recognised when it is opened."""

    names: tuple[str, ...]
    bytes: int
    inode: int

    @property
    def path(self) -> str:
        return "/".join(self.names)


class _Scan:
    """What a walk through a tree has found so far, in a fixed order."""

    def __init__(self, limits: ArtifactLimits) -> None:
        self.files: list[_FoundFile] = []
        self.skipped: list[SkippedArtifact] = []
        self.skipped_counts: Counter[SkipReason] = Counter()
        self._limits = limits
        self._entries = 0
        self._bytes = 0
        self._device = -1

    def walk(self, directory: int, above: tuple[str, ...] = ()) -> None:
        """Look at all that is in an open directory, and below it."""
        if not above:
            self._device = os.fstat(directory).st_dev
        for name in self._list(directory):
            reason = self._look(directory, (*above, name))
            if reason is not None:
                self.skip((*above, name), reason)

    def skip(self, names: tuple[str, ...], reason: SkipReason) -> None:
        """Count something that is not kept."""
        self.skipped_counts[reason] += 1
        if len(self.skipped) < self._limits.listed_skips:
            path = os.fsencode("/".join(names)).decode(errors="backslashreplace")
            self.skipped.append(SkippedArtifact(path=path[:SHOWN_PATH], reason=reason))

    def _list(self, directory: int) -> list[str]:
        """List a directory in the order of the names' bytes; stop where there are too many."""
        names = []
        with os.scandir(directory) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > self._limits.entries:
                    raise ArtifactsTooLarge(f"more than {self._limits.entries:,} entries")
                names.append(entry.name)
        return sorted(names, key=os.fsencode)

    def _look(self, directory: int, names: tuple[str, ...]) -> SkipReason | None:
        """Take a file, or all files of a directory; return why it is not taken."""
        name = names[-1]
        if not is_artifact_name(name):
            return SkipReason.NAME_NOT_TEXT
        if len(names) > self._limits.depth:
            return SkipReason.TOO_DEEP
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return self._enter(directory, names, found)
        if stat.S_ISREG(found.st_mode):
            return self._take(directory, names, found)
        return _OTHER_KINDS.get(stat.S_IFMT(found.st_mode), SkipReason.DEVICE)

    def _enter(
        self, directory: int, names: tuple[str, ...], found: os.stat_result
    ) -> SkipReason | None:
        if found.st_dev != self._device:
            return SkipReason.OTHER_FILESYSTEM
        try:
            with hold_open(names[-1], OPEN_DIRECTORY, directory) as inner:
                self.walk(inner, names)
        except PermissionError:
            return SkipReason.UNREADABLE
        return None

    def _take(
        self, directory: int, names: tuple[str, ...], found: os.stat_result
    ) -> SkipReason | None:
        file = _FoundFile(names, found.st_size, found.st_ino)
        if len(file.path.encode()) > self._limits.path_bytes:
            return SkipReason.PATH_TOO_LONG
        if not _may_read(names[-1], directory):
            return SkipReason.UNREADABLE
        self.files.append(file)
        self._bytes += file.bytes
        self._check_limits(file)
        return None

    def _check_limits(self, last: _FoundFile) -> None:
        limits = self._limits
        if len(self.files) > limits.files:
            raise ArtifactsTooLarge(f"more than {limits.files:,} files")
        if last.bytes > limits.file_bytes:
            text = f"{last.path!r} has {last.bytes:,} bytes; the limit is {limits.file_bytes:,}"
            raise ArtifactsTooLarge(text)
        if self._bytes > limits.total_bytes:
            raise ArtifactsTooLarge(f"more than {limits.total_bytes:,} bytes in all")


_OTHER_KINDS = {
    stat.S_IFLNK: SkipReason.LINK,
    stat.S_IFIFO: SkipReason.FIFO,
    stat.S_IFSOCK: SkipReason.SOCKET,
}


def _scan(box: Box, limits: ArtifactLimits) -> _Scan:
    """Find what a box left."""
    scan = _Scan(limits)
    try:
        root = os.open(box.artifacts, OPEN_DIRECTORY)
    except NotADirectoryError:
        # Only a command that is not isolated from its host can have replaced the directory.
        scan.skip((".",), SkipReason.LINK)
        return scan
    except FileNotFoundError:
        # Or removed it. Where all of the attempt is gone, nothing is known of what there was.
        box.directory.stat()
        return scan
    # What is gone from here on was removed while it was looked at: that is an error.
    try:
        scan.walk(root)
    finally:
        os.close(root)
    return scan


def _may_read(name: str, directory: int) -> bool:
    if os.geteuid() == 0:
        return True
    try:
        with hold_open(name, _FILE, directory):
            return True
    except PermissionError:
        return False


@contextmanager
def hold_open(name: str | Path, flags: int, directory: int | None = None) -> Iterator[int]:
    """Open a file or directory, in an open directory if one is given, for the time of a block."""
    opened = os.open(name, flags, dir_fd=directory)
    try:
        yield opened
    finally:
        os.close(opened)


async def _put_files(
    blobs: Blobs, root: Path, prefix: str, files: list[_FoundFile]
) -> list[KeptArtifact]:
    """Write files under their numbers: small ones several at a time, large ones one by one."""
    kept: dict[int, KeptArtifact] = {}
    waiting = iter(enumerate(files))
    one_large = asyncio.Lock()

    async def work() -> None:
        for number, file in waiting:
            key = f"{prefix}/{number}"
            if file.bytes <= CHUNK_BYTES:
                data = await to_end(_read_small, root, file)
                stored = await blobs.put(key, data)
            else:
                async with one_large:
                    stored = await _put_large(blobs, root, key, file)
            kept[number] = KeptArtifact(
                path=file.path, bytes=stored.bytes, sha256=stored.digest, key=key
            )

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(SMALL_PUTS, len(files))):
                group.create_task(work())
    except ExceptionGroup as errors:
        # One is enough: whatever it is, all of it is repeated or given up.
        raise errors.exceptions[0] from None
    return [kept[number] for number in range(len(files))]


def _read_small(root: Path, file: _FoundFile) -> bytes:
    with _open_beneath(root, file) as opened:
        data = opened.read(file.bytes + 1)
    if len(data) != file.bytes:
        raise _changed_error(file)
    return data


async def _put_large(blobs: Blobs, root: Path, key: str, file: _FoundFile) -> StoredBlob:
    # Not in a thread: a file that is opened for a caller who was cancelled would stay open.
    with _open_beneath(root, file) as opened:
        return await blobs.put(key, _read_pieces(opened, file))


async def _read_pieces(opened: BinaryIO, file: _FoundFile) -> AsyncIterator[bytes]:
    left = file.bytes
    while piece := await to_end(opened.read, CHUNK_BYTES):
        left -= len(piece)
        yield piece
    if left:
        raise _changed_error(file)


def _open_beneath(root: Path, file: _FoundFile) -> BinaryIO:
    """Open a file that a scan found, name by name from the top: no link leads elsewhere."""
    directory = os.open(root, OPEN_DIRECTORY)
    try:
        for name in file.names[:-1]:
            inner = os.open(name, OPEN_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = inner
        opened = os.fdopen(os.open(file.names[-1], _FILE, dir_fd=directory), "rb")
    finally:
        os.close(directory)
    found = os.fstat(opened.fileno())
    if not stat.S_ISREG(found.st_mode) or (found.st_size, found.st_ino) != (file.bytes, file.inode):
        opened.close()
        raise _changed_error(file)
    return opened


def _changed_error(file: _FoundFile) -> OSError:
    return OSError(f"{file.path!r} changed while it was collected, though its box is dead")
