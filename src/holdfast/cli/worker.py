"""How a worker runs until a signal, in this process or in several."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from holdfast.app.app import Holdfast
from holdfast.cli.output import err, plain, print_note
from holdfast.cli.runtime import FOUND_PROBLEMS, exit_code, handle_signals, print_error
from holdfast.cli.settings import MetricsOptions
from holdfast.errors import HoldfastError
from holdfast.services.depth_refresh import refresh_depths
from holdfast.services.loop import wait_for_first
from holdfast.services.supervisor import WorkerSupervisor, watch_lifeline
from holdfast.telemetry.queue_depths import Depths
from holdfast.worker.worker import LET_GO_SECONDS, Worker

NOT_STARTED = -FOUND_PROBLEMS
"""The code of a worker that was stopped before it reached its store."""


async def run_worker(app: Holdfast, worker: Worker, metrics: MetricsOptions) -> int:
    """Work until a signal, the end of the parent process, or the death of a part."""
    ended = asyncio.Event()
    handle_signals(ended.set)
    watch_lifeline(ended)
    depths = Depths(worker.meters)
    with ExitStack() as stack:
        stack.enter_context(metrics.served(worker.meters, depths))
        if metrics.metrics_port is not None:
            stack.callback(asyncio.create_task(_refresh_depths_once_open(app, depths)).cancel)
        code = await work_until(ended, worker)
    await close_app(app, worker, code)
    return code


async def work_until(
    ended: asyncio.Event, worker: Worker, *, hurry: Callable[[], None] | None = None
) -> int:
    """Start a worker, wait for the end, and stop it; also while its store is away.

    `hurry` is what a further signal does while it stops.
    """
    starting = asyncio.create_task(worker.__aenter__())
    await wait_for_first(asyncio.wait([starting]), ended.wait())
    if not starting.done():
        starting.cancel()
        print_note("stopped before the store could be reached")
        return NOT_STARTED
    await starting
    await wait_for_first(ended.wait(), worker.stopped())
    handle_signals(hurry or worker.hurry)
    with suppress(Exception):  # `failed` has it, and is reported from there
        await worker.__aexit__(None, None, None)
    return 0 if worker.failed is None else FOUND_PROBLEMS


async def close_app(
    app: Holdfast, worker: Worker, code: int, died: BaseException | None = None
) -> None:
    """Close the app; if a part of the worker still runs, leave the process at once.

    `died` is what ended the worker from beside it; the caller raises it if this returns.
    """
    if worker.failed is not None:
        text = f"error: {plain(worker.failed)}"
        err.print(text, style="red", markup=False, emoji=False, soft_wrap=True)
    closing = asyncio.create_task(app.close())
    await asyncio.wait([closing], timeout=LET_GO_SECONDS)
    if code == NOT_STARTED or worker.left_running or not closing.done():
        if isinstance(died, HoldfastError):
            print_error(died)
            code = exit_code(died)
        logging.shutdown()
        sys.stdout.flush()
        # Not by returning: the interpreter would wait for threads that cannot be stopped.
        os._exit(abs(code))
    await closing


async def _refresh_depths_once_open(app: Holdfast, depths: Depths) -> None:
    """Count the queues now and then, as soon as the store can be reached."""
    while True:
        try:
            return await refresh_depths(depths, await app.store())
        except HoldfastError:
            await asyncio.sleep(1)


async def run_processes(number: int, arguments: Sequence[str]) -> int:
    """Run several workers, each by this command line with one process."""
    # By option: each of them finds the same number in its environment or settings file.
    alone = (*_drop_processes_option(arguments), "--processes", "1")
    supervisor = WorkerSupervisor([sys.executable, "-m", "holdfast.cli", *alone], number)
    handle_signals(supervisor.stop)
    return await supervisor.run()


def _drop_processes_option(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument == "--processes":
            skip = not skip
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept
