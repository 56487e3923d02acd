"""Unpacks an upload into the /work of one attempt: a snapshot that is all there, or not at all.

What the archive contains was checked when it was finalized, and is checked again here as it is
read. Files are written below the directory by its descriptor, and through no link: links come last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeAlias

from holdfast.errors import (
    BlobsUnavailable,
    NoSuchBlob,
    RuntimeTrouble,
    UploadExpired,
    UploadRefused,
)
from holdfast.flow.tar_format import UploadFault, refuse
from holdfast.flow.upload_archive import (
    UploadContents,
    UploadedFile,
    UploadManifest,
    read_manifest,
)
from holdfast.ports.blobs import Blobs
from holdfast.ports.threads import to_end
from holdfast.queries.blob_keys import upload_archive_key
from holdfast.runners.command.files import write_whole

Owner: TypeAlias = tuple[int, int] | None
MARK_FILE = "unpacked"
"""Beside the directory: names the upload that is in it as a whole."""
BATCH_BYTES, BATCH_STEPS = 1024 * 1024, 500
"""How much is written by one call of a thread: a thread for each file costs more than the file."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def unpack_upload(blobs: Blobs, upload: str, work: Path, *, owner: Owner) -> None:
    """Make a directory contain an upload and nothing else; `owner` is a uid and gid, None: ours.

    Called before anything of the attempt runs. Done before by a worker that died, it is success;
    what that one left half-written is written again. Raise `UploadExpired` if the upload is gone,
    `UploadRefused` if it is not what was finalized, `RuntimeTrouble` if it cannot be read or
    written now.
    """
    try:
        if await to_end(_is_whole, work, upload):
            return
        manifest = await read_manifest(blobs, upload)
        await to_end(_empty, work)
        await _unpack(blobs, upload, manifest, work, owner)
        await to_end(_mark_whole, work, upload)
    except NoSuchBlob as error:
        await to_end(_empty, work)
        text = f"upload {upload} has expired or was deleted; upload its files again"
        raise UploadExpired(text, field="files_id") from error
    except UploadRefused:
        await to_end(_empty, work)
        raise
    except (OSError, BlobsUnavailable) as error:
        # As much room as it was given back: other jobs need it more than half a snapshot.
        await to_end(_empty, work)
        raise RuntimeTrouble(f"upload {upload} cannot be unpacked now: {error}") from error


async def _unpack(
    blobs: Blobs, upload: str, manifest: UploadManifest, work: Path, owner: Owner
) -> None:
    files = []
    if await blobs.size(upload_archive_key(upload)) is None:
        files = [entry.path for entry in manifest.entries]
    contents = UploadContents(blobs, upload, files=files, most_bytes=manifest.bytes)
    writer = await to_end(SnapshotWriter, work, owner)
    try:
        async with aclosing(contents.entries()) as entries:
            async for entry, data in entries:
                await writer.add(entry)
                async for piece in data:
                    await writer.write(piece)
        await writer.finish()
    finally:
        await to_end(writer.close)
    if contents.manifest() != manifest:
        raise refuse(
            UploadFault.CHANGED, f"upload {upload} is not what it was when it was finalized"
        )


class SnapshotWriter:
    """Writes entries below a directory, in batches that a thread carries out."""

    def __init__(self, root: Path, owner: Owner) -> None:
        """Write below a directory that is there, and empty."""
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._owner = owner
        self._parent: tuple[str, int] = "", self._root
        """The directory of the last entry, and its descriptor."""
        self._file: int | None = None
        self._links: list[UploadedFile] = []
        self._steps: list[Callable[[], None]] = [partial(self._take_over, self._root, 0o755)]
        self._bytes = 0

    async def add(self, entry: UploadedFile) -> None:
        """Write an entry; the data of a file follows by `write`."""
        match entry.type:
            case "directory":
                await self._do(partial(self._make_directory, entry.path))
            case "link":
                self._links.append(entry)
            case _:
                await self._do(partial(self._make_file, entry))

    async def write(self, piece: bytes) -> None:
        """Write a piece of the last file."""
        self._bytes += len(piece)
        await self._do(partial(self._append, piece))

    async def finish(self) -> None:
        """Write all that is left, links last: nothing that is written can go through one."""
        for link in self._links:
            await self._do(partial(self._make_link, link))
        await self._flush()

    def close(self) -> None:
        """Close what is open."""
        self._close_file()
        self._leave_parent()
        os.close(self._root)

    async def _do(self, step: Callable[[], None]) -> None:
        self._steps.append(step)
        if self._bytes >= BATCH_BYTES or len(self._steps) >= BATCH_STEPS:
            await self._flush()

    async def _flush(self) -> None:
        steps, self._steps, self._bytes = self._steps, [], 0
        await to_end(_do_all, steps)

    def _make_directory(self, path: str) -> None:
        self._enter(path)

    def _make_file(self, entry: UploadedFile) -> None:
        self._close_file()
        parent, name = self._enter_parent(entry.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(name, flags, 0o600, dir_fd=parent)
        self._take_over(self._file, 0o755 if entry.executable else 0o644)

    def _append(self, piece: bytes) -> None:
        assert self._file is not None
        left = memoryview(piece)
        while left:
            left = left[os.write(self._file, left) :]

    def _make_link(self, entry: UploadedFile) -> None:
        parent, name = self._enter_parent(entry.path)
        os.symlink(entry.target or "", name, dir_fd=parent)
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)

    def _enter_parent(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return self._enter(parent), name

    def _enter(self, path: str) -> int:
        """Open a directory, and make it and those above it where they are missing."""
        if path != self._parent[0]:
            self._leave_parent()
            for name in path.split("/") if path else ():
                descriptor = self._open_directory(name, self._parent[1])
                self._leave_parent()
                self._parent = path, descriptor
        return self._parent[1]

    def _open_directory(self, name: str, above: int) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, dir_fd=above)
        except FileNotFoundError:
            os.mkdir(name, 0o700, dir_fd=above)
        descriptor = os.open(name, flags, dir_fd=above)
        try:
            self._take_over(descriptor, 0o755)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _take_over(self, descriptor: int, mode: int) -> None:
        """Set mode and owner, whatever the umask of the worker."""
        if self._owner is not None:
            os.fchown(descriptor, *self._owner)
        os.fchmod(descriptor, mode)

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _leave_parent(self) -> None:
        if self._parent[1] != self._root:
            os.close(self._parent[1])
        self._parent = "", self._root


def _do_all(steps: list[Callable[[], None]]) -> None:
    for step in steps:
        step()


def _is_whole(work: Path, upload: str) -> bool:
    try:
        return (work.parent / MARK_FILE).read_text() == _make_mark(upload)
    except FileNotFoundError:
        return False


def _mark_whole(work: Path, upload: str) -> None:
    write_whole(work.parent / MARK_FILE, _make_mark(upload).encode())


def _make_mark(upload: str) -> str:
    """Name the upload and the boot of the machine.

    The files are not synced: after a power cut, a mark may be there and the files not.
    """
    return f"{upload} {BOOT_ID.read_text().strip()}"


def _empty(work: Path) -> None:
    """Remove all that is in a directory; it stays, because it may be mounted."""
    (work.parent / MARK_FILE).unlink(missing_ok=True)
    work.mkdir(exist_ok=True)
    with os.scandir(work) as found:
        for one in found:
            if one.is_dir(follow_symlinks=False):
                shutil.rmtree(one.path)
            else:
                os.unlink(one.path)
