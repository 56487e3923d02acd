"""The commands that keep running: `up`, `serve`, `worker` and `reconcile`."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Option

from holdfast.admission.topics import Topics
from holdfast.app.app import Holdfast
from holdfast.cli.options import DEFAULT_URL, StoreCommand
from holdfast.cli.output import plain, print_json, print_line, print_note
from holdfast.cli.runtime import (
    FOUND_PROBLEMS,
    check_exists,
    handle_signals,
    load_app,
    open_awaited_store,
)
from holdfast.cli.settings import (
    AppUrl,
    CommandFileOptions,
    CommandHostOptions,
    ListenOptions,
    LogOptions,
    MaybeApp,
    MetricsOptions,
    PurgeOptions,
    TopicFileOptions,
    UpkeepOptions,
    WorkerOptions,
    setting,
)
from holdfast.cli.worker import run_processes, run_worker
from holdfast.config import mask_secrets
from holdfast.errors import CannotServe
from holdfast.flow.clean import CleanSweep
from holdfast.flow.purge import Purged
from holdfast.flow.recover import Swept
from holdfast.flow.sweep_blobs import BlobSweep
from holdfast.flow.upload import UploadSweep
from holdfast.ids import jitter
from holdfast.maintenance.repair_times import repair_times
from holdfast.ports.store import Store
from holdfast.runners.command.options import Commands
from holdfast.services.upkeep import Upkeep, UpkeepReport, process_name, run_loops, stop_loops
from holdfast.telemetry import Meters
from holdfast.wiring import Address, make_store, plan_upkeep_blobs, read_address


def up(
    app: MaybeApp = None,
    *,
    url: AppUrl = None,
    listen: ListenOptions,
    work: WorkerOptions,
    host: CommandHostOptions,
    keep: UpkeepOptions,
    records: PurgeOptions,
    files: CommandFileOptions,
    pools: TopicFileOptions,
    logs: LogOptions,
) -> None:
    """Run everything in one process: API, reconciler, janitor, webhooks and, with an app, a worker.

    With --commands there is a worker without an app, too.

    A missing SQLite file is created. Shuts down cleanly at SIGTERM or Ctrl-C; a second signal ends
    the grace. Exit code 0 only if every job was finished or released.
    """
    commands = host.read(files.command_dir)
    loaded = _load_app(app, url, files, commands, pools.topics)
    server = _import_server()
    directory = files.command_dir if loaded is None else loaded.command_dir
    blobs = files.blobs if loaded is None else loaded.blobs
    plan = plan_upkeep_blobs(blobs, directory)
    upkeep, address = keep.upkeep(records.purge_terms(), plan, loaded), _address(url, loaded)
    meters = Meters() if loaded is None else loaded.meters
    beside = partial(_keep, upkeep, address, meters)
    gateway = server.make_gateway(
        listen,
        address,
        loaded,
        meters=meters,
        beside=[beside],
        files=files,
        prepare=partial(_apply_policy, upkeep),
        topics=pools.topics,
    )
    # The gateway's loop sweeps, which no handler can block.
    worker = None if loaded is None else work.worker(loaded, reconcile=False, commands=commands)
    logs.configure(worker=None if worker is None else worker.name)
    role = (
        "no app, so no worker" if worker is None else f"worker {worker.name} serves {work.queues}"
    )
    roles = server.AllRoles(gateway, loaded, worker)
    raise typer.Exit(asyncio.run(roles.run(partial(_announce, gateway.url, role))))


def serve(
    app: MaybeApp = None,
    *,
    url: AppUrl = None,
    listen: ListenOptions,
    files: CommandFileOptions,
    pools: TopicFileOptions,
    logs: LogOptions,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; a second signal ends the grace.

    With an app, jobs of its tasks get their terms, and their arguments are checked at submit. Any
    number of servers may serve one store.
    """
    loaded = _load_app(app, url, files, None, pools.topics)
    logs.configure()
    server = _import_server()
    address = _address(url, loaded)
    check_exists(address)
    gateway = server.make_gateway(listen, address, loaded, files=files, topics=pools.topics)
    asyncio.run(server.serve(gateway, partial(_announce, gateway.url)))


