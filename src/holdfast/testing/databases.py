"""Where a test's jobs live: a database in memory, or an empty one on PostgreSQL; and its clock."""

from __future__ import annotations

from itertools import count
from typing import Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.ports.models import Query
from holdfast.ports.store import Store
from holdfast.stores.postgres.schema import search_path
from holdfast.stores.sql_files import blocks
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.clock import VirtualClock
from holdfast.wiring import make_store, migrate, read_address

_numbers = count(1)


class Place(Protocol):
    """A database whose clock can be moved."""

    url: str

    def make_store(self) -> Store:
        """Make a store of it; all of them see the same jobs and the same clock."""

    async def prepare(self) -> None:
        """Make it ready, and let its clock stand still."""

    async def move_clock(self, micros: int) -> None:
        """Move the clock."""

    async def restore(self) -> None:
        """Let its clock run again."""


class InMemory:
    """A SQLite database in memory, this test's own; it ends with its last store."""

    def __init__(self, clock: VirtualClock) -> None:
        """Name a new one."""
        self.url = f":memory:kit-{next(_numbers)}"
        self._clock = clock

    def make_store(self) -> Store:
        """Make a store of it."""
        return SqliteStore(self.url, clock=self._clock)

    async def prepare(self) -> None:
        """It is made when it is first opened."""

    async def move_clock(self, micros: int) -> None:
        """Move the clock, which the stores read."""
        self._clock.move_to(micros)

    async def restore(self) -> None:
        """Nobody else has seen its clock."""


class OnPostgres:
    """A PostgreSQL database that holds no jobs: its clock is replaced for all clients."""

    def __init__(self, url: str, clock: VirtualClock) -> None:
        """Use a database of the test's own."""
        self.url = url
        self._address = read_address(url)
        self._clock = clock
        self._connection: Any = None
        self._original = ""

    def make_store(self) -> Store:
        """Make a store of it."""
        return make_store(self._address)

    async def prepare(self) -> None:
        """Bring its schema up to date and stop its clock, unless there are jobs."""
        import asyncpg

        await migrate(self._address)
        await self._check_empty()
        self._connection = await asyncpg.connect(
            self._address.listen_url or self._address.place,
            server_settings={"search_path": search_path(self._address.schema)},
        )
        self._original = await self._connection.fetchval(_SQL["read_clock"])
        for statement in ("make_clock", "stop_clock"):
            await self._connection.execute(_SQL[statement])
        await self._connection.execute(_SQL["set_clock"], self._clock())

    async def move_clock(self, micros: int) -> None:
        """Move the clock that all clients read there."""
        self._clock.move_to(micros)
        await self._connection.execute(_SQL["move_clock"], self._clock())

    async def restore(self) -> None:
        """Restore the database's own clock."""
        if self._connection is not None:
            await self._connection.execute(self._original)
            await self._connection.execute(_SQL["drop_clock"])
            await self._connection.close()

    async def _check_empty(self) -> None:
        store = self.make_store()
        await store.open()
        try:
            found = await store.find(Query(limit=1))
        finally:
            await store.close()
        if found.jobs:
            raise HoldfastError(
                f"there are jobs at {self._address.place.rpartition('@')[2]}; "
                "give a test a database of its own: its clock is moved"
            )


_SQL = blocks("holdfast.testing", "clock.sql")


def place_of(url: str | None, clock: VirtualClock) -> Place:
    """Choose a place: in memory, unless a PostgreSQL database is named."""
    if url is None:
        return InMemory(clock)
    if read_address(url).engine != "postgres":
        raise HoldfastError(f"a kit works in memory or on PostgreSQL, not on {url!r}")
    return OnPostgres(url, clock)
