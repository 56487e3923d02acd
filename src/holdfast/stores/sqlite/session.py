"""A session: the way from the event loop to the threads of a database, and the store's clock.

differs from postgres: reads run on a reader's thread, writes in a turn on the one writer's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw

from holdfast.errors import StoreError
from holdfast.lifecycle.record import Job, JobId, LoggedEvent
from holdfast.stores.columns import Dictionary
from holdfast.stores.sqlite.clock import StoreClock
from holdfast.stores.sqlite.connections import SqlitePlace, translate_error
from holdfast.stores.sqlite.database import Database, check_not_forked, close_shared, open_shared
from holdfast.stores.sqlite.migrate import prepare
from holdfast.stores.sqlite.rows import SQL, event_of, job_id, job_of, split_ids
from holdfast.stores.sqlite.turn import ReadSnapshot, Turn
from holdfast.stores.statements import Row, Statement, Statements

T = TypeVar("T")


class SqliteSession(Statements):
    """Runs statements and functions on the threads of one database file."""

    sql = SQL

    def __init__(self, place: SqlitePlace, machine: Callable[[], int]) -> None:
        self.place = place
        self.clock = StoreClock(machine)
        self.seen = Dictionary()
        self._database: Database | None = None
        self._opening: asyncio.Task[None] | None = None
        self._process = 0

    async def open(self) -> None:
        """Open the file; a new one gets the schema, any other must have this version's."""
        if self._database is not None:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_database())
        # A caller that is cancelled leaves it to the others, or to `close`: a thread cannot be
        # stopped.
        await asyncio.shield(self._opening)

    async def _open_database(self) -> None:
        try:
            self._database = await asyncio.to_thread(open_shared, self.place, prepare)
            self.seen = self._database.seen
            self._process = os.getpid()
            await self.read(self.clock.start)
        except apsw.Error as error:
            raise translate_error(error) from error
        finally:
            self._opening = None

    async def close(self) -> None:
        """Finish what was started and let go of the file."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        database, self._database = self._database, None
        if database is not None and self._process == os.getpid():
            await asyncio.to_thread(close_shared, self.place, database)

    @property
    def database(self) -> Database:
        """The open database; StoreError where it is not open."""
        if self._database is None:
            raise StoreError("the store is not open; await store.open() first")
        if self._process != os.getpid():
            check_not_forked(self.place)
        return self._database

    async def read(self, action: Callable[[ReadSnapshot], T]) -> T:
        """Do something that only reads, in one short snapshot."""
        return await self.database.read(action)

    async def perform(self, action: Callable[[Turn], T], *, urgent: bool = False) -> T:
        """Do something that writes, in a turn of the writer's; return once it is durable."""
        if self.clock.is_due:
            action = partial(self._tended, action)
        return await self.database.writer.perform(action, self.clock.now, urgent=urgent)

    def _tended(self, action: Callable[[Turn], T], turn: Turn) -> T:
        self.clock.tend(turn)
        return action(turn)

    async def fetch(self, text: str, *parameters: Any) -> Sequence[Row]:
        """Run a statement that only reads."""
        return await self.read(
            lambda snapshot: snapshot.connection.execute(text, parameters).fetchall()
        )

    async def snapshot(self, *statements: Statement) -> list[Sequence[Row]]:
        """Run statements that only read, all in one snapshot."""
        return await self.read(lambda snapshot: [snapshot.rows(*one) for one in statements])

    async def write(self, name: str, *parameters: Any) -> Sequence[Row]:
        """Run a named statement that writes."""
        return await self.perform(lambda turn: turn.rows(name, *parameters))

    async def write_rows(self, name: str, rows: Sequence[Row], *shared: Any) -> None:
        """Run a named statement that writes for each of these rows."""
        await self.perform(lambda turn: turn.write(name, rows, shared))

    async def set_aside(self, bad: Mapping[JobId, str]) -> None:
        """Keep damaged jobs out of claims and sweeps."""
        await self.perform(lambda turn: turn.set_aside(bad))

    def id(self, value: Any) -> JobId:
        """Read an id: 16 bytes."""
        return job_id(value)

    def ids(self, values: Any) -> list[JobId]:
        """Read the ids of a claim, one after the other."""
        return split_ids(values)

    def job(self, row: Row) -> Job:
        """Make a record out of a job row; what it names is known."""
        return job_of(row, self.seen)

    def event(self, row: Row) -> LoggedEvent:
        """Make an event out of an event row; what it names is known."""
        return event_of(row, self.seen)
