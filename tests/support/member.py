"""What a member of a `Crew` runs: a worker of tests.crashes.apps, with settings from a test.

Like `holdfast worker`, but for settings that the command does not offer. Ends with its parent.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from holdfast import crash_points
from holdfast.wiring import read_address
from tests.crashes.apps import app


def main() -> None:
    """Serve until SIGTERM, until the parent is gone, or until a point kills."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = asyncio.run(_serve(json.loads(sys.argv[1])))
    logging.shutdown()
    # As the command does: a thread that cannot be killed must not keep the process.
    os._exit(code)


async def _serve(settings: dict[str, Any]) -> int:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    if settings["arm_at_signal"]:
        loop.add_signal_handler(signal.SIGUSR1, _arm, settings["arm_at_signal"], signal.SIGKILL)
    if settings["stop_at"]:
        _arm(settings["stop_at"], signal.SIGSTOP, between_writes_of=settings["url"])
    app.use(settings["url"])
    worker = app.worker(exits=True, **settings["worker"])
    async with worker:
        sys.stdout.write(f"ready {worker.name}\n")
        sys.stdout.flush()
        waits = [loop.create_task(ended.wait()), loop.create_task(worker.stopped())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    if worker.failed is not None:
        logging.error("the worker failed: %s", worker.failed)
    return 0 if worker.failed is None else 1


def _arm(point: str, number: signal.Signals, *, between_writes_of: str | None = None) -> None:
    """Send ourselves a signal when we come to a point, the first time."""

    def act() -> None:
        crash_points.disarm()
        with _no_write_under_way(between_writes_of):
            os.kill(os.getpid(), number)

    crash_points.arm(point, act)


@contextmanager
def _no_write_under_way(url: str | None) -> Iterator[None]:
    """Keep our own writer of a SQLite file out of a transaction.

    A process that is stopped in one keeps everybody from writing until it goes on: nobody could
    take its job over.
    """
    if url is None or read_address(url).engine != "sqlite":
        yield
        return
    with Path(url + "-turn").open("rb") as line:
        # Our own writer now waits in line, and whoever writes is waited for.
        fcntl.flock(line, fcntl.LOCK_EX)
        connection = apsw.Connection(url)
        connection.set_busy_timeout(10_000)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
        yield
        connection.close()


def _end_with_parent() -> None:
    # Straight from the descriptor: a thread inside sys.stdin at exit would make Python abort.
    os.read(0, 1)
    os._exit(3)


if __name__ == "__main__":
    main()
