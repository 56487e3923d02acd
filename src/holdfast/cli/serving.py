"""`holdfast serve`: the HTTP API. `holdfast up`: all roles in one process."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import typer
from msgspec.structs import replace

from holdfast.app import Holdfast
from holdfast.cli.housekeeping import Housekeeping, Mail, read_outside, read_purge_terms, read_terms
from holdfast.cli.running import DEFAULT_URL, check_there, err, run, telling
from holdfast.cli.settings import (
    HOST,
    PORT,
    AccessLog,
    AppUrl,
    Burst,
    Capabilities,
    Clean,
    Concurrency,
    Connections,
    Grace,
    Host,
    Keep,
    KeepLetters,
    KeepUnsuccessful,
    LogLevel,
    LogStyle,
    MaybeApp,
    Poll,
    Port,
    Purge,
    PurgeUnsuccessful,
    Queues,
    Rate,
    Requests,
    Tick,
    Webhooks,
    WebhooksAllow,
    words,
)
from holdfast.cli.worker import load_app
from holdfast.errors import CannotServe
from holdfast.flow.clean import FOREVER
from holdfast.http.limits import Limits
from holdfast.logs import LogFormat, Severity, configure_logging
from holdfast.services.reconciler import TICK_SECONDS
from holdfast.services.worker import GRACE_SECONDS, POLL_SECONDS
from holdfast.wiring import Address, read_address

LIMITS = Limits()


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(up)
    app.command()(serve)


def serve(
    app: MaybeApp = None,
    *,
    url: AppUrl = None,
    host: Host = HOST,
    port: Port = PORT,
    grace: Grace = GRACE_SECONDS,
    rate: Rate = LIMITS.requests_per_second,
    burst: Burst = LIMITS.burst,
    connections: Connections = LIMITS.connections,
    requests: Requests = LIMITS.requests,
    access_log: AccessLog = False,
    webhooks_allow: WebhooksAllow = "",
    log_format: LogStyle = LogFormat.TEXT,
    log_level: LogLevel = Severity.INFO,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C; a second one ends the grace.

    With an app, jobs of its tasks get their terms, and their arguments are checked at submit. Any
    number may serve one store.
    """
    loaded = None if app is None else load_app(app, url)
    configure_logging(log_format, log_level)
    with telling():
        front = _front()
        address = _address(url, loaded)
        check_there(address)
        door = front.Door(
            host=host,
            port=port,
            grace_seconds=grace,
            access_log=access_log,
            limits=_limits(rate, burst, connections, requests),
            outside=read_outside(webhooks_allow),
        )
        gateway = door.gateway(address, loaded)
    run(front.serve(gateway, partial(_announce, gateway.url)))


def up(
    app: MaybeApp = None,
    *,
    url: AppUrl = None,
    host: Host = HOST,
    port: Port = PORT,
    queues: Queues = "default",
    concurrency: Concurrency = 20,
    capabilities: Capabilities = "",
    grace: Grace = GRACE_SECONDS,
    poll: Poll = POLL_SECONDS,
    tick: Tick = TICK_SECONDS,
    clean: Clean = True,
    keep: Keep = "7d",
    keep_unsuccessful: KeepUnsuccessful = "30d",
    keep_letters: KeepLetters = FOREVER,
    purge: Purge = "90d",
    purge_unsuccessful: PurgeUnsuccessful = "365d",
    rate: Rate = LIMITS.requests_per_second,
    burst: Burst = LIMITS.burst,
    connections: Connections = LIMITS.connections,
    requests: Requests = LIMITS.requests,
    webhooks: Webhooks = True,
    webhooks_allow: WebhooksAllow = "",
    access_log: AccessLog = False,
    log_format: LogStyle = LogFormat.TEXT,
    log_level: LogLevel = Severity.INFO,
) -> None:
    """Run everything in one process: API, reconciler, janitor, webhooks and, with an app, a worker.

    A SQLite file that is not there is made. Ends in order at SIGTERM or Ctrl-C; a second one ends
    the grace. Exit code 0 only if everything was finished or given back.
    """
    loaded = None if app is None else load_app(app, url)
    with telling():
        front = _front()
        address, outside = _address(url, loaded), read_outside(webhooks_allow)
        door = front.Door(
            host=host,
            port=port,
            grace_seconds=grace,
            access_log=access_log,
            limits=_limits(rate, burst, connections, requests),
            outside=outside,
        )
        keeping = Housekeeping(
            tick_seconds=tick,
            terms=read_terms(keep, keep_unsuccessful, keep_letters),
            purge_terms=read_purge_terms(purge, purge_unsuccessful),
            clean=clean,
            mail=Mail(address=address, outside=outside) if webhooks else None,
        )
        house = front.Whole(door, address, loaded, keeping)
        if loaded is not None:
            house.employ(
                loaded.worker(
                    queues=words(queues),
                    concurrency=concurrency,
                    capabilities=words(capabilities),
                    grace=grace,
                    poll=poll,
                    # The gateway's loop sweeps, which no handler can block.
                    reconcile=False,
                    exits=True,
                )
            )
    configure_logging(log_format, log_level, worker=house.worker_name)
    work = f"worker {house.worker_name} serves {queues}" if loaded else "no app, so no worker"
    raise typer.Exit(run(house.run(partial(_announce, house.url, work))))


def _announce(*facts: str) -> None:
    said = "; ".join(facts)
    err.print(f"serving {said}; end with Ctrl-C", markup=False, soft_wrap=True)


def _limits(rate: float, burst: int, connections: int, requests: int) -> Limits:
    return replace(
        LIMITS,
        requests_per_second=rate,
        burst=burst,
        connections=connections,
        requests=requests,
    )


def _address(url: str | None, app: Holdfast | None) -> Address:
    return read_address(url or (DEFAULT_URL if app is None else app.url))


def _front() -> Any:
    """Import what serves only here: no other command needs a web framework, or waits for one."""
    try:
        return import_module("holdfast.cli.front")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("holdfast"):
            raise
        raise CannotServe(f"serving needs {error.name}: pip install 'holdfast[server]'") from error
