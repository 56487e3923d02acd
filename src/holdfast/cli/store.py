"""Commands on the store itself: migrate, limits, epoch, seal, doctor."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from typer import Option

from holdfast import wiring
from holdfast.blobs.place import BlobPlace
from holdfast.cli.options import StoreCommand, StoreOptions
from holdfast.cli.output import plain, print_line, print_note
from holdfast.cli.runtime import (
    FOUND_PROBLEMS,
    is_server,
    with_operations,
    with_store,
)
from holdfast.cli.settings import CommandFileOptions
from holdfast.config import mask_secrets
from holdfast.errors import HoldfastError
from holdfast.flow.blobs_on_demand import BlobsPlan
from holdfast.maintenance.anchor import list_anchors, write_anchor
from holdfast.maintenance.blob_health import examine_blobs
from holdfast.maintenance.cleaning_health import examine_cleaning
from holdfast.maintenance.health import (
    examine_clock,
    examine_quarantine,
    examine_sweeps,
    examine_times,
    examine_work,
)
from holdfast.maintenance.host_health import examine_host
from holdfast.maintenance.policy_health import examine_policy
from holdfast.operations.request import Operations
from holdfast.ports.models import Limits
from holdfast.ports.store import Store
from holdfast.queries.box_files import choose_directory, find_root
from holdfast.queries.why.phrases import count
from holdfast.stores.findings import Finding, FindingSeverity, fine, problem
from holdfast.stores.side_tables import BYTES_LIMIT
from holdfast.stores.tenant_limits import MOST_SIGNALS


def migrate(
    command: StoreCommand,
    beside_others: Annotated[
        bool, Option("--beside-others", help="Create the schema even beside tables of others.")
    ] = False,
) -> None:
    """Bring the store's schema up to date. Safe to repeat, and to interrupt."""
    address = wiring.read_address(command.address)

    def report(number: int, name: str) -> None:
        if not command.as_json:
            print_line(f"applying {number:04} {name}")

    applied = asyncio.run(wiring.migrate(address, progress=report, beside_others=beside_others))
    command.show({"applied": applied}, f"applied {len(applied)}" if applied else "up to date")


def limits(  # noqa: PLR0917  one option per limit
    command: StoreCommand,
    queues: Annotated[
        int | None, Option(min=1, help="Set how many queues a tenant may have.")
    ] = None,
    needs: Annotated[
        int | None, Option(min=1, help="Set how many sets of needs a tenant may have.")
    ] = None,
    signals: Annotated[
        int | None,
        Option(
            min=1,
            max=MOST_SIGNALS,
            help="Set how many pending signals a job may have.",
        ),
    ] = None,
    upload_bytes: Annotated[
        int | None, Option(min=1, max=BYTES_LIMIT, help="Set how many bytes an upload may have.")
    ] = None,
    tenant_upload_bytes: Annotated[
        int | None,
        Option(min=1, max=BYTES_LIMIT, help="Set how many bytes all uploads of a tenant may have."),
    ] = None,
) -> None:
    """Show or set how many queues, needs and bytes of uploads a tenant may have, and signals a job.

    A submit that would add one more name is refused (too_many_names), and so is a signal to a job
    that has as many unconsumed ones (too_many_signals). Writing more to an upload is refused, too
    (upload_too_large, upload_quota_exceeded). What there is stays.
    """
    given = {
        "queues": queues,
        "needs": needs,
        "signals": signals,
        "upload_bytes": upload_bytes,
        "tenant_upload_bytes": tenant_upload_bytes,
    }
    changes = {name: number for name, number in given.items() if number is not None}

    async def work(store: Store) -> Limits:
        found = await store.limits()
        if changes:
            found = replace(found, **changes)
            await store.set_limits(found)
        return found

    found = command.on_store(work)
    command.show(
        found,
        f"queues per tenant: {found.queues:,}",
        f"sets of needs per tenant: {found.needs:,}",
        f"pending signals per job: {found.signals:,}",
        f"bytes per upload: {found.upload_bytes:,}",
        f"bytes of uploads per tenant: {found.tenant_upload_bytes:,}",
    )


def show_epoch(command: StoreCommand) -> None:
    """Show the epoch."""

    async def work(store: Store) -> int:
        return (await store.clock()).epoch

    epoch = command.on_store(work)
    command.show({"epoch": epoch}, f"epoch {epoch}")


def bump_epoch(command: StoreCommand) -> None:
    """Raise the epoch after a restore: claims from before it are fenced.

    Feeds and webhooks continue where they were, even if the database is in another cluster now.
    """
    epoch = command.on_store(lambda store: store.bump_epoch())
    command.show(
        {"epoch": epoch},
        f"epoch {epoch}",
        "claims of earlier epochs are refused from now on",
        "cursors of feeds and webhooks stay valid, also in another PostgreSQL cluster",
    )


