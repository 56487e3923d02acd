"""Jobs as they move: a table that is drawn again and again, or a line for each change.

Every cell is made harmless before it is drawn, see `showing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from rich import box
from rich.table import Table
from rich.text import Text

from holdfast.cli.progress import progress_text
from holdfast.cli.showing import short
from holdfast.flow.phrases import span, wait_text
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.states import OWNED, State
from holdfast.operations import Progress

TITLES = ("JOB", "TASK", "STATE", "FOR", "TRY", "PROGRESS", "WORKER", "NOTE")
WHOLE = ("STATE", "FOR", "TRY")
Reported: TypeAlias = Mapping[JobId, Progress]
NO_REPORTS: Reported = MappingProxyType({})
_STYLES = {
    State.CLAIMED: "cyan",
    State.RUNNING: "bold cyan",
    State.WAITING: "yellow",
    State.RETRYING: "magenta",
    State.STALLED: "magenta",
    State.SUCCEEDED: "green",
    State.FAILED: "bold red",
    State.TIMED_OUT: "bold red",
    State.DENIED: "bold red",
    State.DEAD_LETTERED: "bold red",
    State.CANCELLED: "dim",
}


def jobs_table(jobs: Iterable[Job], now: int, reports: Reported = NO_REPORTS) -> Table:
    """Draw jobs as of a time of the store's clock, with a bar for those that reported progress."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    titles = [title for title in TITLES if reports or title != "PROGRESS"]
    for title in titles:
        # Where the terminal is narrow the others give way: a column that may not wrap keeps its
        # width, and what is in them is cut all the same.
        table.add_column(title, no_wrap=title in WHOLE)
    for job in jobs:
        cells = dict(zip(TITLES, _cells(job, now, reports.get(job.id)), strict=True))
        row = (Text(cells[title], no_wrap=True, overflow="ellipsis") for title in titles)
        table.add_row(*row, style=_STYLES.get(job.state, ""))
    return table


def _cells(job: Job, now: int, progress: Progress | None) -> Sequence[str]:
    return (
        short(job.public_id, 36),
        short(job.task, 24),
        job.state.value,
        span(max(0, now - _since(job))),
        str(job.attempt),
        "" if progress is None else progress_text(progress, 24),
        short(job.owner, 32) if job.state in OWNED else "",
        note(job, now),
    )


def _since(job: Job) -> int:
    """Tell when it came to stand where it stands, as far as its row says: beats do not count."""
    if job.finished_at is not None:
        return job.finished_at
    if job.state is State.RUNNING and job.started_at is not None:
        return job.started_at
    return job.updated_at


def note(job: Job, now: int) -> str:
    """Tell what else is to be known of a job, in a few words."""
    said = []
    if job.error_code is not None:
        said.append(short(job.error_code, 30))
    if job.cancel_requested is not None and not job.terminal:
        said.append(f"{job.cancel_requested} cancel asked")
    if job.wait_for is not None:
        said.append(f"waits for {short(wait_text(job.wait_for), 30)}")
    if job.held_by:
        said.append(f"held by {short(', '.join(job.held_by), 30)}")
    if job.run_at is not None and job.run_at > now and not job.terminal:
        said.append(f"due in {span(job.run_at - now)}")
    if job.letter is not None:
        said.append(f"letter {job.letter}")
    return ", ".join(said)


class Changes:
    """Remembers how jobs stood, and tells what is new: for where no table can be drawn."""

    def __init__(self) -> None:
        """Know of none."""
        self._known: dict[JobId, tuple[object, ...]] = {}

    def of(self, jobs: Iterable[Job], reports: Reported = NO_REPORTS) -> Iterator[Job]:
        """Pick those that stand otherwise than when they were last seen, or are further."""
        for job in jobs:
            progress = reports.get(job.id)
            rev = None if progress is None else progress.rev
            stands = (job.state, job.attempt, job.cancel_requested, job.letter, rev)
            if self._known.get(job.id) != stands:
                self._known[job.id] = stands
                yield job


def line(job: Job, now: int, progress: Progress | None = None) -> str:
    """Tell how a job stands in a line."""
    parts = [short(job.public_id, 36), job.state.value, f"attempt {job.attempt}"]
    parts += [] if progress is None else [progress_text(progress)]
    said = note(job, now)
    return "  ".join([*parts, said] if said else parts)
