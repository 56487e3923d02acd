"""The `holdfast` command: the one list of its commands, and the application made from it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from holdfast import __version__
from holdfast.cli import (
    approvals,
    artifacts,
    bridge,
    clean,
    config,
    dlq,
    jobs,
    ledger,
    logs,
    policy,
    queues,
    roles,
    run,
    show,
    store,
    submit,
    tokens,
    upload,
    uploads,
    watch,
    webhooks,
)
from holdfast.cli.options import as_command
from holdfast.cli.output import print_line
from holdfast.cli.runtime import exit_on_error

NAME = "holdfast"
COMPLETION_VARIABLE = "_HOLDFAST_COMPLETE"


class Shell(StrEnum):
    """A shell that a completion script can be printed for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(
    shell: Annotated[Shell, Argument(help="Which shell the script is for.")],
) -> None:
    """Print the completion script of a shell: `holdfast completion bash >> ~/.bashrc`."""
    script = get_completion_script(
        prog_name=NAME, complete_var=COMPLETION_VARIABLE, shell=shell.value
    )
    typer.echo(script)


GROUPS = {
    "epoch": "The epoch that claims are made under.",
    "seal": "The hash chain over events.",
    "quarantine": "Damaged jobs that are neither claimed nor swept.",
    "policy": "The policy: rules that every new job is judged by.",
    "queues": "Queues: depth by state, pause, resume.",
    "dlq": "Dead letters: jobs that could not be done.",
    "token": "Tokens: what each client may ask of a server.",
    "uploads": "Uploads: files that were sent for jobs.",
    "webhook": "Webhooks: addresses that are notified when jobs end or await an approval.",
}
COMMANDS: dict[str, Callable[..., None]] = {
    "up": roles.up,
    "serve": roles.serve,
    "reconcile": roles.reconcile,
    "worker": roles.worker,
    "bridge": bridge.bridge,
    "migrate": store.migrate,
    "verify": ledger.verify,
    "rebuild": ledger.rebuild,
    "epoch show": store.show_epoch,
    "epoch bump": store.bump_epoch,
    "seal on": store.seal_on,
    "seal anchor": store.seal_anchor,
    "seal off": store.seal_off,
    "doctor": store.doctor,
    "quarantine list": ledger.list_quarantined,
    "quarantine release": ledger.release_quarantined,
    "clean": clean.clean,
    "purge": ledger.purge,
    "submit": submit.submit_job,
    "run": run.run_command,
    "upload": upload.upload,
    "ls": jobs.list_jobs,
    "cancel": jobs.cancel_job,
    "signal": jobs.send_signal,
    "resolve": jobs.resolve_step,
    "why": jobs.explain_job,
    "hold": jobs.hold_job,
    "unhold": jobs.unhold_job,
    "reschedule": jobs.reschedule_job,
    "approvals": approvals.list_approvals,
    "approve": approvals.approve_job,
    "deny": approvals.deny_job,
    "show": show.show_job,
    "watch": watch.watch_jobs,
    "logs": logs.show_logs,
    "artifacts": artifacts.show_artifacts,
    "queues list": queues.list_queues,
    "queues pause": queues.pause_queue,
    "queues resume": queues.resume_queue,
    "workers": queues.list_workers,
    "limits": store.limits,
    "dlq list": dlq.list_letters,
    "dlq show": dlq.show_letter,
    "dlq redrive": dlq.redrive_letters,
    "dlq discard": dlq.discard_letters,
    "redrive": dlq.redrive_letters,
    "policy check": policy.check_policy,
    "policy test": policy.run_policy_cases,
    "policy explain": policy.explain_policy,
    "policy simulate": policy.simulate_policy,
    "policy apply": policy.apply_policy,
    "policy show": policy.show_policy,
    "policy history": policy.list_policies,
    "token create": tokens.create_token,
    "token ls": tokens.list_tokens,
    "token revoke": tokens.revoke_token,
    "uploads list": uploads.list_uploads,
    "uploads show": uploads.show_upload,
    "uploads remove": uploads.remove_upload,
    "webhook add": webhooks.add_webhook,
    "webhook ls": webhooks.list_webhooks,
    "webhook rm": webhooks.remove_webhook,
    "config": config.show_config,
    "completion": completion,
}
"""Every command, by the words that call it, in the order of the help."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"holdfast {__version__}")
        raise typer.Exit


def main(
    ctx: typer.Context,
    config_file: Annotated[
        Path | None,
        Option(
            "--config",
            envvar="HOLDFAST_CONFIG",
            help="The settings file; by default holdfast.toml here, if it exists.",
        ),
    ] = None,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable jobs: one lifecycle, enforced by the store."""
    with exit_on_error():
        config.apply_file(ctx, config_file)


def make_app() -> typer.Typer:
    """Make the application of all commands."""
    made = typer.Typer(name=NAME, no_args_is_help=True, pretty_exceptions_show_locals=False)
    made.callback()(main)
    groups: dict[str, typer.Typer] = {"": made}
    for words, function in COMMANDS.items():
        group, _, name = words.rpartition(" ")
        if group not in groups:
            groups[group] = typer.Typer(help=GROUPS[group], no_args_is_help=True)
            made.add_typer(groups[group], name=group)
        # `config COMMAND` takes whichever options that command takes.
        takes_any = name == "config"
        settings = {
            "allow_extra_args": takes_any,
            "ignore_unknown_options": takes_any,
            # What follows the program in `run PROGRAM -x` is the program's.
            "allow_interspersed_args": name != "run",
        }
        groups[group].command(name, context_settings=settings)(as_command(function))
    return made


app = make_app()


def run_command_line() -> None:
    """Run the command line, and end the process with its exit code.

    The library behind S3 has threads that may abort the process while the interpreter shuts down,
    after all is done: where it was loaded, the process ends before that.
    """
    try:
        app()
    except SystemExit as ended:
        if "obstore" not in sys.modules or isinstance(ended.code, str):
            raise
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code or 0)
