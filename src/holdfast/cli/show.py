"""`holdfast show`: what happened to one job, as its ledger tells it.

Exit codes: 0 shown, 1 no such job, 2 bad input, 3 the store failed, 4 refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer
from msgspec import Struct

from holdfast.cli.asking import JobName, Tenant, find_job
from holdfast.cli.lineage import say_lineage
from holdfast.cli.progress import progress_age, progress_text
from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_json, run, with_operations
from holdfast.cli.showing import (
    error_summary,
    instant,
    moment,
    plain,
    say,
    say_facts,
    say_table,
    say_traceback,
    seconds,
    short,
)
from holdfast.flow.history import ReadEvent
from holdfast.flow.lineage import Lineage
from holdfast.flow.phrases import wait_text
from holdfast.json_format import json_of
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.linked import undone_by
from holdfast.lifecycle.states import BEATS, OWNED, EventType, State
from holdfast.messages import ProgressView
from holdfast.operations import Operations, Progress
from holdfast.views import JobView

BODY_LENGTH = 500
"""Characters of arguments, progress or a result that are shown; `--json` has them whole."""


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command("show")(show_job)


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
    """Show a job: how it stands, its attempts, its timeline, its result or its error."""
    if tree:
        _show_tree(job, tenant, url, as_json=as_json)
        return

    async def work(operations: Operations) -> tuple[Job, list[ReadEvent], int]:
        found = await operations.get(await find_job(operations, job))
        return found, await operations.history(found.id), await operations.now()

    record, log, now = run(with_operations(url, tenant, work))
    tries = attempts(log)
    shown = [event for event in log if event.type not in BEATS]
    shown = shown[max(0, len(shown) - events) :]
    if as_json:
        progress = ProgressView.of(_progress(log))
        told = {"job": JobView.of(record), "progress": progress, "attempts": tries, "events": shown}
        print_json(json_of(told))
        return
    _say_record(record, log[0])
    say_facts(out, _followers(record, log))
    say_facts(out, _bodies(record, log, now))
    _say_attempts(tries)
    _say_events(shown, len(log))
    _say_error(log)


def _show_tree(job: str, tenant: str | None, url: str, *, as_json: bool) -> None:
    async def work(operations: Operations) -> Lineage:
        return await operations.lineage(await find_job(operations, job))

    shown = run(with_operations(url, tenant, work))
    if as_json:
        print_json(json_of(shown))
    else:
        say_lineage(shown)


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
            ("internal id", internal),
            ("task", plain(job.task)),
            ("queue", f"{plain(job.queue)} ({job.priority})"),
            ("tenant", plain(job.tenant)),
            ("state", state),
            ("letter", "" if job.letter is None else job.letter.value),
            ("tries", f"{job.failures} of {job.policy.max_attempts} failed"),
            ("owner", plain(job.owner)),
            ("lost owner", _lost_owner(job)),
            ("lease until", "" if job.lease_expires_at is None else instant(job.lease_expires_at)),
            ("cancel asked", asked),
            ("held by", plain(", ".join(job.held_by))),
            ("waits for", plain(wait_text(job.wait_for))),
            ("parent", "" if job.parent_id is None else f"{job.parent_id} ({job.link_kind})"),
            ("labels", plain(", ".join(_labels(first)))),
            ("correlation", plain(first.correlation_id)),
            ("trace", plain(first.trace_id)),
            ("submitted", instant(job.created_at)),
            ("ended", "" if job.finished_at is None else instant(job.finished_at)),
        ],
    )


def _lost_owner(job: Job) -> str:
    """Name the owner that was lost; where the job has ended, nobody saw its run end."""
    if job.lost_owner is None:
        return ""
    kill = "; kill: unconfirmed" if job.terminal else ""
    return f"{plain(job.lost_owner)}{kill}"


def _labels(first: ReadEvent) -> list[str]:
    return [f"{name}={value}" for name, value in first.facts.get("labels", {}).items()]


def _followers(job: Job, log: list[ReadEvent]) -> list[tuple[str, str]]:
    """Tell which jobs followed from this one: its next try, and what undoes it."""
    links = {event.type: event.facts.get("link") for event in log if event.facts.get("link")}
    again = next((links[end] for end in ("job_failed", "job_timed_out") if end in links), None)
    undone, by = links.get("job_compensated"), undone_by(job)
    return [
        ("tried again as", plain(again)),
        ("undone by", plain(undone or by) + ("" if undone or by is None else " (not yet)")),
    ]


def _bodies(job: Job, log: list[ReadEvent], now: int) -> Iterator[tuple[str, str]]:
    """Tell what it was asked with, how far it is, and what came of it."""
    yield "arguments", _body(log[0])
    progress = _progress(log)
    if progress is not None and job.state is not State.SUCCEEDED:
        text = progress_text(progress, BODY_LENGTH)
        yield "progress", f"{text}  ({progress_age(progress, now)})"
    if job.state is State.SUCCEEDED:
        yield "result", _body(_last(log, EventType.SUCCEEDED))


def _progress(log: list[ReadEvent]) -> Progress | None:
    """Find the last report of its handler; that it cannot be killed is no such report."""
    for event in reversed(log):
        if event.type == EventType.PROGRESSED and "kill" not in event.facts:
            return Progress(value=event.payload, at=event.ts, attempt=event.attempt, rev=event.rev)
    return None


def _last(log: list[ReadEvent], type: EventType) -> ReadEvent | None:
    return next((event for event in reversed(log) if event.type == type), None)


def _body(event: ReadEvent | None) -> str:
    if event is None or event.payload is None:
        return ""
    return short(json.dumps(event.payload, ensure_ascii=False), BODY_LENGTH)


def _say_attempts(tries: list[Attempt]) -> None:
    if not tries:
        return
    say(out, "")
    rows = [
        (
            str(one.attempt),
            short(one.owner, 40),
            moment(one.claimed_at),
            seconds(one.claimed_at, one.started_at),
            seconds(one.started_at, one.ended_at),
            plain(one.ended_by or "–"),
            short(one.cause),
        )
        for one in tries
    ]
    say_table(out, ("ATTEMPT", "OWNER", "CLAIMED", "WAITED", "RAN", "ENDED BY", "CAUSE"), rows)


def _say_events(shown: list[ReadEvent], total: int) -> None:
    say(out, "")
    rows = [
        (
            str(one.rev),
            moment(one.ts),
            plain(one.type),
            plain(one.to_status),
            str(one.attempt),
            short(one.actor, 40),
            short(", ".join(_says(one)), 100),
        )
        for one in shown
    ]
    say_table(out, ("REV", "AT", "EVENT", "STATE", "TRY", "BY", "SAYS"), rows)
    if left_out := total - len(shown):
        say(out, f"({left_out:,} more: heartbeats, and what --events leaves out)")


def _says(event: ReadEvent) -> Iterator[str]:
    """Tell what an event says beside its type: which step, which signal, why."""
    facts = event.facts
    if (step := facts.get("step")) is not None:
        use = facts.get("step_use")
        yield f"{step} #{use}" if use and use > 1 else str(step)
    if (wait := facts.get("wait_for")) is not None:
        yield f"for {wait_text(wait)}"
    for fact, phrase in _PHRASES:
        if (value := facts.get(fact)) is not None:
            yield phrase.format(value)
    cause = error_summary(event.payload) or event.cause
    if cause is not None:
        yield cause


_PHRASES = (
    ("signal", "{}"),
    ("held", "by {}"),
    ("unheld", "{}"),
    ("cancel", "{}"),
    ("kill", "kill {}"),
    ("stage", "at stage {}"),
    ("exit_code", "exit code {}"),
    ("late_state", "too late: {}"),
    ("link", "as {}"),
)


def _say_error(log: list[ReadEvent]) -> None:
    """Show the newest error with its traceback."""
    for event in reversed(log):
        if (summary := error_summary(event.payload)) is not None:
            say(out, "")
            say(out, f"{event.type}: {plain(summary)}")
            say_traceback(out, event.payload)
            return
