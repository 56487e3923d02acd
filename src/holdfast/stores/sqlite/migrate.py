"""Migrations of the SQLite store: numbered, one transaction each, one migrator at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from holdfast.errors import SchemaMismatch
from holdfast.stores.sqlite.connections import Patience, Place, connect, translate
from holdfast.stores.text import blocks, migrations

PACKAGE = "holdfast.stores.sqlite"
SQL = blocks(PACKAGE, "migrations.sql")


def latest() -> int:
    """The migration this version needs."""
    return migrations(PACKAGE)[-1][0]


def migrate(path: str | Path, *, progress: Callable[[int, str], None] | None = None) -> list[int]:
    """Bring a database file up to date; returns the migrations that were applied.

    Stopped in between, it goes on where it was: each migration is one transaction with its entry.
    """
    place = Place.of(path)
    try:
        connection = connect(place)
        try:
            return _apply_all(connection, place, progress)
        finally:
            connection.close()
    except apsw.Error as error:
        raise translate(error) from error


def _apply_all(
    connection: apsw.Connection, place: Place, progress: Callable[[int, str], None] | None = None
) -> list[int]:
    applied = []
    for number, name, text in migrations(PACKAGE):
        Patience(place.deadline_seconds).spend(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            connection.execute(SQL["begin"])
            if connection.execute(SQL["applied"], (number,)).fetchone() is None:
                if progress is not None:
                    progress(number, name)
                connection.execute(text)
                connection.execute(SQL["enter"], (number, name))
                applied.append(number)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    return applied


def prepare(connection: apsw.Connection, place: Place) -> None:
    """Make the schema in a new file; refuse one that is not what this version needs."""
    patience = Patience(place.deadline_seconds)
    if patience.spend(lambda: connection.execute(SQL["tables"]).fetchone()) == (0,):
        _apply_all(connection, place)
    found = patience.spend(lambda: _found(connection))
    if found != latest():
        hint = "run `holdfast migrate`" if (found or 0) < latest() else "upgrade Holdfast"
        raise SchemaMismatch(f"the schema is at migration {found}, not {latest()}; {hint}")


def _found(connection: apsw.Connection) -> int | None:
    if connection.execute(SQL["known"]).fetchone() is None:
        return None
    row = connection.execute(SQL["newest"]).fetchone()
    return None if row is None else row[0]
