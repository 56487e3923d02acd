"""What a member of a `Crew` runs: a worker of tests.crashes.apps, with settings from a test.

Like `holdfast worker`, but for settings that the command does not offer. Ends with its parent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

from holdfast import points
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
        _arm(settings["stop_at"], signal.SIGSTOP)
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


def _arm(point: str, number: signal.Signals) -> None:
    """Send ourselves a signal when we come to a point, the first time."""

    def act() -> None:
        points.disarm()
        os.kill(os.getpid(), number)

    points.arm(point, act)


def _end_with_parent() -> None:
    # Straight from the descriptor: a thread inside sys.stdin at exit would make Python abort.
    os.read(0, 1)
    os._exit(3)


if __name__ == "__main__":
    main()
