"""One measurement, and what many of them amount to: medians, ranges, ratios."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from msgspec import Struct

from bench.contenders import Contender, StoreContender, new_job
from bench.engines import Engine, Place
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.store import Store

WARM_UP = 3
"""Batches before the clock starts: connections, plans and caches are made by them."""


class Sample(Struct, frozen=True):
    """What a number of jobs cost in one stretch."""

    jobs: int
    seconds: float
    client_seconds: float
    server_seconds: float

    @property
    def rate(self) -> float:
        """Jobs per second."""
        return self.jobs / self.seconds


class Summary(Struct, frozen=True):
    """Several samples of one thing."""

    rate: float
    lowest: float
    highest: float
    client_micros: float
    server_micros: float


def summed_up(samples: Sequence[Sample]) -> Summary:
    """Take medians: one disturbed round does not count."""
    return Summary(
        rate=median(one.rate for one in samples),
        lowest=min(one.rate for one in samples),
        highest=max(one.rate for one in samples),
        client_micros=median(one.client_seconds / one.jobs for one in samples) * 1e6,
        server_micros=median(one.server_seconds / one.jobs for one in samples) * 1e6,
    )


async def timed(
    place: Place, jobs: int, work: Callable[[], Awaitable[None]], *, rested: bool = False
) -> Sample:
    """Let it rest, unless it has, then run it by the clock."""
    if not rested:
        place.rest()
        gc.collect()
    before, client, start = place.server_times(), time.process_time(), time.perf_counter()
    await work()
    seconds = time.perf_counter() - start
    client = time.process_time() - client
    # Of those that have ended meanwhile nothing is known any more.
    server = sum(used - before.get(one, 0) for one, used in place.server_times().items())
    return Sample(jobs, seconds, client, server / 1e9)


def batches(total: int, size: int, **fields: Any) -> Iterator[list[Any]]:
    """Decide a number of submits, in batches."""
    for start in range(0, total, size):
        yield [new_job(**fields) for _ in range(min(size, total - start))]


async def submit_all(contender: Contender, prepared: Iterable[Any]) -> None:
    """Submit batch after batch."""
    for batch in prepared:
        await contender.submit(batch)


async def drain(contender: Contender, jobs: int, batch: int) -> None:
    """Cycle until a number of jobs are done."""
    done = 0
    while done < jobs:
        got = await contender.cycle(min(batch, jobs - done))
        if not got:
            raise AssertionError(f"only {done} of {jobs} jobs could be claimed")
        done += got


async def run_one(
    engine: Engine, kind: str, batch: int, jobs: int
) -> tuple[dict[str, Sample], dict[str, tuple[int, int]]]:
    """Measure one contender at one size of batch on a fresh database, and check what it wrote."""
    with engine.place(kind) as place:
        contender = engine.contender(kind, place)
        await contender.open()
        try:
            samples = await _submit_and_cycle(contender, place, batch, jobs)
            if isinstance(contender, StoreContender):
                await check(contender.store, jobs + WARM_UP * batch)
        finally:
            await contender.close()
        return samples, place.columns()


async def _submit_and_cycle(
    contender: Contender, place: Place, batch: int, jobs: int
) -> dict[str, Sample]:
    for warm_up in batches(WARM_UP * batch, batch):
        await contender.submit(contender.prepare(warm_up))
        await drain(contender, len(warm_up), batch)
    prepared = [contender.prepare(one) for one in batches(jobs, batch)]
    return {
        "submit": await timed(place, jobs, lambda: submit_all(contender, prepared)),
        "cycle": await timed(place, jobs, lambda: drain(contender, jobs, batch)),
    }


async def check(store: Store, jobs: int, progress: Callable[[int], None] | None = None) -> None:
    """Prove that every job matches its events: a bench that flatters is worse than none."""
    problems: list[LedgerProblem] = []
    report = await verify(store, on_problem=problems.append, progress=progress)
    if problems or report.jobs != jobs:
        raise AssertionError(f"{report.jobs} of {jobs} jobs, {len(problems)} wrong: {problems[:3]}")


LOOSE = ("events.xid", "events.position", "events.seal", "jobs.claim_order", "jobs.wake_at")
"""Columns whose content may differ between equal rows."""


def differences(floor: dict[str, tuple[int, int]], store: dict[str, tuple[int, int]]) -> list[str]:
    """Return where the floor did not write what the store wrote: then it would not be a floor."""
    return [
        f"{name}: floor {floor.get(name)}, store {store[name]}"
        for name in store
        if name not in LOOSE and not _alike(floor.get(name, (0, 0)), store[name])
    ]


def _alike(one: tuple[int, int], other: tuple[int, int]) -> bool:
    # The numbers in payloads grow by a digit now and then.
    return one[0] == other[0] and abs(one[1] - other[1]) <= 0.05 * other[1]
