"""Somebody who listens to an application's streams, without a network between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from holdfast.http.router import Application

LIMIT_SECONDS = 20.0
Message = MutableMapping[str, Any]


class Block(Struct, frozen=True):
    """One block of a stream."""

    id: str | None = None
    event: str | None = None
    data: Any = None
    comment: str | None = None


class Listener:
    """Takes what a stream sends, for as long as it is `taking`."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.begun = asyncio.Event()
        self.taking = asyncio.Event()
        self.taking.set()
        self.waiting = asyncio.Event()
        self.over = False
        self.last_id: str | None = None
        self._leaving = asyncio.Event()
        self._asked = False
        self._came: asyncio.Queue[Block | None] = asyncio.Queue()
        self._served = asyncio.Event()

    async def receive(self) -> Message:
        """Hand over an empty request, later the news that the client has left."""
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a message of the server."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self.begun.set()
            return
        if not self.taking.is_set():
            self.waiting.set()
        await self.taking.wait()
        for text in message.get("body", b"").decode().split("\n\n"):
            if text:
                self._came.put_nowait(_read(text))
        if not message.get("more_body", False):
            self._came.put_nowait(None)

    async def block(self) -> Block:
        """Wait for the next block."""
        async with asyncio.timeout(LIMIT_SECONDS):
            came = await self._came.get()
        if came is None:
            self.over = True
            return Block()
        self.last_id = came.id or self.last_id
        return came

    async def event(self) -> Block:
        """Wait for the next block that says something."""
        # One limit for all of it: what only keeps the connection alive is no event.
        async with asyncio.timeout(LIMIT_SECONDS):
            while (block := await self.block()).data is None and not self.over:
                pass
        return block

    async def events(self, count: int) -> list[Any]:
        """Wait for so many events."""
        return [(await self.event()).data for _ in range(count)]

    async def placed(self) -> None:
        """Wait for the place that a feed begins at: what comes now is heard."""
        while (await self.block()).id is None:
            pass

    async def serve(self, app: Application, scope: Message) -> None:
        """Be served until the server has nothing more to say."""
        await app(scope, self.receive, self.send)
        self._served.set()

    async def dropped(self) -> None:
        """Wait until the server has given up."""
        async with asyncio.timeout(LIMIT_SECONDS):
            await self._served.wait()

    def leave(self) -> None:
        """Go away."""
        self._leaving.set()


def _read(text: str) -> Block:
    said: dict[str, Any] = {}
    for line in text.split("\n"):
        name, _, value = line.partition(": ")
        said[name or "comment"] = json.loads(value) if name == "data" else value
    said.pop("retry", None)
    return Block(**said)


@asynccontextmanager
async def listening(
    app: Application,
    path: str,
    *,
    who: str | None = None,
    last: str | None = None,
    **query: Any,
) -> AsyncIterator[Listener]:
    """Open a stream; leave it at the end, if it has not ended by itself."""
    listener = Listener()
    headers = {"accept": "text/event-stream", "last-event-id": last}
    headers["authorization"] = None if who is None else f"Bearer {who}"
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "server": ("test", 80),
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": urlencode(query, doseq=True).encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items() if value],
    }
    serving = asyncio.create_task(listener.serve(app, scope))
    async with asyncio.timeout(LIMIT_SECONDS):
        await listener.begun.wait()
    try:
        yield listener
    finally:
        listener.leave()
        async with asyncio.timeout(LIMIT_SECONDS):
            await serving
