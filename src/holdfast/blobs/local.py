"""Blobs in a directory. The library reads and lists them; they are written here.

The library renames a file into place without a sync: after a power cut, an end on record could
name a blob that is empty or gone. Here the file is synced before it has its name, and the name and
those of all directories above it before the put returns.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.store import LocalStore

from holdfast.blobs.objects import ObjectBlobs, in_chunks, translated
from holdfast.errors import BlobsUnavailable
from holdfast.ports.blobs import StoredBlob
from holdfast.ports.threads import to_end

if TYPE_CHECKING:
    from obstore import ObjectMeta

INCOMING = ".incoming"
"""The directory of files that are being written, below that of the store."""
TRIES = 100
"""How often a directory is made again that a delete removes, because it was empty, meanwhile."""


def open_local(directory: Path, prefix: str) -> LocalBlobs:
    """Keep blobs in a directory; it is made if it is not there.

    What writers have left that were killed is removed.
    """
    with translated(f"the directory of blobs {directory} cannot be used"):
        _make_directory(directory / prefix)
        _remove_abandoned(directory / prefix / INCOMING)
        return LocalBlobs(directory, prefix)


class LocalBlobs(ObjectBlobs):
    """Keeps blobs in a directory. Implements `Blobs`.

    That of the store below it is made when the place is opened, and never again: one that is gone
    later is on a disk that is not mounted now, and what is written in its stead would be lost.
    """

    def __init__(self, directory: Path, prefix: str) -> None:
        """Keep blobs below a prefix, which distinguishes one store's from another's."""
        super().__init__(LocalStore(directory), prefix)
        self._directory = directory
        self._of_store = directory / prefix

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        """Write a blob, durably."""
        failure = f"blob {key} was not written"
        path = self._directory / self._path(key)
        file = _IncomingFile(self._of_store)
        try:
            if isinstance(data, bytes):
                with translated(failure):
                    await to_end(file.write, data, last=True)
            else:
                async for piece in in_chunks(data):
                    with translated(failure):
                        await to_end(file.write, piece)
                with translated(failure):
                    await to_end(file.write, b"", last=True)
            with translated(failure):
                await to_end(file.publish, path)
        except BaseException:
            await to_end(file.discard)
            raise
        return file.stored

    async def create(self, key: str, data: bytes) -> bool:
        """Write a small blob unless there is one; False if there is."""
        path = self._directory / self._path(key)
        with translated(f"blob {key} was not written"):
            return await to_end(self._create, path, data)

    async def delete(self, keys: Collection[str]) -> None:
        """Delete blobs, durably: one that is erased must not be back after a power cut."""
        paths = [self._directory / self._path(key) for key in keys]
        with translated("blobs cannot be deleted"):
            await to_end(self._delete, paths)

    async def room(self) -> int | None:
        """Return what is free on its disk."""
        with translated("the room for blobs is not known"):
            found = await to_end(os.statvfs, self._directory)
        return found.f_bavail * found.f_frsize

    def _create(self, path: Path, data: bytes) -> bool:
        file = _IncomingFile(self._of_store)
        try:
            file.write(data, last=True)
            file.publish(path, replace=False)
        except FileExistsError:
            return False
        finally:
            file.discard()
        return True

    def _delete(self, paths: Iterable[Path]) -> None:
        changed: set[Path] = set()
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                changed.add(_remove_empty(path.parent, self._of_store))
        for directory in changed:
            # One that was removed since: a later delete has emptied it, and synced above it.
            with suppress(FileNotFoundError):
                _sync(directory)

    async def _check_there(self) -> None:
        if not await to_end(self._of_store.is_dir):
            raise BlobsUnavailable(f"the directory of blobs {self._of_store} is not there")

    async def _list(self, path: str) -> AsyncIterator[ObjectMeta]:
        """List files in the order of their paths, with one directory per level in memory."""
        found = await self._objects.list_with_delimiter_async(path)
        if not any(found.values()):
            await self._check_there()
        entries: list[tuple[str, ObjectMeta | None]] = [
            *((f"{name}/", None) for name in found["common_prefixes"]),
            *((one["path"], one) for one in found["objects"]),
        ]
        for name, file in sorted(entries, key=lambda entry: entry[0]):
            if file is not None:
                yield file
                continue
            async for one in self._list(name):
                yield one


class _IncomingFile:
    """A file that is being written, under a name of its own, made by the first write.

    It is locked, which distinguishes it from one whose writer was killed.
    """

    def __init__(self, of_store: Path) -> None:
        self._of_store = of_store
        self._path = of_store / INCOMING / secrets.token_hex(16)
        self._file: int | None = None
        self._digest, self._size = sha256(), 0

    @property
    def stored(self) -> StoredBlob:
        return StoredBlob(self._size, self._digest.hexdigest())

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Write a piece; after the last one, the file is synced."""
        if self._file is None:
            self._file = self._open()
        self._digest.update(data)
        self._size += len(data)
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]
        if last:
            os.fsync(self._file)

    def publish(self, path: Path, *, replace: bool = True) -> None:
        """Give it its name, durably; it must be synced."""
        above = path.parents[: path.parents.index(self._of_store)]
        for _ in range(TRIES):
            with suppress(FileNotFoundError):
                for directory in reversed(above):
                    # Not `exist_ok`: that looks again, and another may have removed it by then.
                    with suppress(FileExistsError):
                        directory.mkdir(mode=0o700)
                if replace:
                    self._path.rename(path)
                else:
                    path.hardlink_to(self._path)
                break
        else:
            raise FileNotFoundError(f"{path.parent} is removed again and again")
        # All of them: another process may have made one of the directories a moment ago, and
        # not have synced it yet.
        for directory in (*above, self._of_store):
            _sync(directory)
        self._close()

    def discard(self) -> None:
        """Remove what was not published."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            self._close()

    def _open(self) -> int:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        while True:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return file
            # Before it was locked, another process took it for one that was left behind.
            os.close(file)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _make_directory(directory: Path) -> None:
    """Make a directory and those above it, durably."""
    missing = [one for one in (directory, *directory.parents) if not one.exists()]
    for one in reversed(missing):
        # Others may have to pass through those above it, such as the users of boxes.
        mode = 0o700 if one in (directory, directory.parent) else 0o711
        one.mkdir(mode=mode, exist_ok=True)
        one.chmod(mode)
        _sync(one.parent)
    # Another process may have made them a moment ago, and not have synced them yet.
    for one in (directory.parent, directory.parent.parent):
        with suppress(PermissionError):
            _sync(one)


def _remove_abandoned(directory: Path) -> None:
    """Remove files whose writer is dead: nobody holds their lock."""
    # A reader may not be allowed to; a writer that started at the same moment may be quicker.
    with suppress(FileNotFoundError, PermissionError):
        for path in directory.iterdir():
            with suppress(FileNotFoundError, PermissionError, BlockingIOError):
                file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(file)


def _remove_empty(directory: Path, root: Path) -> Path:
    """Remove directories that are empty, from the innermost; return the first that is not."""
    while directory != root:
        try:
            directory.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            break
        directory = directory.parent
    return directory


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
