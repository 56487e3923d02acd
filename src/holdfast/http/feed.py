"""The feed of all events: the tail is read once for all listeners while they keep up.

The newest events are kept in a window. A listener has nothing but its cursor: one within the window
reads there, one that has fallen behind it, or returns after long, reads the store at its own pace
until it has caught up. So a slow one costs the others nothing, and has no gap.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct

from holdfast.durations import instant
from holdfast.lifecycle.record import Created, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import EventType
from holdfast.operations.views import FeedEvent
from holdfast.ports.models import Tail
from holdfast.ports.store import Store
from holdfast.queries.history import show_facts

log = logging.getLogger(__name__)

OLDEST = ""
"""The cursor before all events."""
PAGE_EVENTS = 500
WINDOW_EVENTS = 5_000
KNOWN_JOBS = 50_000
"""How many jobs the feed remembers the names of."""
SHORTEST_SECONDS, LONGEST_SECONDS = 0.02, 0.25
"""Between two reads of the tail: while events come, and when none have come for a while."""
SCAN_SECONDS = 5.0
"""How long one page of the feed searches for events that are wanted."""
AWAY_SECONDS = 1.0
"""Until the next read, when the database did not answer."""


class FeedFilter(Struct, frozen=True, kw_only=True):
    """Which events a listener wants; None and empty mean all."""

    tenant: str | None = None
    queue: str | None = None
    task: str | None = None
    types: tuple[EventType, ...] = ()

    def covers(self, event: FeedEvent) -> bool:
        """Return whether an event is among them."""
        return (
            self.tenant in (None, event.tenant)
            and self.queue in (None, event.queue)
            and self.task in (None, event.task)
            and (not self.types or event.type in self.types)
        )


class PlacedEvent(Struct, frozen=True):
    """An event, its cursor, and its text: written once for all listeners."""

    cursor: str
    event: FeedEvent
    text: bytes


class FeedSlice(Struct, frozen=True, kw_only=True):
    """The events after a cursor, and the cursor behind them."""

    events: Sequence[PlacedEvent]
    cursor: str
    more: bool = False
    """There may be more in the store."""
    trouble: str | None = None
    """Why no newer events can be shown at present."""


class JobNames(Struct, frozen=True):
    """What the feed remembers of a job."""

    tenant: str
    queue: str
    task: str
    job_id: str


class Feed:
    """One reader of the tail for all listeners of one server; it reads while there is any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[JobId, JobNames] = {}
        self._window: list[PlacedEvent] = []
        self._cursors: list[str] = []
        self._start = self._end = OLDEST
        self._came = asyncio.Event()
        self._trouble: str | None = None
        self._listeners = 0
        self._reading: asyncio.Task[None] | None = None
        self._scanning = asyncio.Lock()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Read the tail while the block runs."""
        self._listeners += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._keep_reading())
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._reading.cancel()
                self._reading = None
                self._forget()

    def _forget(self) -> None:
        """Drop the window; the next listener starts a new one."""
        self._window, self._cursors = [], []
        self._start = self._end = OLDEST

    async def after(self, cursor: str, *, limit_seconds: float) -> FeedSlice:
        """Return the events after a cursor; if there are none, wait for them up to the limit."""
        if cursor >= (self._cursors[-1] if self._cursors else self._start):
            await self._news(limit_seconds)
        if cursor < self._start:
            return await self.page(cursor)
        first = bisect_right(self._cursors, cursor)
        last = first + PAGE_EVENTS
        return FeedSlice(
            events=self._window[first:last],
            cursor=self._cursors[last - 1] if last < len(self._cursors) else max(cursor, self._end),
            trouble=self._trouble,
        )

    async def page(self, cursor: str, *, limit: int = PAGE_EVENTS) -> FeedSlice:
        """Read the events after a cursor from the store."""
        # As it is before the read: what comes during the read may be behind both.
        start = self._start
        tail = await self._store.tail(cursor or None, limit=limit)
        # Where nothing is left before the window, the window is next.
        reached = tail.cursor if tail.events else max(tail.cursor, start)
        return FeedSlice(
            events=await self._place_events(tail),
            cursor=reached,
            more=len(tail.events) == limit,
            trouble=_held_back(tail),
        )

    async def wanted(self, only: FeedFilter, cursor: str, *, limit: int) -> FeedSlice:
        """Read the store until there are `limit` wanted events, no more at all, or it takes long.

        Events of others are skipped here: a client that had to ask for page after page without an
        event of its own could count them.
        """
        now = asyncio.get_running_loop().time
        until = now() + SCAN_SECONDS
        size = limit if only == FeedFilter() else max(limit, PAGE_EVENTS)
        found: list[PlacedEvent] = []
        page = await self.page(cursor, limit=size)
        while True:
            found += [one for one in page.events if only.covers(one.event)]
            cursor = page.cursor
            if len(found) >= limit:
                return FeedSlice(events=found[:limit], cursor=found[limit - 1].cursor)
            if not page.more or now() >= until:
                return FeedSlice(events=found, cursor=cursor)
            page = await self._next_page(cursor, size)

    async def _next_page(self, cursor: str, size: int) -> FeedSlice:
        """Read another page of a scan: one at a time for all scans, and with a rest after each.

        All scans together take at most half of one reader's time.
        """
        now = asyncio.get_running_loop().time
        async with self._scanning:
            started = now()
            page = await self.page(cursor, limit=size)
            await asyncio.sleep(min(now() - started, LONGEST_SECONDS))
            return page

    async def _news(self, limit_seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                await self._came.wait()

    async def _keep_reading(self) -> None:
        pause = SHORTEST_SECONDS
        while True:
            came = await self._read_into_window()
            pause = SHORTEST_SECONDS if came else min(2 * pause, LONGEST_SECONDS)
            if came < PAGE_EVENTS:
                await asyncio.sleep(AWAY_SECONDS if came < 0 else pause)

    async def _read_into_window(self) -> int:
        """Read the next events into the window; return their number, -1 if that failed."""
        try:
            if self._end == OLDEST:
                self._start = self._end = await self._store.tail_end()
                self._wake()
            tail = await self._store.tail(self._end, limit=PAGE_EVENTS)
            placed = await self._place_events(tail)
        except Exception as error:
            log.warning("the feed of events could not be read", exc_info=error)
            self._trouble = "the database does not answer"
            return -1
        self._trouble = _held_back(tail)
        self._end = tail.cursor
        if placed:
            self._append(placed)
            self._wake()
        return len(tail.events)

    def _append(self, placed: Sequence[PlacedEvent]) -> None:
        self._window += placed
        self._cursors += [one.cursor for one in placed]
        # Half at once: cutting a list at its start moves all the rest.
        if (over := len(self._window) - WINDOW_EVENTS) > WINDOW_EVENTS // 2:
            self._start = self._cursors[over - 1]
            del self._window[:over], self._cursors[:over]

    def _wake(self) -> None:
        self._came.set()
        self._came = asyncio.Event()

    async def _place_events(self, tail: Tail) -> list[PlacedEvent]:
        known = await self._read_names(tail.events)
        placed = []
        for cursor, event in zip(tail.cursors, tail.events, strict=True):
            if (names := known.get(event.id)) is not None:
                shown = _make_feed_event(event, names)
                placed.append(PlacedEvent(cursor, shown, msgspec.json.encode(shown)))
        return placed

    async def _read_names(self, events: Sequence[LoggedEvent]) -> dict[JobId, JobNames]:
        """Find the names of these events' jobs: only a job's first event has them."""
        asked = {event.id for event in events}
        known = {id_: names for id_ in asked if (names := self._known.get(id_)) is not None}
        for event in events:
            if event.created is not None:
                known[event.id] = _job_names(event.id, event.created)
        if unknown := asked - known.keys():
            found = await self._store.get(list(unknown))
            known |= {job.id: _job_names(job.id, job) for job in found if job is not None}
        if len(self._known) > KNOWN_JOBS:
            self._known.clear()
        self._known |= known
        return known


def _job_names(id: JobId, job: Job | Created) -> JobNames:
    return JobNames(job.tenant, job.queue, job.task, job.job_id or str(id))


def _make_feed_event(event: LoggedEvent, names: JobNames) -> FeedEvent:
    return FeedEvent(
        id=f"{event.id}/{event.rev}",
        tenant=names.tenant,
        queue=names.queue,
        task=names.task,
        job_id=names.job_id,
        internal_id=event.id,
        rev=event.rev,
        type=event.type,
        ts=instant(event.at),
        actor=event.actor,
        attempt=event.attempt,
        from_status=event.from_state,
        to_status=event.to_state,
        cause=event.reason or event.facts.error_code,
        request_id=event.request_id,
        correlation_id=event.correlation_id,
        facts=show_facts(event),
    )


def _held_back(tail: Tail) -> str | None:
    if tail.held_back_by is None:
        return None
    return f"held back by an open transaction of database process {tail.held_back_by}"
