"""Raw SQL on a migrated database, behind the store's back, the same words for both engines."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import asyncpg
from msgspec import Struct

from holdfast.lifecycle.record import Job
from holdfast.stores.columns import JOB_COLUMNS, write_job

POSTGRES, SQLITE = "postgres", "sqlite"
ENGINES = (POSTGRES, SQLITE)


class Case(Struct, frozen=True, kw_only=True):
    """One statement that the database must refuse by one of these rules; with none, accept."""

    name: str
    sql: str
    values: Sequence[Any] = ()
    rules: Sequence[str] = ()


class Raw(ABC):
    """One connection in one transaction that is never committed unless a test says so."""

    engine: str

    @abstractmethod
    async def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, with parameters $1, $2 …, and give its rows."""

    @abstractmethod
    async def refusal(self, sql: str, values: Sequence[Any]) -> str | None:
        """Try a statement, undo it, and give the error it met."""

    @abstractmethod
    async def set_triggers_aside(self) -> None:
        """Let no trigger fire until the end of this transaction; constraints still hold."""

    @abstractmethod
    async def derive_columns(self) -> None:
        """Let columns that follow from others do so: then a case breaks its own rule alone."""

    @abstractmethod
    async def close(self) -> None:
        """Undo everything and let go."""

    async def complaints(self, cases: Iterable[Case]) -> list[str]:
        """Try each case; say which were not refused, or for another reason than expected."""
        found = []
        for case in cases:
            error = await self.refusal(case.sql, case.values)
            if not case.rules and error is not None:
                found.append(f"{case.name}: is legal, but {error}")
            elif case.rules and error is None:
                found.append(f"{case.name}: NOT refused")
            elif error is not None and not any(rule in error for rule in case.rules):
                found.append(f"{case.name}: refused without naming {list(case.rules)}: {error}")
        return found


class RawPostgres(Raw):
    """Through asyncpg."""

    engine = POSTGRES

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str) -> RawPostgres:
        connection = await asyncpg.connect(url)
        await connection.execute("BEGIN")
        return cls(connection)

    async def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self._connection.fetch(sql, *values)]

    async def refusal(self, sql: str, values: Sequence[Any]) -> str | None:
        await self._connection.execute("SAVEPOINT tried")
        try:
            await self._connection.fetch(sql, *values)
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.RaiseError) as error:
            return str(error)
        finally:
            await self._connection.execute("ROLLBACK TO tried")
        return None

    async def set_triggers_aside(self) -> None:
        await self._connection.execute("SET LOCAL session_replication_role = replica")

    async def derive_columns(self) -> None:
        await self._connection.execute(DERIVE)

    async def close(self) -> None:
        await self._connection.close()


class RawSqlite(Raw):
    """Through apsw."""

    engine = SQLITE

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.execute("BEGIN IMMEDIATE")

    async def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        bound = [value.bytes if isinstance(value, UUID) else value for value in values]
        return list(self._connection.execute(re.sub(r"\$(\d+)", r"?\1", sql), bound))

    async def refusal(self, sql: str, values: Sequence[Any]) -> str | None:
        self._connection.execute("SAVEPOINT tried")
        try:
            await self.rows(sql, *values)
        except apsw.ConstraintError as error:
            return str(error)
        finally:
            self._connection.execute("ROLLBACK TO tried")
        return None

    async def set_triggers_aside(self) -> None:
        triggers = await self.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
        for (name,) in triggers:
            self._connection.execute(f"DROP TRIGGER {name}")

    async def derive_columns(self) -> None:
        """They are computed."""

    async def close(self) -> None:
        self._connection.execute("ROLLBACK")
        self._connection.close()


DERIVE = """
CREATE FUNCTION pg_temp.derive() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    NEW.claim_order := holdfast_claim_order(NEW.state, NEW.held_by, NEW.quarantined_at, NEW.run_at,
        NEW.priority);
    NEW.wake_at := holdfast_wake_at(NEW.state, NEW.quarantined_at, NEW.deadline_at, NEW.timeout_at,
        NEW.run_at);
    NEW.live_parent_id := holdfast_live_parent_id(NEW.state, NEW.link_kind, NEW.parent_id);
    RETURN NEW;
END $$;
CREATE TRIGGER derive BEFORE INSERT OR UPDATE ON jobs FOR EACH ROW
    EXECUTE FUNCTION pg_temp.derive();
ALTER TABLE jobs ENABLE ALWAYS TRIGGER derive
"""
"""What SQLite computes, and on PostgreSQL each statement writes."""
INSERT_JOB = (
    f"INSERT INTO jobs ({', '.join(JOB_COLUMNS)}) "
    f"VALUES ({', '.join(f'${i}' for i in range(1, len(JOB_COLUMNS) + 1))})"
)


def row_of(job: Job) -> dict[str, Any]:
    """A job's row by column, as a store writes it."""
    return dict(zip(JOB_COLUMNS, write_job(job), strict=True))


def inserted(name: str, row: dict[str, Any], *rules: str) -> Case:
    """The case that a job row is inserted."""
    return Case(name=name, sql=INSERT_JOB, values=[row[c] for c in JOB_COLUMNS], rules=rules)


def updated(name: str, job: Job, changes: dict[str, Any], *rules: str) -> Case:
    """The case that some columns of a job row are changed."""
    sets = ", ".join(f"{column} = ${i}" for i, column in enumerate(changes, 2))
    sql = f"UPDATE jobs SET {sets} WHERE id = $1"
    return Case(name=name, sql=sql, values=[job.id, *changes.values()], rules=rules)
