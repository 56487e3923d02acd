"""Server-sent events: the streams of one job and of all, and how blocks are written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.auth.authorization import Caller
from holdfast.errors import HoldfastError, RateLimited, StoreUnavailable, TooSlow
from holdfast.http.concurrency import ConcurrencyLimit
from holdfast.http.feed import Feed, FeedFilter, FeedSlice
from holdfast.http.feed_cursor import EpochCursors, FeedCursors
from holdfast.http.lifespan import ServerShutdown, left
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import BEATS, TERMINAL
from holdfast.operations.json_format import json_of
from holdfast.operations.session import StoreSession
from holdfast.queries.history import PAGE_BYTES, complete_event_undecoded

PAGE_EVENTS = 500
MOST_SCANS = 16
"""Pages of the feed that may be read at once: one token a fourth of them, one tenant a half."""
SHARED_TEXTS = 64
"""Texts of the feed that are kept for listeners that want the same."""


class EventStreams:
    """All streams of one server."""

    def __init__(self, session: StoreSession, most_streams: int) -> None:
        self.pace = Pace()
        self.most_streams = most_streams
        self._limit = ConcurrencyLimit("streams", most_streams)
        self.scans = ConcurrencyLimit("pages of the feed", MOST_SCANS)
        self.feed = Feed(session.store)
        self.cursors = FeedCursors(session.store)
        self.streams = 0
        self._session = session
        self._texts: dict[tuple[FeedFilter, int, str, str], bytes] = {}

    def admit(self, caller: Caller, at_end: ExitStack) -> None:
        """Refuse one stream too many, of the server, a token or a tenant: each may last long."""
        if self.streams >= self.most_streams:
            raise RateLimited(
                f"{self.streams:,} streams are open, the most there may be", retry_in=5.0
            )
        self._limit.take(caller, at_end)

    async def counted(self, blocks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield blocks as one of the server's streams."""
        with self._count_open():
            async with aclosing(blocks):
                async for text in blocks:
                    yield text

    @contextmanager
    def _count_open(self) -> Iterator[None]:
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    async def of_job(self, job: Job, after: int) -> AsyncGenerator[bytes]:
        """Yield a job's events after a revision as they come, without heartbeats, until its end."""
        store, watcher = self._session.store, self._session.watcher
        with self._count_open():
            [first] = await store.events(job.id, limit=1)
            rev, state = after, job.state
            while True:
                events = await store.events(
                    job.id, after=rev, limit=PAGE_EVENTS, max_bytes=PAGE_BYTES
                )
                if events:
                    rev, state = events[-1].rev, events[-1].to_state
                    yield _write_event(events, first)
                elif state in TERMINAL:
                    yield end("ended", f"job {job.public_id} is {state}")
                    return
                elif not await watcher.moved(job.id, rev, self.pace.keep_alive_seconds):
                    yield comment(f"{state} at revision {rev}")

    async def of_all(
        self, wanted: FeedFilter, cursor: str, cursors: EpochCursors
    ) -> AsyncGenerator[bytes]:
        """Yield all events after a cursor as they come.

        Also the cursor alone, at first and in silence: a client that returns need not read again
        what was not for it.
        """
        now = asyncio.get_running_loop().time
        with self._count_open(), self.feed.listening():
            yield place(cursors.encrypt(cursor))
            due = now() + self.pace.keep_alive_seconds
            while True:
                found = await self.feed.after(cursor, limit_seconds=max(0.0, due - now()))
                text = self._write_events(wanted, cursor, found, cursors)
                cursor = found.cursor
                if text or now() >= due:
                    yield text or place(cursors.encrypt(cursor)) + comment(
                        _find_awaited(wanted, found)
                    )
                    due = now() + self.pace.keep_alive_seconds

    def _write_events(
        self, wanted: FeedFilter, cursor: str, found: FeedSlice, cursors: EpochCursors
    ) -> bytes:
        """Write events down, once for all listeners that want the same from the same cursor."""
        if not found.events:
            return b""
        key = (wanted, cursors.epoch, cursor, found.cursor)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= SHARED_TEXTS:
                self._texts.clear()
            shown = (one for one in found.events if wanted.covers(one.event))
            text = b"".join(block(one.text, cursors.encrypt(one.cursor)) for one in shown)
            self._texts[key] = text
        return text


