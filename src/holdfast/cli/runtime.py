"""What runs a command: stores and servers opened by address, errors turned into exit codes."""

from __future__ import annotations

import asyncio
import getpass
import importlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import typer

from holdfast import errors as e
from holdfast.admission.topics import NO_TOPICS, Topics
from holdfast.app.app import Holdfast
from holdfast.cli.output import err, plain, print_note
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role
from holdfast.operations.local import LocalOperations
from holdfast.operations.request import Operations
from holdfast.operations.session import StoreSession
from holdfast.ports.store import Store
from holdfast.wiring import Address, make_store, opened, plan_blobs, read_address

log = logging.getLogger(__name__)

R = TypeVar("R")
FOUND_PROBLEMS, BAD_INPUT, STORE_FAILED, REFUSED = 1, 2, 3, 4
"""Exit codes, beside 0 for success."""

PATIENCE_SECONDS = 5.0
"""How long a person waits for a database that does not answer."""
LONGEST_PAUSE_SECONDS = 5.0
"""Between two tries of a command that keeps running."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn a HoldfastError into one line and an exit code."""
    try:
        yield
    except e.HoldfastError as error:
        print_error(error)
        raise typer.Exit(exit_code(error)) from error


def print_error(error: e.HoldfastError) -> None:
    """Print an error in one line."""
    err.print(f"[bold red]error[/] {error.code}: ", end="")
    # A message names jobs and queues, and anyone may have chosen those names.
    print_note(plain(error))


def exit_code(error: e.HoldfastError) -> int:
    """Return the exit code for this kind of error."""
    match error:
        case e.BadAddress() | e.BadConfig() | e.BadPolicy() | e.BadData():
            return BAD_INPUT
        case e.AddressBlocked() | e.NoSuchTask():
            return BAD_INPUT
        case e.Refused() | e.Unauthorized() | e.Forbidden():
            return REFUSED
        case e.StoreError() | e.ServerFailed() | e.RateLimited() | e.Overloaded():
            return STORE_FAILED
        case _:
            return FOUND_PROBLEMS


async def with_store(url: str, work: Callable[[Store], Awaitable[R]]) -> R:
    """Open the store and do the work."""
    if is_server(url):
        raise e.BadAddress("this command needs the address of a store, not of a server")
    address = read_address(url)
    check_exists(address)
    async with opened(address, deadline_seconds=PATIENCE_SECONDS) as store:
        return await work(store)


def is_server(url: str) -> bool:
    """Return whether an address is a server's, and not a store's."""
    return url.lower().startswith(("http://", "https://"))


async def with_operations(
    url: str,
    tenant: str | None,
    work: Callable[[Operations], Awaitable[R]],
    *,
    command_dir: Path | None = None,
    blobs: str | None = None,
    topics: Topics = NO_TOPICS,
) -> R:
    """Do work on the jobs of a store or of a server: for one tenant, or for all it may see."""
    if tenant is not None:
        check_text(tenant, "--tenant", limit=200)
    if is_server(url):
        with _explain_missing_client():
            from holdfast.client.remote import connected
        async with connected(
            url, token=_token(), tenant=tenant, patience_seconds=PATIENCE_SECONDS
        ) as operations:
            return await work(operations)

    async def on_store(store: Store) -> R:
        open_blobs = plan_blobs(blobs, command_dir)
        session = StoreSession(store, open_blobs=open_blobs)
        try:
            name = find_operator().name
            return await work(LocalOperations(session, name=name, tenant=tenant, topics=topics))
        finally:
            await session.batched.finish()

    return await with_store(url, on_store)


@contextmanager
def _explain_missing_client() -> Iterator[None]:
    """Explain a missing package: only a command that asks a server imports the client."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise e.BadAddress("asking a server needs: pip install 'holdfast[client]'") from error


def _token() -> str | None:
    return os.environ.get("HOLDFAST_TOKEN") or None


def find_operator() -> Actor:
    """Return who typed the command: the user's name, as far as the system knows it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "cli"
    return Actor(Role.CONTROL, name)


@asynccontextmanager
async def open_awaited_store(url: str) -> AsyncIterator[Store]:
    """Open a store for a command that keeps running: wait until its database answers."""
    address = read_address(url)
    check_exists(address)
    pause = 0.2
    while True:
        store = make_store(address)
        try:
            await store.open()
            break
        except e.StoreUnavailable as error:
            log.warning("the store does not answer yet, will retry: %s", error)
            await store.close()
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    try:
        yield store
    finally:
        await store.close()


def check_exists(address: Address) -> None:
    """Refuse a missing file: opening would create it, so that a typo would pass for success."""
    if address.engine != "sqlite" or address.place == ":memory:":
        return
    file = Path(address.place)
    if not file.exists() or (file.is_file() and file.stat().st_size == 0):
        raise e.NoSuchStore(
            f"there is no store at {address.place!r}; `holdfast migrate` creates one"
        )


def handle_signals(react: Callable[[], None]) -> None:
    """Call `react` at SIGTERM and SIGINT, instead of what was set before."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, react)


def load_app(
    reference: str,
    url: str | None = None,
    command_dir: Path | None = None,
    blobs: str | None = None,
    topics: Topics = NO_TOPICS,
) -> Holdfast:
    """Import the app that a reference names; if that fails, name the line at fault.

    It uses another store, directory of commands, place of blobs or other topics than its own where
    these are given.
    """
    module_name, _, name = reference.partition(":")
    name = name or "app"
    # As `python -m` does: a user's module is in the directory where the command is typed.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise typer.BadParameter(
            f"{reference} cannot be imported: "
            f"{_find_failing_line(error)}{type(error).__name__}: {error}",
            param_hint="MODULE:APP",
        ) from error
    app = getattr(module, name, None)
    if not isinstance(app, Holdfast):
        raise typer.BadParameter(
            f"{module_name} has no Holdfast app named {name!r}", param_hint="MODULE:APP"
        )
    if url is not None:
        app.use(url)
    app.command_dir = command_dir or app.command_dir
    app.blobs = blobs or app.blobs
    app.topics = topics if topics.routes else app.topics
    return app


def _find_failing_line(error: Exception) -> str:
    """Return the line of the app's own code that the import failed at, if it got that far."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    importers = (__file__, importlib.__file__)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in importers
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
