"""Drives PGQueuer: asyncpg under uvloop, jobs taken and finished in batches."""

import argparse
import asyncio
import json
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode
from protocol import (
    Answer,
    Latencies,
    Progress,
    by_callers,
    by_chunks,
    main,
    over_by_signal,
    patience,
    payload,
)

BATCH = 500
FILL = 2_000
CONNECTIONS = 10


async def setup(arguments: argparse.Namespace) -> Answer:
    async with connected(arguments) as pool:
        await pool.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        await Queries.from_asyncpg_pool(pool).install()
    return {}


async def fill(arguments: argparse.Namespace) -> Answer:
    body = encoded(arguments)
    async with connected(arguments) as pool:
        queries = Queries.from_asyncpg_pool(pool)
        return await by_chunks(
            arguments.jobs,
            FILL,
            lambda size: queries.enqueue(["noop"] * size, [body] * size, [0] * size),
        )


async def single(arguments: argparse.Namespace) -> Answer:
    body = encoded(arguments)
    async with connected(arguments) as pool:
        queries = Queries.from_asyncpg_pool(pool)
        return await by_callers(
            arguments.jobs, arguments.callers, lambda: queries.enqueue("noop", body)
        )


async def drain(arguments: argparse.Namespace) -> Answer:
    over = await over_by_signal()
    progress = Progress(0 if arguments.shared else arguments.jobs, over.set)
    async with connected(arguments) as pool, connected(arguments) as watch:
        worker = PgQueuer.from_asyncpg_pool(pool)

        async def noop(_: Job) -> None:
            progress.start_one()

        worker.entrypoint("noop")(noop)

        # Asked to drain, it writes the last ends at once; otherwise a timer of 0.1 s does.
        mode = QueueExecutionMode.continuous if arguments.shared else QueueExecutionMode.drain
        task = asyncio.create_task(worker.run(batch_size=BATCH, mode=mode))
        await over.wait()
        if arguments.shared:
            worker.shutdown.set()
            await task
            return progress.read()
        for _ in patience("the last ends to be durable"):
            if not await count_left(watch):
                break
        answer = progress.read()
        await task
        return answer


async def left(arguments: argparse.Namespace) -> Answer:
    async with connected(arguments) as pool:
        return {"left": await count_left(pool)}


async def latency(arguments: argparse.Namespace) -> Answer:
    latencies, started = Latencies(arguments.samples), asyncio.Event()
    async with connected(arguments) as pool, connected(arguments) as submitters:
        worker, queries = PgQueuer.from_asyncpg_pool(pool), Queries.from_asyncpg_pool(submitters)

        async def noop(_: Job) -> None:
            latencies.handler_starts()
            started.set()

        worker.entrypoint("noop")(noop)

        task = asyncio.create_task(worker.run(dequeue_timeout=timedelta(seconds=30)))
        await asyncio.sleep(1)
        for pause in latencies.pauses():
            await asyncio.sleep(pause)
            started.clear()
            latencies.submit_starts()
            await queries.enqueue("noop", b"{}")
            await asyncio.wait_for(started.wait(), 60)
        worker.shutdown.set()
        await task
    return latencies.read()


def connected(arguments: argparse.Namespace) -> Any:
    return asyncpg.create_pool(arguments.url, min_size=2, max_size=CONNECTIONS)


def encoded(arguments: argparse.Namespace) -> bytes:
    return json.dumps(payload(arguments.bytes)).encode()


async def count_left(pool: Any) -> int:
    return int(await pool.fetchval("SELECT count(*) FROM pgqueuer"))


if __name__ == "__main__":
    main(
        package="pgqueuer",
        keeps="one row per change of status in pgqueuer_log; the job's row is deleted",
        settings=f"asyncpg {asyncpg.__version__}, uvloop {uvloop.__version__}, LISTEN on;"
        f" filled by {FILL:,}, two at once",
        verbs={
            "setup": setup,
            "fill": fill,
            "single": single,
            "drain": drain,
            "left": left,
            "latency": latency,
        },
        run=uvloop.run,
    )
