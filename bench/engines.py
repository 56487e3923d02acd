"""Where it is measured: a private PostgreSQL, or SQLite files on the same disk; fsync on."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import apsw
import asyncpg

from bench.contenders import Contender, PostgresFloor, SqliteFloor, StoreContender
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.migrate import migrate as sqlite_migrate
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.postgres import PostgresCluster, database_of

SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
"""All else is PostgreSQL's default. Checkpoints fall between the measured stretches."""


class Place(Protocol):
    """A database of its own for one measurement."""

    def rest(self) -> None:
        """Bring the engine to rest before the clock starts."""

    def server_times(self) -> dict[str, int]:
        """CPU nanoseconds of each process of the engine that serves this database now."""

    def columns(self) -> dict[str, tuple[int, int]]:
        """Per column of jobs and events: how many values there are, and their total length."""


class Engine(Protocol):
    """Makes places, and contenders for them."""

    name: str

    def place(self, kind: str) -> Any:
        """Make a fresh database with the tables of a contender, for use in a with block."""

    def contender(self, kind: str, place: Any) -> Contender:
        """Set a contender on a place."""


class PostgresPlace:
    """One database of the private server."""

    def __init__(self, cluster: PostgresCluster, template: str) -> None:
        """Copy it from a template."""
        self._cluster = cluster
        self._template = template
        self.url = ""

    def __enter__(self) -> Self:
        self.url = self._cluster.create_database(template=self._template)
        return self

    def __exit__(self, *error: object) -> None:
        self._cluster.drop_database(self.url)

    def rest(self) -> None:
        """Write out what lies in memory, so that no checkpoint falls into the measurement."""
        self._cluster.sql("CHECKPOINT")

    def sql(self, statement: str) -> str:
        """Run a statement outside what is measured."""
        return self._cluster.sql(statement, database_of(self.url))

    def server_times(self) -> dict[str, int]:
        """Ask Linux about the backends that serve this database."""
        name = f" {database_of(self.url)} "
        processes = [one for one in Path("/proc").iterdir() if one.name.isdigit()]
        return {process.name: _nanoseconds(process, name) for process in processes}

    def columns(self) -> dict[str, tuple[int, int]]:
        """Ask PostgreSQL."""
        found = {}
        for table in ("jobs", "events"):
            names = self.sql(
                "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped "
                f"AND attrelid = '{table}'::regclass"
            ).split()
            asked = ", ".join(f"count({n}), coalesce(sum(length({n}::text)), 0)" for n in names)
            values = list(map(int, self.sql(f"SELECT {asked} FROM {table}").split("|")))
            for i, name in enumerate(names):
                found[f"{table}.{name}"] = (values[2 * i], values[2 * i + 1])
        return found


def _nanoseconds(process: Path, title: str) -> int:
    """Return the CPU time of a process whose title shows that it serves this; 0 for any other."""
    try:
        if title not in (process / "cmdline").read_bytes().decode(errors="replace"):
            return 0
        return int((process / "schedstat").read_text().split()[0])
    except OSError:
        return 0


class PostgresEngine:
    """A private server that ends with the benchmark."""

    name = "postgres"

    def __init__(self) -> None:
        """Take the settings; entering starts it."""
        self.cluster = PostgresCluster(SETTINGS)

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        self.cluster.make_template("store", lambda url: asyncio.run(migrate(url)))
        self.cluster.make_template("floor", lambda url: asyncio.run(_make_floor(url)))
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.close()

    def place(self, kind: str) -> PostgresPlace:
        """Make a database."""
        return PostgresPlace(self.cluster, kind)

    def contender(self, kind: str, place: PostgresPlace) -> Contender:
        """Set a contender on it."""
        return PostgresFloor(place.url) if kind == "floor" else StoreContender(self.store(place))

    def store(self, place: PostgresPlace) -> Store:
        """Open the store on it."""
        return PostgresStore(place.url)

    def version(self) -> str:
        """Name the engine and its driver."""
        server = self.cluster.sql("SHOW server_version").split()[0]
        return f"PostgreSQL {server}, asyncpg {asyncpg.__version__}"


async def _make_floor(url: str) -> None:
    """Make the store's tables and take away every guard: the same columns and indexes remain."""
    await migrate(url)
    connection = await asyncpg.connect(url)
    try:
        for statement in await _unguard(connection):
            await connection.execute(statement)
    finally:
        await connection.close()


