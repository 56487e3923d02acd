"""Jobs as they move: a table that is drawn again and again, or a line for each change.

Every cell is made harmless before it is drawn, see `showing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from holdfast.cli.showing import short
from holdfast.flow.phrases import span
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.states import OWNED, State

TITLES = ("JOB", "TASK", "STATE", "FOR", "TRY", "WORKER", "NOTE")
WHOLE = ("STATE", "FOR", "TRY")
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


def jobs_table(jobs: Iterable[Job], now: int) -> Table:
    """Draw jobs as of a time of the store's clock."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in TITLES:
        # Where the terminal is narrow the others give way: a column that may not wrap keeps its
        # width, and what is in them is cut all the same.
        table.add_column(title, no_wrap=title in WHOLE)
    for job in jobs:
        row = (Text(cell, no_wrap=True, overflow="ellipsis") for cell in _cells(job, now))
        table.add_row(*row, style=_STYLES.get(job.state, ""))
    return table


def _cells(job: Job, now: int) -> Sequence[str]:
    return (
        short(job.public_id, 36),
        short(job.task, 24),
        job.state.value,
        span(max(0, now - _since(job))),
        str(job.attempt),
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
        said.append(f"waits for {short(job.wait_for, 30)}")
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

    def of(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Pick those that stand otherwise than when they were last seen."""
        for job in jobs:
            stands = (job.state, job.attempt, job.cancel_requested, job.letter)
            if self._known.get(job.id) != stands:
                self._known[job.id] = stands
                yield job


def line(job: Job, now: int) -> str:
    """Tell how a job stands in a line."""
    said = note(job, now)
    stands = f"{short(job.public_id, 36)}  {job.state}  attempt {job.attempt}"
    return f"{stands}  {said}" if said else stands
