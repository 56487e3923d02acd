"""Power cuts for SQLite: record what it writes and syncs, then rebuild what a disk could hold.

A recording is an apsw VFS over the default one. Open the database through it, mark each commit
when it was acknowledged, and let `crash_images` rebuild the directory as a cut at some moment
could have left it; `disk_model` says what a disk is taken to do. The WAL-index (-shm) is left out:
SQLite rebuilds it after a crash.

All databases of a recording are in one directory and used by one process.
"""

import os
import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import apsw

from tests.support.disk_model import (
    Create,
    Delete,
    Disk,
    Loss,
    Mark,
    Operation,
    Sync,
    Truncate,
    Write,
)

_numbers = count(1)


class Recording:
    """Everything SQLite did to its files through `vfs_name`; use it as a context manager."""

    def __init__(self) -> None:
        self.vfs_name = f"power-cut-{next(_numbers)}"
        self.operations: list[Operation] = []
        self.found: dict[str, tuple[int, bytes]] = {}
        self.main_name = ""
        self._files: dict[str, int] = {}
        self._file_numbers = count(1)
        self._lock = threading.RLock()
        self._vfs = _RecordingVFS(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._vfs.unregister()

    def mark(self, label: str) -> None:
        """Say what is known to the outside from now on, such as "acknowledged commit 17"."""
        self._append(Mark(label))

    # The rest is called by the VFS.

    def open_file(self, path: str, *, existed: bool, is_main: bool) -> int:
        """The number of the file that `path` names now; a file made anew gets a new one."""
        name = Path(path).name
        with self._lock:
            if is_main and not self.main_name:
                self.main_name = name
            if name not in self._files:
                self._files[name] = next(self._file_numbers)
                self._note_origin(name, Path(path) if existed else None)
            return self._files[name]

    def write(self, file: "_RecordedFile", data: bytes, offset: int) -> None:
        with self._lock:
            file.really_write(data, offset)
            self._append(Write(file.number, offset, data))

    def truncate(self, file: "_RecordedFile", size: int) -> None:
        with self._lock:
            file.really_truncate(size)
            self._append(Truncate(file.number, size))

    def sync(self, file: "_RecordedFile", flags: int) -> None:
        # Not under the lock: a sync is slow, and what others write meanwhile is not covered by it.
        covers = len(self.operations)
        file.really_sync(flags)
        self._append(Sync(file.number, covers))

    def delete(self, path: str, *, durable: bool) -> None:
        name = Path(path).name
        with self._lock:
            if self._files.pop(name, None) is not None:
                self._append(Delete(name, durable))

    def _note_origin(self, name: str, existing: Path | None) -> None:
        number = self._files[name]
        if existing is None:
            self._append(Create(name, number))
        else:
            self.found[name] = (number, existing.read_bytes())

    def _append(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)


_RECORDED = (
    apsw.SQLITE_OPEN_MAIN_DB
    | apsw.SQLITE_OPEN_MAIN_JOURNAL
    | apsw.SQLITE_OPEN_WAL
    | apsw.SQLITE_OPEN_SUPER_JOURNAL
)


class _RecordingVFS(apsw.VFS):
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        super().__init__(recording.vfs_name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        # Temporary files are gone after a crash anyway.
        if name is None or not flags[0] & _RECORDED:
            return apsw.VFSFile("", name, flags)
        return _RecordedFile(self._recording, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._recording.delete(filename, durable=syncdir)


class _RecordedFile(apsw.VFSFile):
    def __init__(
        self, recording: Recording, name: str | apsw.URIFilename, flags: list[int]
    ) -> None:
        path = name if isinstance(name, str) else name.filename()
        existed = os.path.exists(path)
        is_main = bool(flags[0] & apsw.SQLITE_OPEN_MAIN_DB)
        super().__init__("", name, flags)
        self._recording = recording
        self.number = recording.open_file(path, existed=existed, is_main=is_main)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._recording.write(self, bytes(data), offset)

    def xTruncate(self, newsize: int) -> None:
        self._recording.truncate(self, newsize)

    def xSync(self, flags: int) -> None:
        self._recording.sync(self, flags)

    def really_write(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)

    def really_truncate(self, size: int) -> None:
        super().xTruncate(size)

    def really_sync(self, flags: int) -> None:
        super().xSync(flags)


@dataclass(frozen=True, kw_only=True)
class CrashImage:
    """The directory as the cut left it; it is removed when the next image is asked for."""

    directory: Path
    database: Path
    cut: int
    loss: Loss
    marks: tuple[str, ...]

    def __str__(self) -> str:
        return f"cut after operation {self.cut}, {self.loss}, {len(self.marks)} marks before"


def crash_images(
    recording: Recording,
    seed: int,
    *,
    directory: Path,
    cuts: int = 100,
    losses: Sequence[Loss] = tuple(Loss),
) -> Iterator[CrashImage]:
    """Rebuild, below `directory`, what `cuts` moments of the recording could have left.

    The moments are spread over the recording, the same for the same seed; each gives an image per
    kind of loss, or just one if nothing was unsynced. `marks` are those set before the cut.
    """
    disk = Disk(recording.found)
    marks: list[str] = []
    done = 0
    for cut in _spread(len(recording.operations), cuts, random.Random(f"cuts {seed}")):
        for position in range(done, cut):
            operation = recording.operations[position]
            disk.take(position, operation)
            if isinstance(operation, Mark):
                marks.append(operation.label)
        done = cut
        for loss in losses if disk.has_unsynced else losses[:1]:
            files = disk.after_crash(loss, random.Random(f"{loss} {seed} {cut}"))
            image_directory = directory / f"cut-{cut}-{loss.name.lower()}"
            _write_image(image_directory, files)
            yield CrashImage(
                directory=image_directory,
                database=image_directory / recording.main_name,
                cut=cut,
                loss=loss,
                marks=tuple(marks),
            )
            shutil.rmtree(image_directory)


def _spread(length: int, cuts: int, chance: random.Random) -> list[int]:
    """One moment from each of `cuts` equal stretches, and the very end."""
    if cuts >= length:
        return list(range(1, length + 1))
    bounds = [length * part // cuts for part in range(cuts + 1)]
    chosen = [chance.randint(low + 1, high) for low, high in pairwise(bounds)]
    return sorted({*chosen, length})


def _write_image(directory: Path, files: dict[str, bytes]) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
