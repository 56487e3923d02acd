"""Answers with events, of one job and of all: as a page, or as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response

from holdfast.errors import BadData
from holdfast.http.feed import OLDEST, FeedFilter
from holdfast.http.feed_cursor import EpochCursors
from holdfast.http.json_body import answer
from holdfast.http.request import HttpCall
from holdfast.http.routes import RequestReader
from holdfast.http.sse import EventStream, wants_stream
from holdfast.operations import requests as q
from holdfast.operations.views import FeedPage

START = "start"
"""As a cursor: before the oldest event."""


async def answer_job_events(call: HttpCall, reader: RequestReader) -> Response:
    """Answer with a page of a job's events, or with a stream of them."""
    request: q.GetJobEvents = await reader.read(call)
    job = await call.do(q.GetJob(job=request.job))
    if not wants_stream(call.request):
        return answer(await call.do(request))
    last = request.last_event_id
    after = request.after if last is None else _revision(last)
    if after > job.rev:
        raise BadData(f"job {request.job} is at revision {job.rev}, not yet at {after}")
    if job.terminal and after == job.rev:
        return Response(status_code=204)
    streams = call.server.streams
    streams.admit(call.caller, call.at_end)
    return make_stream(call, streams.of_job(job, after))


async def answer_events(call: HttpCall, reader: RequestReader) -> Response:
    """Answer with a page of the feed of all events, or with a stream of it."""
    request: q.GetEvents = await reader.read(call)
    wanted = FeedFilter(
        tenant=_tenant_for(call, request.tenant),
        queue=call.operations(call.tenant).queue_of(request.queue),
        task=request.task,
        types=request.type,
    )
    streams = call.server.streams
    cursors = await streams.cursors.current()
    streaming = wants_stream(call.request)
    cursor = await _find_start(
        call, cursors, (streaming and request.last_event_id) or request.after
    )
    if streaming:
        streams.admit(call.caller, call.at_end)
        return make_stream(call, streams.of_all(wanted, cursor, cursors))
    streams.scans.take(call.caller, call.at_end)
    found = await streams.feed.wanted(wanted, cursor, limit=request.limit)
    events = [one.event for one in found.events]
    return answer(FeedPage(events=events, next=cursors.encrypt(found.cursor)))


def make_stream(call: HttpCall, blocks: AsyncGenerator[bytes]) -> EventStream:
    """Answer a call with blocks as they come."""
    server = call.server
    return EventStream(
        blocks, shutdown=server.shutdown, check=call.check_token, pace=server.streams.pace
    )


def _revision(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadData(f"Last-Event-ID must be a job's revision, such as 3; not {text!r}")
    return int(text)


def _tenant_for(call: HttpCall, asked: str | None) -> str | None:
    own = call.tenant
    if own is not None and asked not in (None, own):
        raise BadData(f"tenant must be left out, or be {own!r}")
    return own or asked


async def _find_start(call: HttpCall, cursors: EpochCursors, after: str | None) -> str:
    """Return the place in the tail to start from."""
    if after == START:
        return OLDEST
    end = await call.server.session.store.tail_end()
    if after is None:
        return end
    cursor = cursors.decrypt(after)
    if cursor > end:
        raise BadData("the events before this cursor are gone; start without one")
    return cursor
