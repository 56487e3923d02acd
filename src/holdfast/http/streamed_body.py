"""Request bodies that are never held: read piece by piece, as fast as they are written down.

The sender may pause for a while, not for ever; how much it may send is decided where it goes.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import AsyncIterator, Collection

from starlette.requests import Request
from starlette.types import Message, Receive

from holdfast.errors import BadData, ServerEnding, TooSlow, UnsupportedMedia
from holdfast.http.lifespan import ServerShutdown


async def read_pieces(
    receive: Receive, shutdown: ServerShutdown, idle_seconds: float
) -> AsyncIterator[bytes]:
    """Return a body in pieces. The next is read once the last was taken: that is all it holds.

    Raises TooSlow if the client pauses too long or leaves, ServerEnding if the server stops.
    """
    stopping = asyncio.create_task(shutdown.wait())
    try:
        while True:
            message = await _next_message(receive, stopping, idle_seconds)
            if message["type"] == "http.disconnect":
                raise TooSlow("the client disconnected before the body was complete")
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body", False):
                return
    finally:
        stopping.cancel()


async def _next_message(
    receive: Receive, stopping: asyncio.Task[None], idle_seconds: float
) -> Message:
    receiving = asyncio.ensure_future(receive())
    try:
        await asyncio.wait(
            {receiving, stopping}, timeout=idle_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if receiving.done():
            return receiving.result()
    finally:
        receiving.cancel()
    if stopping.done():
        raise ServerEnding("the server is stopping; send the body again, to another one")
    raise TooSlow(f"nothing of the body came for {idle_seconds:g} s")


def check_streamed_media(request: Request, accepted: Collection[str]) -> None:
    """Refuse a body that is announced as something else."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in accepted:
        what = f"the body is {media!r}" if media else "the request has no Content-Type"
        raise UnsupportedMedia(f"{what}; send bytes with `Content-Type: {next(iter(accepted))}`")


def announced_length(request: Request) -> int | None:
    """Return how long the body is to be, if the client announces it."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() else None


def announced_digest(request: Request) -> str | None:
    """Return the SHA-256 that the body is to have, in hexadecimal, if the client announces it."""
    text = request.headers.get("content-digest")
    found = _CONTENT_DIGEST.search(text or "")
    if text is None:
        text = request.headers.get("digest")
        found = _DIGEST.search(text or "")
    if text is None or not _NAMES_SHA256.search(text):
        # A digest of another kind may be ignored (RFC 9530).
        return None
    if found is None:
        raise BadData(
            f"Content-Digest must be sha-256=:BASE64:, not {text[:200]!r}", field="Content-Digest"
        )
    return binascii.a2b_base64(found[1]).hex()


_CONTENT_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/]{43}=):\s*(?:,|$)")
_DIGEST = re.compile(r"(?:^|,)\s*sha-256=([A-Za-z0-9+/]{43}=)\s*(?:,|$)", re.IGNORECASE)
"""As it was written before RFC 9530."""
_NAMES_SHA256 = re.compile(r"(?:^|,)\s*sha-256=", re.IGNORECASE)
