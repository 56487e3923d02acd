"""Drives absurd by its Python SDK: some clients in threads, each claiming batches."""

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL
from protocol import (
    Answer,
    Latencies,
    Progress,
    Starts,
    Stopwatch,
    by_threads,
    chunks,
    main,
    patience,
    payload,
)

BATCH = 50
CLIENTS = 4
POLL_SECONDS = 0.01
FILL = 1_000
CONNECTIONS = 16

# It has no call for many tasks; its own function does, in one statement.
SPAWN_MANY = """
SELECT absurd.spawn_task('default', 'noop', %s::jsonb, '{"max_attempts": 5}')
FROM generate_series(1, %s)
"""


def setup(arguments: argparse.Namespace) -> Answer:
    with connected(arguments) as connection:
        connection.execute("DROP SCHEMA IF EXISTS absurd CASCADE")
        connection.execute(BUNDLED_SCHEMA_SQL)
        Absurd(connection).create_queue("default")
    return {}


def fill(arguments: argparse.Namespace) -> Answer:
    body = json.dumps(payload(arguments.bytes))
    # The iterator of a list can be shared by threads; a generator cannot.
    sizes = iter(list(chunks(arguments.jobs, FILL)))

    def filler(connection: psycopg.Connection) -> None:
        for size in sizes:
            connection.execute(SPAWN_MANY, (body, size))

    with connected(arguments) as one, connected(arguments) as other:
        stopwatch = Stopwatch()
        with ThreadPoolExecutor() as threads:
            list(threads.map(filler, (one, other)))
        return stopwatch.read(arguments.jobs)


def single(arguments: argparse.Namespace) -> Answer:
    body = payload(arguments.bytes)
    clients: SimpleQueue[Absurd] = SimpleQueue()
    for _ in range(min(arguments.callers, CONNECTIONS)):
        clients.put(Absurd(arguments.url))

    def submit() -> None:
        client = clients.get()
        client.spawn("noop", body, queue="default")
        clients.put(client)

    return by_threads(arguments.jobs, arguments.callers, submit)


def drain(arguments: argparse.Namespace) -> Answer:
    starts = Starts()
    progress = Progress(0 if arguments.shared else arguments.jobs, starts.set)
    with (
        connected(arguments) as connection,
        working(arguments, CLIENTS, progress.start_one),
    ):
        starts.wait_for_the_last()
        if arguments.shared:
            return progress.read()
        for _ in patience("the last ends to be durable"):
            if not count_left(connection):
                break
        return progress.read()


def left(arguments: argparse.Namespace) -> Answer:
    with connected(arguments) as connection:
        return {"left": count_left(connection)}


def latency(arguments: argparse.Namespace) -> Answer:
    latencies, starts = Latencies(arguments.samples), Starts()

    def handler() -> None:
        latencies.handler_starts()
        starts.set()

    client = Absurd(arguments.url)
    with working(arguments, 1, handler):
        time.sleep(1)
        for pause in latencies.pauses():
            time.sleep(pause)
            latencies.submit_starts()
            client.spawn("noop", {}, queue="default")
            starts.wait()
    return latencies.read()


def connected(arguments: argparse.Namespace) -> psycopg.Connection:
    return psycopg.connect(arguments.url, autocommit=True)


@contextmanager
def working(
    arguments: argparse.Namespace, clients: int, starts: Callable[[], None]
) -> Iterator[None]:
    def noop(_params: object, _context: object) -> None:
        starts()

    workers = [Absurd(arguments.url) for _ in range(clients)]
    threads = []
    for number, worker in enumerate(workers):
        worker.register_task("noop")(noop)
        threads.append(threading.Thread(target=work, args=(worker, f"worker-{number}")))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stop_worker()
        for thread in threads:
            thread.join()


def work(worker: Absurd, name: str) -> None:
    with suppress(psycopg.errors.AdminShutdown):
        worker.start_worker(worker_id=name, batch_size=BATCH, poll_interval=POLL_SECONDS)


def count_left(connection: psycopg.Connection) -> int:
    query = (
        "SELECT count(*) FROM absurd.t_default"
        " WHERE state NOT IN ('completed', 'failed', 'cancelled')"
    )
    return int(connection.execute(query).fetchone()[0])


if __name__ == "__main__":
    main(
        package="absurd-sdk",
        keeps="the task's row and its run's row",
        settings=f"psycopg; polling each {POLL_SECONDS * 1000:.0f} ms;"
        f" filled by {FILL:,} in SQL, two at once",
        verbs={
            "setup": setup,
            "fill": fill,
            "single": single,
            "drain": drain,
            "left": left,
            "latency": latency,
        },
    )
