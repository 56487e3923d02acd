"""`holdfast purge`: remove old jobs whole, by hand; `reconcile` and `up` do so by themselves."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.housekeeping import caretaker, read_purge_terms
from holdfast.cli.running import (
    DEFAULT_URL,
    FOUND_PROBLEMS,
    AsJson,
    Url,
    counting,
    err,
    out,
    print_json,
    run,
    telling,
    with_store,
)
from holdfast.cli.settings import Purge, PurgeUnsuccessful
from holdfast.cli.showing import instant, plain, say
from holdfast.flow.purge import Purged, purge_all
from holdfast.json_format import json_of
from holdfast.lifecycle.job import Actor
from holdfast.lifecycle.states import Role
from holdfast.ports import PurgeEntry, Store
from holdfast.views import instant as timestamp


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(purge)


def purge(
    *,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; count what would be removed now.")
    ] = False,
    purge: Purge = "90d",
    purge_unsuccessful: PurgeUnsuccessful = "365d",
    log: Annotated[
        bool, typer.Option("--log", help="Change nothing; show the ledger of purges, newest first.")
    ] = False,
) -> None:
    """Remove jobs whole whose record's term is over: rows, events, logs. Runs beside live work.

    Their ids stay known: whoever asks for one is told that it was purged. Exits with 1 if a job
    could not be removed.
    """
    if log:
        _show_log(url, as_json)
        return
    with telling():
        terms = read_purge_terms(purge, purge_unsuccessful)
    actor = Actor(Role.JANITOR, caretaker())

    async def work(store: Store) -> Purged:
        with counting("purging", await store.size(), quiet=as_json) as progress:
            return await purge_all(
                store,
                actor,
                terms,
                dry_run=dry_run,
                on_look=lambda total: progress(total.looked),
            )

    _say(run(with_store(url, work)), dry_run=dry_run, as_json=as_json)


def _say(done: Purged, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "purged": {state.value: jobs for state, jobs in done.purged.items()},
                "kept": done.kept,
                "given_back_bytes": done.bytes,
                "failed": {str(id_): problem for id_, problem in done.failed.items()},
            }
        )
    else:
        verb = "would purge" if dry_run else "purged"
        ends = ", ".join(f"{jobs:,} {state}" for state, jobs in sorted(done.purged.items()))
        say(out, f"{verb} {done.jobs:,} jobs{f' ({ends})' if ends else ''}")
        if done.kept:
            say(out, f"kept {done.kept:,} more: jobs of their families are linked to them or stay")
        if done.bytes:
            say(out, f"gave {done.bytes / 1e6:,.1f} MB back to the file system")
        for id_, problem in done.failed.items():
            say(err, f"job {id_}: {plain(problem)}")
    if done.failed:
        raise typer.Exit(FOUND_PROBLEMS)


def _show_log(url: str, as_json: bool) -> None:
    async def work(store: Store) -> list[PurgeEntry]:
        return await store.purges()

    found = run(with_store(url, work))
    if as_json:
        print_json({"purges": [_entry(one) for one in found]})
        return
    for one in found:
        said = f"{one.number}  {instant(one.at)}  {one.jobs:,} jobs, {one.events:,} events"
        say(out, f"{said}  by {plain(one.actor)}: {plain(one.reason or '')}")


def _entry(one: PurgeEntry) -> dict[str, Any]:
    return {
        "number": one.number,
        "at": json_of(timestamp(one.at)),
        "actor": one.actor,
        "reason": one.reason,
        "jobs": one.jobs,
        "events": one.events,
    }
