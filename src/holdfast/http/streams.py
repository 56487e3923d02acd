"""Server-sent events: how blocks are written, sent and ended.

A stream ends with a block `event: end` that says why, wherever the client can still hear it; the id
of the last block before it is where `Last-Event-ID` goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from holdfast.errors import HoldfastError, RateLimited, StoreUnavailable, TooSlow
from holdfast.http.ending import Ending, left

log = logging.getLogger(__name__)

MEDIA = "text/event-stream"
BEGIN = b"retry: 1000\n: connected\n\n"


class Pace(Struct, frozen=True, kw_only=True):
    """How long streams wait for what."""

    keep_alive_seconds: float = 10.0
    """The longest silence: proxies cut what is silent for long."""
    stall_seconds: float = 20.0
    """How long a client may take nothing before it is dropped."""
    check_seconds: float = 5.0
    """How soon a stream ends whose token was revoked, beside what the doorkeeper remembers."""


class End(Struct, frozen=True, kw_only=True):
    """Why a stream ends; after `ended` there is nothing to come back for."""

    code: str
    detail: str


def wants_stream(request: Request) -> bool:
    """Whether a client asks for events as they come, not for a page of them."""
    return MEDIA in request.headers.get("accept", "").lower()


def block(data: bytes, id: str) -> bytes:
    """Write one event; unnamed, so that an `EventSource` hands all of them to `onmessage`."""
    return b"id: %b\ndata: %b\n\n" % (id.encode(), data)


def place(id: str) -> bytes:
    """Write a place without an event: a client remembers it, and hears nothing."""
    return b"id: %b\n\n" % id.encode()


def comment(text: str) -> bytes:
    """Write what keeps a connection alive, and a person who looks at it informed."""
    return b": %b\n\n" % " ".join(text.split()).encode()


def end(code: str, detail: str) -> bytes:
    """Write the last block of a stream."""
    return b"event: end\ndata: %b\n\n" % msgspec.json.encode(End(code=code, detail=detail))


CLOSING = end("closing", "the server is going down; come again with Last-Event-ID")


class EventStream(Response):
    """Sends blocks until they end, the client leaves or takes nothing, or the server closes."""

    media_type = MEDIA

    def __init__(
        self,
        blocks: AsyncGenerator[bytes],
        *,
        ending: Ending,
        still: Callable[[], Awaitable[None]],
        pace: Pace,
    ) -> None:
        """Take what to send, and what tells every so often whether the client still may listen."""
        # Neither kept nor gathered by whatever stands between.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._blocks = blocks
        self._ending = ending
        self._still = still
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it, then the reason why that is all."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        work = (left(receive), self._send_all(send), self._check_on(), self._ending.wait())
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
        words = CLOSING if ended == [closed] else _last_words(error)
        if words is not None:
            await self._send(send, words, more=False)

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._blocks) as blocks:
            await self._send(send, BEGIN)
            async for text in blocks:
                await self._send(send, text)

    async def _send(self, send: Send, text: bytes, *, more: bool = True) -> None:
        message: Message = {"type": "http.response.body", "body": text, "more_body": more}
        try:
            async with asyncio.timeout(self._pace.stall_seconds):
                await send(message)
        except TimeoutError as error:
            raise TooSlow(f"nothing was taken for {self._pace.stall_seconds:g} s") from error

    async def _check_on(self) -> None:
        while True:
            await asyncio.sleep(self._pace.check_seconds)
            # Neither a busy token nor a database that is away takes a right away.
            with suppress(RateLimited, StoreUnavailable):
                await self._still()


def _last_words(error: BaseException | None) -> bytes | None:
    """Tell why it ended; None if nobody would hear it."""
    if error is None:
        return b""
    if isinstance(error, TooSlow):
        log.info("a listener was dropped: %s", error)
        return None
    if isinstance(error, HoldfastError):
        return end(error.code, str(error))
    log.error("a stream failed", exc_info=error)
    return end("server_failed", "the server failed by itself")
