"""Connections to one SQLite file: how they are opened, and what their errors mean.

differs from postgres: a busy file is waited for here, and nothing has to be retried whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import uniform  # noqa: TID251  how long to sleep between two tries decides nothing
from typing import Any, TypeVar
from uuid import UUID

import apsw
import msgspec
from msgspec import Struct

from holdfast.errors import (
    HoldfastError,
    LawBroken,
    PolicyChanged,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreReplaced,
    StoreUnavailable,
)
from holdfast.stores.door import UNJUDGED_TEXT

T = TypeVar("T")
CACHE_KIB = 4 * 1024
"""The page cache of each of five connections. More did not help: the system caches, too."""
BUSY = (apsw.BusyError, apsw.LockedError, BlockingIOError)
FATAL = (
    apsw.FullError,
    apsw.IOError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.CantOpenError,
    apsw.ReadOnlyError,
    apsw.NoMemError,
    apsw.ProtocolError,
)
"""What is not the fault of the statement that met it: the disk or the file gave out."""
DATA_ERRORS = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.TooBigError,
    OverflowError,
    UnicodeError,
    TypeError,
)
"""What one bad row causes: it alone is refused."""


class SqlitePlace(Struct, frozen=True, kw_only=True):
    """Where a database is and how it is opened."""

    path: str
    vfs: str | None = None
    synchronous: str = "FULL"
    deadline_seconds: float = 30.0

    @property
    def in_memory(self) -> bool:
        """Whether it ends with its last store; then one connection serves everyone."""
        return self.path.startswith(":memory:")

    @classmethod
    def of(cls, path: str | Path, **how: object) -> SqlitePlace:
        """Name a place; two names of one file are the same place."""
        text = str(path)
        if not text.startswith(":memory:"):
            text = os.path.realpath(text)
        return cls(path=text, **how)  # type: ignore[arg-type]


def connect(place: SqlitePlace, *, writes: bool = True) -> apsw.Connection:
    """Open a connection; a new file becomes a database in WAL mode."""
    try:
        return _connect(place, writes)
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.NotADBError) as error:
        raise StoreBroken(
            f"cannot open the SQLite file {explain_unusable(place.path, error)}"
        ) from error


def _connect(place: SqlitePlace, writes: bool) -> apsw.Connection:
    name = ":memory:" if place.in_memory else place.path
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if writes else 0)
    if writes and not place.in_memory and place.vfs is None:
        create_private(place.path)
    patience = Patience(place.deadline_seconds)
    connection = patience.retry_while_busy(
        lambda: apsw.Connection(name, flags=flags, vfs=place.vfs, statementcachesize=400)
    )
    try:
        patience.retry_while_busy(lambda: _configure(connection, place))
    except BaseException:
        connection.close()
        raise
    return connection


def create_private(path: str) -> None:
    """Make a file that only its owner may read; one that exists is left as it is.

    SQLite gives the files beside a database the database's own mode.
    """
    with suppress(OSError):
        # What stands in the way is reported by the one that opens it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def explain_unusable(path: str, error: Exception) -> str:
    """Name a file that cannot be used, and what most likely stands in the way."""
    directory = os.path.dirname(path)
    if os.path.isdir(path):
        likely = "it is a directory; name a file in it"
    elif not os.path.isdir(directory):
        likely = f"there is no directory {directory}; make it first"
    elif not os.access(directory, os.W_OK | os.X_OK):
        likely = f"the directory {directory} is not writable; SQLite puts files beside its own"
    elif os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
        likely = "it may not be read and written by this user"
    else:
        likely = str(error)
    return f"{path}: {likely}"


def _configure(connection: apsw.Connection, place: SqlitePlace) -> None:
    if not place.in_memory:
        # Takes effect in a new file only, and there before anything is written: a purge gives its
        # pages back to the file system. In any other it would wait for the writer.
        if connection.pragma("page_count") == 0:
            connection.pragma("auto_vacuum", 2)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise apsw.BusyError(f"the journal mode is still {mode}")
    # Else a claim would be planned again, for 20 times its cost, whenever its times are other ones.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("synchronous", place.synchronous)
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("temp_store", "memory")
    connection.convert_binding = _bind_value


def _bind_value(cursor: apsw.Cursor, number: int, value: Any) -> apsw.SQLiteValue:
    """Bind what SQLite has no type for: an id as its bytes, a list as JSON."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, list):
        return _json(value).decode()
    raise TypeError(f"a parameter cannot be {type(value).__name__}")


_json = msgspec.json.Encoder(uuid_format="hex").encode


FILE_SUFFIXES = ("", "-wal", "-shm")
"""The database, its log and the log's index: a commit that any of them misses is lost."""


class FileIdentity:
    """The files of a database as they were when it was opened.

    A file that was removed or replaced can be written for as long as it is open, and is gone at the
    end: SQLite reports no error.
    """

    def __init__(self, place: SqlitePlace) -> None:
        """Remember the files that are there; a place without a file of its own has none."""
        names = () if place.in_memory else tuple(place.path + suffix for suffix in FILE_SUFFIXES)
        self._files = {name: found for name in names if (found := _find_inode(name)) is not None}

    def check(self) -> None:
        """Raise StoreReplaced unless each file is still the one that was opened."""
        for name, opened in self._files.items():
            found = _find_inode(name)
            if found != opened:
                raise StoreReplaced(
                    f"the SQLite file {name} was {'removed' if found is None else 'replaced'} "
                    "while it was open; what is written to it now would be lost: stop every "
                    "process that has it open, put the right file in place, and start them again"
                )


def _find_inode(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


class Patience:
    """Tries again while the file is busy, until a deadline: nobody sees "database is locked".

    The sleeps grow only to a few milliseconds and are drawn at random, so that a process that has
    waited long is as likely to be next as one that has just come.
    """

    def __init__(self, seconds: float, *, longest: float = 0.002) -> None:
        """Start to wait now, with sleeps of at most `longest` seconds."""
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._sleep, self._longest = 0.0002, longest

    def retry_while_busy(self, action: Callable[[], T]) -> T:
        """Do it as soon as it can be done."""
        while True:
            try:
                return action()
            except BUSY as error:
                if time.monotonic() >= self._until:
                    raise StoreUnavailable(
                        f"the SQLite file was busy for {self.seconds:g} s; try again"
                    ) from error
            time.sleep(uniform(0, self._sleep))
            self._sleep = min(self._sleep * 2, self._longest)


def translate_error(error: BaseException) -> BaseException:
    """Turn a driver error into one of ours; any other error stays as it is."""
    match error:
        case HoldfastError():
            return error
        case apsw.FullError():
            found: StoreError = StoreFull(f"no room left for the SQLite file: {error}")
        case apsw.BusyError() | apsw.LockedError():
            found = StoreUnavailable(f"the SQLite file stayed busy: {error}")
        case apsw.ConstraintError() if UNJUDGED_TEXT in str(error):
            found = PolicyChanged(f"{error}; judge the job by it, and try again")
        case apsw.ConstraintError() | apsw.MismatchError():
            found = LawBroken(f"the database refused a row: {error}")
        case _ if isinstance(error, FATAL):
            found = _make_disk_error(error)
        case apsw.Error():
            found = StoreError(f"SQLite failed: {error}")
        case _:
            return error
    found.__cause__ = error
    return found


def _make_disk_error(error: BaseException) -> StoreError:
    # A write past the quota or the end of the disk may come as an I/O error with that errno.
    if "No space left" in str(error) or "quota" in str(error).lower():
        return StoreFull(f"no room left for the SQLite file: {error}")
    return StoreBroken(f"the SQLite file could not be read or written: {error}")
