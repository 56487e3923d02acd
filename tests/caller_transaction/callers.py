"""Callers with connections of their own: the same acts with every driver that can submit in one."""

from __future__ import annotations

from typing import Any

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import Task
from holdfast.tasks.handles import PendingHandle

ORDER = "INSERT INTO orders VALUES (%d)"


class Caller:
    """One connection, outside a transaction when it was opened."""

    isolation = "READ COMMITTED"
    connection: Any

    def __init__(self, url: str) -> None:
        """Take the database."""
        self.url = url

    async def open(self) -> None:
        """Connect."""
        raise NotImplementedError

    async def run(self, sql: str) -> Any:
        """Run a statement of the caller's."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Begin a transaction; most drivers do so by themselves."""

    async def commit(self) -> None:
        """Commit."""
        await self.connection.commit()

    async def rollback(self) -> None:
        """Roll back."""
        await self.connection.rollback()

    async def close(self) -> None:
        """Let go."""
        await self.connection.close()

    async def submit(self, task: Task[..., Any], *args: Any, **options: Any) -> PendingHandle[Any]:
        """Submit a job in the transaction."""
        return await task.options(**options).submit_in(self.connection, *args)

    async def order(self, number: int) -> None:
        """Write a row of the caller's own."""
        await self.run(ORDER % number)


class Asyncpg(Caller):
    """asyncpg, with a transaction that is begun and ended by hand."""

    async def open(self) -> None:
        self.connection = await asyncpg.connect(self.url)

    async def begin(self) -> None:
        isolation = self.isolation.lower().replace(" ", "_")
        self._transaction = self.connection.transaction(isolation=isolation)
        await self._transaction.start()

    async def run(self, sql: str) -> Any:
        return await self.connection.execute(sql)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class AsyncpgPool(Asyncpg):
    """asyncpg, a connection out of a pool, with codecs of the user's own for JSON."""

    async def open(self) -> None:
        self._pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
        self.connection = await self._pool.acquire()
        for kind in ("json", "jsonb"):
            await self.connection.set_type_codec(
                kind, schema="pg_catalog", encoder=_nobody, decoder=_nobody
            )

    async def close(self) -> None:
        self._pool.terminate()


def _nobody(_: Any) -> Any:
    raise AssertionError("a codec of the user's was asked")


class Psycopg(Caller):
    """psycopg 3, asynchronous, with rows of the user's own kind."""

    async def open(self) -> None:
        self.connection = await psycopg.AsyncConnection.connect(
            self.url, row_factory=psycopg.rows.dict_row
        )
        await self.connection.set_isolation_level(_level(self.isolation))

    async def run(self, sql: str) -> Any:
        return await self.connection.execute(sql)


class PsycopgAutocommit(Psycopg):
    """psycopg 3 with autocommit, in a transaction begun by statement."""

    async def open(self) -> None:
        await super().open()
        await self.connection.set_autocommit(True)

    async def begin(self) -> None:
        await self.connection.execute(f"BEGIN ISOLATION LEVEL {self.isolation}")


class SyncPsycopg(Caller):
    """psycopg 3, blocking."""

    async def open(self) -> None:
        self.connection = psycopg.connect(self.url, row_factory=psycopg.rows.dict_row)
        self.connection.isolation_level = _level(self.isolation)

    async def run(self, sql: str) -> Any:
        return self.connection.execute(sql)

    async def submit(self, task: Task[..., Any], *args: Any, **options: Any) -> PendingHandle[Any]:
        return task.options(**options).submit_in_sync(self.connection, *args)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def close(self) -> None:
        self.connection.close()


class AwaitedSyncPsycopg(SyncPsycopg):
    """psycopg 3, blocking, in a coroutine."""

    submit = Caller.submit


class SqlAlchemy(SyncPsycopg):
    """SQLAlchemy's connection, blocking."""

    driver = "psycopg"

    async def open(self) -> None:
        engine = create_engine(
            _dialect(self.url, self.driver), isolation_level=self.isolation, poolclass=NullPool
        )
        self.connection = engine.connect()

    async def run(self, sql: str) -> Any:
        return self.connection.execute(text(sql))


class SqlAlchemySession(SqlAlchemy):
    """SQLAlchemy's session, blocking."""

    async def open(self) -> None:
        await super().open()
        self.connection = Session(self.connection.engine)


class AsyncSqlAlchemy(Caller):
    """SQLAlchemy's connection, asynchronous."""

    driver = "asyncpg"

    async def open(self) -> None:
        self._engine = create_async_engine(
            _dialect(self.url, self.driver), isolation_level=self.isolation, poolclass=NullPool
        )
        self.connection = await self._engine.connect()

    async def run(self, sql: str) -> Any:
        return await self.connection.execute(text(sql))

    async def close(self) -> None:
        await self.connection.close()
        await self._engine.dispose()


class AsyncSqlAlchemyPsycopg(AsyncSqlAlchemy):
    """SQLAlchemy's connection, asynchronous, over psycopg."""

    driver = "psycopg"


class AsyncSqlAlchemySession(AsyncSqlAlchemy):
    """SQLAlchemy's session, asynchronous."""

    async def open(self) -> None:
        await super().open()
        await self.connection.close()
        self.connection = AsyncSession(self._engine)


class RunSyncSqlAlchemy(AsyncSqlAlchemySession):
    """Blocking code inside an asynchronous session, by `run_sync`."""

    async def submit(self, task: Task[..., Any], *args: Any, **options: Any) -> PendingHandle[Any]:
        handle: PendingHandle[Any] = await self.connection.run_sync(
            lambda session: task.options(**options).submit_in_sync(session, *args)
        )
        return handle


CALLERS = [
    Asyncpg,
    AsyncpgPool,
    Psycopg,
    PsycopgAutocommit,
    SyncPsycopg,
    AwaitedSyncPsycopg,
    SqlAlchemy,
    SqlAlchemySession,
    AsyncSqlAlchemy,
    AsyncSqlAlchemyPsycopg,
    AsyncSqlAlchemySession,
    RunSyncSqlAlchemy,
]

"""All kinds."""
DRIVERS = [Asyncpg, SyncPsycopg, AsyncSqlAlchemySession]
"""One for each driver's errors."""


def _level(isolation: str) -> psycopg.IsolationLevel:
    return psycopg.IsolationLevel[isolation.replace(" ", "_")]


def _dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")
