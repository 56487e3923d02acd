"""A server that waits for a synchronous standby which is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.postgres import PostgresCluster
from tests.support.waiting import wait_until

ONE_TRY = {"deadline_seconds": 0.0, "attempt_seconds": 20.0}
"""The caller gets the result of the first try."""
MANY_TRIES = {"deadline_seconds": 2.0, "attempt_seconds": 0.4}
"""Later tries meet the locks of the first, which still waits in its commit."""
TWO_TRIES = {"deadline_seconds": 0.3, "attempt_seconds": 0.4}
"""A second try happens, and times out if it waits."""


@asynccontextmanager
async def standby_away(primary: PostgresCluster) -> AsyncIterator[None]:
    """From here on each commit waits for a standby that does not answer."""
    await asyncio.to_thread(_expect_standby, primary, "nobody")
    try:
        yield
    finally:
        await asyncio.to_thread(_expect_standby, primary, "")


def _expect_standby(primary: PostgresCluster, name: str) -> None:
    primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    primary.sql("SELECT pg_reload_conf()")
    shown = "SHOW synchronous_standby_names"
    wait_until(lambda: primary.sql(shown) == name, "the server to read its settings")


async def interrupt_wait(primary: PostgresCluster, function: str) -> None:
    """End the wait of a commit for its standby, once there is one."""
    statement = (
        f"SELECT {function}(pid) FROM pg_stat_activity"
        " WHERE wait_event = 'SyncRep' AND query NOT LIKE '%NOTIFY%'"
    )
    await asyncio.to_thread(
        wait_until, lambda: primary.sql(statement) != "", "a commit to wait for the standby"
    )
