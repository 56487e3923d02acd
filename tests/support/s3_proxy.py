"""A proxy in front of an S3 server that answers wrongly, late, in part, or not at all.

It forwards one request per connection to the server. A fault is for requests that match it, a
number of times or always; the first one that matches is used.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

Matches = Callable[[str], bool]
"""Whether a request line, such as `PUT /bucket/key HTTP/1.1`, is meant."""

_ERROR = b"<Error><Code>InternalError</Code><Message>made by the test</Message></Error>"


class Kind(StrEnum):
    """What is done to a request."""

    FAIL = "it is answered with 500, and does not reach the server"
    HANG = "it is never answered"
    CUT = "the connection is cut before all of it was sent"
    LOSE_REPLY = "the server does it, and the connection is cut before the answer"
    CUT_REPLY = "the server does it, and the connection is cut in the answer"


@dataclass
class S3Fault:
    """What goes wrong, with which requests, and how often; None: always."""

    kind: Kind
    matches: Matches = field(default=lambda line: True)
    times: int | None = 1
    met: int = 0
    """How many requests have met it."""

    def meets(self, line: str) -> bool:
        """Whether it is for this request; counts it."""
        if (self.times is not None and self.met >= self.times) or not self.matches(line):
            return False
        self.met += 1
        return True


class FaultyS3:
    """Listens on the loopback; use it as a context manager."""

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.faults: list[S3Fault] = []
        self._server_port = server_port
        self._tasks: set[asyncio.Task[None]] = set()

    def add(
        self, kind: Kind, matches: Matches = lambda line: True, times: int | None = 1
    ) -> S3Fault:
        """Let something go wrong from now on."""
        self.faults.append(S3Fault(kind, matches, times))
        return self.faults[-1]

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(client, to_client)
        finally:
            self._tasks.discard(task)
            to_client.close()

    async def _answer(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        head = await client.readuntil(b"\r\n\r\n")
        length = _content_length(head)
        line = head.split(b"\r\n", 1)[0].decode()
        fault = next((one for one in self.faults if one.meets(line)), None)
        kind = None if fault is None else fault.kind
        if kind is Kind.CUT:
            await client.readexactly(length // 2)
            return to_client.transport.abort()
        body = await client.readexactly(length)
        if kind is Kind.HANG:
            await asyncio.Event().wait()
        if kind is Kind.FAIL:
            answer = b"HTTP/1.1 500 Error\r\nContent-Length: %d\r\n" % len(_ERROR)
            to_client.write(answer + b"Connection: close\r\n\r\n" + _ERROR)
            return await to_client.drain()
        reply = await self._ask_server(head, body)
        if kind is Kind.LOSE_REPLY:
            return to_client.transport.abort()
        if kind is Kind.CUT_REPLY:
            to_client.write(reply[: reply.index(b"\r\n\r\n") + 4 + len(reply) // 2])
            await to_client.drain()
            return to_client.transport.abort()
        to_client.write(reply)
        return await to_client.drain()

    async def _ask_server(self, head: bytes, body: bytes) -> bytes:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            to_server.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
            await to_server.drain()
            return await server.read()
        finally:
            to_server.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
