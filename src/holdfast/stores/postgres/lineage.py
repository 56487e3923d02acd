"""Positions in the tail that only grow, also where a database moves to another cluster.

An event's position is the number of its transaction plus the base of its lineage. Numbers of
transactions belong to a cluster: a dump that is restored elsewhere would go on with smaller ones,
and no cursor would ever see what follows. So each `epoch bump`, and each move to another cluster,
begins a new lineage above all positions before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from holdfast.errors import StoreError
from holdfast.stores.cursors import LOWEST
from holdfast.stores.law import LINEAGE
from holdfast.stores.postgres.connections import Connection

TAIL_WINDOW = 1000
"""Transactions that one read of the tail spans at first; doubled while they are empty."""
LINEAGE_SECONDS = 3600.0
"""How long a new lineage may take to begin: after a move it reads all events once."""
MOVE_LOCK_SECONDS = 5
"""How long a reader of the tail that notices a move waits for those who write events."""


class Moved(Exception):
    """The database is in another cluster than the one its newest lineage was begun in."""


async def begin_lineage(connection: Connection, sql: dict[str, str]) -> None:
    """Begin a new lineage; to be called in a transaction, by the owner of the tables."""
    await connection.execute(sql["begin_lineage"], False, timeout=LINEAGE_SECONDS)


async def follow_move(connection: Connection, sql: dict[str, str]) -> None:
    """Begin a new lineage if the database has moved and nobody has done so yet."""
    try:
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{MOVE_LOCK_SECONDS}s'")
            await connection.execute(sql["begin_lineage"], True, timeout=LINEAGE_SECONDS)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreError(
            "the database was moved to another PostgreSQL cluster, and no event can be followed "
            "until its owner runs `holdfast epoch bump`"
        ) from error


async def tail_bounds(connection: Connection, sql: dict[str, str]) -> Any:
    """Read where the tail ends, where earlier lineages ended, and who holds it back."""
    bounds = await connection.fetchrow(sql["tail_bounds"])
    if bounds["moved"]:
        raise Moved
    return bounds


async def tail_rows(
    connection: Connection, sql: dict[str, str], after: tuple[int, UUID, int], limit: int
) -> tuple[list[Any], int, int | None]:
    """Read events after a place; tells also how far was read, and who holds the rest back."""
    bounds = await tail_bounds(connection, sql)
    end = bounds["oldest"]
    (xid, id_, rev), span = after, TAIL_WINDOW
    rows: list[Any] = []
    while xid < end and len(rows) < limit:
        stop = min(_end_of_lineage(xid, bounds["ends"]), end)
        if xid >= stop:
            # Nothing is between two lineages.
            xid, id_, rev = (xid // LINEAGE + 1) * LINEAGE, LOWEST, 0
            continue
        until = min(xid + span, stop)
        rows += await connection.fetch(sql["tail"], xid, until, id_, rev, limit - len(rows))
        if len(rows) < limit:
            xid, id_, rev, span = until, LOWEST, 0, span * 2
    blocker = bounds["blocker"] if end < bounds["newest"] - 1 else None
    return rows, max(xid, end), blocker


def _end_of_lineage(position: int, ends: Sequence[int]) -> int:
    number = position // LINEAGE
    return ends[number] + 1 if number < len(ends) else (number + 1) * LINEAGE