async def _unguard(connection: Any) -> Sequence[str]:
    rows = await connection.fetch(
        """
        SELECT format('DROP VIEW %I', viewname) FROM pg_views WHERE schemaname = 'holdfast'
        UNION ALL SELECT format('ALTER TABLE %I DROP CONSTRAINT %I', conrelid::regclass, conname)
        FROM pg_constraint
        WHERE contype = 'c' AND conrelid IN ('jobs'::regclass, 'events'::regclass)
        UNION ALL SELECT format('DROP TRIGGER %I ON %I', tgname, tgrelid::regclass)
        FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL
        SELECT format('ALTER TABLE %I ALTER %I DROP EXPRESSION', attrelid::regclass, attname)
        FROM pg_attribute WHERE attgenerated <> '' AND attrelid = 'jobs'::regclass
        """
    )
    return [row[0] for row in rows]


def sqlite_version() -> str:
    """Name the engine and its driver."""
    return f"SQLite {apsw.sqlite_lib_version()}, apsw {apsw.apsw_version()}"


def wall_clock() -> int:
    """Read microseconds since 1970."""
    return time.time_ns() // 1000


class SqlitePlace:
    """One database file, in a directory of its own beside the others."""

    def __init__(self, directory: Path, kind: str) -> None:
        """Name it; entering makes it."""
        self._directory = directory
        self._kind = kind
        self.path = ""

    def __enter__(self) -> Self:
        self.path = str(Path(tempfile.mkdtemp(dir=self._directory)) / "jobs.db")
        sqlite_migrate(self.path)
        if self._kind == "floor":
            _make_sqlite_floor(self.path)
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(Path(self.path).parent)

    def rest(self) -> None:
        """Write out what lies in memory."""
        os.sync()

    def server_times(self) -> dict[str, int]:
        """SQLite runs in the client."""
        return {}

    def columns(self) -> dict[str, tuple[int, int]]:
        """Ask SQLite."""
        connection = apsw.Connection(self.path)
        found = {}
        for table in ("jobs", "events"):
            for (name,) in connection.execute("SELECT name FROM pragma_table_xinfo(?)", (table,)):
                asked = f"SELECT count({name}), coalesce(sum(length({name})), 0) FROM {table}"
                [(count, length)] = connection.execute(asked)
                found[f"{table}.{name}"] = (count, length)
        connection.close()
        return found


class SqliteEngine:
    """Files on the disk that the benchmark runs on, with the store's own durability."""

    name = "sqlite"

    def __init__(self) -> None:
        """Entering makes a directory beside the PostgreSQL cluster's: the same disk."""
        self._directory = Path()

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._directory)

    def place(self, kind: str) -> SqlitePlace:
        """Make a file."""
        return SqlitePlace(self._directory, kind)

    def contender(self, kind: str, place: SqlitePlace) -> Contender:
        """Set a contender on it."""
        if kind == "floor":
            return SqliteFloor(place.path, wall_clock)
        return StoreContender(self.store(place))

    def store(self, place: SqlitePlace) -> Store:
        """Open the store on it."""
        return SqliteStore(place.path)

    def version(self) -> str:
        """Name the engine and its driver."""
        return sqlite_version()


def _make_sqlite_floor(path: str) -> None:
    """Make the tables again without a guard: the same columns and indexes remain."""
    connection = apsw.Connection(path)
    kept: Any = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL "
        "AND tbl_name IN ('jobs', 'events')"
    ).fetchall()
    for table in ("jobs", "events"):
        statement = _plain_table(connection, table)
        connection.execute(f"DROP TABLE {table}")
        connection.execute(statement)
    connection.execute("CREATE UNIQUE INDEX events_unique ON events (id, rev)")
    for (statement,) in kept:
        connection.execute(statement)
    connection.close()


def _plain_table(connection: apsw.Connection, table: str) -> str:
    found: Any = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
    )
    [(sql,)] = found
    rows: Any = connection.execute(
        "SELECT name, type, pk, dflt_value FROM pragma_table_xinfo(?)", (table,)
    )
    columns = [
        f"{name} {kind.split()[0]}"
        + (" PRIMARY KEY" if key else "")
        + (f" DEFAULT {default}" if default else "")
        for name, kind, key, default in rows
    ]
    options = "STRICT, WITHOUT ROWID" if "WITHOUT ROWID" in sql else "STRICT"
    return f"CREATE TABLE {table} ({', '.join(columns)}) {options}"
