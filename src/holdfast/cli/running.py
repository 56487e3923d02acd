"""What all commands share: the store's address, exit codes, errors told in one way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from holdfast.cli.showing import plain, say
from holdfast.errors import BadAddress, BadData, HoldfastError, NoSuchStore, Refused, StoreError
from holdfast.ports import Store
from holdfast.wiring import Address, opened, read_address

R = TypeVar("R")
FOUND_PROBLEMS, BAD_INPUT, STORE_FAILED, REFUSED = 1, 2, 3, 4
"""Exit codes, beside 0 for success."""

PATIENCE_SECONDS = 5.0
"""How long a person waits for a database that does not answer."""

DEFAULT_URL = "holdfast.db"
Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="HOLDFAST_URL",
        help="The store: a SQLite file, sqlite:///path, or postgresql://user@host/database.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def run(work: Awaitable[R]) -> R:
    """Run a command's work; an error of ours becomes one line and an exit code."""

    async def main() -> R:
        return await work

    with telling():
        return asyncio.run(main())


@contextmanager
def telling() -> Iterator[None]:
    """Make an error of ours one line and an exit code."""
    try:
        yield
    except HoldfastError as error:
        err.print(f"[bold red]error[/] {error.reason_code}: ", end="")
        # A message names jobs and queues, and those are named by anybody.
        say(err, plain(error))
        raise typer.Exit(exit_code(error)) from error


def exit_code(error: HoldfastError) -> int:
    """Tell a script what kind of failure it was."""
    match error:
        case BadAddress() | BadData():
            return BAD_INPUT
        case Refused():
            return REFUSED
        case StoreError():
            return STORE_FAILED
        case _:
            return FOUND_PROBLEMS


def address_of(url: str) -> Address:
    """Read the address; a bad one ends the command."""

    with telling():
        return read_address(url)


async def with_store(url: str, work: Callable[[Store], Awaitable[R]]) -> R:
    """Open the store and do the work."""
    address = read_address(url)
    check_there(address)
    async with opened(address, deadline_seconds=PATIENCE_SECONDS) as store:
        return await work(store)


def check_there(address: Address) -> None:
    """Refuse a file that is not there: opening makes one, so that a typo would pass for success."""
    if address.engine != "sqlite" or address.place == ":memory:":
        return
    file = Path(address.place)
    if not file.exists() or (file.is_file() and file.stat().st_size == 0):
        raise NoSuchStore(f"there is no store at {address.place!r}; `holdfast migrate` makes one")


def print_json(value: Any) -> None:
    """Print for machines: one JSON object, no colours, no wrapping."""
    typer.echo(json.dumps(value))


@contextmanager
def counting(what: str, total: int | None, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how far a long command is; on stderr, so that it never mixes with the answer."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, disable=quiet or not err.is_terminal) as bar:
        task = bar.add_task(what, total=total or None)
        yield lambda done: bar.update(task, completed=done)
