"""Settings of the commands that keep running, each by one name everywhere.

Each is an option, a variable of the environment and a key of the settings file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from typer import Argument, Option

from holdfast.admission.topics import Topics
from holdfast.app.app import Holdfast
from holdfast.app.log_format import LogFormat, Severity, configure_logging
from holdfast.cli.options import Options, StoreOptions, read_file_topics, words
from holdfast.cli.output import print_note
from holdfast.config import ConfigFile, variable
from holdfast.flow.blobs_on_demand import BlobsPlan
from holdfast.flow.clean import FOREVER, OutcomeTerms, RetentionTerms, read_term
from holdfast.flow.purge import PurgeTerms
from holdfast.http.limits import ServerLimits
from holdfast.lifecycle.routes import COMMAND_QUEUES
from holdfast.runners.command.options import Commands
from holdfast.services.policy_watch import read_policy_file
from holdfast.services.reconciler import TICK_SECONDS
from holdfast.services.supervisor import MEMBER
from holdfast.services.upkeep import Upkeep
from holdfast.telemetry import Meters
from holdfast.telemetry.metrics_server import serve_metrics
from holdfast.telemetry.queue_depths import Depths
from holdfast.webhooks.egress import Outside, read_networks
from holdfast.wiring import plan_upkeep_blobs
from holdfast.worker.worker import GRACE_SECONDS, POLL_SECONDS, Worker

HOST, PORT = "127.0.0.1", 8080
LIMITS = ServerLimits()


def setting(flag: str, help: str, **more: Any) -> Any:
    """Return the option of a setting; its name in the environment follows from the flag."""
    name = flag.partition("/")[0].removeprefix("--").replace("-", "_")
    return Option(flag, envvar=variable(name), help=help, **more)


_APP = Argument(
    metavar="MODULE:APP", envvar=variable("app"), help="Where the app is: package.module:app"
)
App = Annotated[str, _APP]
MaybeApp = Annotated[str | None, _APP]
AppUrl = Annotated[
    str | None, setting("--url", "The store; by default the app's own, or holdfast.db.")
]
Grace = Annotated[
    float, setting("--grace", "Seconds that running work gets to finish at SIGTERM.", min=0)
]
WebhooksAllow = Annotated[
    str,
    setting(
        "--webhooks-allow",
        "Private networks that webhooks may lead to, separated by commas: 10.1.0.0/16.",
    ),
]
_KEEP = "How long {} is kept, such as 30d, or `forever`."
_PURGE = "How long the record of {} is kept after its end, such as 90d, or `forever`."


class PullPolicy(StrEnum):
    """Whether an image that is not there may be pulled."""

    NEVER = "never"
    MISSING = "missing"


class OnShutdown(StrEnum):
    """What becomes of boxes that could continue without their worker."""

    LEAVE = "leave"
    KILL = "kill"


class LogOptions(Options):
    """How the process logs."""

    log_format: Annotated[LogFormat, setting("--log-format", "Format of log lines.")] = (
        LogFormat.TEXT
    )
    log_level: Annotated[
        Severity, setting("--log-level", "Lowest level that is logged.", case_sensitive=False)
    ] = Severity.INFO

    def configure(self, worker: str | None = None) -> None:
        """Set up logging; lines name the worker, if there is one."""
        configure_logging(self.log_format, self.log_level, worker=worker)


class CommandFileOptions(Options):
    """Where commands keep their files."""

    command_dir: Annotated[
        Path | None,
        setting(
            "--command-dir",
            "Directory of the files of commands on this host; by default the app's own, or "
            "/var/lib/holdfast for root and ~/.local/state/holdfast for others.",
        ),
    ] = None
    blobs: Annotated[
        str | None,
        setting(
            "--blobs",
            "Where logs, artifacts and uploads are kept: a directory, or s3://BUCKET/PREFIX; by "
            "default in the directory of commands.",
        ),
    ] = None

    def plan_upkeep(self, command: StoreOptions) -> BlobsPlan:
        """Plan the place of the blobs of a store that is to be kept in order."""
        place, directory = command.blobs(self.blobs), command.command_dir(self.command_dir)
        return plan_upkeep_blobs(place, directory)


class TopicFileOptions(Options):
    """The topics of the settings file; they have no flag."""

    ctx: typer.Context

    @property
    def topics(self) -> Topics:
        """The table `[topics]`."""
        return read_file_topics(self.ctx)


class MetricsOptions(Options):
    """Where the process serves its metrics."""

    metrics_port: Annotated[
        int | None,
        setting(
            "--metrics-port",
            "Serve /metrics and /healthz at this port; each further process at the next one.",
            min=0,
            max=65535,
        ),
    ] = None
    metrics_host: Annotated[str, setting("--metrics-host", "The address of the metrics.")] = HOST

    @contextmanager
    def served(self, meters: Meters, depths: Depths | None = None) -> Iterator[None]:
        """Serve the metrics, if a port was given."""
        if self.metrics_port is None:
            yield
            return
        # Each of several processes has a port of its own; 0 lets the system choose anyway.
        number = int(os.environ.get(MEMBER, "0")) if self.metrics_port else 0
        place = (self.metrics_host, self.metrics_port + number)
        with serve_metrics(meters, *place, depths=depths) as server:
            print_note(f"metrics at {server.url}")
            yield


class PurgeOptions(Options):
    """How long the records of ended jobs are kept."""

    purge: Annotated[str, setting("--purge", _PURGE.format("a job that succeeded"))] = "90d"
    purge_unsuccessful: Annotated[
        str, setting("--purge-unsuccessful", _PURGE.format("any other ended job"))
    ] = "365d"

    def purge_terms(self) -> PurgeTerms:
        return PurgeTerms(
            succeeded=read_term(self.purge, "--purge"),
            unsuccessful=read_term(self.purge_unsuccessful, "--purge-unsuccessful"),
        )


class KeepOptions(Options):
    """How long what ended jobs leave is kept."""

    keep: Annotated[str, setting("--keep", _KEEP.format("a job that succeeded"))] = "7d"
    keep_unsuccessful: Annotated[
        str, setting("--keep-unsuccessful", _KEEP.format("any other ended job"))
    ] = "30d"
    keep_letters: Annotated[str, setting("--keep-letters", _KEEP.format("an open dead letter"))] = (
        FOREVER
    )
    keep_commands: Annotated[
        str | None,
        setting(
            "--keep-commands",
            f"{_KEEP.format('a command or agent that succeeded')} By default as --keep.",
        ),
    ] = None
    keep_commands_unsuccessful: Annotated[
        str | None,
        setting(
            "--keep-commands-unsuccessful",
            f"{_KEEP.format('any other command or agent')} By default as --keep-unsuccessful.",
        ),
    ] = None
    keep_artifacts: Annotated[
        str,
        setting("--keep-artifacts", "How long artifacts are kept, at most as long as their job."),
    ] = FOREVER

    def terms(self) -> RetentionTerms:
        """Return the terms of cleaning."""
        return RetentionTerms(
            succeeded=read_term(self.keep, "--keep"),
            unsuccessful=read_term(self.keep_unsuccessful, "--keep-unsuccessful"),
            open_letters=read_term(self.keep_letters, "--keep-letters"),
            commands=OutcomeTerms(
                succeeded=read_term(self.keep_commands or self.keep, "--keep-commands"),
                unsuccessful=read_term(
                    self.keep_commands_unsuccessful or self.keep_unsuccessful,
                    "--keep-commands-unsuccessful",
                ),
            ),
            artifacts=read_term(self.keep_artifacts, "--keep-artifacts"),
        )


class UpkeepOptions(KeepOptions):
    """What is swept, cleaned and delivered."""

    tick: Annotated[
        float, setting("--tick", "Seconds between two sweeps that found nothing.", min=0.01)
    ] = TICK_SECONDS
    clean: Annotated[
        bool, setting("--clean/--no-clean", "Also clean and purge jobs whose term is over.")
    ] = True
    webhooks: Annotated[
        bool, setting("--webhooks/--no-webhooks", "Also notify webhooks when jobs end.")
    ] = True
    webhooks_allow: WebhooksAllow = ""
    policy: Annotated[
        Path | None,
        setting(
            "--policy",
            "A file of rules: applied at the start, and again whenever it changes.",
        ),
    ] = None

    def upkeep(
        self, purge_terms: PurgeTerms, blobs: BlobsPlan, app: Holdfast | None = None
    ) -> Upkeep:
        """Return the options as settings of the loops; `blobs` is where logs and artifacts are.

        BadPolicy for a file of rules that is broken now: like other settings it is checked first.
        """
        policy = self.policy if app is None else self.policy or app.policy
        if policy is not None:
            read_policy_file(policy)
        return Upkeep(
            tick_seconds=self.tick,
            terms=self.terms(),
            purge_terms=purge_terms,
            clean=self.clean,
            blobs=blobs,
            policy=policy,
            outside=read_outside(self.webhooks_allow) if self.webhooks else None,
        )


class ListenOptions(Options):
    """Where and how the API is served."""

    host: Annotated[str, setting("--host", "The address to serve at.")] = HOST
    port: Annotated[
        int, setting("--port", "The port to serve at; 0 takes a free one.", min=0, max=65535)
    ] = PORT
    grace: Grace = GRACE_SECONDS
    rate: Annotated[
        float, setting("--rate", "Requests per second of one token; 0 means no limit.", min=0)
    ] = LIMITS.requests_per_second
    burst: Annotated[
        int, setting("--burst", "Requests of one token that may come at once.", min=1)
    ] = LIMITS.burst
    connections: Annotated[int, setting("--connections", "Maximum open connections.", min=1)] = (
        LIMITS.connections
    )
    requests: Annotated[
        int,
        setting(
            "--requests",
            "Maximum requests under way, long polls included; one token may have a fourth.",
            min=1,
        ),
    ] = LIMITS.requests
    access_log: Annotated[bool, setting("--access-log/--no-access-log", "Log every request.")] = (
        False
    )
    webhooks_allow: WebhooksAllow = ""

    def limits(self) -> ServerLimits:
        """Return the limits of the server."""
        return replace(
            LIMITS,
            requests_per_second=self.rate,
            burst=self.burst,
            connections=self.connections,
            requests=self.requests,
        )

    def outside(self) -> Outside:
        """Return where webhooks may lead."""
        return read_outside(self.webhooks_allow)


class WorkerOptions(Options):
    """What a worker serves, and how many jobs at once."""

    queues: Annotated[str, setting("--queues", "Queues to serve, separated by commas.")] = "default"
    concurrency: Annotated[
        int,
        setting("--concurrency", "Maximum jobs that a process runs at once.", min=1, max=10_000),
    ] = 20
    capabilities: Annotated[
        str, setting("--capabilities", "Its capabilities that jobs may need, separated by commas.")
    ] = ""
    adapter: Annotated[
        str,
        setting("--adapter", "Adapters it has, which jobs may ask for, separated by commas."),
    ] = ""
    grace: Grace = GRACE_SECONDS
    poll: Annotated[
        float, setting("--poll", "Seconds between polls if no notification arrives.", min=0.01)
    ] = POLL_SECONDS

    def worker(self, app: Holdfast, *, reconcile: bool, commands: Commands | None = None) -> Worker:
        """Make the worker of this process, which ends with it."""
        return app.worker(
            queues=words(self.queues),
            concurrency=self.concurrency,
            capabilities=words(self.capabilities),
            adapters=words(self.adapter),
            grace=self.grace,
            poll=self.poll,
            reconcile=reconcile,
            exits=True,
            commands=commands,
        )


class CommandHostOptions(Options):
    """Whether and how a worker runs commands on its host."""

    ctx: typer.Context
    commands: Annotated[
        str | None,
        setting(
            "--commands",
            "Also run commands: auto, podman, sandbox, or process (no isolation); several are "
            "separated by commas, the default first.",
        ),
    ] = None
    command_queues: Annotated[
        str, setting("--command-queues", "Queues of commands to serve, separated by commas.")
    ] = ",".join(COMMAND_QUEUES.values())
    command_image: Annotated[
        str | None, setting("--command-image", "The image of commands that name none.")
    ] = None
    command_pull: Annotated[
        PullPolicy, setting("--command-pull", "Whether podman may pull images: never, missing.")
    ] = PullPolicy.NEVER
    command_cpus: Annotated[
        int | None,
        setting("--command-cpus", "CPUs that commands may take; by default all.", min=1),
    ] = None
    command_memory_gb: Annotated[
        int | None,
        setting(
            "--command-memory-gb", "Memory that commands may take; by default nine tenths.", min=1
        ),
    ] = None
    host_name: Annotated[
        str | None,
        setting("--host-name", "This host's name, the same after each restart and unique."),
    ] = None
    on_shutdown: Annotated[
        OnShutdown,
        setting(
            "--on-shutdown", "What becomes of running containers when the worker ends: leave, kill."
        ),
    ] = OnShutdown.LEAVE

    def read(self, command_dir: Path | None) -> Commands | None:
        """Return how commands are to be run; None if they are not."""
        if self.commands is None:
            return None
        file = self.ctx.find_root().obj
        return Commands(
            runner=words(self.commands),
            agents=file.agents if isinstance(file, ConfigFile) else {},
            secrets=file.secrets if isinstance(file, ConfigFile) else {},
            queues=words(self.command_queues),
            image=self.command_image,
            pull=self.command_pull.value,
            cpus=self.command_cpus,
            memory_gb=self.command_memory_gb,
            directory=command_dir,
            host=self.host_name,
            on_shutdown=self.on_shutdown.value,
        )


def read_outside(allow: str) -> Outside:
    """Read where webhooks may lead."""
    return Outside(allow=read_networks(words(allow)))
