"""Drives awa: its Rust runtime with handlers in Python, on its queue storage."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from awa import AsyncClient
from protocol import (
    Answer,
    Latencies,
    Progress,
    by_callers,
    by_chunks,
    main,
    noise,
    over_by_signal,
    patience,
)

WORKERS = 500
CLAIM = 500
CONNECTIONS = 20
POLL_MILLISECONDS = 10
FILL = 2_000

# Its view of all jobs takes minutes for what these sums show at once: a ready entry stays until
# its segment is pruned, together with the batches of receipts that end it.
COUNT_LEFT = """
SELECT (SELECT count(*) FROM awa.ready_entries) + (SELECT count(*) FROM awa.deferred_jobs)
     - (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)
     - (SELECT count(*) FROM awa.done_entries) AS n
"""


@dataclass
class Noop:
    data: str


async def setup(arguments: argparse.Namespace) -> Answer:
    async with opened(arguments) as client:
        async with await client.transaction() as transaction:
            await transaction.execute("DROP SCHEMA IF EXISTS awa CASCADE")
        await client.migrate()
        await client.install_queue_storage(reset=True)
    return {}


async def fill(arguments: argparse.Namespace) -> Answer:
    job = Noop(noise(arguments.bytes or 1))
    async with opened(arguments) as client:
        await count_left(client)
        return await by_chunks(
            arguments.jobs, FILL, lambda size: client.enqueue_many_copy([job] * size)
        )


async def single(arguments: argparse.Namespace) -> Answer:
    job = Noop(noise(arguments.bytes or 1))
    async with opened(arguments) as client:
        await count_left(client)
        return await by_callers(arguments.jobs, arguments.callers, lambda: client.insert(job))


async def drain(arguments: argparse.Namespace) -> Answer:
    over = await over_by_signal()
    progress = Progress(0 if arguments.shared else arguments.jobs, over.set)
    async with opened(arguments) as client, working(client, progress.start_one):
        await over.wait()
        if arguments.shared:
            return progress.read()
        for _ in patience("the last ends to be durable"):
            if not await count_left(client):
                break
        return progress.read()


async def left(arguments: argparse.Namespace) -> Answer:
    async with opened(arguments) as client:
        return {"left": await count_left(client)}


async def latency(arguments: argparse.Namespace) -> Answer:
    latencies, started = Latencies(arguments.samples), asyncio.Event()

    def starts() -> None:
        latencies.handler_starts()
        started.set()

    async with opened(arguments) as client, working(client, starts):
        await asyncio.sleep(1)
        for pause in latencies.pauses():
            await asyncio.sleep(pause)
            started.clear()
            latencies.submit_starts()
            await client.insert(Noop("x"))
            await asyncio.wait_for(started.wait(), 60)
        return latencies.read()


@asynccontextmanager
async def opened(arguments: argparse.Namespace) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(arguments.url, max_connections=CONNECTIONS)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def working(client: AsyncClient, starts: Callable[[], None]) -> AsyncIterator[None]:
    async def noop(_: object) -> None:
        starts()

    client.task(Noop, queue="default")(noop)
    queue = {"name": "default", "max_workers": WORKERS, "claim_batch_size": CLAIM}
    await client.start([queue], poll_interval_ms=POLL_MILLISECONDS)
    try:
        yield
    finally:
        await client.shutdown()


async def count_left(client: AsyncClient) -> int:
    async with await client.transaction() as transaction:
        row = await transaction.fetch_one(COUNT_LEFT)
    return int(row["n"])


if __name__ == "__main__":
    main(
        package="awa-pg",
        keeps="the job's entry and a receipt of its end, until its segment is pruned",
        settings=f"queue storage, LISTEN on, polling each {POLL_MILLISECONDS} ms;"
        f" filled by COPY of {FILL:,}, two at once",
        verbs={
            "setup": setup,
            "fill": fill,
            "single": single,
            "drain": drain,
            "left": left,
            "latency": latency,
        },
    )
