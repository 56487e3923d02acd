"""`holdfast watch`: jobs as they change, until Ctrl-C; or some of them, until they have ended.

On a terminal a table that is drawn again and again; anywhere else, a line for each change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Annotated, TypeAlias

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from holdfast.cli.options import (
    JobCommand,
    Limit,
    OfQueue,
    OfState,
    OfTask,
    check_texts,
    find_job,
    read_state,
)
from holdfast.cli.output import out, plain, print_json, print_line, print_note, short, time_text
from holdfast.cli.progress import ProgressReader, progress_text
from holdfast.cli.runtime import FOUND_PROBLEMS
from holdfast.errors import ServerFailed, StoreUnavailable
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import LIVE, OWNED, PHASES, Phase, State
from holdfast.operations import requests as q
from holdfast.operations.json_format import json_of
from holdfast.operations.request import Operations
from holdfast.operations.views import JobView, ProgressView
from holdfast.queries.why.phrases import count, describe_span, wait_text

ROWS_LEFT = 7
"""Lines of a terminal that are not for jobs."""
MOST_WORKERS = 1000
"""Workers that are looked at to count the live ones."""
TITLES = ("JOB", "TASK", "STATE", "FOR", "ATTEMPT", "PROGRESS", "WORKER", "NOTE")
UNWRAPPED = ("STATE", "FOR", "ATTEMPT")
ByJob: TypeAlias = Mapping[JobId, ProgressView]
NO_PROGRESS: ByJob = MappingProxyType({})
_STYLES = {
    Phase.CLAIMED: "cyan",
    Phase.RUNNING: "bold cyan",
    Phase.WAITING: "yellow",
    Phase.INTERRUPTED: "magenta",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "bold red",
    Phase.CANCELLED: "dim",
}


class Snapshot(Struct, frozen=True, kw_only=True):
    """The watched jobs at one time."""

    now: int
    jobs: list[Job]
    counts: dict[State, int] = {}
    workers: int | None = None
    """How many are live."""
    progress: ByJob = NO_PROGRESS
    trouble: str | None = None
    """Why there is no newer snapshot."""


def watch_jobs(
    command: JobCommand,
    jobs: Annotated[
        list[str] | None,
        Argument(metavar="[JOB]...", help="Only these jobs, until they have ended."),
    ] = None,
    *,
    state: OfState = None,
    live: Annotated[bool, Option("--live", help="Leave out jobs that have ended.")] = False,
    queue: OfQueue = None,
    task: OfTask = None,
    limit: Limit = 50,
    every: Annotated[float, Option(min=0.1, help="Seconds between two updates.")] = 1.0,
) -> None:
    """Watch jobs as they change, newest first, until Ctrl-C; named jobs until they have ended.

    --json prints one object for each change.
    """

    async def work(operations: Operations) -> Snapshot:
        check_texts(queue=queue, task=task)
        states = tuple(read_state(word) for word in state or ()) or tuple(LIVE if live else ())
        query = q.ListJobs(state=states, queue=queue, task=task, limit=limit)
        read = partial(take_snapshot, operations, jobs or (), query, ProgressReader())
        with _choose_display(command.as_json) as show:
            snapshot = await read()
            show(snapshot)
            # Without names there is no end but Ctrl-C.
            while not jobs or not all(job.terminal for job in snapshot.jobs):
                await asyncio.sleep(every)
                snapshot = await next_snapshot(read, snapshot)
                show(snapshot)
        return snapshot

    last = command.ask(work)
    if any(not job.succeeded for job in last.jobs):
        raise typer.Exit(FOUND_PROBLEMS)


async def take_snapshot(
    operations: Operations, names: Sequence[str], query: q.ListJobs, reader: ProgressReader
) -> Snapshot:
    """Read the named jobs, or those that a query finds with the counts around them."""
    if names:
        ids = [await find_job(operations, name) for name in names]
        found = [await operations.do(q.GetJob(job=id_)) for id_ in ids]
        progress = await reader.read(operations, found)
        return Snapshot(now=await _now(operations), jobs=found, progress=progress)
    counts: Counter[State] = Counter()
    for depth in (await operations.do(q.ListQueues())).queues:
        if query.queue in (None, depth.queue):
            counts.update(depth.jobs)
    found = (await operations.do(query)).jobs
    roll = await operations.do(q.ListWorkers(limit=MOST_WORKERS))
    return Snapshot(
        now=await _now(operations),
        jobs=found,
        progress=await reader.read(operations, found),
        counts=dict(counts),
        workers=sum(worker.is_live(roll.now) for worker in roll.workers),
    )


async def _now(operations: Operations) -> int:
    return (await operations.do(q.GetClock())).now


async def next_snapshot(read: Callable[[], Awaitable[Snapshot]], last: Snapshot) -> Snapshot:
    """Read again; if the store or server does not answer, return the last one with the reason."""
    try:
        return await read()
    except (StoreUnavailable, ServerFailed) as error:
        return replace(last, trouble=str(error))


@contextmanager
def _choose_display(as_json: bool) -> Iterator[Callable[[Snapshot], None]]:
    """Choose how snapshots are shown: as a live table, line by line, or as JSON."""
    if as_json or not out.is_terminal:
        yield partial(_print_changes, Changes(), as_json)
        return
    with Live(console=out, auto_refresh=False) as drawn:
        yield lambda snapshot: drawn.update(_draw_screen(snapshot), refresh=True)


def _print_changes(changes: Changes, as_json: bool, snapshot: Snapshot) -> None:
    if snapshot.trouble is not None:
        print_note(f"no answer: {plain(snapshot.trouble)}")
    for job in changes.select_changed(snapshot.jobs, snapshot.progress):
        progress = snapshot.progress.get(job.id)
        if as_json:
            print_json(json_of(JobView.of(job)) | {"progress": json_of(progress or ProgressView())})
        else:
            print_line(f"{time_text(snapshot.now)}  {job_line(job, snapshot.now, progress)}")


def _draw_screen(snapshot: Snapshot) -> Group:
    shown = snapshot.jobs[: max(1, out.height - ROWS_LEFT)]
    parts: list[RenderableType] = [Text(_write_headline(snapshot))]
    if snapshot.trouble is not None:
        parts.append(Text(f"no answer: {plain(snapshot.trouble)}", style="bold red"))
    parts.append(jobs_table(shown, snapshot.now, snapshot.progress))
    if left_out := len(snapshot.jobs) - len(shown):
        parts.append(Text(f"… and {left_out:,} more"))
    return Group(*parts)


def _write_headline(snapshot: Snapshot) -> str:
    counts = [f"{number:,} {state}" for state in State if (number := snapshot.counts.get(state))]
    if snapshot.workers is not None:
        counts.append(count(snapshot.workers, "live worker"))
    return f"{time_text(snapshot.now)}  {', '.join(counts)}"


def jobs_table(jobs: Iterable[Job], now: int, progress: ByJob = NO_PROGRESS) -> Table:
    """Draw jobs as of a time of the store's clock, with a bar for those that reported progress."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = [title for title in TITLES if progress or title != "PROGRESS"]
    for title in titles:
        # On a narrow terminal the other columns shrink: a column that may not wrap keeps its
        # width, and the cells of the others are cut instead of wrapped.
        drawn.add_column(title, no_wrap=title in UNWRAPPED)
    for job in jobs:
        cells = dict(zip(TITLES, _job_cells(job, now, progress.get(job.id)), strict=True))
        row = (Text(cells[title], no_wrap=True, overflow="ellipsis") for title in titles)
        drawn.add_row(*row, style=_STYLES.get(PHASES.get(job.state, Phase.QUEUED), ""))
    return drawn


