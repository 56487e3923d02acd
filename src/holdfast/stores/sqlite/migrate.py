"""Migrations of the SQLite store: numbered, one transaction each, one migrator at a time.

Only a new file gets all of them in one. differs from postgres: a new file is migrated when it is
first opened, so that an app needs no step before its first start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from holdfast.stores.sql_files import blocks, foreign_tables_error, newer_schema, read_migrations
from holdfast.stores.sqlite.connections import Patience, SqlitePlace, connect, translate_error
from holdfast.stores.versions import find_mismatch, min_reader

PACKAGE = "holdfast.stores.sqlite"
SQL = blocks(PACKAGE, "migrations.sql")


def latest() -> int:
    """The migration this version needs."""
    return read_migrations(PACKAGE)[-1][0]


def migrate(
    path: str | Path,
    *,
    progress: Callable[[int, str], None] | None = None,
    beside_others: bool = False,
) -> list[int]:
    """Bring a database file up to date; returns the migrations that were applied.

    If it is stopped, the next call continues: each migration is one transaction with its entry.
    A file that holds other tables, and none of ours, is refused unless `beside_others`.
    """
    place = SqlitePlace.of(path)
    try:
        connection = connect(place)
        try:
            _check_target(connection, place, beside_others=beside_others)
            return _apply_all(connection, place, progress)
        finally:
            connection.close()
    except apsw.Error as error:
        raise translate_error(error) from error


def _apply_all(
    connection: apsw.Connection,
    place: SqlitePlace,
    progress: Callable[[int, str], None] | None = None,
) -> list[int]:
    applied = []
    for number, name, text in read_migrations(PACKAGE):
        with _transaction(connection, place):
            if _apply(connection, number, name, text, progress):
                applied.append(number)
    return applied


def _apply_together(connection: apsw.Connection, place: SqlitePlace) -> None:
    """Make the schema of a new file at once: others that open it see all of it, or nothing."""
    with _transaction(connection, place):
        for number, name, text in read_migrations(PACKAGE):
            _apply(connection, number, name, text)


@contextmanager
def _transaction(connection: apsw.Connection, place: SqlitePlace) -> Iterator[None]:
    Patience(place.deadline_seconds).retry_while_busy(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _apply(
    connection: apsw.Connection,
    number: int,
    name: str,
    text: str,
    progress: Callable[[int, str], None] | None = None,
) -> bool:
    """Apply a migration with its entry, unless it was; return whether it had to."""
    connection.execute(SQL["create"])
    if connection.execute(SQL["applied"], (number,)).fetchone() is not None:
        return False
    if progress is not None:
        progress(number, name)
    connection.execute(text)
    connection.execute(SQL["enter"], (number, name, min_reader(number, text)))
    return True


def _check_target(connection: apsw.Connection, place: SqlitePlace, *, beside_others: bool) -> None:
    patience = Patience(place.deadline_seconds)
    found = patience.retry_while_busy(lambda: read_last_migration(connection))
    if found is not None and found > latest():
        raise newer_schema(found, latest())
    # In this order: another migrator may make its tables, and with them its entry, in between.
    taken = patience.retry_while_busy(lambda: connection.execute(SQL["tables"]).fetchone()) != (0,)
    known = (
        patience.retry_while_busy(lambda: connection.execute(SQL["known"]).fetchone()) is not None
    )
    if taken and not known and not beside_others:
        raise foreign_tables_error(place.path)


def prepare(connection: apsw.Connection, place: SqlitePlace) -> None:
    """Make the schema in a new file; refuse one that is not what this version needs."""
    patience = Patience(place.deadline_seconds)
    if patience.retry_while_busy(lambda: connection.execute(SQL["tables"]).fetchone()) == (0,):
        _apply_together(connection, place)
    patience.retry_while_busy(lambda: check_schema(connection))


def check_schema(connection: apsw.Connection) -> None:
    """Raise SchemaMismatch unless this version may work on the schema as it is now."""
    found = read_last_migration(connection)
    if (error := find_mismatch(found, read_needed_version(connection), latest())) is not None:
        raise error


def read_needed_version(connection: apsw.Connection) -> int:
    """Return what a version must know to work beside migrations that are new to this one."""
    if connection.execute(SQL["known"]).fetchone() is None:
        return 0
    [[needed]] = connection.execute(SQL["needed"], (latest(),))
    return int(needed)


def read_last_migration(connection: apsw.Connection) -> int | None:
    """Return the last migration that was applied; None if none ever was."""
    if connection.execute(SQL["known"]).fetchone() is None:
        return None
    row = connection.execute(SQL["newest"]).fetchone()
    return None if row is None else row[0]
