"""Positions in the tail that only grow, also where a database moves to another cluster.

An event's position is the number of its transaction plus the base of its lineage. Numbers of
transactions belong to a cluster: a dump restored elsewhere would continue with smaller ones, and no
cursor would ever see what follows. So each `epoch bump`, and each move to another cluster,
starts a new lineage above all positions before it. Own to PostgreSQL: positions in a file go with
the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from holdfast.errors import StoreError
from holdfast.stores.cursors import LOWEST
from holdfast.stores.postgres.session import SQL, PostgresSession
from holdfast.stores.schema_sql import LINEAGE
from holdfast.stores.statements import Row

TAIL_WINDOW = 1000
"""Transactions that one read of the tail spans at first; doubled while they are empty."""
LINEAGE_SECONDS = 3600.0
"""How long the start of a lineage may take: after a move it reads all events once."""
MOVE_LOCK_SECONDS = 5
"""How long a reader of the tail that notices a move waits for those who write events."""


class Moved(Exception):
    """The database is in another cluster than the one its newest lineage was started in."""


async def start_lineage(session: PostgresSession) -> None:
    """Start a new lineage; only the owner of the tables may."""
    await _start(session, only_if_moved=False)


async def follow_move(session: PostgresSession, tries: int) -> None:
    """Start a new lineage if the database has moved and nobody has done so yet."""
    try:
        async with session.transaction():
            await session.script(f"SET LOCAL lock_timeout = '{MOVE_LOCK_SECONDS}s'")
            await _start(session, only_if_moved=True)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreError(
            "the database was moved to another PostgreSQL cluster, and no event can be followed "
            "until its owner runs `holdfast epoch bump`"
        ) from error


async def _start(session: PostgresSession, *, only_if_moved: bool) -> None:
    connection: Any = session.connection
    await connection.execute(SQL["start_lineage"], only_if_moved, timeout=LINEAGE_SECONDS)


async def read_tail_bounds(session: PostgresSession) -> Any:
    """Read where the tail ends, where earlier lineages ended, and who holds it back."""
    [bounds] = await session.rows("tail_bounds")
    if bounds["moved"]:  # type: ignore[call-overload]
        raise Moved
    return bounds


async def read_tail_rows(
    session: PostgresSession, after: tuple[int, UUID, int], limit: int
) -> tuple[list[Row], int, int | None]:
    """Read events after a place; also return how far was read, and who holds the rest back."""
    bounds = await read_tail_bounds(session)
    end = bounds["oldest"]
    (xid, id_, rev), span = after, TAIL_WINDOW
    rows: list[Row] = []
    while xid < end and len(rows) < limit:
        stop = min(_end_of_lineage(xid, bounds["ends"]), end)
        if xid >= stop:
            # Nothing is between two lineages.
            xid, id_, rev = (xid // LINEAGE + 1) * LINEAGE, LOWEST, 0
            continue
        until = min(xid + span, stop)
        rows += await session.rows("tail", xid, until, id_, rev, limit - len(rows))
        if len(rows) < limit:
            xid, id_, rev, span = until, LOWEST, 0, span * 2
    blocker = bounds["blocker"] if end < bounds["newest"] - 1 else None
    return rows, max(xid, end), blocker


def _end_of_lineage(position: int, ends: Sequence[int]) -> int:
    number = position // LINEAGE
    return ends[number] + 1 if number < len(ends) else (number + 1) * LINEAGE
