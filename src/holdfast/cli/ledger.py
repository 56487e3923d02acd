"""Commands on the ledger: verify it, rebuild rows from it, purge old jobs, release damaged ones."""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

import typer
from typer import Argument, Option

from holdfast.cli.options import StoreCommand
from holdfast.cli.output import plain, print_note, progress_bar, time_text
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS
from holdfast.cli.settings import CommandFileOptions, PurgeOptions
from holdfast.durations import instant
from holdfast.errors import BadData
from holdfast.flow.blobs_on_demand import BlobsOnDemand
from holdfast.flow.purge import Purged, purge_all
from holdfast.lifecycle.record import Actor, JobId
from holdfast.lifecycle.states import Role
from holdfast.maintenance.anchor import read_anchors
from holdfast.maintenance.rebuild import Rebuilt
from holdfast.maintenance.rebuild import rebuild as rebuild_store
from holdfast.maintenance.release_quarantined import Released, release_all, release_some
from holdfast.maintenance.verify import LedgerProblem, Verified
from holdfast.maintenance.verify import verify as verify_store
from holdfast.ports.store import Store
from holdfast.queries.why.phrases import count
from holdfast.services.upkeep import process_name

ID_DIGITS = 32
SEARCHED = 100_000
"""Quarantined jobs that are searched for one whose id starts with some digits."""


def verify(
    command: StoreCommand,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress bar.")] = False,
    anchor: Annotated[
        typer.FileText | None, Option(help="Compare with a file that `holdfast seal anchor` wrote.")
    ] = None,
) -> None:
    """Derive every job from its events and compare: rows, keys, revisions, edges, seals.

    Also checks queues, marks, tokens, webhooks and cursors. Runs beside live work. Exits with 1 if
    anything is wrong, and names the job.
    """
    problems: list[LedgerProblem] = []

    def report_problem(problem: LedgerProblem) -> None:
        if command.as_json:
            problems.append(problem)
        else:
            whose = "ledger" if problem.id is None else f"job {problem.id}"
            print_note(f"{whose}: {plain(problem.text)}")

    async def work(store: Store) -> Verified:
        size, hidden = await store.size(), quiet or command.as_json
        with progress_bar("verifying", size, quiet=hidden) as progress:
            anchored = None if anchor is None else read_anchors(anchor)
            return await verify_store(
                store, on_problem=report_problem, progress=progress, anchored=anchored
            )

    report = command.on_store(work)
    erased = f", {report.erased:,} bodies erased by retention" if report.erased else ""
    verdict = count(report.problems, "problem") if report.problems else "no problem"
    counts = f"{count(report.jobs, 'job')}, {count(report.events, 'event')}"
    answer = {
        "jobs": report.jobs,
        "events": report.events,
        "erased": report.erased,
        "problems": [{"internal_id": one.id, "problem": one.text} for one in problems],
    }
    command.show(answer, f"{counts}{erased}: {verdict}")
    if report.problems:
        raise typer.Exit(FOUND_PROBLEMS)


def rebuild(
    command: StoreCommand,
    yes: Annotated[
        bool, Option("--yes", help="Confirm that no worker or server is running.")
    ] = False,
) -> None:
    """Write rows, keys and summaries again from the events alone."""
    if not yes:
        print_note("Stop all workers and servers of this store first, then repeat with --yes.")
        raise typer.Exit(BAD_INPUT)

    async def work(store: Store) -> Rebuilt:
        with progress_bar("rebuilding", await store.size(), quiet=command.as_json) as progress:
            return await rebuild_store(store, progress=progress)

    report = command.on_store(work)
    freed = [f"keys of no job, now freed: {report.freed:,}"] if report.freed else []
    line = f"{count(report.jobs, 'job')} rebuilt, {report.changed:,} of them were wrong"
    unread = [f"job {id_}: left alone, its events cannot be read" for id_ in report.skipped]
    busy = [f"job {id_}: left alone, it is being written; stop all workers" for id_ in report.busy]
    command.show(report, *freed, line, notes=[*unread, *busy])
    if report.skipped or report.busy:
        raise typer.Exit(FOUND_PROBLEMS)


