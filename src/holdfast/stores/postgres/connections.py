"""Connections to PostgreSQL: retried whole within a deadline, errors translated in one place."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import asyncpg

from holdfast.errors import (
    LawBroken,
    PolicyChanged,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from holdfast.stores.outage import is_away, note_reachable, note_unreachable
from holdfast.stores.postgres.hosts import Hosts
from holdfast.stores.postgres.pool import ConnectionUse, Pool, abandon
from holdfast.stores.postgres.schema import search_path
from holdfast.stores.schema_sql import UNJUDGED
from holdfast.stores.sql_files import statements

Connection: TypeAlias = Any
R = TypeVar("R")
AWAIT_STANDBY = statements("postgres")["await_standby"]


class Unreplicated(Exception):
    """A commit is on this server's disk, and its synchronous standby may not have it.

    PostgreSQL reports that by a warning only: to the client the commit has succeeded.
    """


class StoreConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg has no types
    """A connection that remembers a commit whose wait for the standby was cancelled."""

    __slots__ = ("unreplicated",)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Listen for the warning from the start."""
        super().__init__(*args, **options)
        self.unreplicated = False
        # The warning comes before the end of the statement, and so does this call.
        self.add_log_listener(_notice)


def _notice(connection: Any, message: Any) -> None:
    # By the function that sent it: the text is in the server's language.
    if message.severity_en == "WARNING" and message.server_source_function == "SyncRepWaitForLSN":
        connection.unreplicated = True


SETTINGS = {
    # One plan per statement, made for any size of table: statistics right after a burst are stale.
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
    # An empty table would get a plan by sequential scan or hash join, and keep it as it grows.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # It gathers all matches before the first row: a LIMIT would not spare a claim the backlog.
    "enable_bitmapscan": "off",
    # Under a stricter one, two who meet at a job or a key would fail instead of waiting.
    "default_transaction_isolation": "read committed",
}

LOCK_SECONDS = 1.0
"""How long a statement waits for a lock before it is tried again, on whatever connection."""

PASSING = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.InterfaceError,
    # The driver's own confusion when a connection ends in the middle of something.
    asyncpg.InternalClientError,
    Unreplicated,
    OSError,
    TimeoutError,
)
"""What may be over in a moment: an outage, a failover, a deadlock, a lock that another holds."""

