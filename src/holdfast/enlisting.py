"""Submit inside the caller's own transaction: which connection it is, and how to ask on it.

All ways lead to one SQL function, or to the writer of a SQLite store. No driver is imported that
the caller has not imported: only its own module can have made its connection.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeAlias, runtime_checkable

from holdfast.asking import Asker, PublishedTerms, all_accepted
from holdfast.bridge import in_a_loop
from holdfast.errors import (
    BadConnection,
    BadTransaction,
    HoldfastError,
    LawBroken,
    SchemaMismatch,
    StoreError,
)
from holdfast.flow.submit import refused_submit
from holdfast.jobs import Home, JobHandle
from holdfast.lifecycle.job import JobId, NewJob
from holdfast.pending import PendingHandle
from holdfast.ports import Store, SubmitRefused
from holdfast.stores.postgres.enlisted import (
    dictionary_keys,
    enlist_sql,
    enlist_text,
    read_outcomes,
)
from holdfast.stores.submitting import Enlisted
from holdfast.tasks import Call
from holdfast.telemetry import Meters
from holdfast.telemetry.tracing import submit_span
from holdfast.transaction import Hosted, Transaction, enlisted, hosted_terms

Handles: TypeAlias = Sequence[PendingHandle[Any]]
_ASYNCPG = ("asyncpg.connection:Connection", "asyncpg.pool:PoolConnectionProxy")
_PSYCOPG = ("psycopg:Connection",)
_PSYCOPG_ASYNC = ("psycopg:AsyncConnection",)
_SQLALCHEMY = ("sqlalchemy.engine:Connection",)
_SQLALCHEMY_ASYNC = ("sqlalchemy.ext.asyncio:AsyncConnection",)
_SESSION = ("sqlalchemy.orm:Session", "sqlalchemy.orm:scoped_session")
_SESSION_ASYNC = (
    "sqlalchemy.ext.asyncio:AsyncSession",
    "sqlalchemy.ext.asyncio:async_scoped_session",
)
_ASYNC = (*_ASYNCPG, *_PSYCOPG_ASYNC, *_SQLALCHEMY_ASYNC, *_SESSION_ASYNC)


AHEAD_LIMIT = 5000
"""How many policies and needs are known to be written: submitters choose them."""


@runtime_checkable
class Remembering(Protocol):
    """A store that many connections write to."""

    async def remember(self, jobs: Sequence[NewJob]) -> None:
        """Write down the policies and needs that jobs name."""


class Enlisting(Home):
    """The part of an app that submits inside transactions of its callers."""

    asker: Asker
    meters: Meters
    written_ahead: set[int]
    """Keys of policies and needs that were written, or tried, before a transaction needs them."""

    @property
    @abstractmethod
    def schema(self) -> str:
        """The schema on PostgreSQL that the function is called in."""

    @abstractmethod
    async def store(self) -> Store:
        """Give the open store of the running loop."""

    @abstractmethod
    async def parent_id(self, parent: Any) -> JobId | None:
        """Tell the internal id of what was given as a parent."""

    @abstractmethod
    async def published(self, calls: Sequence[Call]) -> PublishedTerms:
        """Read the terms of tasks that calls know by name alone."""

    @abstractmethod
    def published_sync(self, calls: Sequence[Call]) -> PublishedTerms:
        """Read the terms of tasks that calls know by name alone, in any thread."""

    def transaction(self) -> Transaction:
        """Begin a transaction on the store's own connection (SQLite): your rows and jobs in one."""
        return Transaction(self)

    async def submit_many_in(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Submit calls inside a transaction of yours: they are there exactly if it commits."""
        if not calls:
            return []
        parents = [await self.parent_id(call.parent) for call in calls]
        terms = await self.published(calls) if self.asker.named_in(calls) else None
        with submit_span(calls[0].task.name, calls[0].task.queue) as active:
            jobs = self._decided_in(connection, calls, parents, active, terms)
            if self._names_new(jobs):
                await self._write_ahead(jobs)
            return self._counted(
                await enlist(connection, jobs, self._handles(calls, jobs), schema=self.schema)
            )

    def submit_many_in_sync(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Submit calls inside a transaction of a connection that blocks."""
        if not calls:
            return []
        parents = [self._parent_id_sync(call.parent) for call in calls]
        terms = self._terms_sync(connection, calls)
        with submit_span(calls[0].task.name, calls[0].task.queue) as active:
            jobs = self._decided_in(connection, calls, parents, active, terms)
            if not in_a_loop() and self._names_new(jobs):
                self.run_sync(self._write_ahead(jobs), "task.submit_in(…)")
            return self._counted(
                enlist_sync(connection, jobs, self._handles(calls, jobs), schema=self.schema)
            )

    def _terms_sync(self, connection: Any, calls: Sequence[Call]) -> PublishedTerms | None:
        named = self.asker.named_in(calls)
        if not named:
            return None
        if isinstance(connection, Hosted):
            # On the writer's thread: who reads elsewhere may have to wait for this transaction.
            return hosted_terms(connection, named)
        return self.published_sync(calls)

    def _parent_id_sync(self, parent: Any) -> JobId | None:
        match parent:
            case None:
                return None
            case JobHandle():
                return parent.record.id
            case PendingHandle():
                return parent.internal_id
            case _:
                instead = "task.submit_in(…), or give a handle as the parent,"
                return self.run_sync(self.parent_id(parent), instead)

    def _decided_in(
        self,
        connection: Any,
        calls: Sequence[Call],
        parents: Sequence[JobId | None],
        active: str | None,
        terms: PublishedTerms | None,
    ) -> list[NewJob]:
        if isinstance(connection, Transaction) and connection.home is not self:
            raise BadConnection("this transaction is another app's")
        return self.asker.decide_all(calls, parents, self.asker.trace(active), terms)

    def _names_new(self, jobs: Sequence[NewJob]) -> bool:
        named = {key for job in jobs for key in dictionary_keys(job)} - self.written_ahead
        if len(self.written_ahead) >= AHEAD_LIMIT:
            self.written_ahead.clear()
        self.written_ahead |= named
        return bool(named)

    async def _write_ahead(self, jobs: Sequence[NewJob]) -> None:
        """Write down what the jobs name, outside the transaction they are submitted in.

        A new row in an open transaction makes all who want the same wait for its end, this very
        caller among them. A courtesy: what is not there, the transaction writes itself.
        """
        with suppress(StoreError):
            store = await self.store()
            if isinstance(store, Remembering):
                await store.remember(jobs)

    def _counted(self, answers: list[Any]) -> list[PendingHandle[Any]]:
        """Count what a transaction has taken in: nobody tells what becomes of it."""
        for answer in answers:
            if isinstance(answer, PendingHandle) and answer.is_new:
                self.meters.submitted(answer.task, answer.queue)
        return all_accepted(answers)

    def _handles(self, calls: Sequence[Call], jobs: Sequence[NewJob]) -> Handles:
        return [
            PendingHandle(job, self, call.task.unpack_result)
            for call, job in zip(calls, jobs, strict=True)
        ]


async def enlist(
    connection: Any, jobs: Sequence[NewJob], handles: Handles, *, schema: str
) -> list[Any]:
    """Submit decided jobs in a transaction; gives each one's handle, or why it was refused."""
    if not _is_any(connection, _ASYNC):
        return enlist_sync(connection, jobs, handles, schema=schema)
    asked = enlist_text(jobs)
    with _explaining(schema):
        if _is_any(connection, _ASYNCPG):
            answer = await _on_asyncpg(connection, asked, schema)
        elif _is_any(connection, _PSYCOPG_ASYNC):
            answer = await _on_async_psycopg(connection, asked, schema)
        else:
            answer = await _on_async_sqlalchemy(connection, asked, schema)
    return _settled(handles, read_outcomes(jobs, answer))


def enlist_sync(
    connection: Any, jobs: Sequence[NewJob], handles: Handles, *, schema: str
) -> list[Any]:
    """Submit decided jobs in a transaction of a connection that blocks."""
    if isinstance(connection, Transaction):
        connection.enlist(jobs, handles)
        return list(handles)
    if isinstance(connection, Hosted):
        return _settled(handles, enlisted(connection.submit(jobs)))
    asked = enlist_text(jobs)
    with _explaining(schema):
        answer = _on_blocking(connection, asked, schema)
    return _settled(handles, read_outcomes(jobs, answer))


def _is_any(connection: Any, names: Sequence[str]) -> bool:
    for name in names:
        module, _, kind = name.partition(":")
        if module in sys.modules and isinstance(connection, getattr(sys.modules[module], kind)):
            return True
    return False


def _settled(handles: Handles, outcomes: Sequence[Enlisted | SubmitRefused]) -> list[Any]:
    answers: list[Any] = []
    for handle, outcome in zip(handles, outcomes, strict=True):
        if isinstance(outcome, SubmitRefused):
            answers.append(refused_submit(outcome))
        else:
            handle.settle(outcome)
            answers.append(handle)
    return answers


# -- the drivers


async def _on_asyncpg(connection: Any, asked: str, schema: str) -> str:
    if not connection.is_in_transaction():
        raise _no_transaction("async with connection.transaction():")
    answer: str = await connection.fetchval(enlist_sql("$1", schema), asked)
    return answer


async def _on_async_psycopg(connection: Any, asked: str, schema: str) -> str:
    _check_psycopg(connection)
    from psycopg.rows import scalar_row

    # Not prepared: a pooler may run the next transaction on another server connection.
    async with connection.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(enlist_sql("%s", schema), (asked,), prepare=False)
        answer: str = await cursor.fetchone()
    return answer


def _on_psycopg(connection: Any, asked: str, schema: str) -> str:
    _check_psycopg(connection)
    from psycopg.rows import scalar_row

    with connection.cursor(row_factory=scalar_row) as cursor:
        cursor.execute(enlist_sql("%s", schema), (asked,), prepare=False)
        answer: str = cursor.fetchone()
    return answer


def _check_psycopg(connection: Any) -> None:
    from psycopg.pq import TransactionStatus

    idle = connection.info.transaction_status == TransactionStatus.IDLE
    if idle and connection.autocommit:
        raise _no_transaction("with connection.transaction():")


async def _on_async_sqlalchemy(connection: Any, asked: str, schema: str) -> str:
    from sqlalchemy import text

    if _is_any(connection, _SESSION_ASYNC):
        connection = await connection.connection()
    _check_sqlalchemy(connection.sync_connection)
    answer: str = (
        await connection.execute(text(enlist_sql(":asked", schema)), {"asked": asked})
    ).scalar()
    return answer


def _on_sqlalchemy(connection: Any, asked: str, schema: str) -> str:
    from sqlalchemy import text

    if _is_any(connection, _SESSION):
        connection = connection.connection()
    _check_sqlalchemy(connection)
    answer: str = connection.execute(text(enlist_sql(":asked", schema)), {"asked": asked}).scalar()
    return answer


def _check_sqlalchemy(connection: Any) -> None:
    if connection.dialect.name != "postgresql":
        raise BadConnection(
            f"an engine of {connection.dialect.name} has no Holdfast in it; on SQLite use "
            "app.transaction()"
        )
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise _no_transaction("an engine whose isolation_level is not AUTOCOMMIT")


def _on_blocking(connection: Any, asked: str, schema: str) -> str:
    if _is_any(connection, _PSYCOPG):
        return _on_psycopg(connection, asked, schema)
    if _is_any(connection, (*_SQLALCHEMY, *_SESSION)):
        return _on_sqlalchemy(connection, asked, schema)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if _is_any(connection, _ASYNC):
        raise BadConnection(f"a {kind} is asynchronous: await task.submit_in(connection, …)")
    raise BadConnection(
        f"cannot submit in a {kind}: give a connection of asyncpg or psycopg 3, a connection or "
        "session of SQLAlchemy, or on SQLite app.transaction()"
    )


# -- their errors


@contextmanager
def _explaining(schema: str) -> Iterator[None]:
    """Say what a caller can do about an error that is about the submit.

    All else, conflicts (40001, 40P01) among it, stays the driver's own: the caller's loop that
    tries a transaction again knows it by its class.
    """
    try:
        yield
    except Exception as error:
        told = _explained(error, schema)
        if told is None:
            raise
        raise told from error


def _explained(error: Exception, schema: str) -> HoldfastError | None:
    match _sqlstate(error):
        case "42883" | "3F000":
            return SchemaMismatch(
                f"this database has no function {schema}.holdfast_submit: run `holdfast migrate` "
                "on it, or name the schema that Holdfast is in, as ?schema= in the app's url"
            )
        case "42501":
            return StoreError(
                f"{_first_line(error)}; to this role GRANT USAGE ON SCHEMA {schema}, and "
                f"GRANT EXECUTE ON FUNCTION {schema}.holdfast_submit(jsonb)"
            )
        case "25P02":
            return BadTransaction(
                "a statement of this transaction has failed before; roll it back, and begin anew",
                code="transaction_failed",
            )
        case "25006":
            return BadTransaction("this transaction only reads", code="transaction_reads")
        case str() as state if state.startswith("23"):
            return LawBroken(f"PostgreSQL refused the row: {_first_line(error)}")
        case _:
            return None


def _sqlstate(error: Exception) -> str | None:
    for one in (error, getattr(error, "orig", None)):
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _no_transaction(instead: str) -> BadTransaction:
    return BadTransaction(
        "this connection commits each statement by itself: the job would be there whatever becomes "
        f"of your rows. Begin a transaction ({instead}), or use task.submit(…)",
        code="no_transaction",
    )
