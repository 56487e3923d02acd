"""Databases that are away for a while, and workers that are stopped beside them."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import apsw
import pytest

from holdfast.wiring import read_address
from tests.support.postgres import PostgresCluster


@asynccontextmanager
async def outage(url: str, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Let nobody write, for as long as the block runs: PostgreSQL is killed, SQLite locked."""
    if read_address(url).engine == "sqlite":
        async with locked(url):
            yield
        return
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    await asyncio.to_thread(cluster.stop, "immediate")
    try:
        yield
    finally:
        await asyncio.to_thread(cluster.start)


@asynccontextmanager
async def locked(path: str) -> AsyncIterator[None]:
    """Keep everybody from writing to a SQLite file."""
    connection = apsw.Connection(path)
    connection.set_busy_timeout(10_000)
    await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


class Suspendable(Protocol):
    """A process that can be stopped for a while."""

    def suspend(self) -> object: ...
    def resume(self) -> object: ...


def suspend_between_writes(member: Suspendable, url: str) -> None:
    """Stop a worker while it holds no lock of the database.

    One that is stopped in the middle of a write to SQLite keeps everybody from writing until it
    goes on, and one that is next in line lets everybody wait for far longer than our leases.
    """
    member.suspend()
    while read_address(url).engine == "sqlite" and not (_line_is_free(url) and _is_writable(url)):
        member.resume()
        member.suspend()


def _line_is_free(path: str) -> bool:
    with Path(path + "-turn").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _is_writable(path: str) -> bool:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(200)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True
