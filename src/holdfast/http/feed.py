"""The tail of all events for those who listen: read once for all of them while they keep up.

The newest events are kept in a window. A listener has nothing but its place: whoever is within
the window reads there, whoever has fallen behind it, or comes back from long ago, reads the store
at its own pace until it has caught up. So a slow one costs nobody else anything, and has no gap.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct

from holdfast.flow.history import shown_facts
from holdfast.json_format import instant
from holdfast.lifecycle.job import Created, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import EventType
from holdfast.messages import FeedEvent
from holdfast.ports import Store, Tail

log = logging.getLogger(__name__)

OLDEST = ""
"""The place before all events."""
PAGE_EVENTS = 500
WINDOW_EVENTS = 5_000
KNOWN_JOBS = 50_000
"""Of how many jobs the feed remembers whose they are."""
SHORTEST_SECONDS, LONGEST_SECONDS = 0.02, 0.25
"""Between two looks at the tail: while events come, and when none have come for a while."""
LOOK_SECONDS = 5.0
"""How long one page of the feed looks for events that are wanted."""
AWAY_SECONDS = 1.0
"""Until the next look, when the database did not answer."""


class Wish(Struct, frozen=True, kw_only=True):
    """Which events somebody wants; what is not said is not asked for."""

    tenant: str | None = None
    queue: str | None = None
    task: str | None = None
    types: tuple[EventType, ...] = ()

    def covers(self, event: FeedEvent) -> bool:
        """Whether an event is among them."""
        return (
            self.tenant in (None, event.tenant)
            and self.queue in (None, event.queue)
            and self.task in (None, event.task)
            and (not self.types or event.type in self.types)
        )


class Placed(Struct, frozen=True):
    """An event, its place, and its text: written once, however many listen."""

    cursor: str
    event: FeedEvent
    text: bytes


class Stretch(Struct, frozen=True, kw_only=True):
    """What comes after a place, and the place behind it."""

    events: Sequence[Placed]
    cursor: str
    more: bool = False
    """There may be more in the store."""
    trouble: str | None = None
    """Why nothing newer can be told at present."""


class Whose(Struct, frozen=True):
    """What the feed remembers of a job."""

    tenant: str
    queue: str
    task: str
    job_id: str


class Feed:
    """One reader of the tail for all who listen on one server; it reads while anybody does."""

    def __init__(self, store: Store) -> None:
        """Take the store; nobody listens yet."""
        self._store = store
        self._known: dict[JobId, Whose] = {}
        self._window: list[Placed] = []
        self._cursors: list[str] = []
        self._begin = self._end = OLDEST
        self._came = asyncio.Event()
        self._trouble: str | None = None
        self._listeners = 0
        self._reading: asyncio.Task[None] | None = None
        self._scanning = asyncio.Lock()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Have the tail read while inside."""
        self._listeners += 1
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_on())
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._reading.cancel()
                self._reading = None
                self._forget()

    def _forget(self) -> None:
        """Begin anew with the next listener: what comes until then is in the store alone."""
        self._window, self._cursors = [], []
        self._begin = self._end = OLDEST

    async def after(self, cursor: str, *, limit_seconds: float) -> Stretch:
        """Give what comes after a place; wait for it so long, if there is nothing yet."""
        if cursor >= (self._cursors[-1] if self._cursors else self._begin):
            await self._news(limit_seconds)
        if cursor < self._begin:
            return await self.page(cursor)
        first = bisect_right(self._cursors, cursor)
        last = first + PAGE_EVENTS
        return Stretch(
            events=self._window[first:last],
            cursor=self._cursors[last - 1] if last < len(self._cursors) else max(cursor, self._end),
            trouble=self._trouble,
        )

    async def page(self, cursor: str, *, limit: int = PAGE_EVENTS) -> Stretch:
        """Read what comes after a place from the store."""
        # As it is before the look: what comes while that is under way may be behind both.
        begin = self._begin
        tail = await self._store.tail(cursor or None, limit=limit)
        # Where nothing is left before the window, the window is next.
        reached = tail.cursor if tail.events else max(tail.cursor, begin)
        return Stretch(
            events=await self._placed(tail),
            cursor=reached,
            more=len(tail.events) == limit,
            trouble=_held_back(tail),
        )

    async def wanted(self, wish: Wish, cursor: str, *, limit: int) -> Stretch:
        """Read on in the store until there are so many wanted events, no more, or it takes long.

        What others did is passed over here: whoever had to ask for page after page without an
        event of their own could count it.
        """
        now = asyncio.get_running_loop().time
        until = now() + LOOK_SECONDS
        size = limit if wish == Wish() else max(limit, PAGE_EVENTS)
        found: list[Placed] = []
        stretch = await self.page(cursor, limit=size)
        while True:
            found += [one for one in stretch.events if wish.covers(one.event)]
            cursor = stretch.cursor
            if len(found) >= limit:
                return Stretch(events=found[:limit], cursor=found[limit - 1].cursor)
            if not stretch.more or now() >= until:
                return Stretch(events=found, cursor=cursor)
            stretch = await self._next_page(cursor, size)

    async def _next_page(self, cursor: str, size: int) -> Stretch:
        """Read another page of a scan: one at a time for all who scan, and never without a rest.

        However many scan, they take at most half of one reader's time.
        """
        now = asyncio.get_running_loop().time
        async with self._scanning:
            began = now()
            stretch = await self.page(cursor, limit=size)
            await asyncio.sleep(min(now() - began, LONGEST_SECONDS))
            return stretch

    async def _news(self, limit_seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_seconds):
                await self._came.wait()

    async def _read_on(self) -> None:
        pause = SHORTEST_SECONDS
        while True:
            came = await self._read()
            pause = SHORTEST_SECONDS if came else min(2 * pause, LONGEST_SECONDS)
            if came < PAGE_EVENTS:
                await asyncio.sleep(AWAY_SECONDS if came < 0 else pause)

    async def _read(self) -> int:
        """Read the next stretch into the window; tell how many events it has, -1 if that failed."""
        try:
            if self._end == OLDEST:
                self._begin = self._end = await self._store.tail_end()
                self._wake()
            tail = await self._store.tail(self._end, limit=PAGE_EVENTS)
            placed = await self._placed(tail)
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

    def _append(self, placed: Sequence[Placed]) -> None:
        self._window += placed
        self._cursors += [one.cursor for one in placed]
        # Half at once: cutting a list at its beginning moves all the rest.
        if (over := len(self._window) - WINDOW_EVENTS) > WINDOW_EVENTS // 2:
            self._begin = self._cursors[over - 1]
            del self._window[:over], self._cursors[:over]

    def _wake(self) -> None:
        self._came.set()
        self._came = asyncio.Event()

    async def _placed(self, tail: Tail) -> list[Placed]:
        known = await self._whose(tail.events)
        placed = []
        for cursor, event in zip(tail.cursors, tail.events, strict=True):
            if (whose := known.get(event.id)) is not None:
                told = _told(event, whose)
                placed.append(Placed(cursor, told, msgspec.json.encode(told)))
        return placed

    async def _whose(self, events: Sequence[LoggedEvent]) -> dict[JobId, Whose]:
        """Find out whose events these are: only a job's first one says so."""
        asked = {event.id for event in events}
        known = {id_: whose for id_ in asked if (whose := self._known.get(id_)) is not None}
        for event in events:
            if event.created is not None:
                known[event.id] = _whose(event.id, event.created)
        if unknown := asked - known.keys():
            found = await self._store.get(list(unknown))
            known |= {job.id: _whose(job.id, job) for job in found if job is not None}
        if len(self._known) > KNOWN_JOBS:
            self._known.clear()
        self._known |= known
        return known


def _whose(id: JobId, job: Job | Created) -> Whose:
    return Whose(job.tenant, job.queue, job.task, job.job_id or str(id))


def _told(event: LoggedEvent, whose: Whose) -> FeedEvent:
    return FeedEvent(
        id=f"{event.id}/{event.rev}",
        tenant=whose.tenant,
        queue=whose.queue,
        task=whose.task,
        job_id=whose.job_id,
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
        facts=shown_facts(event),
    )


def _held_back(tail: Tail) -> str | None:
    if tail.held_back_by is None:
        return None
    return f"held back by an open transaction of database process {tail.held_back_by}"
