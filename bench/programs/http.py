"""Measure a server over HTTP: submits, listeners, lists.

`python -m bench.programs.http VERB --url …`: `submit` posts to a server from many connections
(mode `single`, `batch` or `empty`), `listen` opens many streams and submits, `list` reads pages by
all kinds of filters, and `stock` fills a store so that there is something to list.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from bench.figures import percentile
from bench.programs import wire
from bench.programs.replies import Reply, Stretch, Verb, reply_to
from holdfast.operations.local import LocalOperations
from holdfast.operations.requests import CancelJob, SubmitJobs, WantedJob
from holdfast.operations.session import StoreSession
from holdfast.wiring import make_store, migrate, read_address

BATCH = 100
LIMIT_SECONDS = 120.0
STOCK_BATCH = 500
PAUSE_SECONDS = 0.05
"""Between two events whose way to the listeners is measured."""
SINGLE = json.dumps({"task": "noop", "args": {"number": 7}}).encode()


def request_of(mode: str) -> bytes:
    """Write what is sent again and again."""
    if mode == "empty":
        return wire.post("/empty", SINGLE)
    if mode == "single":
        return wire.post("/v1/jobs", SINGLE)
    return wire.post("/v1/jobs/batch", b'{"jobs":[%b]}' % b",".join([SINGLE] * BATCH))


async def submit(given: argparse.Namespace) -> Reply:
    """Post from several connections, each as soon as it has its answer."""
    request = request_of(given.mode)
    each = BATCH if given.mode == "batch" else 1
    connections = [await wire.connect(given.url) for _ in range(given.callers)]
    for connection in connections:
        await _sent(connection, request)
    left = iter(range(given.jobs // each))
    stretch = Stretch()
    parts = await asyncio.gather(*(_post(one, request, left) for one in connections))
    millis = [value for part in parts for value in part]
    reply = stretch.reply(len(millis) * each)
    # The first one of each connection is not by the clock, but there it is.
    return reply | _spread(millis) | {"written": (len(millis) + given.callers) * each}


async def _post(connection: wire.Connection, request: bytes, left: Iterator[int]) -> list[float]:
    now = asyncio.get_running_loop().time
    millis = []
    for _ in left:
        start = now()
        await _sent(connection, request)
        millis.append((now() - start) * 1000)
    return millis


async def _sent(connection: wire.Connection, request: bytes) -> bytes:
    status, body = await connection.ask(request)
    if status not in (200, 201):
        raise AssertionError(f"{status}: {body[:500]!r}")
    return body


async def listen(given: argparse.Namespace) -> Reply:
    """Open several streams; measure how soon single events arrive everywhere, then a burst."""
    streams = [await wire.listen(given.url, "/v1/events") for _ in range(given.callers)]
    async with asyncio.timeout(LIMIT_SECONDS):
        await asyncio.gather(*(stream.placed for stream in streams))
    connection = await wire.connect(given.url)
    sent = [time async for time in _one_by_one(connection, given.samples)]
    await _reach(streams, given.samples)
    ways = [
        (at - start) * 1000
        for stream in streams
        for at, start in zip(stream.arrivals, sent, strict=True)
    ]
    stretch = Stretch()
    for _ in range(given.jobs // BATCH):
        await _sent(connection, request_of("batch"))
    await _reach(streams, given.samples + given.jobs)
    answer = stretch.reply(given.jobs * len(streams))
    return answer | _spread(ways) | {"written": given.samples + given.jobs}


async def _reach(streams: Sequence[wire.Listening], events: int) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        await asyncio.gather(*(stream.reach(events) for stream in streams))


async def _one_by_one(connection: wire.Connection, samples: int) -> AsyncIterator[float]:
    for _ in range(samples):
        yield asyncio.get_running_loop().time()
        await _sent(connection, request_of("single"))
        await asyncio.sleep(PAUSE_SECONDS)


async def stock(given: argparse.Namespace) -> Reply:
    """Fill a store: most jobs alike, a few of a small tenant, a quiet queue, a seldom task."""
    address = read_address(given.url)
    await migrate(address)
    session = StoreSession(make_store(address))
    await session.open()
    everybody = LocalOperations(session, name="bench", tenant=None)
    stretch = Stretch()
    try:
        for start in range(0, given.jobs, STOCK_BATCH):
            wanted = [_stocked(start + i) for i in range(min(STOCK_BATCH, given.jobs - start))]
            answers: list[Any] = await everybody.do(SubmitJobs(jobs=wanted))
            # One of each batch has ended: of all there are, few.
            await everybody.do(CancelJob(job=answers[0].job.id))
    finally:
        await session.close()
    return stretch.reply(given.jobs)


def _stocked(number: int) -> WantedJob:
    return WantedJob(
        task="seldom" if number < 10 else "noop",
        queue="quiet" if number % 100 == 99 else None,
        tenant="small" if number % 1000 == 500 else None,
        workflow_id=f"flow-{number // 20}" if number % 20 < 2 else None,
    )


LISTS = (
    "",
    "state=queued",
    "state=cancelled",
    "state=running",
    "state=queued&state=retrying&queue=default",
    "queue=quiet",
    "queue=quiet&state=cancelled",
    "tenant=small",
    "tenant=small&state=queued&task=noop",
    "task=seldom",
    "task=noop&queue=default",
    "error_code=cancelled",
    "workflow_id=flow-100",
    "created_from=2020-01-01T00:00:00Z&state=queued",
)
"""All kinds of filters: common and rare, known to an index and not, alone and together."""


async def lists(given: argparse.Namespace) -> Reply:
    """Ask for pages of a hundred: the first by each filter, and some from the middle."""
    connection = await wire.connect(given.url)
    middle = await _middle(connection)
    paths = [f"/v1/jobs?limit=100&{one}" for one in LISTS]
    paths += [path + middle for path in paths]
    for path in paths:
        await _sent(connection, wire.get(path))
    now = asyncio.get_running_loop().time
    millis: dict[str, list[float]] = {path: [] for path in paths}
    stretch = Stretch()
    for _ in range(given.samples):
        for path in paths:
            start = now()
            await _sent(connection, wire.get(path))
            millis[path].append((now() - start) * 1000)
    values = [value for one in millis.values() for value in one]
    worst = max(percentile(one, 0.5) for one in millis.values())
    return stretch.reply(len(values)) | _spread(values) | {"worst_p50": worst}


async def _middle(connection: wire.Connection) -> str:
    """Return a cursor some thousand jobs down, as a query has it."""
    before = ""
    for _ in range(5):
        page = json.loads(await _sent(connection, wire.get(f"/v1/jobs?limit=1000{before}")))
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    return before


def _spread(millis: list[float]) -> dict[str, float]:
    return {
        "p50": percentile(millis, 0.5),
        "p99": percentile(millis, 0.99),
        "most": max(millis),
    }


VERBS: dict[str, Verb] = {"submit": submit, "listen": listen, "stock": stock, "list": lists}

if __name__ == "__main__":
    reply_to(VERBS)
