"""Drives DBOS: workflows without steps, from a queue, in eight threads."""

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig
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

THREADS = 8
CLAIM = 500
POLL_SECONDS = 0.01
FILL = 500
QUEUE = "bench"
NOOP = {"workflow_name": "noop", "queue_name": QUEUE}


def setup(arguments: argparse.Namespace) -> Answer:
    with psycopg.connect(arguments.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS dbos CASCADE")
    with launched(arguments, lambda: None):
        pass
    return {}


def fill(arguments: argparse.Namespace) -> Answer:
    body = payload(arguments.bytes)
    client = DBOSClient(system_database_url=arguments.url)
    engine = sqlalchemy.create_engine(arguments.url.replace("://", "+psycopg://", 1))
    # The iterator of a list can be shared by threads; a generator cannot.
    sizes = iter(list(chunks(arguments.jobs, FILL)))

    def filler(connection: sqlalchemy.Connection) -> None:
        for size in sizes:
            for _ in range(size):
                client.enqueue_in_transaction(connection, NOOP, body)
            connection.commit()

    with engine.connect() as one, engine.connect() as other:
        stopwatch = Stopwatch()
        with ThreadPoolExecutor() as threads:
            list(threads.map(filler, (one, other)))
        return stopwatch.read(arguments.jobs)


def single(arguments: argparse.Namespace) -> Answer:
    body = payload(arguments.bytes)
    client = DBOSClient(system_database_url=arguments.url)
    return by_threads(arguments.jobs, arguments.callers, lambda: client.enqueue(NOOP, body))


def drain(arguments: argparse.Namespace) -> Answer:
    starts = Starts()
    progress = Progress(0 if arguments.shared else arguments.jobs, starts.set)
    with (
        psycopg.connect(arguments.url, autocommit=True) as connection,
        launched(arguments, progress.start_one),
    ):
        starts.wait_for_the_last()
        if arguments.shared:
            return progress.read()
        for _ in patience("the last ends to be durable"):
            if not count_left(connection):
                break
        return progress.read()


def left(arguments: argparse.Namespace) -> Answer:
    with psycopg.connect(arguments.url, autocommit=True) as connection:
        return {"left": count_left(connection)}


def latency(arguments: argparse.Namespace) -> Answer:
    latencies, starts = Latencies(arguments.samples), Starts()

    def handler() -> None:
        latencies.handler_starts()
        starts.set()

    client = DBOSClient(system_database_url=arguments.url)
    with launched(arguments, handler):
        time.sleep(2)
        for pause in latencies.pauses():
            time.sleep(pause)
            latencies.submit_starts()
            client.enqueue(NOOP, {})
            starts.wait()
        # The last end is written after its handler has started.
        time.sleep(0.2)
    return latencies.read()


@contextmanager
def launched(arguments: argparse.Namespace, starts: Callable[[], None]) -> Iterator[None]:
    config = DBOSConfig(
        name="bench",
        system_database_url=arguments.url,
        max_executor_threads=THREADS,
        application_version="1",
        log_level="ERROR",
    )
    DBOS(config=config)

    def noop(_body: object) -> None:
        starts()

    DBOS.workflow(name="noop")(noop)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=CLAIM, polling_interval_sec=POLL_SECONDS)
    try:
        yield
    finally:
        DBOS.destroy(workflow_completion_timeout_sec=10)


def count_left(connection: psycopg.Connection) -> int:
    query = (
        "SELECT count(*) FROM dbos.workflow_status"
        " WHERE status IN ('ENQUEUED', 'PENDING', 'DELAYED')"
    )
    return int(connection.execute(query).fetchone()[0])


if __name__ == "__main__":
    main(
        package="dbos",
        keeps="the workflow's row with its input and output",
        settings=f"polling each {POLL_SECONDS * 1000:.0f} ms;"
        f" filled by transactions of {FILL:,}, two at once",
        verbs={
            "setup": setup,
            "fill": fill,
            "single": single,
            "drain": drain,
            "left": left,
            "latency": latency,
        },
    )
