"""Settings of the commands that keep running, each by one name everywhere.

`--log-format` is `HOLDFAST_LOG_FORMAT` in the environment and `log_format` in holdfast.toml, in
that order, whichever of `up`, `serve`, `worker` and `reconcile` it is for.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.config import variable
from holdfast.logs import LogFormat, Severity


def setting(flag: str, help: str, **more: Any) -> Any:
    """Make the option of a setting; its name in the environment follows from the flag."""
    name = flag.partition("/")[0].removeprefix("--").replace("-", "_")
    return typer.Option(flag, envvar=variable(name), help=help, **more)


MaybeApp = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:APP", envvar=variable("app"), help="Where the app is: package.module:app"
    ),
]
App = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP", envvar=variable("app"), help="Where the app is: package.module:app"
    ),
]
AppUrl = Annotated[
    str | None, setting("--url", "The store; without it the app's own, else holdfast.db.")
]
Host = Annotated[str, setting("--host", "The address to serve at.")]
Port = Annotated[
    int, setting("--port", "The port to serve at; 0 takes any that is free.", min=0, max=65535)
]
AccessLog = Annotated[bool, setting("--access-log/--no-access-log", "Log every request.")]
Rate = Annotated[
    float, setting("--rate", "Requests a second that one token may make; 0: no limit.", min=0)
]
Burst = Annotated[int, setting("--burst", "How many of them may come at once.", min=1)]
Connections = Annotated[
    int, setting("--connections", "How many connections are held at once.", min=1)
]
Requests = Annotated[
    int,
    setting(
        "--requests",
        "How many requests are under way at once, long polls among them; a token has a fourth.",
        min=1,
    ),
]
Queues = Annotated[str, setting("--queues", "Queues to serve, by comma.")]
Concurrency = Annotated[
    int, setting("--concurrency", "How many jobs a process runs at once.", min=1, max=10_000)
]
Capabilities = Annotated[str, setting("--capabilities", "What jobs may need of it, by comma.")]
Grace = Annotated[
    float, setting("--grace", "Seconds that what is under way gets at SIGTERM.", min=0)
]
Poll = Annotated[
    float, setting("--poll", "Seconds between two looks for work without a hint.", min=0.01)
]
Tick = Annotated[
    float, setting("--tick", "Seconds between two sweeps that found nothing.", min=0.01)
]
Clean = Annotated[bool, setting("--clean/--no-clean", "Clean jobs whose term is over, too.")]
_KEEP = "How long {} is kept, such as 30d, or `forever`."
Keep = Annotated[str, setting("--keep", _KEEP.format("a job that succeeded"))]
KeepUnsuccessful = Annotated[
    str, setting("--keep-unsuccessful", _KEEP.format("any other ended job"))
]
KeepLetters = Annotated[
    str, setting("--keep-letters", _KEEP.format("a dead letter that nobody has settled"))
]
_PURGE = "How long the record of {} is kept after its end, such as 90d, or `forever`."
Purge = Annotated[str, setting("--purge", _PURGE.format("a job that succeeded"))]
PurgeUnsuccessful = Annotated[
    str, setting("--purge-unsuccessful", _PURGE.format("any other ended job"))
]
Webhooks = Annotated[bool, setting("--webhooks/--no-webhooks", "Tell webhooks of ends, too.")]
WebhooksAllow = Annotated[
    str,
    setting(
        "--webhooks-allow",
        "Networks that webhooks may lead to though they are not public, by comma: 10.1.0.0/16.",
    ),
]
MetricsPort = Annotated[
    int | None,
    setting(
        "--metrics-port",
        "Serve /metrics and /healthz there; each process one further up.",
        min=0,
        max=65535,
    ),
]
MetricsHost = Annotated[str, setting("--metrics-host", "On which address.")]
LogStyle = Annotated[LogFormat, setting("--log-format", "How log lines look.")]
LogLevel = Annotated[
    Severity, setting("--log-level", "What is logged at least.", case_sensitive=False)
]

HOST, PORT = "127.0.0.1", 8080


def words(text: str) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(word for part in text.split(",") if (word := part.strip()))
