"""`holdfast quarantine`: jobs that were set aside because their row or events are damaged."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from holdfast.cli.running import (
    DEFAULT_URL,
    FOUND_PROBLEMS,
    AsJson,
    Url,
    err,
    out,
    print_json,
    run,
    with_store,
)
from holdfast.cli.showing import instant, plain, say
from holdfast.flow.release_quarantined import Released, release_all, release_some
from holdfast.json_format import json_of
from holdfast.lifecycle.job import JobId
from holdfast.ports import Quarantine, Store
from holdfast.views import instant as timestamp

quarantine_app = typer.Typer(
    help="Damaged jobs that were set aside: not claimed, not swept.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(quarantine_app, name="quarantine")


@quarantine_app.command("list")
def list_(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum jobs to list.")] = 100,
) -> None:
    """List the jobs that are set aside, and why."""

    async def work(store: Store) -> Quarantine:
        return await store.quarantined(limit=limit)

    found = run(with_store(url, work))
    if as_json:
        jobs = [
            {
                "job": str(one.id),
                "since": json_of(timestamp(one.since)),
                "reason": one.reason,
            }
            for one in found.jobs
        ]
        print_json({"jobs": jobs, "total": found.total})
        return
    for one in found.jobs:
        say(out, f"{one.id}  since {instant(one.since)}  {plain(one.reason)}")
    if found.total > len(found.jobs):
        say(err, f"{len(found.jobs):,} of {found.total:,}; use --limit for more")
    elif not found.total:
        say(err, "no job is set aside")


@quarantine_app.command("release")
def release(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Internal ids of the jobs.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    all_of_them: Annotated[
        bool, typer.Option("--all", help="Every job that is set aside and can be read again.")
    ] = False,
) -> None:
    """Release repaired jobs, so that they are claimed and swept again.

    A job that is still damaged stays where it is. Exits with 1 if there was one.
    """
    if bool(jobs) == all_of_them:
        raise typer.BadParameter("name the jobs to release, or use --all")
    ids = [_id(text) for text in jobs or []]

    async def work(store: Store) -> Released:
        return await (release_all(store) if all_of_them else release_some(store, ids))

    done = run(with_store(url, work))
    if as_json:
        damaged = {str(id_): problem for id_, problem in done.damaged.items()}
        print_json({"released": [str(id_) for id_ in done.released], "damaged": damaged})
    else:
        say(out, f"released {len(done.released):,}")
        for id_, problem in done.damaged.items():
            say(err, f"job {id_} is still damaged: {plain(problem)}")
    if done.damaged:
        raise typer.Exit(FOUND_PROBLEMS)


def _id(text: str) -> JobId:
    try:
        return JobId(UUID(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not an internal job id (a UUID)") from error
