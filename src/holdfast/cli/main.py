"""The `holdfast` command: the application, and the one place where command modules join it."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast import __version__
from holdfast.cli import (
    completing,
    configuring,
    dead_letters,
    doctor,
    holds,
    jobs,
    ledger,
    limits,
    logs,
    purge,
    quarantine,
    queues,
    services,
    serving,
    show,
    signals,
    submit,
    tokens,
    watch,
    webhooks,
    why,
    worker,
    workers,
)
from holdfast.cli.app_option import accept_app
from holdfast.cli.running import telling

# A command module offers `register(app)`, which adds what it has; nothing joins in another way.
REGISTRATIONS: tuple[Callable[[typer.Typer], None], ...] = (
    serving.register,
    ledger.register,
    quarantine.register,
    purge.register,
    services.register,
    submit.register,
    jobs.register,
    show.register,
    watch.register,
    logs.register,
    queues.register,
    limits.register,
    dead_letters.register,
    signals.register,
    holds.register,
    tokens.register,
    webhooks.register,
    why.register,
    workers.register,
    worker.register,
    doctor.register,
    configuring.register,
    completing.register,
)

app = typer.Typer(
    name="holdfast",
    help="Durable jobs: one lifecycle, enforced by the store.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"holdfast {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def main(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="HOLDFAST_CONFIG",
            help="The settings file; without it, holdfast.toml here if there is one.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Durable jobs: one lifecycle, enforced by the store."""
    with telling():
        configuring.apply_file(ctx, config)


for register in REGISTRATIONS:
    register(app)
accept_app(app)
