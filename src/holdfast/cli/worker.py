"""`holdfast worker`: run jobs, in this process or in several."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli.running import FOUND_PROBLEMS, err, exit_code, on_signals, run, tell, telling
from holdfast.cli.settings import (
    HOST,
    App,
    AppUrl,
    Capabilities,
    Concurrency,
    Grace,
    LogLevel,
    LogStyle,
    MetricsHost,
    MetricsPort,
    Poll,
    Queues,
    setting,
    words,
)
from holdfast.cli.showing import plain
from holdfast.errors import HoldfastError
from holdfast.logs import LogFormat, Severity, configure_logging
from holdfast.services.crew import MEMBER, Crew, watch_lifeline
from holdfast.services.rounds import first_of
from holdfast.services.worker import GRACE_SECONDS, LET_GO_SECONDS, POLL_SECONDS, Worker
from holdfast.telemetry.depths import Depths, watch_depths
from holdfast.telemetry.serving import serve_metrics

NOT_BEGUN = -FOUND_PROBLEMS


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(worker)


def worker(
    app: App,
    *,
    url: AppUrl = None,
    queues: Queues = "default",
    concurrency: Concurrency = 20,
    processes: Annotated[int, setting("--processes", "How many processes.", min=1, max=256)] = 1,
    capabilities: Capabilities = "",
    grace: Grace = GRACE_SECONDS,
    poll: Poll = POLL_SECONDS,
    reconcile: Annotated[
        bool, setting("--reconcile/--no-reconcile", "Sweep for lost leases and timers, too.")
    ] = True,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST,
    log_format: LogStyle = LogFormat.TEXT,
    log_level: LogLevel = Severity.INFO,
) -> None:
    """Run the jobs of some queues until SIGTERM or Ctrl-C; a second one ends the grace.

    Exit code 0 only if everything was finished or given back.
    """
    if processes > 1:
        configure_logging(log_format, log_level)
        raise typer.Exit(run(_lead(processes)))
    loaded = load_app(app, url)
    with telling():
        made = loaded.worker(
            queues=words(queues),
            concurrency=concurrency,
            capabilities=words(capabilities),
            grace=grace,
            poll=poll,
            reconcile=reconcile,
            exits=True,
        )
    configure_logging(log_format, log_level, worker=made.name)
    err.print(f"worker {made.name} serves {queues} of {loaded!r}", markup=False)
    metrics = None if metrics_port is None else (metrics_host, _own_port(metrics_port))
    raise typer.Exit(run(_serve(loaded, made, metrics)))


async def _serve(app: Holdfast, made: Worker, metrics: tuple[str, int] | None) -> int:
    """Work until a signal, the end of the parent, or the death of a part."""
    ended = asyncio.Event()
    on_signals(ended.set)
    watch_lifeline(ended)
    with ExitStack() as stack:
        if metrics is not None:
            depths = Depths(made.meters)
            server = stack.enter_context(serve_metrics(made.meters, *metrics, depths=depths))
            err.print(f"metrics at {server.url}", markup=False)
            watching = asyncio.create_task(_watch_depths(app, depths))
            stack.callback(watching.cancel)
        code = await work(made, ended)
    await end_with(app, made, code)
    return code


async def end_with(
    app: Holdfast, made: Worker, code: int, died: BaseException | None = None
) -> None:
    """Let go of the app; leaves the process at once if something of the worker runs on.

    `died` is what ended the worker from beside it. Whoever calls raises it, but for such a leave.
    """
    if made.failed is not None:
        told = f"error: {plain(made.failed)}"
        err.print(told, style="red", markup=False, emoji=False, soft_wrap=True)
    closing = asyncio.create_task(app.close())
    await asyncio.wait([closing], timeout=LET_GO_SECONDS)
    if code == NOT_BEGUN or made.left_running or not closing.done():
        if isinstance(died, HoldfastError):
            tell(died)
            code = exit_code(died)
        logging.shutdown()
        sys.stdout.flush()
        # Not by returning: the interpreter would wait for threads that cannot be stopped.
        os._exit(abs(code))
    await closing


async def work(
    made: Worker, ended: asyncio.Event, *, hurry: Callable[[], None] | None = None
) -> int:
    """Begin, wait for the end, and end; a worker whose store is away can be stopped, too.

    `hurry` is what a further signal does then.
    """
    beginning = asyncio.create_task(made.__aenter__())
    await first_of(asyncio.wait([beginning]), ended.wait())
    if not beginning.done():
        beginning.cancel()
        err.print("stopped before the store could be reached", markup=False)
        return NOT_BEGUN
    await beginning
    await first_of(ended.wait(), made.stopped())
    on_signals(hurry or made.hurry)
    with suppress(Exception):  # it is told from `failed`
        await made.__aexit__(None, None, None)
    return 0 if made.failed is None else FOUND_PROBLEMS


async def _watch_depths(app: Holdfast, depths: Depths) -> None:
    """Count the queues now and then, as soon as the store can be reached."""
    while True:
        try:
            return await watch_depths(depths, await app.store())
        except HoldfastError:
            await asyncio.sleep(1)


async def _lead(size: int) -> int:
    """Run several workers, each as this command with one process."""
    # Said to each: it finds the same number in its environment or settings file.
    alone = (*_without_processes(sys.argv[1:]), "--processes", "1")
    crew = Crew([sys.executable, "-m", "holdfast.cli", *alone], size)
    on_signals(crew.stop)
    return await crew.run()


def _without_processes(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip or argument == "--processes":
            skip = not skip
        elif not argument.startswith("--processes="):
            kept.append(argument)
    return kept


def _own_port(first: int) -> int:
    """Give each process of a crew a port of its own; 0 lets the system choose anyway."""
    return first + int(os.environ.get(MEMBER, "0")) if first else 0


def load_app(reference: str, url: str | None = None) -> Holdfast:
    """Import the app that a reference names; what is wrong with it is one line, with its place."""
    module_name, _, name = reference.partition(":")
    name = name or "app"
    # As `python -m` does: a user's module lies beside where the command is typed.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise typer.BadParameter(
            f"{reference} cannot be imported: {_place(error)}{type(error).__name__}: {error}",
            param_hint="MODULE:APP",
        ) from error
    app = getattr(module, name, None)
    if not isinstance(app, Holdfast):
        raise typer.BadParameter(
            f"{module_name} has no Holdfast app named {name!r}", param_hint="MODULE:APP"
        )
    if url is not None:
        with telling():
            app.use(url)
    return app


def _place(error: Exception) -> str:
    """Name the line of the app's own code that the import failed at, if it got that far."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in _IMPORTERS
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""


_IMPORTERS = (__file__, importlib.__file__)
"""Files whose frames are about the import, not about what is imported."""
