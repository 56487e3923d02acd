"""`holdfast ls`, `show`, `cancel`: what jobs there are, what happened to one, and its end.

Exit codes: 0 done, 1 no such job, 2 bad input, 3 the store failed, 4 refused, or it had ended
before it could be cancelled.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from msgspec import Struct

from holdfast.cli.asking import (
    Before,
    JobName,
    OfQueue,
    OfTask,
    OfTenant,
    Reason,
    Since,
    Tenant,
    Until,
    check_texts,
    read_cursor,
    read_time,
)
from holdfast.cli.lineage import say_lineage
from holdfast.cli.running import (
    DEFAULT_URL,
    REFUSED,
    AsJson,
    Url,
    err,
    out,
    print_json,
    run,
    with_operations,
)
from holdfast.cli.showing import (
    error_summary,
    instant,
    plain,
    say,
    say_facts,
    say_table,
    say_traceback,
    short,
)
from holdfast.errors import BadData
from holdfast.flow.history import ReadEvent
from holdfast.flow.lineage import Lineage
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.linked import undone_by
from holdfast.lifecycle.states import BEATS, OWNED, EventType, State
from holdfast.operations import Operations
from holdfast.ports import Page, Query


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("ls")(list_jobs)
    app.command("show")(show_job)
    app.command("cancel")(cancel_job)


def list_jobs(
    *,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="In this state; may be said repeatedly.")
    ] = None,
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
            states=tuple(_state(word) for word in state or ()),
            queue=queue,
            task=task,
            workflow_id=workflow,
            correlation_id=correlation,
            error_code=error,
            created_from=await read_time(operations, since, "--since"),
            created_until=await read_time(operations, until, "--until"),
            before=read_cursor(before),
            limit=limit,
        )
        return await operations.find(query)

    page = run(with_operations(url, tenant, work))
    if as_json:
        print_json(msgspec.to_builtins(page))
    else:
        _say_page(page)


def show_job(
    job: JobName,
    *,
    tenant: Tenant = None,
    events: Annotated[
        int, typer.Option("--events", min=0, help="How many of the last events are shown.")
    ] = 50,
    tree: Annotated[
        bool, typer.Option("--tree", help="Show its parents and all that came from it instead.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show a job: how it stands, its attempts, its events and its error."""
    if tree:
        _show_tree(job, tenant, url, as_json=as_json)
        return

    async def work(operations: Operations) -> tuple[Job, list[ReadEvent]]:
        found = await operations.get(job)
        return found, await operations.history(found.id)

    record, log = run(with_operations(url, tenant, work))
    tries = attempts(log)
    shown = [event for event in log if event.type not in BEATS]
    shown = shown[max(0, len(shown) - events) :]
    if as_json:
        print_json(msgspec.to_builtins({"job": record, "attempts": tries, "events": shown}))
        return
    _say_record(record, log[0])
    say_facts(out, _followers(record, log))
    _say_attempts(tries)
    _say_events(shown, len(log))
    _say_error(log)


def _show_tree(job: str, tenant: str | None, url: str, *, as_json: bool) -> None:
    async def work(operations: Operations) -> Lineage:
        return await operations.lineage(job)

    shown = run(with_operations(url, tenant, work))
    if as_json:
        print_json(msgspec.to_builtins(shown))
    else:
        say_lineage(shown)


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
        return await operations.cancel(job, hard=hard, reason=reason)

    record = run(with_operations(url, tenant, work))
    if as_json:
        asked = record.cancel_requested
        print_json({"job": str(record.id), "state": record.state, "cancel_requested": asked})
    else:
        _say_cancelled(record)
    if record.terminal and record.state is not State.CANCELLED:
        raise typer.Exit(REFUSED)


def _say_cancelled(record: Job) -> None:
    name = plain(record.public_id)
    if record.state is State.CANCELLED:
        say(out, f"job {name} is cancelled")
    elif record.terminal:
        say(err, f"job {name} had ended before: {record.state}")
    else:
        say(out, f"{plain(record.owner)} is asked to end job {name} ({record.cancel_requested})")


def _state(word: str) -> State:
    state = State.named(word)
    if state is State.UNKNOWN:
        known = ", ".join(one for one in State if one is not State.UNKNOWN)
        raise BadData(f"--state must be one of {known}; not {word!r}")
    return state


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


