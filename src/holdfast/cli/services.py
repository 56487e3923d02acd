"""Commands that keep running: reconcile."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
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
from holdfast.flow.clean import FOREVER, Cleaned, Terms, read_term
from holdfast.flow.recover import Swept
from holdfast.ports import Store
from holdfast.services.janitor import Janitor
from holdfast.services.reconciler import TICK_SECONDS, Reconciler


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(reconcile)


KEEP_HELP = "How long {} is kept, such as 30d, or `forever`."


def reconcile(
    *,
    url: Url = DEFAULT_URL,
    once: Annotated[
        bool, typer.Option("--once", help="Sweep and clean until nothing is due, then end.")
    ] = False,
    tick: Annotated[
        float, typer.Option(help="Seconds between two sweeps that found nothing.", min=0.01)
    ] = TICK_SECONDS,
    clean: Annotated[bool, typer.Option(help="Clean jobs whose term is over, too.")] = True,
    keep: Annotated[str, typer.Option(help=KEEP_HELP.format("a job that succeeded"))] = "7d",
    keep_unsuccessful: Annotated[
        str, typer.Option(help=KEEP_HELP.format("any other ended job"))
    ] = "30d",
    keep_letters: Annotated[
        str, typer.Option(help=KEEP_HELP.format("a dead letter that nobody has settled"))
    ] = FOREVER,
    as_json: AsJson = False,
) -> None:
    """Look for lost leases, passed deadlines and timers, and do what is due; clean old jobs.

    Any number of these may run, beside those inside workers. SIGTERM ends it after its sweep.
    """
    saying = Saying(as_json=as_json)

    async def work(store: Store) -> None:
        terms = Terms(
            succeeded=read_term(keep, "--keep"),
            unsuccessful=read_term(keep_unsuccessful, "--keep-unsuccessful"),
            open_letters=read_term(keep_letters, "--keep-letters"),
        )
        name = f"{socket.gethostname()}-{os.getpid()}"
        reconciler = Reconciler(
            store, name, jitter=_jitter, tick_seconds=tick, on_sweep=saying.swept
        )
        janitor = Janitor(store, name, terms, on_look=saying.cleaned) if clean else None
        if once:
            await _once(reconciler, janitor)
            return
        if not as_json:
            err.print(f"reconciling {url}; end with Ctrl-C", markup=False)
        await _until_a_signal([reconciler] if janitor is None else [reconciler, janitor])

    run(with_store(url, work))


class Saying:
    """Says what was done, to people or machines; nothing where nothing was."""

    def __init__(self, *, as_json: bool) -> None:
        """Take the form."""
        self._as_json = as_json

    def swept(self, report: Swept) -> None:
        """Say what a sweep wrote."""
        written = {kind.value: count for kind, count in report.written.items()}
        if self._as_json and written:
            print_json({"found": report.found, "written": written, "lost": report.lost})
        elif written:
            out.print(", ".join(f"{count} {kind}" for kind, count in written.items()))

    def cleaned(self, report: Cleaned) -> None:
        """Say what a look of the janitor removed."""
        if not report.written:
            return
        if self._as_json:
            print_json(
                {"cleaned": report.cleaned, "erased": report.erased, "heartbeats": report.beats}
            )
        else:
            out.print(f"{report.cleaned} cleaned, {report.beats} heartbeats dropped")


async def _once(reconciler: Reconciler, janitor: Janitor | None) -> None:
    while (report := await reconciler.sweep()).written:
        pass
    failed = dict(report.failed)
    if janitor is not None:
        failed |= (await janitor.clean_all()).failed
    if failed:
        raise typer.Exit(FOUND_PROBLEMS)


async def _until_a_signal(loops: Sequence[Reconciler | Janitor]) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for one in loops:
            one.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with asyncio.TaskGroup() as group:
        for one in loops:
            group.create_task(one.run())


def _jitter() -> float:
    return os.urandom(1)[0] / 256