_OUTAGES = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""What shows that the database is away, and not merely that two clients met."""

_SOUND = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
)
"""After these, and only these, the connection can be used again."""


class Connections:
    """A pool whose every use is retried until it succeeds or the deadline has come."""

    def __init__(
        self,
        url: str,
        *,
        schema: str,
        pooled: bool,
        size: int,
        deadline_seconds: float,
        attempt_seconds: float,
    ) -> None:
        self.url = url
        self.schema = schema
        self.pooled = pooled
        self._size = size
        self._deadline = deadline_seconds
        self._attempt = attempt_seconds
        self._hosts = Hosts(url)
        self._name = url.rpartition("@")[2].partition("?")[0]
        self._pool: Pool | None = None
        # A transaction whose client fell silent must not keep its row locks longer than a caller
        # waits, nor hold back vacuum and the tail.
        idle = {"idle_in_transaction_session_timeout": f"{round(attempt_seconds * 1000)}ms"}
        # A client that waits for a lock gives its connection back and tries again: LOCK_SECONDS.
        locks = {"lock_timeout": f"{round(min(LOCK_SECONDS, attempt_seconds / 2) * 1000)}ms"}
        self._settings = SETTINGS | idle | locks
        self._search_path = search_path(schema)
        local = (f"SET LOCAL {name} = '{value}'" for name, value in self._settings.items())
        # A list of identifiers: quoted as a whole it would be one name.
        self._local = "; ".join((f"SET LOCAL search_path = {self._search_path}", *local))

    async def open(self) -> None:
        """Make the pool; the first connection is made by the first use."""
        self._pool = Pool(self._connect, self._size)

    async def _connect(self) -> Connection:
        return await self._hosts.connect(
            limit_seconds=self._attempt,
            # A pooler hands out what it was configured to.
            writable=not self.pooled,
            connection_class=StoreConnection,
            command_timeout=self._attempt,
            max_cacheable_statement_size=0,
            max_cached_statement_lifetime=0,
            # A pooler in transaction mode hands each transaction another server connection.
            statement_cache_size=0 if self.pooled else 100,
            server_settings=(
                {} if self.pooled else self._settings | {"search_path": self._search_path}
            ),
        )

    async def close(self) -> None:
        """Close all connections, the stuck ones by force."""
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        await pool.close(self._attempt)

    async def run(
        self,
        work: Callable[[Connection, int], Awaitable[R]],
        *,
        keep: tuple[type[BaseException], ...] = (),
        use: ConnectionUse = ConnectionUse.FREE,
    ) -> R:
        """Do `work(connection, tries before)` and do it again, whole, when the database gave way.

        A try that failed may have been committed all the same: `work` must settle that when its
        count of tries is not zero. What it then finds is returned only once a synchronous standby
        has it too. Errors to `keep` are the caller's to handle, but not a lock that is met after
        such a try: it may be that try which holds it, and so nobody knows what was written.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._deadline
        tries = 0
        unsure: BaseException | None = None
        while True:
            try:
                result = await self._run_once(work, tries, use)
                if is_away():
                    note_reachable(self._name)
                return result
            except PASSING as error:
                if isinstance(error, keep) and unsure is None:
                    raise
                if not _may_pass(error):
                    raise StoreError(f"the database driver failed: {error}") from error
                if isinstance(error, _OUTAGES):
                    note_unreachable(self._name, error)
                if not isinstance(error, _SOUND):
                    unsure = error
                tries += 1
                pause = _pause(tries)
                if loop.time() + pause > until:
                    last = unsure or error
                    raise StoreUnavailable(_describe_outage(last, tries)) from last
                await asyncio.sleep(pause)
            except keep:
                raise
            except asyncpg.PostgresError as error:
                raise translate_error(error) from error

    async def _run_once(
        self, work: Callable[[Connection, int], Awaitable[R]], tries: int, use: ConnectionUse
    ) -> R:
        pool = self._pool
        if pool is None:
            raise StoreError("the store is closed")
        connection = await pool.take(self._attempt, use)
        try:
            result = await self._run_on_connection(connection, work, tries)
            if connection.unreplicated:
                raise Unreplicated(
                    "the commit is on the primary, and its synchronous standby has not confirmed it"
                )
            return result
        except _SOUND:
            raise
        except asyncio.CancelledError:
            abandon(connection)
            raise
        except PASSING as error:
            # Half-open, confused, in the middle of a statement, or read-only since a failover.
            self._hosts.note_failure(connection, error)
            abandon(connection)
            raise
        finally:
            pool.give_back(connection)

    async def _run_on_connection(
        self, connection: Connection, work: Callable[[Connection, int], Awaitable[R]], tries: int
    ) -> R:
        if not self.pooled:
            return await self._run_and_await_standby(connection, work, tries)
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(self._local)
            return await self._run_and_await_standby(connection, work, tries)

    async def _run_and_await_standby(
        self, connection: Connection, work: Callable[[Connection, int], Awaitable[R]], tries: int
    ) -> R:
        result = await work(connection, tries)
        if tries:
            await await_standby(connection)
        return result


async def await_standby(connection: Connection) -> None:
    """Let this transaction's commit wait until a synchronous standby has all that it has seen.

    A row that can be read may not be replicated: its own commit's wait may have been cancelled, or
    its connection cut. Outside a transaction this is one of its own.
    """
    await connection.execute(AWAIT_STANDBY)


def _may_pass(error: BaseException) -> bool:
    # The driver raises it for a connection that was closed, and for our own mistakes.
    if not isinstance(error, asyncpg.InterfaceError):
        return True
    return "clos" in str(error) or "released" in str(error)


def _pause(tries: int) -> float:
    # Spread, so that workers that lost the database together do not reconnect together.
    spread = 0.5 + os.urandom(1)[0] / 512
    return float(min(0.02 * 2.0 ** min(tries, 6), 1.0) * spread)


def translate_error(error: asyncpg.PostgresError) -> StoreError:
    """Turn a driver error into one of ours."""
    if error.sqlstate == UNJUDGED:
        return PolicyChanged(f"{error}; judge the job by it, and try again")
    match error:
        case asyncpg.DiskFullError():
            return StoreFull(f"PostgreSQL has no room left: {error}")
        case (
            asyncpg.PostgresIOError() | asyncpg.DataCorruptedError() | asyncpg.IndexCorruptedError()
        ):
            return StoreBroken(f"PostgreSQL's storage failed: {error}")
        case asyncpg.IntegrityConstraintViolationError() | asyncpg.DataError():
            return LawBroken(f"PostgreSQL refused the row: {error}")
        case _:
            return StoreError(f"PostgreSQL failed: {error}")


def _describe_outage(error: BaseException, tries: int) -> str:
    text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else repr(error))
    if isinstance(error, asyncpg.LockNotAvailableError):
        return (
            f"another transaction held a lock in {tries} tries ({text}); end it, see "
            "pg_stat_activity and pg_blocking_pids()"
        )
    return f"PostgreSQL could not be reached in {tries} tries; the last error: {text}"
