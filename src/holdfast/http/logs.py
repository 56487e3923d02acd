"""Answers with a job's log: as a page, or line by line as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from holdfast.errors import BadData
from holdfast.http.events import make_stream
from holdfast.http.json_body import answer
from holdfast.http.request import HttpCall
from holdfast.http.routes import RequestReader
from holdfast.http.sse import block, comment, end, place, wants_stream
from holdfast.operations import requests as q
from holdfast.operations.follow_logs import follow_pages
from holdfast.operations.request import Operations
from holdfast.operations.views import Log

FOLLOWER_BYTES_PER_SECOND = 1024 * 1024
"""How fast one follower is sent a log: it takes the time of all others."""


async def answer_logs(call: HttpCall, reader: RequestReader) -> Response:
    """Answer with a page of a job's log, or with a stream of its lines."""
    request: q.GetLogs = await reader.read(call)
    if not wants_stream(call.request):
        return answer(await call.do(request))
    if request.last_event_id is not None:
        after = _read_position(request.last_event_id)
        request = replace(request, after=after, tail=None, last_event_id=None)
    # A client that may not read it, or finds no log here, gets a problem and not a stream.
    first = await call.do(replace(request, limit=1))
    if first.ended and not first.lines and first.next <= request.after:
        return Response(status_code=204)
    streams = call.server.streams
    streams.admit(call.caller, call.at_end)
    lines = _write_lines(call.operations(call.tenant), request, streams.pace.keep_alive_seconds)
    return make_stream(call, streams.counted(lines))


async def _write_lines(
    operations: Operations, request: q.GetLogs, keep_alive_seconds: float
) -> AsyncGenerator[bytes]:
    now = asyncio.get_running_loop().time
    due, reached, cut = now() + keep_alive_seconds, request.after, ""
    async with aclosing(follow_pages(operations, request)) as pages:
        async for page in pages:
            text = _write_page(page, reached)
            reached, cut = page.next, "; its log was truncated" if page.truncated else ""
            if not text and now() >= due:
                text = comment("no line has come")
            if text:
                yield text
                due = now() + keep_alive_seconds
                await asyncio.sleep(len(text) / FOLLOWER_BYTES_PER_SECOND)
    job = await operations.do(q.GetJob(job=request.job))
    yield end("ended", f"job {job.public_id} is {job.state}{cut}")


def _write_page(page: Log, after: int) -> bytes:
    """Write lines with their positions; where none of many was wanted, only how far it is."""
    if page.lines:
        return b"".join(block(msgspec.json.encode(one), str(one.position)) for one in page.lines)
    return place(str(page.next)) if page.next > after else b""


def _read_position(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadData(f"Last-Event-ID must be a position in the log, such as 4096; not {text!r}")
    return int(text)
