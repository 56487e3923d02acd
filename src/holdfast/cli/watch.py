"""`holdfast watch`: jobs as they move, until Ctrl-C; or some of them, until they have ended.

On a terminal a table that is drawn again and again; anywhere else, a line for each change.
Exit codes: 0 all that were named succeeded, 1 one of them did not or there is no such job, 2 bad
input, 3 the store failed, 4 refused, 130 Ctrl-C.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli.asking import (
    OfQueue,
    OfState,
    OfTask,
    OfTenant,
    check_texts,
    find_job,
    read_state,
)
from holdfast.cli.live import NO_REPORTS, Changes, Reported, jobs_table, line
from holdfast.cli.progress import Reports
from holdfast.cli.running import (
    DEFAULT_URL,
    FOUND_PROBLEMS,
    AsJson,
    Url,
    err,
    out,
    print_job,
    run,
    with_operations,
)
from holdfast.cli.showing import instant, plain, say
from holdfast.errors import ServerFailed, StoreUnavailable
from holdfast.flow.phrases import count
from holdfast.json_format import json_of
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.states import LIVE, State
from holdfast.messages import ProgressView
from holdfast.operations import Operations
from holdfast.ports import Query

ROWS_LEFT = 7
"""Lines of a terminal that are not for jobs."""

Jobs = Annotated[
    list[str] | None, typer.Argument(metavar="[JOB]...", help="These jobs, until they have ended.")
]
OnlyLive = Annotated[bool, typer.Option("--live", help="Leave out what has ended.")]
Every = Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")]
Most = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many jobs at most.")]


class Look(Struct, frozen=True, kw_only=True):
    """How things stood when they were looked at."""

    now: int
    jobs: list[Job]
    counts: dict[State, int] = {}
    workers: int | None = None
    """How many live."""
    reports: Reported = NO_REPORTS
    """How far those are that reported it."""
    trouble: str | None = None
    """Why there is no newer look."""

    @property
    def over(self) -> bool:
        """Whether nothing of this will move any more."""
        return all(job.terminal for job in self.jobs)


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command("watch")(watch)


def watch(
    jobs: Jobs = None,
    *,
    state: OfState = None,
    live: OnlyLive = False,
    queue: OfQueue = None,
    task: OfTask = None,
    tenant: OfTenant = None,
    limit: Most = 50,
    every: Every = 1.0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Watch jobs as they move, newest first, until Ctrl-C; those that are named, until their end.

    --json prints one object for each change.
    """

    async def work(operations: Operations) -> Look:
        check_texts(queue=queue, task=task)
        states = tuple(read_state(word) for word in state or ()) or tuple(LIVE if live else ())
        query = Query(states=states, queue=queue, task=task, limit=limit)
        looking = partial(_look, operations, jobs or (), query, Reports())
        with _showing(as_json) as show:
            look = await looking()
            show(look)
            # Without names there is no end but Ctrl-C.
            while not jobs or not look.over:
                await asyncio.sleep(every)
                look = await _look_again(looking, look)
                show(look)
        return look

    last = run(with_operations(url, tenant, work))
    if any(job.state is not State.SUCCEEDED for job in last.jobs):
        raise typer.Exit(FOUND_PROBLEMS)


async def _look(
    operations: Operations, names: Sequence[str], query: Query, reports: Reports
) -> Look:
    if names:
        found = [await operations.get(await find_job(operations, name)) for name in names]
        told = await reports.read(operations, found)
        return Look(now=await operations.now(), jobs=found, reports=told)
    counts: Counter[State] = Counter()
    for depth in await operations.queues():
        if query.queue in (None, depth.queue):
            counts.update(depth.jobs)
    found = (await operations.find(query)).jobs
    return Look(
        now=await operations.now(),
        jobs=found,
        reports=await reports.read(operations, found),
        counts=dict(counts),
        workers=await _live_workers(operations),
    )


async def _live_workers(operations: Operations) -> int:
    roll = await operations.workers()
    return sum(worker.is_live(roll.now) for worker in roll.workers)


async def _look_again(looking: Callable[[], Awaitable[Look]], last: Look) -> Look:
    """Look; where the store or server does not answer, say so, and show what was seen last."""
    try:
        return await looking()
    except (StoreUnavailable, ServerFailed) as error:
        return replace(last, trouble=str(error))


@contextmanager
def _showing(as_json: bool) -> Iterator[Callable[[Look], None]]:
    """Choose how looks are shown: drawn, told line by line, or printed for a script."""
    changes = Changes()

    def tell(look: Look) -> None:
        if look.trouble is not None:
            say(err, f"no answer: {plain(look.trouble)}")
        for job in changes.of(look.jobs, look.reports):
            progress = look.reports.get(job.id)
            if as_json:
                print_job(job, progress=json_of(ProgressView.of(progress)))
            else:
                say(out, f"{instant(look.now)}  {line(job, look.now, progress)}")

    if as_json or not out.is_terminal:
        yield tell
        return
    with Live(console=out, auto_refresh=False) as drawn:
        yield lambda look: drawn.update(_picture(look), refresh=True)


def _picture(look: Look) -> Group:
    shown = look.jobs[: max(1, out.height - ROWS_LEFT)]
    parts: list[RenderableType] = [Text(_headline(look))]
    if look.trouble is not None:
        parts.append(Text(f"no answer: {plain(look.trouble)}", style="bold red"))
    parts.append(jobs_table(shown, look.now, look.reports))
    if left_out := len(look.jobs) - len(shown):
        parts.append(Text(f"… and {left_out:,} more"))
    return Group(*parts)


def _headline(look: Look) -> str:
    said = [f"{number:,} {state}" for state in State if (number := look.counts.get(state))]
    if look.workers is not None:
        said.append(count(look.workers, "live worker"))
    return f"{instant(look.now)}  {', '.join(said)}"
