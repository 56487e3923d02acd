"""Commands on the ledger itself: migrate, verify, rebuild, epoch, seal."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast import wiring
from holdfast.cli.running import (
    DEFAULT_URL,
    FOUND_PROBLEMS,
    AsJson,
    Url,
    address_of,
    counting,
    err,
    out,
    print_json,
    run,
    with_store,
)
from holdfast.cli.showing import plain, say
from holdfast.flow.anchor import anchors, read_anchors, write_anchor
from holdfast.flow.rebuild import Rebuilt
from holdfast.flow.rebuild import rebuild as rebuild_store
from holdfast.flow.verify import Problem, Report
from holdfast.flow.verify import verify as verify_store
from holdfast.ports import Store

epoch_app = typer.Typer(help="The epoch that claims are made under.", no_args_is_help=True)
seal_app = typer.Typer(help="The hash chain over events.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(migrate)
    app.command()(verify)
    app.command()(rebuild)
    app.add_typer(epoch_app, name="epoch")
    app.add_typer(seal_app, name="seal")


def migrate(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    beside_others: Annotated[
        bool,
        typer.Option("--beside-others", help="Go ahead where somebody else's tables are."),
    ] = False,
) -> None:
    """Bring the store's schema up to date. Safe to repeat, and to stop in between."""
    address = address_of(url)

    def tell(number: int, name: str) -> None:
        if not as_json:
            out.print(f"applying {number:04} {name}", markup=False)

    applied = run(wiring.migrate(address, progress=tell, beside_others=beside_others))
    if as_json:
        print_json({"applied": applied})
    else:
        out.print(f"applied {len(applied)}" if applied else "up to date")


def verify(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    anchor: Annotated[
        typer.FileText | None,
        typer.Option("--anchor", help="Compare with a file that `holdfast seal anchor` wrote."),
    ] = None,
) -> None:
    """Derive every job from its events again and compare: rows, keys, revisions, edges, seals.

    Also looks at queues, marks, tokens, webhooks and cursors.
    Runs beside live work. Exits with 1 if anything is wrong, and names the job.
    """
    problems: list[Problem] = []

    def note(problem: Problem) -> None:
        if as_json:
            problems.append(problem)
        else:
            whose = "ledger" if problem.id is None else f"job {problem.id}"
            say(err, f"{whose}: {plain(problem.text)}")

    async def work(store: Store) -> Report:
        with counting("verifying", await store.size(), quiet=quiet or as_json) as progress:
            anchored = None if anchor is None else read_anchors(anchor)
            return await verify_store(store, on_problem=note, progress=progress, anchored=anchored)

    report = run(with_store(url, work))
    if as_json:
        print_json(
            {
                "jobs": report.jobs,
                "events": report.events,
                "erased": report.erased,
                "problems": [
                    {"internal_id": None if one.id is None else str(one.id), "problem": one.text}
                    for one in problems
                ],
            }
        )
    else:
        _say_verified(report)
    if report.problems:
        raise typer.Exit(FOUND_PROBLEMS)


def _say_verified(report: Report) -> None:
    erased = f", {report.erased:,} bodies erased by retention" if report.erased else ""
    verdict = f"{report.problems:,} problems" if report.problems else "no problem"
    out.print(f"{report.jobs:,} jobs, {report.events:,} events{erased}: {verdict}")


def rebuild(
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it: no worker or server may run meanwhile.")
    ] = False,
) -> None:
    """Write the projection (rows, keys, summaries) anew from the events alone."""
    if not yes:
        err.print("Stop all workers and servers of this store first, then repeat with --yes.")
        raise typer.Exit(2)

    async def work(store: Store) -> Rebuilt:
        with counting("rebuilding", await store.size(), quiet=as_json) as progress:
            return await rebuild_store(store, progress=progress)

    report = run(with_store(url, work))
    if as_json:
        skipped = [str(id_) for id_ in report.skipped]
        print_json(
            {
                "jobs": report.jobs,
                "changed": report.changed,
                "freed": report.freed,
                "skipped": skipped,
                "busy": [str(id_) for id_ in report.busy],
            }
        )
    else:
        if report.freed:
            out.print(f"keys of no job, now freed: {report.freed:,}")
        out.print(f"{report.jobs:,} jobs rebuilt, {report.changed:,} of them were wrong")
        for id_ in report.skipped:
            err.print(f"job {id_}: left alone, its events cannot be read", markup=False)
        for id_ in report.busy:
            err.print(f"job {id_}: left alone, somebody writes it; stop all workers", markup=False)
    if report.skipped or report.busy:
        raise typer.Exit(FOUND_PROBLEMS)


@epoch_app.command("show")
def epoch_show(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the epoch."""

    async def work(store: Store) -> int:
        return (await store.clock()).epoch

    _say_epoch(run(with_store(url, work)), as_json)


@epoch_app.command("bump")
def epoch_bump(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Raise the epoch after a restore: whoever claimed before it is fenced.

    Feeds and webhooks go on where they were, also where the database is in another cluster now.
    """

    async def work(store: Store) -> int:
        return await store.bump_epoch()

    _say_epoch(run(with_store(url, work)), as_json)
    if not as_json:
        out.print("claims of earlier epochs are refused from now on")
        out.print("cursors of feeds and webhooks stay valid, also in another PostgreSQL cluster")


def _say_epoch(epoch: int, as_json: bool) -> None:
    if as_json:
        print_json({"epoch": epoch})
    else:
        out.print(f"epoch {epoch}")


@seal_app.command("on")
def seal_on(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Seal every event from now on: verify then finds one that was changed.

    Not a history that was cut or made anew as a whole: for that, keep an anchor elsewhere.
    """
    _seal(url, True, as_json)


@seal_app.command("anchor")
def seal_anchor(url: Url = DEFAULT_URL) -> None:
    """Write the last seal of every job, a line of JSON each, for `holdfast verify --anchor FILE`.

    Keep it where nobody who can write the store can change it. Runs beside live work.
    """

    async def work(store: Store) -> int:
        number = 0
        async for one in anchors(store):
            typer.echo(write_anchor(one))
            number += 1
        return number

    err.print(f"anchored {run(with_store(url, work)):,} jobs")


@seal_app.command("off")
def seal_off(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Seal no further events; those that are sealed stay checked."""
    _seal(url, False, as_json)


def _seal(url: str, on: bool, as_json: bool) -> None:
    async def work(store: Store) -> None:
        await store.set_sealing(on)

    run(with_store(url, work))
    if as_json:
        print_json({"sealing": on})
    else:
        out.print(f"sealing {'on' if on else 'off'}")
