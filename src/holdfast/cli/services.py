"""Commands that keep running: reconcile."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Annotated

import typer

from holdfast.cli.running import (
    DEFAULT_URL,
    FOUND_PROBLEMS,
    AsJson,
    Url,
    err,
    out,
    print_json,
    run,
    with_store,
)
from holdfast.flow.recover import Swept
from holdfast.ports import Store
from holdfast.services.reconciler import TICK_SECONDS, Reconciler


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(reconcile)


def reconcile(
    url: Url = DEFAULT_URL,
    once: Annotated[
        bool, typer.Option("--once", help="Sweep until nothing is due, then end.")
    ] = False,
    tick: Annotated[
        float, typer.Option(help="Seconds between two sweeps that found nothing.", min=0.01)
    ] = TICK_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Look for lost leases, passed deadlines and timers, and do what is due.

    Any number of these may run, beside those inside workers. SIGTERM ends it after its sweep.
    """

    def say(report: Swept) -> None:
        written = {kind.value: count for kind, count in report.written.items()}
        if as_json and written:
            print_json({"found": report.found, "written": written, "lost": report.lost})
        elif written:
            out.print(", ".join(f"{count} {kind}" for kind, count in written.items()))

    async def work(store: Store) -> None:
        name = f"{socket.gethostname()}-{os.getpid()}"
        reconciler = Reconciler(store, name, jitter=_jitter, tick_seconds=tick, on_sweep=say)
        if once:
            while (report := await reconciler.sweep()).written:
                pass
            if report.failed:
                raise typer.Exit(FOUND_PROBLEMS)
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, reconciler.stop)
        if not as_json:
            err.print(f"reconciling {url}; end with Ctrl-C", markup=False)
        await reconciler.run()

    run(with_store(url, work))


def _jitter() -> float:
    return os.urandom(1)[0] / 256
