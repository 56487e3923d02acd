"""Routes about events: of one job and of all, as a page or as they come."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from holdfast.errors import BadData
from holdfast.flow.history import EventPage
from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer
from holdfast.http.bookmarks import Epoch
from holdfast.http.documents import documented
from holdfast.http.feed import OLDEST, Wish
from holdfast.http.guard import at_end_of
from holdfast.http.names import Name
from holdfast.http.scopes import Scope
from holdfast.http.streams import MEDIA, EventStream, wants_stream
from holdfast.lifecycle.states import EventType
from holdfast.messages import FeedPage

START = "start"
"""As a place: before the oldest event."""
router = APIRouter(prefix="/v1", tags=["events"])

Text = Annotated[str | None, Query(min_length=1, max_length=200)]
Limit = Annotated[int, Query(ge=1, le=1000)]
LastEventId = Annotated[str | None, Header(max_length=400)]


def streamed(described: dict[str, Any]) -> dict[str, Any]:
    """Describe that a route also answers with a stream."""
    described["responses"][200]["content"][MEDIA] = {"schema": {"type": "string"}}
    return described


@router.get("/jobs/{job}/events", **streamed(documented(_200=EventPage, _204=None)))
async def get_job_events(
    ask: Annotated[Ask, asking(Scope.READ)],
    job: Name,
    after: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    limit: Limit = 1000,
    last_event_id: LastEventId = None,
) -> Response:
    """Read a job's events after a revision.

    With `Accept: text/event-stream` as they come, until the job has ended; each has its revision as
    id. Who comes back with the last `Last-Event-ID` of a job that has ended gets 204.
    """
    record = await ask.jobs.get(job)
    if not wants_stream(ask.request):
        return answer(await ask.jobs.event_page(job, after=after, limit=limit))
    after = after if last_event_id is None else _revision(last_event_id)
    if after > record.rev:
        raise BadData(f"job {job} is at revision {record.rev}, not yet at {after}")
    if record.terminal and after == record.rev:
        return Response(status_code=204)
    ask.house.live.admit(ask.caller, at_end_of(ask.request))
    return _stream(ask, ask.house.live.of_job(record, after))


@router.get("/events", **streamed(documented(_200=FeedPage)))
async def get_events(  # noqa: PLR0917  what a query string may say
    ask: Annotated[Ask, asking(Scope.READ)],
    tenant: Text = None,
    queue: Text = None,
    task: Text = None,
    type: Annotated[list[EventType], Query()] = [],  # noqa: B006  read, never written
    after: Annotated[str | None, Query(min_length=1, max_length=400)] = None,
    limit: Limit = 1000,
    last_event_id: LastEventId = None,
) -> Response:
    """Read events of all jobs of a tenant, heartbeats and bodies left out.

    `after` is a place that was told before, or `start`; without one it begins now. With
    `Accept: text/event-stream` as they come.
    """
    wish = Wish(
        tenant=_tenant(ask, tenant), queue=ask.jobs.queue_of(queue), task=task, types=tuple(type)
    )
    live = ask.house.live
    epoch = await live.bookmarks.epoch()
    streaming = wants_stream(ask.request)
    cursor = await _place(ask, epoch, (streaming and last_event_id) or after)
    if streaming:
        live.admit(ask.caller, at_end_of(ask.request))
        return _stream(ask, live.of_all(wish, cursor, epoch))
    live.scans.take(ask.caller, at_end_of(ask.request))
    stretch = await live.feed.wanted(wish, cursor, limit=limit)
    events = [one.event for one in stretch.events]
    return answer(FeedPage(events=events, next=epoch.seal(stretch.cursor)))


def _stream(ask: Ask, blocks: Any) -> EventStream:
    pace = ask.house.live.pace
    return EventStream(blocks, ending=ask.house.ending, still=ask.still, pace=pace)


def _revision(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadData(f"Last-Event-ID must be a job's revision, such as 3; not {text!r}")
    return int(text)


def _tenant(ask: Ask, said: str | None) -> str | None:
    own = ask.tenant
    if own is not None and said not in (None, own):
        raise BadData(f"tenant must be left out, or be {own!r}")
    return own or said


async def _place(ask: Ask, epoch: Epoch, after: str | None) -> str:
    """Find where to begin."""
    if after == START:
        return OLDEST
    end = await ask.house.session.store.tail_end()
    if after is None:
        return end
    cursor = epoch.open(after)
    if cursor > end:
        raise BadData("the events that this bookmark was behind are gone; begin without one")
    return cursor
