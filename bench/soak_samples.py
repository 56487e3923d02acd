"""What a soak sees of the server and the worker, window by window."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import asyncpg
from msgspec import Struct

from bench.places import cpu_seconds, server_cpu_seconds
from bench.soak_verdict import Window

TABLES = """
SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint,
    coalesce(sum(pg_indexes_size(relid)), 0)::bigint,
    coalesce(sum(n_dead_tup) FILTER (WHERE relname = 'jobs'), 0)::bigint,
    coalesce(sum(n_dead_tup) FILTER (WHERE relname = 'claims'), 0)::bigint,
    (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint
FROM pg_stat_user_tables
"""
LATENCY = """
SELECT coalesce(percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (
    ORDER BY (started_at - created_at) / 1000.0), ARRAY[0, 0]::float8[])
FROM jobs WHERE id >= $1 AND started_at IS NOT NULL
"""
"""Of jobs that were submitted in the window: ids are in the order of time."""
ENDED = "SELECT coalesce(sum(delta), 0)::bigint FROM counts WHERE state >= 8"
NEWEST = "SELECT id FROM jobs ORDER BY id DESC LIMIT 1"
NOBODY = "00000000-0000-0000-0000-000000000000"


class _Reading(Struct, frozen=True):
    at: float
    submitted: int
    ended: int
    server_seconds: float
    worker_seconds: float
    newest: Any
    total: int
    indexes: int
    dead_jobs: int
    dead_claims: int
    wal: int


class Sampler:
    """Reads the server at the end of each window, on a connection of its own."""

    def __init__(self, connection: asyncpg.Connection, worker_pid: int, *, before: int = 0) -> None:
        """Look at a server and a worker; jobs that had ended `before` do not count."""
        self._connection = connection
        self._pid = worker_pid
        self._before = before
        self._started = time.monotonic()
        self._last: _Reading | None = None

    async def start(self, submitted: int) -> None:
        """Take a first sample as the load starts."""
        self._started = time.monotonic()
        self._last = await self._read(submitted)

    async def window(self, submitted: int, *, pinned: bool) -> Window:
        """End a window: return what happened since the last one ended."""
        before, now = self._last, await self._read(submitted)
        assert before is not None, "start comes first"
        p50, p99 = await self._connection.fetchval(LATENCY, before.newest)
        self._last = now
        came = max(now.submitted - before.submitted, 1)
        went = max(now.ended - before.ended, 1)
        return Window(
            seconds=now.at - self._started,
            pinned=pinned,
            throughput=(now.ended - before.ended) / (now.at - before.at),
            waiting=now.submitted - now.ended,
            p50_ms=p50,
            p99_ms=p99,
            bytes_per_job=(now.total - before.total) / came,
            index_bytes_per_job=(now.indexes - before.indexes) / came,
            wal_bytes_per_job=(now.wal - before.wal) / came,
            dead_jobs=now.dead_jobs,
            dead_claims=now.dead_claims,
            server_micros_per_job=(now.server_seconds - before.server_seconds) / went * 1e6,
            worker_micros_per_job=(now.worker_seconds - before.worker_seconds) / went * 1e6,
            rss_bytes=resident_bytes(self._pid),
        )

    async def _read(self, submitted: int) -> _Reading:
        ended = await self._connection.fetchval(ENDED) - self._before
        at = time.monotonic()
        server = server_cpu_seconds(Path(await self._connection.fetchval("SHOW data_directory")))
        used = (server, cpu_seconds(self._pid))
        newest = await self._connection.fetchval(NEWEST) or NOBODY
        tables = await self._connection.fetchrow(TABLES)
        return _Reading(at, submitted, ended, *used, newest, *tables)


def resident_bytes(pid: int) -> int:
    """Return how much memory a process has."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