def _write_event(events: Sequence[LoggedEvent], first: LoggedEvent) -> bytes:
    return b"".join(
        block(msgspec.json.encode(json_of(complete_event_undecoded(event, first))), str(event.rev))
        for event in events
        if event.type not in BEATS
    )


def _find_awaited(wanted: FeedFilter, found: FeedSlice) -> str:
    """Return what the stream waits for; a tenant does not learn what holds back others' events."""
    if found.trouble is None or wanted.tenant is not None:
        return "no event has come"
    return found.trouble


log = logging.getLogger(__name__)

MEDIA = "text/event-stream"
FIRST = b"retry: 1000\n: connected\n\n"


class Pace(Struct, frozen=True, kw_only=True):
    """How long streams wait for what."""

    keep_alive_seconds: float = 10.0
    """The longest silence: proxies cut what is silent for long."""
    stall_seconds: float = 20.0
    """How long a client may read nothing before it is dropped."""
    check_seconds: float = 5.0
    """How often the token of a stream is checked again."""


class End(Struct, frozen=True, kw_only=True):
    """Why a stream ends; after `ended` there is no reason to connect again."""

    code: str
    detail: str


def wants_stream(request: Request) -> bool:
    """Return whether a client accepts events as they come, and not a page of them."""
    return MEDIA in request.headers.get("accept", "").lower()


def block(data: bytes, id: str) -> bytes:
    """Write one event; unnamed, so that an `EventSource` passes all of them to `onmessage`."""
    return b"id: %b\ndata: %b\n\n" % (id.encode(), data)


def place(id: str) -> bytes:
    """Write a cursor without an event: a client remembers it, and shows nothing."""
    return b"id: %b\n\n" % id.encode()


def comment(text: str) -> bytes:
    """Write a line that keeps the connection alive, and that a person can read."""
    return b": %b\n\n" % " ".join(text.split()).encode()


def end(code: str, detail: str) -> bytes:
    """Write the last block of a stream."""
    return b"event: end\ndata: %b\n\n" % msgspec.json.encode(End(code=code, detail=detail))


CLOSING = end("closing", "the server is stopping; connect again with Last-Event-ID")


class EventStream(Response):
    """Sends blocks until they end, the client leaves or reads nothing, or the server stops."""

    media_type = MEDIA

    def __init__(
        self,
        blocks: AsyncGenerator[bytes],
        *,
        shutdown: ServerShutdown,
        check: Callable[[], Awaitable[None]],
        pace: Pace,
    ) -> None:
        """Send `blocks`; `check` raises once the client may no longer listen."""
        # No proxy may keep or gather it.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._blocks = blocks
        self._shutdown = shutdown
        self._check = check
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all blocks, then the reason why there are no more."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        work = (left(receive), self._send_all(send), self._keep_checking(), self._shutdown.wait())
        gone, sent, refused, closed = tasks = [asyncio.create_task(one) for one in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if gone in ended:
            return
        error = next((task.exception() for task in (sent, refused) if task in ended), None)
        last = CLOSING if ended == [closed] else _last_block(error)
        if last is not None:
            await self._send(send, last, more=False)

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._blocks) as blocks:
            await self._send(send, FIRST)
            async for text in blocks:
                await self._send(send, text)

    async def _send(self, send: Send, text: bytes, *, more: bool = True) -> None:
        message: Message = {"type": "http.response.body", "body": text, "more_body": more}
        try:
            async with asyncio.timeout(self._pace.stall_seconds):
                await send(message)
        except TimeoutError as error:
            raise TooSlow(f"nothing was read for {self._pace.stall_seconds:g} s") from error

    async def _keep_checking(self) -> None:
        while True:
            await asyncio.sleep(self._pace.check_seconds)
            # A busy token or an unavailable database must not end the stream.
            with suppress(RateLimited, StoreUnavailable):
                await self._check()


def _last_block(error: BaseException | None) -> bytes | None:
    """Return why the stream ended; None if the client would not read it."""
    if error is None:
        return b""
    if isinstance(error, TooSlow):
        log.info("a listener was dropped: %s", error)
        return None
    if isinstance(error, HoldfastError):
        return end(error.code, str(error))
    log.error("a stream failed", exc_info=error)
    return end("server_failed", "internal error")
