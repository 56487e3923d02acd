"""What listens to a server: the streams of one job and of all, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from holdfast.errors import RateLimited
from holdfast.flow.history import PAGE_BYTES, complete_as_text
from holdfast.http.bookmarks import Bookmarks, Epoch
from holdfast.http.feed import Feed, Stretch, Wish
from holdfast.http.places import Places
from holdfast.http.scopes import Caller
from holdfast.http.streams import Pace, block, comment, end, place
from holdfast.json_format import json_of
from holdfast.lifecycle.job import Job, LoggedEvent
from holdfast.lifecycle.states import BEATS, TERMINAL
from holdfast.services.session import Session

PAGE_EVENTS = 500
MOST_SCANS = 16
"""Pages of the feed that are shared out: a token reads a fourth of them at once, a tenant half."""
SHARED_TEXTS = 64
"""Of the feed, for listeners that want the same."""


class Live:
    """All streams of one server."""

    def __init__(self, session: Session, most_streams: int) -> None:
        """Take the session; nobody listens yet."""
        self.pace = Pace()
        self.most_streams = most_streams
        self._places = Places("streams", most_streams)
        self.scans = Places("pages of the feed", MOST_SCANS)
        self.feed = Feed(session.store)
        self.bookmarks = Bookmarks(session.store)
        self.streams = 0
        self._session = session
        self._texts: dict[tuple[Wish, int, str, str], bytes] = {}

    def admit(self, caller: Caller, at_end: ExitStack) -> None:
        """Refuse one stream too many, of all or of one token or tenant; each may last for ever."""
        if self.streams >= self.most_streams:
            raise RateLimited(
                f"{self.streams:,} streams are open, the most there may be", retry_in=5.0
            )
        self._places.take(caller, at_end)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    async def of_job(self, job: Job, after: int) -> AsyncGenerator[bytes]:
        """Tell a job's events after a revision as they come, heartbeats left out, until its end."""
        store, watching = self._session.store, self._session.watching
        with self._counted():
            [first] = await store.events(job.id, limit=1)
            rev, state = after, job.state
            while True:
                events = await store.events(
                    job.id, after=rev, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES
                )
                if events:
                    rev, state = events[-1].rev, events[-1].to_state
                    yield _of_one(events, first)
                elif state in TERMINAL:
                    yield end("ended", f"job {job.public_id} is {state}")
                    return
                elif not await watching.moved(job.id, rev, self.pace.keep_alive_seconds):
                    yield comment(f"{state} at revision {rev}")

    async def of_all(self, wish: Wish, cursor: str, epoch: Epoch) -> AsyncGenerator[bytes]:
        """Tell all events after a place as they come.

        Also the place alone, at first and in silence: whoever comes back need not read again what
        was not for them.
        """
        now = asyncio.get_running_loop().time
        with self._counted(), self.feed.listening():
            yield place(epoch.seal(cursor))
            due = now() + self.pace.keep_alive_seconds
            while True:
                stretch = await self.feed.after(cursor, limit_seconds=max(0.0, due - now()))
                text = self._text(wish, cursor, stretch, epoch)
                cursor = stretch.cursor
                if text or now() >= due:
                    yield text or place(epoch.seal(cursor)) + comment(_waits_for(wish, stretch))
                    due = now() + self.pace.keep_alive_seconds

    def _text(self, wish: Wish, cursor: str, stretch: Stretch, epoch: Epoch) -> bytes:
        """Write a stretch down, once for all who want the same and have come as far."""
        if not stretch.events:
            return b""
        key = (wish, epoch.number, cursor, stretch.cursor)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= SHARED_TEXTS:
                self._texts.clear()
            wanted = (one for one in stretch.events if wish.covers(one.event))
            text = b"".join(block(one.text, epoch.seal(one.cursor)) for one in wanted)
            self._texts[key] = text
        return text


def _of_one(events: Sequence[LoggedEvent], first: LoggedEvent) -> bytes:
    return b"".join(
        block(msgspec.json.encode(json_of(complete_as_text(event, first))), str(event.rev))
        for event in events
        if event.type not in BEATS
    )


def _waits_for(wish: Wish, stretch: Stretch) -> str:
    """Say what it waits for; what keeps it from others' events is none of one tenant's business."""
    if stretch.trouble is None or wish.tenant is not None:
        return "no event has come"
    return stretch.trouble
