"""`holdfast quarantine`: jobs that were set aside because their row or events are damaged."""

from __future__ import annotations

import re
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
from holdfast.errors import BadData
from holdfast.flow.release_quarantined import Released, release_all, release_some
from holdfast.json_format import json_of
from holdfast.lifecycle.job import JobId
from holdfast.ports import Quarantine, Store
from holdfast.views import instant as timestamp

ID_DIGITS = 32
SEARCHED = 100_000
"""Jobs set aside that are searched for one whose id starts with some digits."""

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
                "internal_id": str(one.id),
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
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Internal ids of the jobs, or their first digits."),
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
    starts = [_digits(text) for text in jobs or []]

    async def work(store: Store) -> Released:
        if all_of_them:
            return await release_all(store)
        return await release_some(store, [await _set_aside(store, one) for one in starts])

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


def _digits(text: str) -> str:
    digits = text.replace("-", "").lower()
    if not _PREFIX.fullmatch(digits):
        raise typer.BadParameter(f"{text!r} is not an internal job id, nor the start of one")
    return digits


_PREFIX = re.compile(r"[0-9a-f]{8,32}", re.ASCII)


async def _set_aside(store: Store, digits: str) -> JobId:
    """Return the id of the job that is set aside and whose id starts with these digits."""
    if len(digits) == ID_DIGITS:
        return JobId(UUID(digits))
    jobs = (await store.quarantined(limit=SEARCHED)).jobs
    found = [one.id for one in jobs if one.id.hex.startswith(digits)]
    if len(found) != 1:
        which = "several jobs'" if found else "no job's"
        raise BadData(f"{which} id among those set aside starts with {digits}")
    return found[0]
