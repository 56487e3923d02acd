"""A receiver of webhooks: a real socket that answers as it is told to, and keeps what came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from msgspec import Struct

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Request(Struct, frozen=True):
    """What came."""

    line: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Listens on a free port of this machine."""

    def __init__(self, answer: Callable[[Request], bytes | None] | bytes | None = ANSWER) -> None:
        """Answer always the same, or what a function says; None is silence."""
        self.requests: list[Request] = []
        self.port = 0
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None] | None] = set()

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more, once all who called have hung up."""
        assert self._server is not None
        self._server.close()
        async with asyncio.timeout(20):
            await asyncio.gather(*(task for task in self._serving if task is not None))

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}/hook?a=1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await _read(reader)
            self.requests.append(request)
            said = self._answer(request) if callable(self._answer) else self._answer
            if said is None:
                await reader.read()
            else:
                writer.write(said)
                await writer.drain()
        writer.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    line, *rest = head.strip().split("\r\n")
    headers = {
        name.lower(): value for name, _, value in (header.partition(": ") for header in rest)
    }
    assert len(headers) == len(rest), "no header is sent twice"
    body = await reader.readexactly(int(headers["content-length"]))
    return Request(line, headers, body)
