"""A client of HTTP/1.1 that costs little: what it measures is the server, not itself."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit


class Connection(asyncio.Protocol):
    """One connection; one request at a time, each answered in full."""

    def __init__(self) -> None:
        """Not connected yet."""
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Gather until an answer is whole."""
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        size = int(_header(head, b"content-length") or 0)
        if len(rest) >= size and self._answer is not None and not self._answer.done():
            self._buffer = rest[size:]
            self._answer.set_result((int(head[9:12]), rest[:size]))

    def connection_lost(self, error: Exception | None) -> None:
        """Wake the waiter."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server hung up"))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request, and wait for its status and body."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


class Listening(asyncio.Protocol):
    """One stream of events; it counts them, and notes when each came."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self.arrivals: list[float] = []
        loop = asyncio.get_running_loop()
        self.placed: asyncio.Future[None] = loop.create_future()
        self._enough: asyncio.Future[None] = loop.create_future()
        self._wanted = 0
        self._now = loop.time
        self._rest = b""

    async def reach(self, events: int) -> None:
        """Wait until a number of them have arrived in all."""
        if len(self.arrivals) < events:
            self._wanted, self._enough = events, asyncio.get_running_loop().create_future()
            await self._enough

    def data_received(self, data: bytes) -> None:
        """Count events."""
        data = self._rest + data
        # A block may be cut anywhere: what is not whole waits for its end.
        whole, found, self._rest = data.rpartition(b"\n\n")
        if not self.placed.done() and b"id: " in whole:
            self.placed.set_result(None)
        self.arrivals += [self._now()] * (whole + found).count(b"\ndata: ")
        if len(self.arrivals) >= self._wanted and not self._enough.done():
            self._enough.set_result(None)


async def connect(url: str) -> Connection:
    """Connect to a server."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, *_address(url))
    return connection


async def listen(url: str, path: str) -> Listening:
    """Open a stream of events."""
    loop = asyncio.get_running_loop()
    transport, listening = await loop.create_connection(Listening, *_address(url))
    transport.write(_head("GET", path, b"accept: text/event-stream\r\n") + b"\r\n")
    return listening


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


def post(path: str, body: bytes) -> bytes:
    """Write a request that sends JSON."""
    head = _head("POST", path, b"content-type: application/json\r\n")
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def get(path: str) -> bytes:
    """Write a request that asks."""
    return _head("GET", path) + b"\r\n"


def _head(method: str, path: str, more: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n".encode() + more


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        if line[: len(name)].lower() == name:
            return line[len(name) + 1 :].strip()
    return None
