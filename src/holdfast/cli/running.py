"""What all commands share: the store's address, exit codes, errors told in one way."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
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

from holdfast.cli.asking import operator
from holdfast.cli.showing import plain, say
from holdfast.errors import (
    AddressBlocked,
    BadAddress,
    BadConfig,
    BadData,
    Forbidden,
    HoldfastError,
    NoSuchStore,
    NoSuchTask,
    Overloaded,
    RateLimited,
    Refused,
    ServerFailed,
    StoreError,
    StoreUnavailable,
    Unauthorized,
)
from holdfast.json_format import json_of
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.payload import check_text
from holdfast.local import LocalOperations
from holdfast.operations import Operations
from holdfast.ports import Store
from holdfast.services.session import Session
from holdfast.tokens import TokenDesk, TokenOperations
from holdfast.views import JobView
from holdfast.wiring import Address, make_store, opened, read_address

log = logging.getLogger(__name__)

R = TypeVar("R")
FOUND_PROBLEMS, BAD_INPUT, STORE_FAILED, REFUSED = 1, 2, 3, 4
"""Exit codes, beside 0 for success."""

PATIENCE_SECONDS = 5.0
"""How long a person waits for a database that does not answer."""
LONGEST_PAUSE_SECONDS = 5.0
"""Between two tries of a command that lasts."""

DEFAULT_URL = "holdfast.db"
Url = Annotated[
    str,
    typer.Option(
        "--url",
        envvar="HOLDFAST_URL",
        help="The store: a SQLite file, sqlite:///path or postgresql://user@host/database; "
        "or a server: http(s)://host, with its token in HOLDFAST_TOKEN.",
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
        tell(error)
        raise typer.Exit(exit_code(error)) from error


def tell(error: HoldfastError) -> None:
    """Print an error of ours in one line."""
    err.print(f"[bold red]error[/] {error.code}: ", end="")
    # A message names jobs and queues, and those are named by anybody.
    say(err, plain(error))


def exit_code(error: HoldfastError) -> int:
    """Tell a script what kind of failure it was."""
    match error:
        case BadAddress() | BadConfig() | BadData() | AddressBlocked() | NoSuchTask():
            return BAD_INPUT
        case Refused() | Unauthorized() | Forbidden():
            return REFUSED
        case StoreError() | ServerFailed() | RateLimited() | Overloaded():
            return STORE_FAILED
        case _:
            return FOUND_PROBLEMS


def address_of(url: str) -> Address:
    """Read the address; a bad one ends the command."""

    with telling():
        return read_address(url)


async def with_store(url: str, work: Callable[[Store], Awaitable[R]]) -> R:
    """Open the store and do the work."""
    if is_server(url):
        raise BadAddress("this command works on a store, not through a server: give its address")
    address = read_address(url)
    check_there(address)
    async with opened(address, deadline_seconds=PATIENCE_SECONDS) as store:
        return await work(store)


def is_server(url: str) -> bool:
    """Whether an address is a server's, and not a store's."""
    return url.lower().startswith(("http://", "https://"))


async def with_operations(
    url: str, tenant: str | None, work: Callable[[Operations], Awaitable[R]]
) -> R:
    """Do work on the jobs of a store or of a server: for one tenant, or for all one may see."""
    if is_server(url):
        return await _on_server(url, tenant, work)

    async def on_store(store: Store) -> R:
        session = Session(store)
        try:
            return await work(
                LocalOperations(session, name=operator().name, tenant=_tenant(tenant))
            )
        finally:
            await session.together.finish()

    return await with_store(url, on_store)


async def _on_server(url: str, tenant: str | None, work: Callable[[Operations], Awaitable[R]]) -> R:
    with _client():
        from holdfast.client.connecting import connected
    async with connected(
        url, token=_token(), tenant=_tenant(tenant), patience_seconds=PATIENCE_SECONDS
    ) as operations:
        return await work(operations)


async def with_tokens(url: str, work: Callable[[TokenOperations], Awaitable[R]]) -> R:
    """Do work on the tokens of a store, or on those that a server gives one a say over."""
    if is_server(url):
        with _client():
            from holdfast.client.connecting import connected_tokens
        async with connected_tokens(
            url, token=_token(), patience_seconds=PATIENCE_SECONDS
        ) as tokens:
            return await work(tokens)

    async def on_store(store: Store) -> R:
        return await work(TokenDesk(store, actor=operator().label))

    return await with_store(url, on_store)


@contextmanager
def _client() -> Iterator[None]:
    """Import what asks a server only there: no store needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise BadAddress("to ask a server: pip install 'holdfast[client]'") from error


def _token() -> str | None:
    return os.environ.get("HOLDFAST_TOKEN") or None


def _tenant(tenant: str | None) -> str | None:
    return None if tenant is None else check_text(tenant, "--tenant", limit=200)


async def with_awaited_store(url: str, work: Callable[[Store], Awaitable[R]]) -> R:
    """Do work that lasts: a database that does not answer yet is waited for."""
    address = read_address(url)
    check_there(address)
    pause = 0.2
    while True:
        store = make_store(address)
        try:
            await store.open()
            break
        except StoreUnavailable as error:
            log.warning("the store does not answer yet, will try again: %s", error)
            await store.close()
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    try:
        return await work(store)
    finally:
        await store.close()


def on_signals(react: Callable[[], None]) -> None:
    """Do so at SIGTERM and SIGINT, instead of what was done before."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, react)


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


def print_job(job: Job, **more: Any) -> None:
    """Print a job for machines, as HTTP answers with it, and what else is to be known."""
    print_json(json_of(JobView.of(job)) | more)


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
