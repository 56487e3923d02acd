"""Migrations of the PostgreSQL store: numbered, one transaction each, one migrator at a time."""

from __future__ import annotations

from collections.abc import Callable

import asyncpg

from holdfast.errors import SchemaMismatch, StoreUnavailable
from holdfast.stores.postgres.connections import PASSING, Connection, translate_error
from holdfast.stores.postgres.hosts import Hosts
from holdfast.stores.postgres.schema import DEFAULT_SCHEMA, quoted, search_path
from holdfast.stores.sql_files import foreign_tables_error, newer_schema, read_migrations
from holdfast.stores.versions import find_mismatch, min_reader

PACKAGE = "holdfast.stores.postgres"
_LOCK = "SELECT pg_advisory_xact_lock(726103811, hashtext($1))"
"""By schema. A *transaction* lock, which a pooler cannot leave behind on a connection."""


def latest() -> int:
    """The migration this version needs."""
    return read_migrations(PACKAGE)[-1][0]


async def migrate(
    url: str,
    *,
    schema: str = DEFAULT_SCHEMA,
    progress: Callable[[int, str], None] | None = None,
    beside_others: bool = False,
) -> list[int]:
    """Bring a schema of a database up to date, making it first if need be.

    Returns the migrations that were applied.
    If it is stopped, the next call continues: each migration is one transaction with its entry.
    A schema that holds others' tables, and none of ours, is refused unless `beside_others`.
    """
    try:
        connection = await Hosts(url).connect(limit_seconds=10, statement_cache_size=0)
    except (asyncpg.PostgresError, *PASSING) as error:
        raise StoreUnavailable(f"PostgreSQL could not be reached: {error}") from error
    try:
        return await _apply_all(connection, schema, progress, beside_others=beside_others)
    except PASSING as error:
        raise StoreUnavailable(
            f"the connection to PostgreSQL was lost; run the migration again: {error}"
        ) from error
    except asyncpg.PostgresError as error:
        raise translate_error(error) from error
    finally:
        await connection.close()


async def _apply_all(
    connection: Connection,
    schema: str,
    progress: Callable[[int, str], None] | None,
    *,
    beside_others: bool,
) -> list[int]:
    applied = []
    for number, name, text in read_migrations(PACKAGE):
        async with connection.transaction():
            await connection.execute(_LOCK, schema)
            await _enter_schema(connection, schema)
            # Not before the lock: a session that found no table would keep finding none.
            await _check_target(connection, beside_others=beside_others)
            if number in await _read_applied(connection):
                continue
            if progress is not None:
                progress(number, name)
            await connection.execute(text)
            await connection.execute(
                "INSERT INTO migrations (number, name, min_reader) VALUES ($1, $2, $3)",
                number,
                name,
                min_reader(number, text),
            )
            applied.append(number)
    return applied


async def _enter_schema(connection: Connection, schema: str) -> None:
    # Not IF NOT EXISTS alone: that asks for the right to make schemas also where this one exists.
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", quoted(schema)):
        await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
    await connection.execute(f"SET LOCAL search_path = {search_path(schema)}")


async def _check_target(connection: Connection, *, beside_others: bool) -> None:
    if await connection.fetchval("SELECT to_regclass('migrations') IS NOT NULL"):
        found = await connection.fetchval("SELECT max(number) FROM migrations")
        if (found or 0) > latest():
            raise newer_schema(found, latest())
    elif not beside_others and await connection.fetchval(_FOREIGN):
        raise foreign_tables_error(await connection.fetchval("SELECT current_schema()"))


# An extension's own tables are nobody's data.
_FOREIGN = """SELECT count(*) > 0 FROM pg_class AS c
WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) AND relkind IN ('r', 'p')
    AND NOT EXISTS (SELECT 1 FROM pg_depend WHERE objid = c.oid AND deptype = 'e')"""


async def _read_applied(connection: Connection) -> set[int]:
    if not await connection.fetchval("SELECT to_regclass('migrations') IS NOT NULL"):
        await connection.execute(
            "CREATE TABLE migrations (number integer PRIMARY KEY, name text NOT NULL, "
            "min_reader integer NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )
    return {row[0] for row in await connection.fetch("SELECT number FROM migrations")}


async def check_schema(connection: Connection, tries: int) -> None:
    """Raise SchemaMismatch unless this version may work on the schema as it is now."""
    del tries
    if not await connection.fetchval("SELECT to_regclass('migrations') IS NOT NULL"):
        raise SchemaMismatch(
            "the database has no Holdfast tables in this schema; run `holdfast migrate`, or name "
            "the schema that they are in, as ?schema= in the url, and GRANT USAGE on it"
        )
    known = latest()
    found, needed = await connection.fetchrow(
        "SELECT max(number), coalesce(max(min_reader) FILTER (WHERE number > $1), 0) "
        "FROM migrations",
        known,
    )
    if (error := find_mismatch(found, needed, known)) is not None:
        raise error
