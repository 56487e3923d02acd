"""Drives huey on SQLite with synchronous=FULL: one worker thread."""

import argparse
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huey import SqliteHuey
from protocol import Answer, Latencies, Progress, Starts, Stopwatch, by_threads, main, payload

POLL_SECONDS = 0.01


def setup(arguments: argparse.Namespace) -> Answer:
    for ending in ("", "-wal", "-shm"):
        Path(arguments.url + ending).unlink(missing_ok=True)
    opened(arguments)
    return {}


def fill(arguments: argparse.Namespace) -> Answer:
    noop, body = opened(arguments)[1], payload(arguments.bytes)
    stopwatch = Stopwatch()
    # There is no call for many tasks.
    for _ in range(arguments.jobs):
        noop(body)
    return stopwatch.read(arguments.jobs)


def single(arguments: argparse.Namespace) -> Answer:
    noop, body = opened(arguments)[1], payload(arguments.bytes)
    return by_threads(arguments.jobs, arguments.callers, lambda: noop(body))


def drain(arguments: argparse.Namespace) -> Answer:
    starts = Starts()
    progress = Progress(0 if arguments.shared else arguments.jobs, starts.set)
    with working(opened(arguments, progress.start_one)[0]):
        starts.wait_for_the_last()
        # A job's row is deleted, durably, before its handler starts; nothing is written after it.
        return progress.read()


def left(arguments: argparse.Namespace) -> Answer:
    return {"left": opened(arguments)[0].pending_count()}


def latency(arguments: argparse.Namespace) -> Answer:
    latencies, starts = Latencies(arguments.samples), Starts()

    def handler() -> None:
        latencies.handler_starts()
        starts.set()

    huey, noop = opened(arguments, handler)
    with working(huey):
        time.sleep(0.5)
        for pause in latencies.pauses():
            time.sleep(pause)
            latencies.submit_starts()
            noop({})
            starts.wait()
    return latencies.read()


def opened(
    arguments: argparse.Namespace, starts: Callable[[], None] = lambda: None
) -> tuple[SqliteHuey, Callable[[Any], object]]:
    huey = SqliteHuey("bench", filename=arguments.url, fsync=True)

    def noop(_body: object) -> None:
        starts()

    return huey, huey.task(name="noop")(noop)


@contextmanager
def working(huey: SqliteHuey) -> Iterator[None]:
    consumer = huey.create_consumer(
        workers=1,
        periodic=False,
        initial_delay=POLL_SECONDS,
        max_delay=POLL_SECONDS,
        check_worker_health=False,
    )
    consumer.start()
    try:
        yield
    finally:
        consumer.stop(graceful=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(
        package="huey",
        keeps="nothing: a job's row is deleted before its handler runs",
        settings=f"the interpreter's SQLite {sqlite3.sqlite_version}, synchronous=FULL, WAL;"
        f" polling each {POLL_SECONDS * 1000:.0f} ms; one by one",
        verbs={
            "setup": setup,
            "fill": fill,
            "single": single,
            "drain": drain,
            "left": left,
            "latency": latency,
        },
    )