def worker(
    app: MaybeApp = None,
    *,
    url: AppUrl = None,
    work: WorkerOptions,
    host: CommandHostOptions,
    processes: Annotated[
        int, setting("--processes", "How many processes to run.", min=1, max=256)
    ] = 1,
    reconcile: Annotated[
        bool, setting("--reconcile/--no-reconcile", "Also sweep for lost leases and timers.")
    ] = True,
    files: CommandFileOptions,
    pools: TopicFileOptions,
    metrics: MetricsOptions,
    logs: LogOptions,
) -> None:
    """Run the jobs of some queues until SIGTERM or Ctrl-C; a second signal ends the grace.

    With --commands it also runs commands, and needs no app. Exit code 0 only if every job was
    finished, released, or left running for the next worker of this host.
    """
    commands = host.read(files.command_dir)
    if app is None and commands is None:
        raise typer.BadParameter("name the app, or give --commands", param_hint="MODULE:APP")
    if processes > 1:
        logs.configure()
        raise typer.Exit(asyncio.run(run_processes(processes, sys.argv[1:])))
    loaded = _load_app(app, url, files, commands, pools.topics)
    assert loaded is not None
    made = work.worker(loaded, reconcile=reconcile, commands=commands)
    logs.configure(worker=made.name)
    place = plain(mask_secrets("url", loaded.url))
    print_note(f"worker {made.name} serves {work.queues} of {place}; stop with Ctrl-C")
    raise typer.Exit(asyncio.run(run_worker(loaded, made, metrics)))


def _load_app(
    app: str | None,
    url: str | None,
    files: CommandFileOptions,
    commands: Commands | None,
    topics: Topics,
) -> Holdfast | None:
    """Load the app; to run commands alone an app without tasks will do."""
    if app is not None:
        return load_app(app, url, files.command_dir, files.blobs, topics)
    if commands is None:
        return None
    return Holdfast(url or DEFAULT_URL, command_dir=files.command_dir, blobs=files.blobs)


def reconcile(
    command: StoreCommand,
    *,
    once: Annotated[
        bool, Option("--once", help="Sweep and clean until nothing is due, then exit.")
    ] = False,
    fix_times: Annotated[
        bool,
        Option(
            "--repair-times",
            help="Repair jobs that were written while the store's clock was ahead, then exit.",
        ),
    ] = False,
    keep: UpkeepOptions,
    records: PurgeOptions,
    files: CommandFileOptions,
    metrics: MetricsOptions,
    logs: LogOptions,
) -> None:
    """Recover lost leases, passed deadlines and timers; clean old jobs; notify webhooks.

    Any number of these may run, beside those inside workers. SIGTERM stops it after its sweep.
    """
    upkeep = keep.upkeep(records.purge_terms(), files.plan_upkeep(command))
    address = read_address(command.address)
    logs.configure()
    if fix_times:
        _repair_times(command)
        return
    if once:
        _upkeep_once(command, upkeep)
        return

    async def work() -> None:
        meters, report = Meters(), partial(_print_report, as_json=command.as_json)
        async with open_awaited_store(command.address) as store:
            with metrics.served(meters):
                stores = partial(make_store, address)
                loops = upkeep.make_loops(store, stores, on_report=report, meters=meters)
                handle_signals(partial(stop_loops, loops))
                await run_loops(loops)

    print_note(f"reconciling {plain(mask_secrets('url', command.address))}; stop with Ctrl-C")
    asyncio.run(work())


def _repair_times(command: StoreCommand) -> None:
    report = command.on_store(lambda store: repair_times(store, process_name(), jitter=jitter))
    counts = f"{report.taken} taken back, {report.rescheduled} rescheduled"
    command.show(
        report,
        f"{report.found} jobs with times in the future: {counts}",
        *(plain(f"left {id_}: {why}") for id_, why in report.left.items()),
    )


