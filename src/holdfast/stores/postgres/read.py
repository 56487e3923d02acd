"""Reads that no other engine does in this way: the tail of all events, what an owner holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from holdfast.lifecycle.record import Job
from holdfast.ports.models import Tail
from holdfast.stores.cursors import LOWEST, read_cursor, write_cursor
from holdfast.stores.postgres.lineage import Moved, follow_move, read_tail_bounds, read_tail_rows
from holdfast.stores.postgres.session import BY_BLOCKS, PostgresSession
from holdfast.stores.quarantine import report_left_out
from holdfast.stores.statements import Row

R = TypeVar("R")


async def tail(session: PostgresSession, cursor: str | None, limit: int) -> Tail:
    """Read all events after a cursor, up to the oldest transaction still under way."""
    after = read_cursor(cursor)

    async def work(session: PostgresSession, tries: int) -> tuple[Sequence[Row], int, int | None]:
        async with session.transaction():
            await session.script(BY_BLOCKS)
            return await read_tail_rows(session, after, limit)

    rows, reached, blocker = await _run_following_move(session, work)
    events, bad = await session.readable_events([row[1:] for row in rows])
    report_left_out(bad)
    read = {(event.id, event.rev) for event in events} if bad else None
    cursors = [write_cursor(*row[:3]) for row in rows if read is None or row[1:3] in read]
    if len(rows) == limit:
        return Tail(events=events, cursors=cursors, cursor=write_cursor(*rows[-1][:3]))
    end = write_cursor(reached, LOWEST, 0)
    return Tail(events=events, cursors=cursors, cursor=end, held_back_by=blocker)


async def tail_end(session: PostgresSession) -> str:
    """Return the cursor before the oldest transaction still under way."""
    bounds = await _run_following_move(session, lambda session, tries: read_tail_bounds(session))
    return write_cursor(bounds["oldest"], LOWEST, 0)


async def _run_following_move(
    session: PostgresSession, work: Callable[[PostgresSession, int], Awaitable[R]]
) -> R:
    """Read the tail; where the database has moved to another cluster, follow it first."""
    try:
        return await session.run(work)
    except Moved:
        await session.run(follow_move)
        return await session.run(work)


async def owned(
    session: PostgresSession, owner: str, ended: Mapping[str, int], older_than: int
) -> list[Job]:
    """List what an owner holds; claims of which it holds nothing are not looked at again."""
    jobs = await session.sweep(
        await session.rows("owned", owner, list(ended), list(ended.values()), older_than)
    )
    return sorted({job.id: job for job in jobs}.values(), key=lambda job: job.id)


async def size(session: PostgresSession) -> int:
    """Estimate how many jobs there are."""
    [[size]] = await session.rows("size")
    if not size:
        # The planner's figure is -1 or 0 until the first ANALYZE; then counting is cheap enough.
        [[size]] = await session.rows("size_exactly")
    return int(size)
