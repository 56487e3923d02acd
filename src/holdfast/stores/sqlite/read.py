"""Reads that no other engine does in this way: the tail of all events, what an owner holds.

differs from postgres: commits come one after the other, so a position is enough of a cursor, and
the last one is the end of the tail; a claim that holds nothing is closed by a write of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.lifecycle.record import Job
from holdfast.ports.models import Tail
from holdfast.stores.cursors import read_position, write_position
from holdfast.stores.quarantine import report_left_out
from holdfast.stores.sqlite.rows import split_ids
from holdfast.stores.sqlite.session import SqliteSession


async def tail(session: SqliteSession, cursor: str | None, limit: int) -> Tail:
    """Read all events after a cursor."""
    rows = await session.rows("tail", read_position(cursor), limit)
    events, bad = await session.readable_events([row[1:] for row in rows])
    report_left_out(bad)
    read = {(event.id, event.rev) for event in events} if bad else None
    return Tail(
        events=events,
        cursors=[
            write_position(row[0])
            for row in rows
            if read is None or (session.id(row[1]), row[2]) in read
        ],
        cursor=write_position(rows[-1][0]) if rows else cursor or write_position(0),
    )


async def tail_end(session: SqliteSession) -> str:
    """Return the cursor of the last event."""
    [[position]] = await session.rows("tail_end")
    return write_position(position or 0)


async def owned(
    session: SqliteSession, owner: str, ended: Mapping[str, int], older_than: int
) -> list[Job]:
    """List what an owner holds; claims of which it holds nothing are not looked at again."""
    before = session.clock.now() - older_than
    found = await session.rows("owned", owner, list(ended), before)
    # Ids are 16 bytes each.
    known = {request for request, ids in found if ended.get(request) == len(ids) // 16}
    claims = [(request, split_ids(ids)) for request, ids in found if request not in known]
    ids = list({id_ for _, some in claims for id_ in some})
    rows = await session.rows("owned_jobs", ids, owner) if ids else []
    held = {session.id(row[0]) for row in rows}
    over = [request for request, some in claims if held.isdisjoint(some)]
    over += known
    if over:
        await session.write("close_claims", over)
    return sorted(await session.sweep(rows), key=lambda job: job.id.int)


async def size(session: SqliteSession) -> int:
    """Return how many jobs there are, by the summaries."""
    [[size]] = await session.rows("size")
    return int(size)