def seal_on(command: StoreCommand) -> None:
    """Seal every event from now on, so that `verify` finds one that was changed.

    It does not find a history that was cut or rewritten as a whole: for that, keep an anchor
    elsewhere.
    """
    _seal(command, True)


def seal_off(command: StoreCommand) -> None:
    """Seal no further events; sealed ones are still checked."""
    _seal(command, False)


def _seal(command: StoreCommand, on: bool) -> None:
    command.on_store(lambda store: store.set_sealing(on))
    command.show({"sealing": on}, f"sealing {'on' if on else 'off'}")


def seal_anchor(command: StoreOptions) -> None:
    """Write the last seal of every job, a line of JSON each, for `holdfast verify --anchor FILE`.

    Keep it where no one who can write the store can change it. Runs beside live work.
    """

    async def work(store: Store) -> int:
        number = 0
        async for one in list_anchors(store):
            typer.echo(write_anchor(one))
            number += 1
        return number

    print_note(f"anchored {count(command.on_store(work), 'job')}")


MARKS = {
    FindingSeverity.OK: "ok     ",
    FindingSeverity.WARNING: "warning",
    FindingSeverity.PROBLEM: "problem",
}


def doctor(
    command: StoreCommand,
    commands: Annotated[
        bool,
        Option("--commands", help="Check that this host can run commands, though none ran here."),
    ] = False,
    *,
    files: CommandFileOptions,
) -> None:
    """Check database, migrations, clock, disk and workers, and print how to fix what is wrong.

    Where logs, artifacts and uploads are kept is checked as well and, on a host that has run
    commands, their directory and runners. Changes nothing.
    On a server's address, checks what can be seen through the server.
    """
    url = command.address
    if is_server(url):
        found = asyncio.run(_examine_server(url))
    else:
        directory = choose_directory(command.command_dir(files.command_dir))
        place = wiring.find_place(command.blobs(files.blobs), directory)
        plan = files.plan_upkeep(command)
        found = asyncio.run(_examine_store(url, directory, place, plan, always=commands))
    if not command.as_json:
        print_note(f"examining {plain(mask_secrets('url', url))}")
    command.show({"findings": found}, *(line for one in found for line in _finding_lines(one)))
    if any(one.verdict is FindingSeverity.PROBLEM for one in found):
        raise typer.Exit(FOUND_PROBLEMS)


def _finding_lines(finding: Finding) -> list[str]:
    lines = [f"{MARKS[finding.verdict]}  {finding.check}: {plain(finding.text)}"]
    return lines if finding.mend is None else [*lines, f"         → {plain(finding.mend)}"]


async def _examine_store(
    url: str, directory: Path, place: BlobPlace, plan: BlobsPlan, *, always: bool
) -> list[Finding]:
    found = await wiring.examine(wiring.read_address(url))
    if any(one.verdict is FindingSeverity.PROBLEM for one in found):
        # What follows needs a store that can be opened.
        return found
    try:
        for examine in (examine_sweeps, examine_clock, examine_times, examine_quarantine):
            found.append(await with_store(url, examine))
        found += await with_store(url, examine_policy)
        found += await with_operations(url, None, _examine_work)
        open_place = partial(wiring.open_place, place)
        found += await with_store(url, partial(examine_blobs, place=place, open_place=open_place))
        found += await with_store(url, partial(examine_cleaning, plan=plan))
        root = await with_store(url, partial(find_root, directory=directory))
        return found + await _examine_host(root, always=always)
    except HoldfastError as error:
        text = f"{error.code}: {error}"
        return [*found, problem("database", text, "look up the code in docs/http.md, under Codes")]


async def _examine_host(root: Path, *, always: bool) -> list[Finding]:
    if not (always or await asyncio.to_thread(root.is_dir)):
        return [fine("commands", "this host has run none; --commands checks that it could")]
    return await examine_host(root, wiring.list_runner_checks())


async def _examine_server(url: str) -> list[Finding]:
    try:
        found = await with_operations(url, None, _examine_work)
    except HoldfastError as error:
        fix = "check that it runs (`holdfast serve`), its address, and the token in HOLDFAST_TOKEN"
        return [problem("server", f"{error.code}: {error}", fix)]
    return [fine("server", "it answers"), *found]


async def _examine_work(operations: Operations) -> list[Finding]:
    # The one question that is about this machine's clock.
    own_clock = time.time()  # noqa: TID251
    return await examine_work(operations, own_clock)
