"""Open stores for tests, and the proof that must hold of them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.flow.verify import Problem, verify
from holdfast.ports import Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.invariants import assert_invariants
from tests.support.postgres import PostgresCluster
from tests.support.waiting import wait_until


@asynccontextmanager
async def postgres_store(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    """An open store; its waits are short enough for a test."""
    given: dict[str, Any] = {"deadline_seconds": 30.0, "attempt_seconds": 5.0}
    store = PostgresStore(url, **given | options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def problems_of(store: Store) -> list[Problem]:
    """Verify every job, as `holdfast verify` does."""
    found: list[Problem] = []
    await verify(store, on_problem=found.append)
    return found


async def assert_proven(store: Store) -> None:
    """Every job is what its events say, every key is held by whom it should, all are counted."""
    assert await problems_of(store) == []
    await assert_invariants(store)


async def somebody_waits_for(raw: Any, cluster: PostgresCluster) -> None:
    """Return once a backend waits for a lock of this connection: the other side is blocked."""
    question = (
        "SELECT count(*) > 0 FROM pg_stat_activity"
        f" WHERE {raw.get_server_pid()} = ANY (pg_blocking_pids(pid))"
    )
    await asyncio.to_thread(
        wait_until, lambda: cluster.sql(question) == "t", "somebody to wait for a lock"
    )
