"""Does a job cost the same in a large table? Each condition is measured beside a small table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
from msgspec import Struct

from bench.contenders import StoreContender
from bench.measure import batches, drain, submit_all, timed
from holdfast.lifecycle.times import SECOND, After

BATCH = 100
FILL = 500
MEASURED = 5_000
SMALL = 1_000
DAY = 24 * 3600 * SECOND


class Condition(Struct, frozen=True, kw_only=True):
    """A table in some state, and how it gets there."""

    name: str
    fill: Callable[[StoreContender, int], Awaitable[None]]
    engines: tuple[str, ...] = ("postgres", "sqlite")
    pinned: bool = False


class Growth(Struct, frozen=True):
    """Cycles per second in a small table, and under a condition."""

    engine: str
    condition: str
    jobs: int
    small: float
    there: float


async def _backlog(contender: StoreContender, jobs: int) -> None:
    await submit_all(contender, batches(jobs, FILL))


async def _finished(contender: StoreContender, jobs: int) -> None:
    await _backlog(contender, jobs)
    await drain(contender, jobs, FILL)


async def _held(contender: StoreContender, jobs: int) -> None:
    await submit_all(contender, batches(jobs, FILL, held_by="bench"))


async def _not_due(contender: StoreContender, jobs: int) -> None:
    await submit_all(contender, batches(jobs, FILL, run_at=After(DAY)))


CONDITIONS = (
    Condition(name="backlog", fill=_backlog),
    Condition(name="finished", fill=_finished),
    Condition(name="held", fill=_held),
    Condition(name="not yet due", fill=_not_due),
    Condition(name="xmin pinned", fill=_backlog, engines=("postgres",), pinned=True),
)


async def measure_growth(engine: Any, condition: Condition, jobs: int) -> Growth:
    """Measure the small table, then the condition."""
    small = await _cycles(engine, _backlog, SMALL, pinned=False)
    # A pinned snapshot does its harm by what dies behind it, not by what was there before.
    size = min(jobs, 50_000) if condition.pinned else jobs
    there = await _cycles(engine, condition.fill, size, pinned=condition.pinned)
    return Growth(engine.name, condition.name, size, small, there)


async def _cycles(
    engine: Any,
    fill: Callable[[StoreContender, int], Awaitable[None]],
    jobs: int,
    *,
    pinned: bool,
) -> float:
    with engine.place("store") as place:
        contender = StoreContender(engine.store(place))
        await contender.open()
        try:
            await fill(contender, jobs)
            await submit_all(contender, batches(MEASURED + BATCH, BATCH))
            async with _pin(place, pinned):
                await drain(contender, jobs // 2 if pinned else BATCH, BATCH)
                sample = await timed(place, MEASURED, lambda: drain(contender, MEASURED, BATCH))
        finally:
            await contender.close()
    return sample.rate


@asynccontextmanager
async def _pin(place: Any, pinned: bool) -> AsyncIterator[None]:
    """Keep a snapshot open meanwhile, so that nothing dead can be removed."""
    if not pinned:
        yield
        return
    connection = await asyncpg.connect(place.url)
    try:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetchval("SELECT txid_current()")
        yield
    finally:
        await connection.close()
