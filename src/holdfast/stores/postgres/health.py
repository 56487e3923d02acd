"""What can be wrong with a PostgreSQL server, as far as a client can see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg

from holdfast.stores.findings import (
    Finding,
    fine,
    judge_migrations,
    megabytes,
    problem,
    warning,
)
from holdfast.stores.postgres.connections import PASSING, Connection
from holdfast.stores.postgres.hosts import Hosts
from holdfast.stores.postgres.migrate import PACKAGE, latest
from holdfast.stores.postgres.schema import DEFAULT_SCHEMA, search_path
from holdfast.stores.sql_files import blocks

SQL = blocks(PACKAGE, "doctor.sql")
OLDEST_VERSION = 14
LONG_TRANSACTION_SECONDS = 300
CROWDED = 0.9
"""The share of a server's connections from which on it is nearly full."""
DURABLE = {
    "fsync": "on",
    "full_page_writes": "on",
}
"""What a server must do for an acknowledged job to survive a power cut."""


async def examine(
    url: str, listen_url: str | None, *, schema: str = DEFAULT_SCHEMA
) -> list[Finding]:
    """Look at a server without changing anything."""
    try:
        connection = await connect(url)
    except (asyncpg.PostgresError, *PASSING) as error:
        return [_report_unreachable(error)]
    try:
        found = [*await _examine_server(connection), *await _examine_schema(connection, schema)]
        found += [*await _examine_transactions(connection), *await _examine_slots(connection)]
    except (asyncpg.PostgresError, *PASSING) as error:
        return [_report_unreachable(error)]
    finally:
        await connection.close()
    return [*found, *await _examine_listening(listen_url)]


async def connect(url: str) -> Connection:
    """Connect to the primary of several hosts; to one host alone whatever it is."""
    options = {"limit_seconds": 5, "statement_cache_size": 0}
    hosts = Hosts(url)
    return await hosts.connect(writable=hosts.several, **options)


def _report_unreachable(error: Exception) -> Finding:
    return problem(
        "database",
        f"PostgreSQL does not answer: {error or type(error).__name__}",
        "check that it runs, and that host, port, user, password and database in --url are right",
    )


async def _examine_server(connection: Connection) -> list[Finding]:
    row = await connection.fetchrow(SQL["server"])
    size = f"PostgreSQL {row['version']}, {megabytes(row['size'])}"
    return [
        fine("database", size) if row["version"] >= OLDEST_VERSION else _too_old(row["version"]),
        *_examine_standby(row),
        *_examine_durability(row),
        _examine_connections(row),
        fine("disk", "the disk of a PostgreSQL server cannot be seen from here; watch it there"),
    ]


def _too_old(version: int) -> Finding:
    text = f"PostgreSQL {version} is older than {OLDEST_VERSION}"
    return problem("database", text, f"upgrade the server to {OLDEST_VERSION} or newer")


def _examine_standby(row: Any) -> Iterator[Finding]:
    if row["standby"]:
        yield problem(
            "database",
            "the server is a standby: it accepts no writes",
            "name the primary in --url, or several hosts with target_session_attrs=read-write",
        )


def _examine_durability(row: Any) -> Iterator[Finding]:
    for name, good in DURABLE.items():
        if row[name] != good:
            text = f"{name} is {row[name]}: a power cut may lose or damage acknowledged jobs"
            yield warning("database", text, f"set {name} = {good} in postgresql.conf")
    if row["synchronous_commit"] == "off":
        yield warning(
            "database",
            "synchronous_commit is off: a crash may lose the last acknowledged jobs",
            "set synchronous_commit = on, for this database at least",
        )


def _examine_connections(row: Any) -> Finding:
    used, most = row["connections"], row["max_connections"]
    text = f"{used} of {most} connections are in use"
    if used < CROWDED * most:
        return fine("connections", text)
    return warning(
        "connections", text, "raise max_connections, or put PgBouncer before it (docs/operate.md)"
    )


async def _examine_schema(connection: Connection, schema: str) -> list[Finding]:
    # In a transaction: a pooler in transaction mode would forget the setting after the statement.
    async with connection.transaction():
        await connection.execute(f"SET LOCAL search_path = {search_path(schema)}")
        there = await connection.fetchval(SQL["schema"])
        newest, needed = await connection.fetchrow(SQL["newest"], latest()) if there else (None, 0)
        found = [judge_migrations(newest, latest(), needed)]
        if newest == latest():
            found.append(_examine_lineage(await connection.fetchrow(SQL["lineage"])))
    return found


def _examine_lineage(row: Any) -> Finding:
    if row["moved"]:
        return warning(
            "events",
            "the database was moved to another PostgreSQL cluster since the last `epoch bump`",
            "run `holdfast epoch bump` before you start any process: it fences former owners, and "
            "feeds and webhooks continue",
        )
    before = row["number"] - 1
    if not before:
        return fine("events", "followed by transactions of this cluster")
    times = "1 time" if before == 1 else f"{before:,} times"
    return fine(
        "events",
        f"followed in lineage {row['number']:,}: epoch bumped, or database moved, {times}",
    )


async def _examine_transactions(connection: Connection) -> list[Finding]:
    row = await connection.fetchrow(SQL["oldest"], float(LONG_TRANSACTION_SECONDS))
    if row is None:
        return []
    text = f"process {row['pid']} has had a transaction open for {row['seconds']:,} s"
    fix = f"end it, or run SELECT pg_terminate_backend({row['pid']}): dead rows pile up behind it"
    return [warning("transactions", text, fix)]


async def _examine_slots(connection: Connection) -> list[Finding]:
    names = [row["slot_name"] for row in await connection.fetch(SQL["slots"])]
    if not names:
        return []
    text = f"nobody reads the replication slots {', '.join(names)}: the server's disk fills up"
    return [warning("disk", text, "start their standby again, or drop them")]


async def _examine_listening(url: str | None) -> list[Finding]:
    if url is None:
        return []
    try:
        connection = await connect(url)
        await connection.close()
    except (asyncpg.PostgresError, *PASSING) as error:
        text = f"listen_url cannot be reached: {error or type(error).__name__}"
        return [warning("database", text, "name a direct address there; until then workers poll")]
    return []
