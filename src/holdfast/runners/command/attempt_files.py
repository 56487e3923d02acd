"""The directories of attempts on this host: which there are, and how one is removed.

What is in them was made by commands: any depth, any owner, any mode, links to anywhere. Nothing
here follows a link, and nothing takes more memory or descriptors for a deeper tree.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

from holdfast.lifecycle.record import JobId
from holdfast.ports.host import AttemptFiles
from holdfast.queries.box_files import attempt_directory, jobs_directory

LOOK_AT = 200
"""Directories of jobs that are looked at in one pass."""
_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class AttemptDirectories:
    """The directories of one store's attempts on this host."""

    def __init__(self, root: Path) -> None:
        """Look below the directory of the store's commands."""
        self._root = root
        self._after = ""
        """The last job that a pass has seen."""

    def list(self) -> list[AttemptFiles]:
        """Return the directories of the next jobs by id; after the last one, from the first."""
        jobs = jobs_directory(self._root)
        names = sorted(name for name in _list_names(jobs) if name > self._after)[:LOOK_AT]
        self._after = names[-1] if len(names) == LOOK_AT else ""
        return [found for name in names for found in _list_attempts(jobs / name)]

    def remove(self, job: JobId, attempt: int) -> None:
        """Remove the directory of an attempt, and that of its job if it was the last."""
        directory = attempt_directory(self._root, job, attempt)
        remove_tree(directory)
        with suppress(OSError):
            directory.parent.rmdir()


def _list_names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _list_attempts(directory: Path) -> Iterator[AttemptFiles]:
    """Return the attempts of one job. What has another name was not made by Holdfast."""
    with suppress(ValueError):
        job = JobId(UUID(directory.name))
        for name in _list_names(directory):
            if not name.isdecimal():
                continue
            # It may be gone meanwhile.
            with suppress(FileNotFoundError):
                changed_at = (directory / name).lstat().st_mtime_ns // 1000
                yield AttemptFiles(job=job, attempt=int(name), changed_at=changed_at)
        if not _list_names(directory):
            # Left by a removal that died: nothing else would name it.
            with suppress(OSError):
                directory.rmdir()


def remove_tree(directory: Path) -> None:
    """Remove a directory with all that is in it; one that is not there is success.

    Directories within are moved up to the first level before they are emptied: then one of any
    depth takes two descriptors. A removal that dies is finished by the next.
    """
    try:
        top = os.open(directory, _HANDLE)
    except FileNotFoundError:
        return
    try:
        _make_writable(top)
        moved = 0
        for name in _entries(top):
            moved = _remove_entry(top, name, moved)
    finally:
        os.close(top)
    directory.rmdir()


def _entries(top: int) -> Iterator[str]:
    """Return what is in a directory until nothing is."""
    while True:
        with _opened(top) as descriptor:
            names = os.listdir(descriptor)
        if not names:
            return
        yield from names


def _remove_entry(top: int, name: str, moved: int) -> int:
    """Remove an entry of the first level; return how many directories were moved to it so far."""
    if not _is_directory(top, name):
        os.unlink(name, dir_fd=top)
        return moved
    handle = os.open(name, _HANDLE, dir_fd=top)
    try:
        _make_writable(handle)
        with _opened(handle) as descriptor:
            for child in os.listdir(descriptor):
                if _is_directory(descriptor, child):
                    moved = _move_up(descriptor, child, top, moved)
                else:
                    os.unlink(child, dir_fd=descriptor)
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=top)
    return moved


def _move_up(parent: int, name: str, top: int, moved: int) -> int:
    """Move a directory to the first level, under a name that is free there."""
    handle = os.open(name, _HANDLE, dir_fd=parent)
    try:
        # To move a directory is to write to it.
        _make_writable(handle)
    finally:
        os.close(handle)
    while True:
        moved += 1
        try:
            os.rename(name, f".removed-{moved}", src_dir_fd=parent, dst_dir_fd=top)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        else:
            return moved


def _is_directory(parent: int, name: str) -> bool:
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    return stat.S_ISDIR(found.st_mode)


@contextmanager
def _opened(handle: int) -> Iterator[int]:
    """Open a directory for reading by its handle."""
    descriptor = os.open(".", _READ, dir_fd=handle)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _make_writable(handle: int) -> None:
    """Let the owner of a directory read and empty it, whatever its mode was."""
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        # By its handle, which no rename leads elsewhere; a handle cannot be given a mode directly.
        os.chmod(f"/proc/self/fd/{handle}", mode | stat.S_IRWXU)