def _upkeep_once(command: StoreCommand, upkeep: Upkeep) -> None:
    """Do all that is due; a script gets one object with the sum of it."""
    reports: list[UpkeepReport] = []
    on_report = reports.append if command.as_json else partial(_print_report, as_json=False)
    failed = command.on_store(lambda store: upkeep.run_once(store, on_report))
    command.show(_sum_reports(reports, failed))
    if failed:
        raise typer.Exit(FOUND_PROBLEMS)


def _print_report(report: UpkeepReport, *, as_json: bool) -> None:
    """Print what a pass of a loop did; nothing if it did nothing."""
    if not _count_changes(report):
        return
    data = _report_as_data(report)
    if as_json:
        print_json(data)
    else:
        counts = data.get("written", data).items()
        print_line(", ".join(f"{number:,} {what}" for what, number in counts if number))


def _count_changes(report: UpkeepReport) -> int:
    match report:
        case Swept():
            return sum(report.written.values())
        case CleanSweep():
            return report.written
        case Purged():
            return report.jobs
        case BlobSweep():
            return report.blobs
        case UploadSweep():
            return report.written


def _report_as_data(report: UpkeepReport) -> dict[str, Any]:
    match report:
        case Swept():
            written = {kind.value: number for kind, number in report.written.items()}
            return {"found": report.found, "written": written, "lost": report.lost}
        case CleanSweep():
            counts = {"erased": report.erased, "heartbeats": report.beats}
            return {"cleaned": report.cleaned, **counts, **_output_bytes(report)}
        case Purged():
            return {"purged": report.jobs, "given_back_bytes": report.bytes}
        case UploadSweep():
            return {"removed_uploads": report.removed}
        case BlobSweep():
            artifacts = {"artifact_bytes": report.artifact_bytes}
            return {"swept_blobs": report.blobs, "orphan_bytes": report.orphan_bytes, **artifacts}


def _output_bytes(report: CleanSweep) -> dict[str, int]:
    return {"log_bytes": report.outputs.logs, "artifact_bytes": report.outputs.artifacts}


_SUMMED = (
    *("lost", "cleaned", "erased", "heartbeats", "purged"),
    *("removed_uploads", "log_bytes", "artifact_bytes", "swept_blobs", "orphan_bytes"),
)


def _sum_reports(reports: Sequence[UpkeepReport], failed: Mapping[str, str]) -> dict[str, Any]:
    """Add up what was done, with the jobs that could not be judged."""
    written: Counter[str] = Counter()
    counts = Counter(dict.fromkeys(_SUMMED, 0))
    for data in map(_report_as_data, reports):
        written.update(data.pop("written", {}))
        counts.update({name: data[name] for name in counts.keys() & data.keys()})
    return {"written": written, **counts, "failed": failed}


async def _keep(upkeep: Upkeep, address: Address, meters: Meters, store: Store) -> None:
    """Keep a store in order until cancelled."""
    await run_loops(upkeep.make_loops(store, partial(make_store, address), meters=meters))


async def _apply_policy(upkeep: Upkeep, store: Store) -> None:
    """Apply the file of rules before the first request."""
    if upkeep.policy is not None:
        await upkeep.make_watch(store, upkeep.policy).apply_now()


def _announce(*facts: str) -> None:
    print_note(f"serving {'; '.join(facts)}; stop with Ctrl-C")


def _address(url: str | None, app: Holdfast | None) -> Address:
    return read_address(url or (DEFAULT_URL if app is None else app.url))


def _import_server() -> Any:
    """Import what serves only here: no other command needs a web framework, or waits for one."""
    try:
        return import_module("holdfast.cli.serve")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("holdfast"):
            raise
        raise CannotServe(f"serving needs {error.name}: pip install 'holdfast[server]'") from error
