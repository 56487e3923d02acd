"""A ledger without its guards, whose cells a test turns one by one and puts back."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import apsw
import asyncpg
from msgspec import Struct

from holdfast.lifecycle.record import JobId
from holdfast.testing.factories import job_ids
from tests.stores.ledgers import Ledger
from tests.stores.raw import POSTGRES

Row = Mapping[str, Any]


class Turn(Struct, frozen=True):
    """One cell: the row it is in, its column and what is put there."""

    id: JobId
    rev: int | None
    column: str
    value: Any


class Vandal(ABC):
    """Writes straight into tables from which all guards were taken."""

    @abstractmethod
    async def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Run a statement, with parameters $1, $2 …, and give its rows by column."""

    @abstractmethod
    async def close(self) -> None:
        """Let go."""

    @abstractmethod
    async def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each set of values, all in one transaction."""

    @asynccontextmanager
    async def turned(self, table: str, turns: Sequence[Turn]) -> AsyncIterator[None]:
        """Hold cells of one column turned for the length of a block."""
        [column] = {turn.column for turn in turns}
        keys = "id" if turns[0].rev is None else "id, rev"
        found = await self.rows(f"SELECT {keys}, {column} AS old FROM {table}")
        olds = {(JobId(_uuid(row["id"])), row.get("rev")): row["old"] for row in found}
        await self._put(table, turns)
        try:
            yield
        finally:
            await self._put(table, [_back(turn, olds[turn.id, turn.rev]) for turn in turns][::-1])

    async def _put(self, table: str, turns: Sequence[Turn]) -> None:
        where = "id = $2" if turns[0].rev is None else "id = $2 AND rev = $3"
        sql = f"UPDATE {table} SET {turns[0].column} = $1 WHERE {where}"
        keys = [(turn.id,) if turn.rev is None else (turn.id, turn.rev) for turn in turns]
        await self.many(sql, [(t.value, *key) for t, key in zip(turns, keys, strict=True)])

    async def dump(self, tables: Iterable[str]) -> dict[str, list[str]]:
        """All rows of tables, to be compared with those of another time."""
        return {
            table: sorted(
                str(sorted(row.items())) for row in await self.rows(f"SELECT * FROM {table}")
            )
            for table in tables
        }


def _back(turn: Turn, old: Any) -> Turn:
    """The turn that undoes another: where a key was turned, the row is under the new one."""
    match turn.column:
        case "id":
            return Turn(turn.value, turn.rev, "id", JobId(_uuid(old)))
        case "rev" if turn.rev is not None:
            return Turn(turn.id, turn.value, "rev", old)
        case _:
            return Turn(turn.id, turn.rev, turn.column, old)


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(bytes=value)


class _OnPostgres(Vandal):
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._connection.fetch(sql, *values)]

    async def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        await self._connection.executemany(sql, values)

    async def close(self) -> None:
        await self._connection.close()


class _OnSqlite(Vandal):
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self._connection.cursor()
        found: list[dict[str, Any]] = []

        def named(cursor: apsw.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
            names = [column[0] for column in cursor.get_description()]
            return dict(zip(names, row, strict=True))

        cursor.row_trace = named
        found += cursor.execute(_numbered(sql), _bound(values))
        return found

    async def many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        with self._connection:
            self._connection.executemany(_numbered(sql), map(_bound, values))

    async def close(self) -> None:
        self._connection.close()


def _numbered(sql: str) -> str:
    return re.sub(r"\$(\d+)", r"?\1", sql)


def _bound(values: Sequence[Any]) -> list[Any]:
    return [value.bytes if isinstance(value, UUID) else value for value in values]


@asynccontextmanager
async def vandal(ledger: Ledger) -> AsyncIterator[Vandal]:
    """Open a ledger for damage. Its guards do not come back."""
    made = await _postgres(ledger) if ledger.engine == POSTGRES else _sqlite(ledger)
    try:
        yield made
    finally:
        await made.close()


async def _postgres(ledger: Ledger) -> Vandal:
    connection = await asyncpg.connect(ledger.place)
    await connection.execute("SET session_replication_role = replica")
    checks = await connection.fetch(
        "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname)"
        " FROM pg_constraint WHERE contype = 'c' AND connamespace = 'holdfast'::regnamespace"
    )
    for (statement,) in checks:
        await connection.execute(statement)
    return _OnPostgres(connection)


def _sqlite(ledger: Ledger) -> Vandal:
    connection = apsw.Connection(ledger.place)
    connection.pragma("ignore_check_constraints", True)
    triggers = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
    for (name,) in triggers.fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    return _OnSqlite(connection)


def another(column: str, value: Any) -> Any:
    """A value that is not this one, as near to it as can be: one unit, one letter, one bit."""
    match value:
        case UUID():
            return job_ids.mint()
        case int():
            return value + 1
        case str():
            return value[:-1] + ("x" if value[-1:] != "x" else "y")
        case bytes() if column in ("id", "parent_id"):
            return job_ids.mint()
        case bytes():
            return value[:-1] + bytes([value[-1] ^ 1])
        case _:
            return FIRST.get(column, 1)


FIRST: dict[str, Any] = {
    "task_version": "x",
    "parent_id": UUID(int=7),
    "result_digest": b"x" * 16,
    "digest": b"x" * 16,
    "seal": b"x" * 32,
    "held_by": '["x"]',
    "late_results": '["1:x"]',
    "data": "{}",
    "body": "1",
} | dict.fromkeys(
    (
        "job_id",
        "workflow_id",
        "owner",
        "lost_owner",
        "wait_for",
        "error_code",
        "result_ptr",
        "actor",
        "request_id",
        "reason",
        "correlation_id",
    ),
    "x",
)
"""What a column is given that had nothing; a number is 1."""
