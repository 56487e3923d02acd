"""Drives procrastinate: several coroutines in one worker, woken by LISTEN."""

import argparse
import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from procrastinate import App, PsycopgConnector
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

CONCURRENCY = 10
CONNECTIONS = 20
FILL = 1_000


async def setup(arguments: argparse.Namespace) -> Answer:
    async with opened(arguments) as app:
        await app.connector.execute_query_async("DROP SCHEMA public CASCADE")
        await app.connector.execute_query_async("CREATE SCHEMA public")
        await app.schema_manager.apply_schema_async()
    return {}


async def fill(arguments: argparse.Namespace) -> Answer:
    body = {"body": payload(arguments.bytes)}
    async with opened(arguments) as app:
        await count_left(app)
        return await by_chunks(
            arguments.jobs,
            FILL,
            lambda size: app.tasks["noop"].batch_defer_async(*([body] * size)),
        )


async def single(arguments: argparse.Namespace) -> Answer:
    body = payload(arguments.bytes)
    async with opened(arguments) as app:
        await count_left(app)
        return await by_callers(
            arguments.jobs,
            arguments.callers,
            lambda: app.tasks["noop"].defer_async(body=body),
        )


async def drain(arguments: argparse.Namespace) -> Answer:
    over = await over_by_signal()
    progress = Progress(0 if arguments.shared else arguments.jobs, over.set)
    async with opened(arguments, progress.start_one) as app, working(app):
        await over.wait()
        if arguments.shared:
            return progress.read()
        for _ in patience("the last ends to be durable"):
            if not await count_left(app):
                break
        return progress.read()


async def left(arguments: argparse.Namespace) -> Answer:
    async with opened(arguments) as app:
        return {"left": await count_left(app)}


async def latency(arguments: argparse.Namespace) -> Answer:
    latencies, started = Latencies(arguments.samples), asyncio.Event()

    def starts() -> None:
        latencies.handler_starts()
        started.set()

    async with opened(arguments, starts) as app, working(app):
        await asyncio.sleep(1)
        for pause in latencies.pauses():
            await asyncio.sleep(pause)
            started.clear()
            latencies.submit_starts()
            await app.tasks["noop"].defer_async(body={})
            await asyncio.wait_for(started.wait(), 60)
        return latencies.read()


@asynccontextmanager
async def opened(
    arguments: argparse.Namespace, starts: Callable[[], None] = lambda: None
) -> AsyncIterator[App]:
    connector = PsycopgConnector(conninfo=arguments.url, min_size=2, max_size=CONNECTIONS)
    app = App(connector=connector)

    async def noop(body: object) -> None:
        starts()

    app.task(name="noop")(noop)
    async with app.open_async():
        yield app


@asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    task = asyncio.create_task(
        app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)
    )
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def count_left(app: App) -> int:
    row = await app.connector.execute_query_one_async(
        "SELECT count(*) AS n FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
    )
    return int(row["n"])


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(
        package="procrastinate",
        keeps="the job's row and one row per change of status",
        settings=f"psycopg, pool of {CONNECTIONS}, LISTEN on; filled by {FILL:,}, two at once",
        verbs={
            "setup": setup,
            "fill": fill,
            "single": single,
            "drain": drain,
            "left": left,
            "latency": latency,
        },
    )
