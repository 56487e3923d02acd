"""A disk that fails on demand: an apsw VFS over the default one."""

from __future__ import annotations

from itertools import count
from types import TracebackType
from typing import Self

import apsw

_numbers = count(1)


class FaultyDisk:
    """Files opened through `vfs_name` fail while `failing` names what they do; a context manager.

    `failing` is "write", "sync" or "read"; None is a healthy disk.
    """

    def __init__(self) -> None:
        self.vfs_name = f"faulty-{next(_numbers)}"
        self.failing: str | None = None
        self.failures = 0
        self._vfs = _FaultyVFS(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._vfs.unregister()

    def check(self, doing: str, error: type[apsw.Error] = apsw.IOError) -> None:
        """Fail if the disk does."""
        if self.failing == doing:
            self.failures += 1
            raise error(f"the disk fails to {doing}")


class _FaultyVFS(apsw.VFS):
    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        super().__init__(disk.vfs_name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _FaultyFile(self._disk, name, flags)


class _FaultyFile(apsw.VFSFile):
    def __init__(
        self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.check("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.check("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.check("sync")
        super().xSync(flags)
