"""Submit on a connection of the caller's: which driver it is, and how to call the function on it.

All ways lead to one SQL function, or to the writer of a SQLite store. No driver is imported that
the caller has not imported: only its own module can have made its connection.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from holdfast.app.sqlite_transaction import Hosted, Transaction, reduce_outcomes
from holdfast.errors import (
    BadConnection,
    BadTransaction,
    HoldfastError,
    LawBroken,
    PolicyChanged,
    SchemaMismatch,
    StoreError,
)
from holdfast.flow.submit import submit_error
from holdfast.lifecycle.record import NewJob
from holdfast.ports.models import SubmitRefused
from holdfast.stores.outcomes import Enlisted
from holdfast.stores.postgres.caller_transaction import enlist_sql, enlist_text, read_outcomes
from holdfast.tasks.handles import PendingHandle

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


async def enlist(
    connection: Any, jobs: Sequence[NewJob], handles: Handles, *, schema: str
) -> list[Any]:
    """Submit decided jobs in a transaction; gives each one's handle, or why it was refused."""
    if not _is_instance_of_any(connection, _ASYNC):
        return enlist_sync(connection, jobs, handles, schema=schema)
    asked = enlist_text(jobs)
    with _explain_errors(schema):
        if _is_instance_of_any(connection, _ASYNCPG):
            answer = await _submit_on_asyncpg(connection, asked, schema)
        elif _is_instance_of_any(connection, _PSYCOPG_ASYNC):
            answer = await _submit_on_async_psycopg(connection, asked, schema)
        else:
            answer = await _submit_on_async_sqlalchemy(connection, asked, schema)
    return _settle_handles(handles, read_outcomes(jobs, answer))


def enlist_sync(
    connection: Any, jobs: Sequence[NewJob], handles: Handles, *, schema: str
) -> list[Any]:
    """Submit decided jobs in a transaction of a connection that blocks."""
    if isinstance(connection, Transaction):
        connection.enlist(jobs, handles)
        return list(handles)
    if isinstance(connection, Hosted):
        return _settle_handles(handles, reduce_outcomes(connection.submit(jobs)))
    asked = enlist_text(jobs)
    with _explain_errors(schema):
        answer = _submit_on_blocking(connection, asked, schema)
    return _settle_handles(handles, read_outcomes(jobs, answer))


def _is_instance_of_any(connection: Any, names: Sequence[str]) -> bool:
    for name in names:
        module, _, kind = name.partition(":")
        if module in sys.modules and isinstance(connection, getattr(sys.modules[module], kind)):
            return True
    return False


def _settle_handles(handles: Handles, outcomes: Sequence[Enlisted | SubmitRefused]) -> list[Any]:
    answers: list[Any] = []
    for handle, outcome in zip(handles, outcomes, strict=True):
        if isinstance(outcome, SubmitRefused):
            answers.append(submit_error(outcome))
        else:
            handle.settle(outcome)
            answers.append(handle)
    return answers


# -- the drivers


async def _submit_on_asyncpg(connection: Any, asked: str, schema: str) -> str:
    if not connection.is_in_transaction():
        raise _no_transaction_error("async with connection.transaction():")
    answer: str = await connection.fetchval(enlist_sql("$1", schema), asked)
    return answer


async def _submit_on_async_psycopg(connection: Any, asked: str, schema: str) -> str:
    _check_psycopg(connection)
    from psycopg.rows import scalar_row

    # Not prepared: a pooler may run the next transaction on another server connection.
    async with connection.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(enlist_sql("%s", schema), (asked,), prepare=False)
        answer: str = await cursor.fetchone()
    return answer


def _submit_on_psycopg(connection: Any, asked: str, schema: str) -> str:
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
        raise _no_transaction_error("with connection.transaction():")


async def _submit_on_async_sqlalchemy(connection: Any, asked: str, schema: str) -> str:
    from sqlalchemy import text

    if _is_instance_of_any(connection, _SESSION_ASYNC):
        connection = await connection.connection()
    _check_sqlalchemy(connection.sync_connection)
    answer: str = (
        await connection.execute(text(enlist_sql(":asked", schema)), {"asked": asked})
    ).scalar()
    return answer


def _submit_on_sqlalchemy(connection: Any, asked: str, schema: str) -> str:
    from sqlalchemy import text

    if _is_instance_of_any(connection, _SESSION):
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
        raise _no_transaction_error("an engine whose isolation_level is not AUTOCOMMIT")


def _submit_on_blocking(connection: Any, asked: str, schema: str) -> str:
    if _is_instance_of_any(connection, _PSYCOPG):
        return _submit_on_psycopg(connection, asked, schema)
    if _is_instance_of_any(connection, (*_SQLALCHEMY, *_SESSION)):
        return _submit_on_sqlalchemy(connection, asked, schema)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if _is_instance_of_any(connection, _ASYNC):
        raise BadConnection(f"a {kind} is asynchronous: await task.submit_in(connection, …)")
    raise BadConnection(
        f"cannot submit in a {kind}: give a connection of asyncpg or psycopg 3, a connection or "
        "session of SQLAlchemy, or on SQLite app.transaction()"
    )


# -- their errors


@contextmanager
def _explain_errors(schema: str) -> Iterator[None]:
    """Explain what a caller can do about an error that the submit caused.

    All else, conflicts (40001, 40P01) among it, stays the driver's own: the caller's loop that
    tries a transaction again knows it by its class.
    """
    try:
        yield
    except Exception as error:
        explained = _explain_error(error, schema)
        if explained is None:
            raise
        raise explained from error


def _explain_error(error: Exception, schema: str) -> HoldfastError | None:
    match _find_sqlstate(error):
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
                "a statement of this transaction has failed before; roll it back, and start again",
                code="transaction_failed",
            )
        case "HFP01":
            return PolicyChanged(
                "the policy has changed since this job was judged; roll the transaction back, and "
                "start again"
            )
        case "25006":
            return BadTransaction("this transaction only reads", code="transaction_reads")
        case str() as state if state.startswith("23"):
            return LawBroken(f"PostgreSQL refused the row: {_first_line(error)}")
        case _:
            return None


def _find_sqlstate(error: Exception) -> str | None:
    for one in (error, getattr(error, "orig", None)):
        state = getattr(one, "sqlstate", None) or getattr(one, "pgcode", None)
        if isinstance(state, str):
            return state
    return None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _no_transaction_error(instead: str) -> BadTransaction:
    return BadTransaction(
        "this connection commits each statement by itself: the job would be there whatever becomes "
        f"of your rows. Start a transaction ({instead}), or use task.submit(…)",
        code="no_transaction",
    )
