"""Commands that keep running: reconcile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from holdfast.cli.housekeeping import (
    Housekeeping,
    Loop,
    Mail,
    caretaker,
    read_outside,
    read_purge_terms,
    read_terms,
)
from holdfast.cli.running import (
    DEFAULT_URL,
    FOUND_PROBLEMS,
    AsJson,
    Url,
    err,
    on_signals,
    out,
    print_json,
    run,
    telling,
    with_awaited_store,
    with_store,
)
from holdfast.cli.settings import (
    HOST,
    Clean,
    Keep,
    KeepLetters,
    KeepUnsuccessful,
    LogLevel,
    LogStyle,
    MetricsHost,
    MetricsPort,
    Purge,
    PurgeUnsuccessful,
    Tick,
    Webhooks,
    WebhooksAllow,
)
from holdfast.cli.showing import plain, say
from holdfast.config import shown
from holdfast.flow.clean import FOREVER, Cleaned
from holdfast.flow.purge import Purged
from holdfast.flow.recover import Swept
from holdfast.flow.repair_times import repair_times
from holdfast.identity import jitter
from holdfast.lifecycle.job import JobId
from holdfast.logs import LogFormat, Severity, configure_logging
from holdfast.ports import Store
from holdfast.services.reconciler import TICK_SECONDS
from holdfast.telemetry import Meters
from holdfast.telemetry.serving import serve_metrics
from holdfast.wiring import read_address


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(reconcile)


def reconcile(
    *,
    url: Url = DEFAULT_URL,
    once: Annotated[
        bool, typer.Option("--once", help="Sweep and clean until nothing is due, then end.")
    ] = False,
    fix_times: Annotated[
        bool,
        typer.Option(
            "--repair-times",
            help="Repair jobs that were written while the store's clock was ahead, then end.",
        ),
    ] = False,
    tick: Tick = TICK_SECONDS,
    clean: Clean = True,
    keep: Keep = "7d",
    keep_unsuccessful: KeepUnsuccessful = "30d",
    keep_letters: KeepLetters = FOREVER,
    purge: Purge = "90d",
    purge_unsuccessful: PurgeUnsuccessful = "365d",
    webhooks: Webhooks = True,
    webhooks_allow: WebhooksAllow = "",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = HOST,
    log_format: LogStyle = LogFormat.TEXT,
    log_level: LogLevel = Severity.INFO,
    as_json: AsJson = False,
) -> None:
    """Look for lost leases, passed deadlines and timers; clean old jobs; tell webhooks of ends.

    Any number of these may run, beside those inside workers. SIGTERM ends it after its sweep.
    """
    with telling():
        keeping = Housekeeping(
            tick_seconds=tick,
            terms=read_terms(keep, keep_unsuccessful, keep_letters),
            purge_terms=read_purge_terms(purge, purge_unsuccessful),
            clean=clean,
            mail=_mail(url, webhooks_allow) if webhooks else None,
        )
    configure_logging(log_format, log_level)
    if fix_times:
        run(with_store(url, lambda store: _repair_times(store, as_json=as_json)))
        return
    if once:
        run(with_store(url, lambda store: _once(keeping, store, as_json=as_json)))
        return
    saying = Saying(as_json=as_json)

    async def work(store: Store) -> None:
        meters = Meters()
        with ExitStack() as stack:
            if metrics_port is not None:
                served = stack.enter_context(serve_metrics(meters, metrics_host, metrics_port))
                say(err, f"metrics at {served.url}")
            await _until_a_signal(keeping.loops(store, saying, meters))

    say(err, f"reconciling {plain(shown('url', url))}; end with Ctrl-C")
    run(with_awaited_store(url, work))


async def _repair_times(store: Store, *, as_json: bool) -> None:
    report = await repair_times(store, caretaker(), jitter=jitter)
    left = {str(id_): why for id_, why in report.left.items()}
    if as_json:
        counts = {"taken": report.taken, "rescheduled": report.rescheduled}
        print_json({"found": report.found, **counts, "left": left})
        return
    text = f"{report.found} jobs with times from the future: "
    say(out, text + f"{report.taken} taken back, {report.rescheduled} rescheduled")
    for id_, why in left.items():
        say(out, plain(f"left {id_}: {why}"))


def _mail(url: str, allow: str) -> Mail:
    return Mail(address=read_address(url), outside=read_outside(allow))


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

    def purged(self, report: Purged) -> None:
        """Say what a look removed whole."""
        if report.jobs and self._as_json:
            print_json({"purged": report.jobs, "given_back_bytes": report.bytes})
        elif report.jobs:
            out.print(f"{report.jobs} purged")


class Sum:
    """Adds up what was done, for a script that is told once."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._written: Counter[str] = Counter()
        self._lost = 0
        self._removed: Counter[str] = Counter(cleaned=0, erased=0, heartbeats=0, purged=0)

    def swept(self, report: Swept) -> None:
        """Add what a sweep wrote."""
        self._written.update({kind.value: count for kind, count in report.written.items()})
        self._lost += report.lost

    def cleaned(self, report: Cleaned) -> None:
        """Add what a look of the janitor removed."""
        self._removed.update(cleaned=report.cleaned, erased=report.erased, heartbeats=report.beats)

    def purged(self, report: Purged) -> None:
        """Add what a look removed whole."""
        self._removed.update(purged=report.jobs)

    def told(self, failed: Mapping[JobId, str]) -> dict[str, Any]:
        """Tell it all, with the jobs that could not be judged."""
        return {
            "written": dict(self._written),
            "lost": self._lost,
            **self._removed,
            "failed": {str(id_): problem for id_, problem in failed.items()},
        }


async def _once(keeping: Housekeeping, store: Store, *, as_json: bool) -> None:
    summed = Sum()
    failed = await keeping.once(store, summed if as_json else Saying(as_json=False))
    if as_json:
        print_json(summed.told(failed))
    if failed:
        raise typer.Exit(FOUND_PROBLEMS)


async def _until_a_signal(loops: Sequence[Loop]) -> None:
    def stop() -> None:
        for one in loops:
            one.stop()

    on_signals(stop)
    async with asyncio.TaskGroup() as group:
        for one in loops:
            group.create_task(one.run())
