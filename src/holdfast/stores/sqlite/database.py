"""One database file as a process has it open: one writer, a few readers, shared by its stores.

Own to SQLite: its locks belong to the process, so all stores of a file share its connections.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import apsw

from holdfast.errors import StoreBroken, StoreForked
from holdfast.stores.columns import Dictionary
from holdfast.stores.sqlite.connections import (
    FATAL,
    FileIdentity,
    Patience,
    SqlitePlace,
    connect,
    translate_error,
)
from holdfast.stores.sqlite.turn import ReadSnapshot
from holdfast.stores.sqlite.writer import Writer

T = TypeVar("T")
READERS = 4


class Database:
    """What all stores of one file share: `open_shared` gives it, `close_shared` lets go of it."""

    def __init__(self, place: SqlitePlace, connection: apsw.Connection) -> None:
        """Take over a connection whose schema is the right one."""
        self.seen = Dictionary()
        self._identity = FileIdentity(place)
        self.writer = Writer(connection, place, self.seen, self._identity)
        self.users = 0
        self._place = place
        self._idle: deque[apsw.Connection] = deque()
        self._readers = ThreadPoolExecutor(READERS, f"holdfast reader of {place.path}")

    async def read(self, action: Callable[[ReadSnapshot], T]) -> T:
        """Do something that only reads, in one short snapshot."""
        if self._place.in_memory:
            # There is only one connection, and the writer has it.
            return await self.writer.perform(action, lambda: 0)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read_patiently, action)

    def _read_patiently(self, action: Callable[[ReadSnapshot], T]) -> T:
        try:
            result = Patience(self._place.deadline_seconds).retry_while_busy(
                lambda: self._read_in_snapshot(action)
            )
        except apsw.Error as error:
            self._identity.check()
            raise translate_error(error) from error
        except StoreBroken:
            # A new connection could not be opened: most likely because the file is gone.
            self._identity.check()
            raise
        self._identity.check()
        return result

    def _read_in_snapshot(self, action: Callable[[ReadSnapshot], T]) -> T:
        try:
            connection = self._idle.popleft()
        except IndexError:
            connection = connect(self._place, writes=False)
        try:
            connection.execute("BEGIN")
            result = action(ReadSnapshot(connection, self.seen))
            connection.execute("COMMIT")
        except FATAL:
            # A new one may do better once the disk does.
            connection.close()
            raise
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._idle.append(connection)
            raise
        self._idle.append(connection)
        return result

    def close(self) -> None:
        """Finish what was started and let go of the file; blocks until it is done."""
        self._readers.shutdown()
        while self._idle:
            self._idle.popleft().close()
        self.writer.stop()


_open: dict[tuple[int, str, str | None, str], Database] = {}
_lock = threading.Lock()


def _renew_lock() -> None:
    """Replace the lock in a forked child: a thread that held it there does not exist here."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def check_not_forked(place: SqlitePlace) -> None:
    """Raise StoreForked if a parent of this process had the file open when it forked.

    SQLite keeps in memory which locks the process has on a file. The child inherits the notes but
    not the locks, and opened again, the file could be damaged by two writers.
    """
    if any(pid != os.getpid() and path == place.path for pid, path, *_ in _open):
        raise StoreForked(
            f"the SQLite file {place.path} was open when this process was forked, and cannot be "
            "used here: close it before the fork (app.close_sync(), or the end of `async with "
            "app:`), submit nothing before it (gunicorn: without preload), or start processes by "
            "spawn"
        )


def open_shared(
    place: SqlitePlace, prepare: Callable[[apsw.Connection, SqlitePlace], None]
) -> Database:
    """Open a database, or share it with the stores of this process that have it open.

    `prepare` checks or makes the schema before it is used. Blocks.
    """
    with _lock:
        check_not_forked(place)
        database = _open.get(_key(place))
        if database is None:
            connection = connect(place)
            try:
                prepare(connection, place)
                database = _open[_key(place)] = Database(place, connection)
            except BaseException:
                connection.close()
                raise
        database.users += 1
        return database


def close_shared(place: SqlitePlace, database: Database) -> None:
    """Release a database; the last user closes it. Blocks."""
    with _lock:
        database.users -= 1
        if database.users == 0:
            del _open[_key(place)]
            database.close()


def _key(place: SqlitePlace) -> tuple[int, str, str | None, str]:
    # With the process: what a fork copied has no threads.
    return os.getpid(), place.path, place.vfs, place.synchronous