def purge(
    command: StoreCommand,
    terms: PurgeOptions,
    *,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only count the jobs that would be removed now.")
    ] = False,
    log: Annotated[bool, Option("--log", help="Only list past purges, newest first.")] = False,
    files: CommandFileOptions,
) -> None:
    """Remove whole jobs whose record's term is over: rows, events, logs. Runs beside live work.

    Their ids stay known: asked for one, Holdfast answers that it was purged. Exits with 1 if a job
    could not be removed.
    """
    if log:
        _show_purges(command)
        return
    kept, plan = terms.purge_terms(), files.plan_upkeep(command)
    actor = Actor(Role.JANITOR, process_name())

    async def work(store: Store) -> Purged:
        with progress_bar("purging", await store.size(), quiet=command.as_json) as progress:
            return await purge_all(
                store,
                actor,
                kept,
                blobs=BlobsOnDemand(store, plan).get,
                dry_run=dry_run,
                on_look=lambda total: progress(total.looked),
            )

    done = command.on_store(work)
    answer = {
        "dry_run": dry_run,
        "purged": done.purged,
        "kept": done.kept,
        "given_back_bytes": done.bytes,
        "failed": done.failed,
    }
    notes = [f"job {id_}: {plain(why)}" for id_, why in done.failed.items()]
    command.show(answer, *_purge_lines(done, dry_run=dry_run), notes=notes)
    if done.failed:
        raise typer.Exit(FOUND_PROBLEMS)


def _purge_lines(done: Purged, *, dry_run: bool) -> list[str]:
    verb = "would purge" if dry_run else "purged"
    ends = ", ".join(f"{jobs:,} {state}" for state, jobs in sorted(done.purged.items()))
    lines = [f"{verb} {count(done.jobs, 'job')}{f' ({ends})' if ends else ''}"]
    if done.kept:
        why = "jobs that are linked to them stay, or their logs and artifacts cannot be erased"
        lines.append(f"kept {done.kept:,} more: {why}")
    if done.bytes:
        lines.append(f"gave {done.bytes / 1e6:,.1f} MB back to the file system")
    return lines


def _show_purges(command: StoreCommand) -> None:
    found = command.on_store(lambda store: store.purges())
    lines = [
        f"{one.number}  {time_text(one.at)}  {count(one.jobs, 'job')}, "
        f"{count(one.events, 'event')}  by {plain(one.actor)}: {plain(one.reason)}"
        for one in found
    ]
    command.show({"purges": found}, *lines, notes=[] if found else ["no purges yet"])


def list_quarantined(
    command: StoreCommand,
    limit: Annotated[int, Option(min=1, help="Maximum jobs to list.")] = 100,
) -> None:
    """List quarantined jobs, and why each is quarantined."""
    found = command.on_store(lambda store: store.quarantined(limit=limit))
    jobs = [
        {"internal_id": one.id, "since": instant(one.since), "reason": one.reason}
        for one in found.jobs
    ]
    lines = [f"{one.id}  since {time_text(one.since)}  {plain(one.reason)}" for one in found.jobs]
    notes = [] if found.total else ["no job is quarantined"]
    if found.total > len(found.jobs):
        notes = [f"{len(found.jobs):,} of {found.total:,}; use --limit for more"]
    command.show({"jobs": jobs, "total": found.total}, *lines, notes=notes)


def release_quarantined(
    command: StoreCommand,
    jobs: Annotated[
        list[str] | None,
        Argument(metavar="[ID]...", help="Internal ids of the jobs, or their first digits."),
    ] = None,
    every: Annotated[
        bool, Option("--all", help="Every quarantined job that can be read again.")
    ] = False,
) -> None:
    """Release repaired jobs, so that they are claimed and swept again.

    A job that is still damaged stays in quarantine. Exits with 1 if there was one.
    """
    if bool(jobs) == every:
        raise typer.BadParameter("name the jobs to release, or use --all")
    starts = [_read_digits(text) for text in jobs or []]

    async def work(store: Store) -> Released:
        if every:
            return await release_all(store)
        return await release_some(store, [await _find_quarantined(store, one) for one in starts])

    done = command.on_store(work)
    notes = [f"job {id_} is still damaged: {plain(why)}" for id_, why in done.damaged.items()]
    command.show(done, f"released {len(done.released):,}", notes=notes)
    if done.damaged:
        raise typer.Exit(FOUND_PROBLEMS)


def _read_digits(text: str) -> str:
    digits = text.replace("-", "").lower()
    if not re.fullmatch(r"[0-9a-f]{8,32}", digits, re.ASCII):
        raise typer.BadParameter(f"{text!r} is not an internal job id, nor the start of one")
    return digits


async def _find_quarantined(store: Store, digits: str) -> JobId:
    """Return the id of the quarantined job whose id starts with these digits."""
    if len(digits) == ID_DIGITS:
        return JobId(UUID(digits))
    jobs = (await store.quarantined(limit=SEARCHED)).jobs
    found = [one.id for one in jobs if one.id.hex.startswith(digits)]
    if len(found) != 1:
        which = (
            "several quarantined jobs have ids that start"
            if found
            else "no quarantined job's id starts"
        )
        raise BadData(f"{which} with {digits}")
    return found[0]
