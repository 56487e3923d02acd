"""Follow a job's log: pages or lines of it as they come, until the job has ended.

Over any `Operations`: an open store, or a server. Each read continues at the position that the last
one reached, so no line is missed and none comes twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.operations.request import Operations
from holdfast.operations.requests import GetLogs
from holdfast.operations.views import Log, LogView

POLL_SECONDS = 0.25
LAST_READ_SECONDS = 0.5
"""How long after a job's end the last lines of its handler may arrive: see `worker.log_writer`."""


async def follow_lines(operations: Operations, wanted: GetLogs) -> AsyncGenerator[LogView]:
    """Return the lines of a log as they come, until the job has ended.

    `wanted.after` and `wanted.tail` choose where to start, by default with the first line.
    """
    async with aclosing(follow_pages(operations, wanted)) as pages:
        async for page in pages:
            for line in page.lines:
                yield line


async def follow_pages(operations: Operations, wanted: GetLogs) -> AsyncGenerator[Log]:
    """Return pages of a log until its job has ended; one without lines if none came for a moment.

    The last page is of the ended job.
    """
    was_ended = False
    while True:
        page = await operations.do(wanted)
        yield page
        following = _continue(wanted, page)
        if following is not None:
            wanted = following
            continue
        # A command's log is complete when its job ends; a handler's lines are written apart.
        if page.ended and (was_ended or page.total_bytes is not UNSET):
            return
        was_ended = page.ended
        await asyncio.sleep(LAST_READ_SECONDS if page.ended else POLL_SECONDS)


async def read_pages(operations: Operations, wanted: GetLogs) -> AsyncGenerator[Log]:
    """Return pages of a log up to its present end; the last one has no lines."""
    following: GetLogs | None = wanted
    while following is not None:
        page = await operations.do(following)
        yield page
        following = _continue(following, page)


def _continue(wanted: GetLogs, page: Log) -> GetLogs | None:
    """Return the request for the next page; None if this one has reached the present end."""
    if not page.lines and page.next <= wanted.after:
        return None
    return replace(wanted, after=page.next, tail=None)
