"""`holdfast completion`: the script by which a shell completes this command."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

NAME = "holdfast"
VARIABLE = "_HOLDFAST_COMPLETE"


class Shell(StrEnum):
    """A shell that can be told how to complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(completion)


def completion(
    shell: Annotated[Shell, typer.Argument(help="Which shell the script is for.")],
) -> None:
    """Print the completion script of a shell: `holdfast completion bash >> ~/.bashrc`."""
    typer.echo(get_completion_script(prog_name=NAME, complete_var=VARIABLE, shell=shell.value))
