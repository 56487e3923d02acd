"""Connections to one SQLite file: how they are opened, and what their errors mean."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import uniform  # noqa: TID251  how long to sleep between two tries decides nothing
from typing import TypeVar

import apsw
from msgspec import Struct

from holdfast.errors import (
    HoldfastError,
    LawBroken,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

T = TypeVar("T")
CACHE_KIB = 16 * 1024
"""Of pages, for each connection. 64 MB made no drain faster; the system keeps the file, too."""
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
"""What says nothing about the statement that met it: the disk or the file gave out."""
DATA_ERRORS = (
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.TooBigError,
    OverflowError,
    UnicodeError,
    TypeError,
)
"""What one bad row causes: it alone is refused."""


class Place(Struct, frozen=True, kw_only=True):
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
    def of(cls, path: str | Path, **how: object) -> Place:
        """Name a place; two names of one file are the same place."""
        text = str(path)
        if not text.startswith(":memory:"):
            text = os.path.realpath(text)
        return cls(path=text, **how)  # type: ignore[arg-type]


def connect(place: Place, *, writes: bool = True) -> apsw.Connection:
    """Open a connection; a new file becomes a database in WAL mode."""
    try:
        return _connect(place, writes)
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.NotADBError) as error:
        raise StoreBroken(f"cannot open the SQLite file {reason(place.path, error)}") from error


def _connect(place: Place, writes: bool) -> apsw.Connection:
    name = ":memory:" if place.in_memory else place.path
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if writes else 0)
    if writes and not place.in_memory and place.vfs is None:
        create_private(place.path)
    patience = Patience(place.deadline_seconds)
    connection = patience.spend(
        lambda: apsw.Connection(name, flags=flags, vfs=place.vfs, statementcachesize=400)
    )
    try:
        patience.spend(lambda: _prepare(connection, place))
    except BaseException:
        connection.close()
        raise
    return connection


def create_private(path: str) -> None:
    """Make a file that only its owner may read; one that exists is left as it is.

    SQLite gives the files beside a database the database's own mode.
    """
    with suppress(OSError):
        # What stands in the way is for whoever opens it to say.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def reason(path: str, error: Exception) -> str:
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


def _prepare(connection: apsw.Connection, place: Place) -> None:
    if not place.in_memory:
        # Takes effect in a new file only, and there before anything is written: a purge gives its
        # pages back to the file system. In any other it would wait for the writer.
        if connection.pragma("page_count") == 0:
            connection.pragma("auto_vacuum", 2)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise apsw.BusyError(f"the journal mode is still {mode}")
    # Else a claim would be planned anew, for 20 times its cost, whenever its times are other ones.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("synchronous", place.synchronous)
    connection.pragma("cache_size", -CACHE_KIB)
    connection.pragma("temp_store", "memory")


class Patience:
    """Tries again while the file is busy, until a deadline: nobody is told "database is locked".

    The sleeps grow only to a few milliseconds and are drawn at random, so that whoever has waited
    long is as likely to be next as whoever has just come.
    """

    def __init__(self, seconds: float, *, longest: float = 0.002) -> None:
        """Begin to wait now, with sleeps of so many seconds at most."""
        self.seconds = seconds
        self._until = time.monotonic() + seconds
        self._sleep, self._longest = 0.0002, longest

    def spend(self, action: Callable[[], T]) -> T:
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


def translate(error: BaseException) -> BaseException:
    """Say in Holdfast's words what went wrong; what is no database error stays as it is."""
    match error:
        case HoldfastError():
            return error
        case apsw.FullError():
            told: StoreError = StoreFull(f"no room left for the SQLite file: {error}")
        case apsw.BusyError() | apsw.LockedError():
            told = StoreUnavailable(f"the SQLite file stayed busy: {error}")
        case apsw.ConstraintError() | apsw.MismatchError():
            told = LawBroken(f"the database refused a row: {error}")
        case _ if isinstance(error, FATAL):
            told = _broken(error)
        case apsw.Error():
            told = StoreError(f"SQLite failed: {error}")
        case _:
            return error
    told.__cause__ = error
    return told


def _broken(error: BaseException) -> StoreError:
    # A write past the quota or the end of the disk may come as an I/O error with that errno.
    if "No space left" in str(error) or "quota" in str(error).lower():
        return StoreFull(f"no room left for the SQLite file: {error}")
    return StoreBroken(f"the SQLite file could not be read or written: {error}")
