"""`holdfast ls` and `cancel`: what jobs there are, and the end of one.

Exit codes: 0 done, 1 no such job, 2 bad input, 3 the store failed, 4 refused, or it had ended
before it could be cancelled.
"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.asking import (
    Before,
    JobName,
    OfLabel,
    OfQueue,
    OfState,
    OfTask,
    OfTenant,
    Reason,
    Since,
    Tenant,
    Until,
    check_texts,
    find_job,
    read_cursor,
    read_labels,
    read_state,
    read_time,
)
from holdfast.cli.running import (
    DEFAULT_URL,
    REFUSED,
    AsJson,
    Url,
    err,
    out,
    print_job,
    print_json,
    run,
    with_operations,
)
from holdfast.cli.showing import instant, plain, say, say_table, short
from holdfast.json_format import json_of
from holdfast.lifecycle.family import forsakes
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.states import State
from holdfast.operations import Operations
from holdfast.ports import Page, Query
from holdfast.views import JobView


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("ls")(list_jobs)
    app.command("cancel")(cancel_job)


def list_jobs(
    *,
    state: OfState = None,
    queue: OfQueue = None,
    task: OfTask = None,
    tenant: OfTenant = None,
    error: Annotated[
        str | None, typer.Option("--error", help="Ended with this error code.")
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", help="Of this workflow.")] = None,
    correlation: Annotated[
        str | None, typer.Option("--correlation", help="With this correlation id.")
    ] = None,
    label: OfLabel = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")] = 50,
    before: Before = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""

    async def work(operations: Operations) -> Page:
        check_texts(queue=queue, task=task, error=error)
        check_texts(workflow=workflow, correlation=correlation)
        query = Query(
            states=tuple(read_state(word) for word in state or ()),
            queue=queue,
            task=task,
            workflow_id=workflow,
            correlation_id=correlation,
            error_code=error,
            labels=tuple(read_labels(label).items()),
            created_from=await read_time(operations, since, "--since"),
            created_until=await read_time(operations, until, "--until"),
            before=read_cursor(before),
            limit=limit,
        )
        return await operations.find(query)

    page = run(with_operations(url, tenant, work))
    if as_json:
        shown = [json_of(JobView.of(job)) for job in page.jobs]
        print_json({"jobs": shown, "next": json_of(page.next)})
    else:
        _say_page(page)


def cancel_job(
    job: JobName,
    *,
    hard: Annotated[bool, typer.Option("--hard", help="Leave its owner no grace.")] = False,
    reason: Reason = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Cancel a job: at once where nobody holds it, else its owner is asked to end it."""

    async def work(operations: Operations) -> Job:
        return await operations.cancel(await find_job(operations, job), hard=hard, reason=reason)

    record = run(with_operations(url, tenant, work))
    if as_json:
        print_job(record)
    else:
        _say_cancelled(record, hard=hard)
    if record.terminal and record.state is not State.CANCELLED:
        raise typer.Exit(REFUSED)


def _say_cancelled(record: Job, *, hard: bool) -> None:
    name = plain(record.public_id)
    if record.state is State.CANCELLED:
        say(out, f"job {name} is cancelled")
    elif record.terminal:
        below = (
            "; jobs below it that still run are asked to end" if hard and forsakes(record) else ""
        )
        say(err, f"job {name} had ended before: {record.state}{below}")
    else:
        say(out, f"{plain(record.owner)} is asked to end job {name} ({record.cancel_requested})")


def _say_page(page: Page) -> None:
    titles = ("JOB", "STATE", "TASK", "QUEUE", "TENANT", "ATTEMPT", "SUBMITTED", "ERROR")
    if page.jobs:
        say_table(out, titles, [_row(job) for job in page.jobs])
    else:
        say(out, "no such jobs")
    if page.next is not None:
        say(err, f"more: --before {page.next}")


def _row(job: Job) -> tuple[str, ...]:
    return (
        plain(job.public_id),
        job.state.value,
        short(job.task, 30),
        short(job.queue, 20),
        short(job.tenant, 20),
        str(job.attempt),
        instant(job.created_at),
        short(job.error_code, 30),
    )
