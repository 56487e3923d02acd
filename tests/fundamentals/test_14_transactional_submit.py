"""A job and the rows it is about, in one transaction: both are there, or neither."""

from __future__ import annotations

from contextlib import suppress

import pytest

from holdfast import Holdfast, Task
from holdfast.testing import Kit


@pytest.fixture
async def ship(app: Holdfast, kit: Kit) -> Task[[int], str]:
    """A table of ours beside Holdfast's own, and a task."""

    @app.task
    async def ship(order: int) -> str:
        return f"shipped {order}"

    async with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
    return ship


async def test_the_row_and_the_job_come_together(
    app: Holdfast, kit: Kit, ship: Task[[int], str]
) -> None:
    """Here on SQLite, through the store's own connection; on PostgreSQL on your connection."""
    async with app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (7)")
        job = await ship.submit_in(tx, 7)
    assert await job.result() == "shipped 7"


async def test_or_not_at_all(app: Holdfast, kit: Kit, ship: Task[[int], str]) -> None:
    """A rollback takes the job along: no worker has ever seen it."""
    with suppress(ZeroDivisionError):
        async with app.transaction() as tx:
            await ship.submit_in(tx, 7)
            raise ZeroDivisionError
    assert [job async for job in app.jobs()] == []