def _job_cells(job: Job, now: int, progress: ProgressView | None) -> Sequence[str]:
    return (
        short(job.public_id, 36),
        short(job.task, 24),
        job.state.value,
        describe_span(max(0, now - _find_since(job))),
        str(job.attempt),
        "" if progress is None else progress_text(progress, 24),
        short(job.owner, 32) if job.state in OWNED else "",
        job_note(job, now),
    )


def _find_since(job: Job) -> int:
    """Return since when a job is in its state, as far as its row shows; heartbeats do not count."""
    if job.finished_at is not None:
        return job.finished_at
    if job.running and job.started_at is not None:
        return job.started_at
    return job.updated_at


def job_note(job: Job, now: int) -> str:
    """Return what else matters about a job, in a few words."""
    notes = []
    if job.error_code is not None:
        notes.append(short(job.error_code, 30))
    if job.cancel_requested is not None and not job.terminal:
        notes.append(f"{job.cancel_requested} cancel requested")
    if job.wait_for is not None:
        notes.append(f"waits for {short(wait_text(job.wait_for), 30)}")
    if job.held_by:
        notes.append(f"held by {short(', '.join(job.held_by), 30)}")
    if job.run_at is not None and job.run_at > now and not job.terminal:
        notes.append(f"due in {describe_span(job.run_at - now)}")
    if job.letter is not None:
        notes.append(f"letter {job.letter}")
    return ", ".join(notes)


class Changes:
    """Remembers jobs and finds those that changed: for where no table can be drawn."""

    def __init__(self) -> None:
        self._known: dict[JobId, tuple[object, ...]] = {}

    def select_changed(self, jobs: Iterable[Job], progress: ByJob = NO_PROGRESS) -> Iterator[Job]:
        """Return the jobs that changed, or reported progress, since they were last seen."""
        for job in jobs:
            report = progress.get(job.id)
            rev = None if report is None else report.rev
            seen = (job.state, job.attempt, job.cancel_requested, job.letter, rev)
            if self._known.get(job.id) != seen:
                self._known[job.id] = seen
                yield job


def job_line(job: Job, now: int, progress: ProgressView | None = None) -> str:
    """Return a job's state as one line."""
    parts = [short(job.public_id, 36), job.state.value, f"attempt {job.attempt}"]
    parts += [] if progress is None else [progress_text(progress)]
    note = job_note(job, now)
    return "  ".join([*parts, note] if note else parts)
