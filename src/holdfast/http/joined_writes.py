"""Writes to one connection in one turn of the loop, sent together.

The framework writes the head of an answer and its body apart: two calls of the system, and two
packets that wake the client. What they cost is more than to parse the request.
"""

from __future__ import annotations

import asyncio
from typing import Any

HELD_BYTES = 64 * 1024
"""More is sent at once, so that the transport can make a writer wait for a slow client."""


class JoinedWrites:
    """A transport for a protocol of the framework: as the one that it holds, but for writes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Write to `transport`, on the loop that runs."""
        self._transport = transport
        self._call_soon = asyncio.get_running_loop().call_soon
        self._parts: list[bytes] = []
        self._held = 0
        # Called more than once for each request.
        self.is_closing = transport.is_closing

    def __getattr__(self, name: str) -> Any:
        """Leave all but writes to the transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data when it is flushed, or else in the next turn of the loop."""
        if len(data) > HELD_BYTES:
            # A second call costs less than a copy of it.
            self.flush()
            self._transport.write(data)
            return
        if not data:
            return
        if not self._parts:
            self._call_soon(self.flush)
        self._parts.append(data)
        self._held += len(data)
        if self._held > HELD_BYTES:
            self.flush()

    def close(self) -> None:
        """Close once all that was written is sent."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Send what is held."""
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._held = 0
            self._transport.write(data)
