"""Connections that are kept for the next use.

The driver has a pool too, which spends two tasks and four more turns of the event loop on each use:
as much time as a small statement takes altogether. Own to PostgreSQL: SQLite has one writer, and
its readers never wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, TypeAlias

import asyncpg

Connection: TypeAlias = Any


class ConnectionUse(Enum):
    """What a connection is wanted for: what may wait for others' locks never gets them all."""

    FREE = "free"
    """Reads, and writes that wait for nobody."""
    LOCKS = "locks"
    """Writes that may wait for a row: one connection is left to the rest."""
    KEYS = "keys"
    """Submits with keys: half of the connections are left to the rest."""
    KEY_WAITS = "key_waits"
    """Submits whose key is known to be held until a transaction ends: one try at a time."""


class Pool:
    """At most `size` connections, made when they are needed, the last one used first."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._room = asyncio.Semaphore(size)
        locks = asyncio.Semaphore(max(1, size - 1))
        keys = asyncio.Semaphore(max(1, size // 2))
        self._gates = {
            ConnectionUse.FREE: (self._room,),
            ConnectionUse.LOCKS: (locks, self._room),
            ConnectionUse.KEYS: (keys, locks, self._room),
            ConnectionUse.KEY_WAITS: (asyncio.Semaphore(1), locks, self._room),
        }
        self._idle: list[Connection] = []
        self._used: dict[Connection, Sequence[asyncio.Semaphore]] = {}
        self._closed = False

    async def take(
        self, limit_seconds: float, use: ConnectionUse = ConnectionUse.FREE
    ) -> Connection:
        """Take a connection for oneself; waits for room up to a limit. Must be given back."""
        gates = self._gates[use]
        await _pass_gates(gates, limit_seconds)
        try:
            connection = self._take_live() or await self._connect()
        except BaseException:
            _leave(gates)
            raise
        self._used[connection] = gates
        return connection

    def _take_live(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def give_back(self, connection: Connection) -> None:
        """Let others use a connection, unless it was abandoned or left in a transaction."""
        gates = self._used.pop(connection)
        if self._closed or (not connection.is_closed() and connection.is_in_transaction()):
            abandon(connection)
        elif not connection.is_closed():
            self._idle.append(connection)
        _leave(gates)

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


async def _pass_gates(gates: Sequence[asyncio.Semaphore], limit_seconds: float) -> None:
    if not any(gate.locked() for gate in gates):
        # Nobody is waited for: without the price of a time limit.
        for gate in gates:
            await gate.acquire()
        return
    passed: list[asyncio.Semaphore] = []
    try:
        async with asyncio.timeout(limit_seconds):
            for gate in gates:
                await gate.acquire()
                passed.append(gate)
    except BaseException:
        _leave(passed)
        raise


def _leave(gates: Sequence[asyncio.Semaphore]) -> None:
    for gate in gates:
        gate.release()


def abandon(connection: Connection) -> None:
    """Cut a connection off: nobody shall meet it again."""
    # Where the driver has given it up already, it raises an error.
    with contextlib.suppress(asyncpg.InterfaceError):
        connection.terminate()
