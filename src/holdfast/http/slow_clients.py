"""Limits on connections: their number, and clients that never send a request or read an answer.

What a request may be is checked in `middleware`.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from holdfast.http.joined_writes import JoinedWrites
from holdfast.http.limits import ServerLimits

BODY_ARRIVED = "body_arrived"
"""In a request's state: all of its body came with its head, so that nobody waits for it."""
_BUSY = b"HTTP/1.1 503 Service Unavailable"
_SLOW = b"HTTP/1.1 408 Request Timeout"
_REST = b"\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
# Either parser that the server may have: both keep the attributes that are read below.
_Base: Any = AutoHTTPProtocol


def make_limited_protocol(limits: ServerLimits) -> type[asyncio.Protocol]:
    """Return the server's protocol for these limits."""

    # The base class is known only at run time.
    class LimitedConnection(_Base):  # type: ignore[misc]
        """A connection that is closed if its client is too slow."""

        _head_limit: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(JoinedWrites(transport))
            _bound_unread(transport, limits.unread_seconds)
            if len(self.connections) > limits.connections:
                self._refuse(_BUSY)
            else:
                self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None:
                # Before the request is answered, which is in a turn of its own.
                self.cycle.scope["state"][BODY_ARRIVED] = not self.cycle.more_body
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
            elif self._head_limit is None:
                self._await_head()

        def on_response_complete(self) -> None:
            # At once: a client that has its answer goes to work while the next is made.
            self.transport.flush()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_head(self) -> None:
            loop = asyncio.get_running_loop()
            self._head_limit = loop.call_later(limits.head_seconds, self._refuse, _SLOW)

        def _stop_waiting(self) -> None:
            if self._head_limit is not None:
                self._head_limit.cancel()
                self._head_limit = None

        def _refuse(self, status: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(status + _REST)
                self.transport.close()

    return LimitedConnection


def _bound_unread(transport: asyncio.Transport, seconds: float) -> None:
    """Let the kernel end a connection whose client reads nothing of what it is sent."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))
