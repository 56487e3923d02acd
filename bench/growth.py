"""Does a job cost the same in a large table? Each condition takes turns with a small table.

Tables are filled by the store's own submit (and, for finished jobs, its own cycles), in batches of
500, so that every row and event is what it would be; what is measured is verified afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import Any

import asyncpg
from msgspec import Struct

from bench.contenders import StoreContender
from bench.measure import Sample, batches, check, drain, submit_all, timed
from holdfast.lifecycle.times import SECOND, After

BATCH = 100
FILL = 500
ROUNDS = 5
MEASURED = 3_000
"""Jobs of one stretch; stretches in the small and in the large table take turns."""
SMALL = 1_000
DAY = 24 * 3600 * SECOND


class Condition(Struct, frozen=True, kw_only=True):
    """A table in some state, and how it gets there."""

    name: str
    fill: Callable[[StoreContender, int], Awaitable[None]]
    engines: tuple[str, ...] = ("postgres", "sqlite")
    pinned: bool = False


class Growth(Struct, frozen=True, kw_only=True):
    """Cycles per second in a small table, and under a condition; medians of the stretches."""

    engine: str
    condition: str
    jobs: int
    small: float
    there: float
    small_micros: float
    """CPU time of client and server per job."""
    there_micros: float


async def _backlog(contender: StoreContender, jobs: int) -> None:
    await submit_all(contender, batches(jobs, FILL))


async def _finished(contender: StoreContender, jobs: int) -> None:
    await _backlog(contender, jobs)
    await drain(contender, jobs, FILL)


async def _held(contender: StoreContender, jobs: int) -> None:
    await submit_all(contender, batches(jobs, FILL, holds=("bench",)))


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
    """Measure a small table and the condition in turn."""
    # A pinned snapshot does its harm by what dies behind it, not by what was there before.
    size = min(jobs, 50_000) if condition.pinned else jobs
    async with AsyncExitStack() as stack:
        small = await stack.enter_async_context(_filled(engine, _backlog, SMALL))
        there = await stack.enter_async_context(_filled(engine, condition.fill, size))
        if condition.pinned:
            await stack.enter_async_context(_pinned(there[0]))
            await drain(there[1], size // 2, BATCH)
        samples: dict[str, list[Sample]] = {"small": [], "there": []}
        for number in range(ROUNDS):
            turns = [("small", small), ("there", there)]
            for name, (place, contender) in turns if number % 2 else reversed(turns):
                samples[name].append(await _stretch(place, contender))
        for (_, contender), filled in ((small, SMALL), (there, size)):
            await check(contender.store, filled + BATCH + ROUNDS * MEASURED)
    return Growth(
        engine=engine.name,
        condition=condition.name,
        jobs=size,
        small=median(one.rate for one in samples["small"]),
        there=median(one.rate for one in samples["there"]),
        small_micros=_micros(samples["small"]),
        there_micros=_micros(samples["there"]),
    )


def _micros(samples: list[Sample]) -> float:
    return median((one.client_seconds + one.server_seconds) / one.jobs for one in samples) * 1e6


@asynccontextmanager
async def _filled(
    engine: Any, fill: Callable[[StoreContender, int], Awaitable[None]], jobs: int
) -> AsyncIterator[tuple[Any, StoreContender]]:
    """Open a store on a table that is filled so, and has work to measure."""
    with engine.place("store") as place:
        contender = StoreContender(engine.store(place))
        await contender.open()
        try:
            await fill(contender, jobs)
            await submit_all(contender, batches(BATCH + ROUNDS * MEASURED, FILL))
            await drain(contender, BATCH, BATCH)
            yield place, contender
        finally:
            await contender.close()


async def _stretch(place: Any, contender: StoreContender) -> Sample:
    return await timed(place, MEASURED, lambda: drain(contender, MEASURED, BATCH))


@asynccontextmanager
async def _pinned(place: Any) -> AsyncIterator[None]:
    """Keep a snapshot open meanwhile, so that nothing dead can be removed."""
    connection = await asyncpg.connect(place.url)
    try:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetchval("SELECT txid_current()")
        yield
    finally:
        await connection.close()