class Attempt(Struct, kw_only=True):
    """One attempt, as its events tell it."""

    attempt: int
    owner: str
    claimed_at: int
    started_at: int | None = None
    ended_at: int | None = None
    ended_by: str | None = None
    cause: str | None = None


def attempts(log: list[ReadEvent]) -> list[Attempt]:
    """Gather a job's attempts from its events."""
    found: list[Attempt] = []
    for event in log:
        if event.type == EventType.CLAIMED:
            found.append(Attempt(attempt=event.attempt, owner=event.actor, claimed_at=event.ts))
        elif event.type == EventType.ADOPTED:
            found[-1].owner = event.actor
        elif event.type == EventType.STARTED:
            found[-1].started_at = event.ts
        elif event.from_status in OWNED and event.to_status not in OWNED:
            last = found[-1]
            last.ended_at, last.ended_by = event.ts, event.type
            last.cause = error_summary(event.payload) or event.cause
    return found


def _say_record(job: Job, first: ReadEvent) -> None:
    internal = "" if job.public_id == str(job.id) else str(job.id)
    state = job.state.value if job.error_code is None else f"{job.state} ({plain(job.error_code)})"
    asked = "" if job.cancel_requested is None else job.cancel_requested.value
    say_facts(
        out,
        [
            ("job", plain(job.public_id)),
            ("id", internal),
            ("task", plain(job.task)),
            ("queue", f"{plain(job.queue)} ({job.priority})"),
            ("tenant", plain(job.tenant)),
            ("state", state),
            ("letter", "" if job.letter is None else job.letter.value),
            ("tries", f"{job.failures} of {job.policy.max_attempts} failed"),
            ("owner", plain(job.owner)),
            ("lease until", "" if job.lease_expires_at is None else instant(job.lease_expires_at)),
            ("cancel asked", asked),
            ("held by", plain(", ".join(job.held_by))),
            ("waits for", plain(job.wait_for)),
            ("parent", "" if job.parent_id is None else f"{job.parent_id} ({job.link_kind})"),
            ("correlation", plain(first.correlation_id)),
            ("trace", plain(first.trace_id)),
            ("submitted", instant(job.created_at)),
            ("ended", "" if job.finished_at is None else instant(job.finished_at)),
        ],
    )


def _followers(job: Job, log: list[ReadEvent]) -> list[tuple[str, str]]:
    """Tell which jobs followed from this one: its next try, and what undoes it."""
    links = {event.type: event.facts.get("link") for event in log if event.facts.get("link")}
    again = next((links[end] for end in ("job_failed", "job_timed_out") if end in links), None)
    undone, by = links.get("job_compensated"), undone_by(job)
    return [
        ("tried again as", plain(again)),
        ("undone by", plain(undone or by) + ("" if undone or by is None else " (not yet)")),
    ]


def _say_attempts(tries: list[Attempt]) -> None:
    if not tries:
        return
    say(out, "")
    rows = [
        (
            str(one.attempt),
            short(one.owner, 40),
            instant(one.claimed_at),
            instant(one.started_at),
            instant(one.ended_at),
            plain(one.ended_by or "–"),
            short(one.cause),
        )
        for one in tries
    ]
    say_table(out, ("ATTEMPT", "OWNER", "CLAIMED", "STARTED", "ENDED", "BY", "CAUSE"), rows)


def _say_events(shown: list[ReadEvent], total: int) -> None:
    say(out, "")
    rows = [
        (
            str(one.rev),
            instant(one.ts),
            one.type,
            one.to_status,
            short(one.actor, 40),
            short(one.cause),
        )
        for one in shown
    ]
    say_table(out, ("REV", "AT", "EVENT", "STATE", "BY", "CAUSE"), rows)
    if left_out := total - len(shown):
        say(out, f"({left_out:,} more: heartbeats, and what --events leaves out)")


def _say_error(log: list[ReadEvent]) -> None:
    """Show the newest error with its traceback."""
    for event in reversed(log):
        if (summary := error_summary(event.payload)) is not None:
            say(out, "")
            say(out, f"{event.type}: {plain(summary)}")
            say_traceback(out, event.payload)
            return
