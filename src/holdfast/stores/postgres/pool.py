"""Connections that are kept for whoever comes next.

The driver has a pool too, which spends two tasks and four more turns of the event loop on each use:
as much time as a small statement takes altogether.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg

Connection: TypeAlias = Any


class Pool:
    """At most `size` connections, made when they are needed, the last one used first."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        """Make them by `connect`."""
        self._connect = connect
        self._size = size
        self._room = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._closed = False

    async def take(self, limit_seconds: float) -> Connection:
        """Take a connection for oneself; waits for room up to a limit. Must be given back."""
        if self._room.locked():
            async with asyncio.timeout(limit_seconds):
                await self._room.acquire()
        else:
            await self._room.acquire()
        try:
            connection = self._live() or await self._connect()
        except BaseException:
            self._room.release()
            raise
        self._used.add(connection)
        return connection

    def _live(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def give_back(self, connection: Connection) -> None:
        """Let others use a connection, unless it was abandoned or left in a transaction."""
        self._used.discard(connection)
        if self._closed or (not connection.is_closed() and connection.is_in_transaction()):
            abandon(connection)
        elif not connection.is_closed():
            self._idle.append(connection)
        self._room.release()

    async def close(self, limit_seconds: float) -> None:
        """Wait for those in use up to a limit, and close all, the stuck ones by force."""
        self._closed = True
        with contextlib.suppress(
            TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError
        ):
            async with asyncio.timeout(limit_seconds):
                for _ in range(self._size):
                    await self._room.acquire()
                for connection in self._idle:
                    await connection.close()
        for connection in (*self._idle, *self._used):
            abandon(connection)


def abandon(connection: Connection) -> None:
    """Cut a connection off: nobody shall meet it again."""
    # Where the driver has given it up already, it says so by an error.
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()
