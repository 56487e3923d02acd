"""`holdfast show`: what happened to one job, by its ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

from msgspec import Struct
from typer import Option

from holdfast.cli.options import JobCommand, JobName, find_job
from holdfast.cli.output import (
    align_table,
    error_summary,
    facts,
    plain,
    seconds_text,
    short,
    time_text,
    traceback_lines,
)
from holdfast.cli.progress import progress_age, progress_text
from holdfast.durations import instant
from holdfast.lifecycle.command_spec import CommandSpec
from holdfast.lifecycle.history import COMPENSATIONS, PROGRESS_REPORTS, STARTS
from holdfast.lifecycle.holds import next_approval
from holdfast.lifecycle.linked import undone_by
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import BEATS, OWNED
from holdfast.lifecycle.times import SECOND
from holdfast.lifecycle.transitions import ENDS, TAKES
from holdfast.operations import requests as q
from holdfast.operations.command_view import command_line, is_command, read_spec
from holdfast.operations.request import Operations
from holdfast.operations.sequences import read_history
from holdfast.operations.views import JobView, ProgressView
from holdfast.queries.history import ReadEvent
from holdfast.queries.lineage import Lineage, Node
from holdfast.queries.outcomes import find_next_try
from holdfast.queries.why.phrases import wait_text

BODY_LENGTH = 500
"""Characters of arguments, progress or a result that are shown; `--json` has them whole."""


def show_job(
    command: JobCommand,
    job: JobName,
    *,
    events: Annotated[int, Option(min=0, help="Maximum events to show, the latest ones.")] = 50,
    tree: Annotated[
        bool, Option("--tree", help="Show its parents, children, retries and redrives.")
    ] = False,
) -> None:
    """Show a job: its state, attempts, timeline, and its result or error."""
    if tree:
        lineage = command.do(q.GetLineage(job=job))
        command.show(lineage, *_tree_lines(lineage))
        return

    async def read(operations: Operations) -> tuple[Job, list[ReadEvent], int]:
        found = await operations.do(q.GetJob(job=await find_job(operations, job)))
        log = await read_history(operations, found.id)
        return found, log, (await operations.do(q.GetClock())).now

    record, log, now = command.ask(read)
    tries = collect_attempts(log)
    shown = [event for event in log if event.type not in BEATS]
    shown = shown[max(0, len(shown) - events) :]
    answer = {
        "job": JobView.of(record),
        "progress": _find_progress(log) or ProgressView(),
        "attempts": tries,
        "events": shown,
    }
    command.show(
        answer,
        *facts(
            [
                *_job_facts(record, log),
                *_list_followers(record, log),
                *_list_bodies(record, log, now),
            ]
        ),
        *_attempt_lines(tries),
        *_event_lines(shown, len(log)),
        *_error_lines(log),
    )


class ShownAttempt(Struct, kw_only=True):
    """One attempt, gathered from its events."""

    attempt: int
    owner: str
    claimed_at: int
    started_at: int | None = None
    ended_at: int | None = None
    ended_by: str | None = None
    cause: str | None = None


def collect_attempts(log: list[ReadEvent]) -> list[ShownAttempt]:
    """Gather a job's attempts from its events."""
    found: list[ShownAttempt] = []
    for event in log:
        if event.type in TAKES and event.from_status in OWNED:
            found[-1].owner = event.actor
        elif event.type in TAKES:
            owner, claimed_at = event.actor, event.ts
            found.append(ShownAttempt(attempt=event.attempt, owner=owner, claimed_at=claimed_at))
        elif event.type in STARTS:
            found[-1].started_at = event.ts
        elif event.from_status in OWNED and event.to_status not in OWNED:
            last = found[-1]
            last.ended_at, last.ended_by = event.ts, event.type
            last.cause = error_summary(event.payload) or event.cause
    return found


def _job_facts(job: Job, log: list[ReadEvent]) -> Iterator[tuple[str, str]]:
    first = log[0]
    labels = [f"{name}={value}" for name, value in _given(first, "labels").items()]
    yield "job", plain(job.public_id)
    yield "internal id", "" if job.public_id == str(job.id) else str(job.id)
    yield ("type" if is_command(job) else "task"), plain(job.task)
    yield "queue", f"{plain(job.queue)} ({job.priority})"
    yield "tenant", plain(job.tenant)
    yield "state", job.state + ("" if job.error_code is None else f" ({plain(job.error_code)})")
    yield "letter", plain(job.letter)
    yield "exit code", "" if job.exit_code is None else str(job.exit_code)
    if not is_command(job):
        yield "tries", f"{job.failures} of {job.policy.max_attempts} failed"
    yield "owner", plain(job.owner)
    if job.lost_owner is not None:
        # Once the job has ended, no one has seen the run of a lost owner end.
        kill = "; kill: unconfirmed" if job.terminal else ""
        yield "lost owner", f"{plain(job.lost_owner)}{kill}"
    yield "lease until", "" if job.lease_expires_at is None else time_text(job.lease_expires_at)
    yield "cancel asked", plain(job.cancel_requested)
    yield "held by", plain(", ".join(job.held_by))
    yield from _list_decisions(job, log)
    yield "waits for", plain(wait_text(job.wait_for))
    yield "parent", "" if job.parent_id is None else f"{job.parent_id} ({job.link_kind})"
    yield "labels", plain(", ".join(labels))
    yield "env", plain(", ".join(f"{name}={text}" for name, text in _given(first, "env").items()))
    yield "context", plain(first.facts.get("context_ptr"))
    yield "adapter", plain(first.facts.get("adapter_id"))
    yield "result at", plain(job.result_ptr)
    yield "correlation", plain(first.correlation_id)
    yield "trace", plain(first.trace_id)
    yield "submitted", time_text(job.created_at)
    yield "ended", "" if job.finished_at is None else time_text(job.finished_at)


def _list_decisions(job: Job, log: list[ReadEvent]) -> Iterator[tuple[str, str]]:
    """Return what the rules decided on a job, what it asked for, and who approved it."""
    given = [event.actor for event in log if "approved" in event.facts]
    shown = set()
    for event in log:
        details = event.facts
        if (verdict := details.get("verdict")) is not None and "approved" not in details:
            by = f"rule {details['rule']}" if "rule" in details else "default"
            shown.add(f"{verdict} by {by} of policy {details.get('rules', '')[:12]}")
    # The admission that follows an approval repeats its verdict.
    yield from (("verdict", plain(one)) for one in sorted(shown))
    asked = log[0].facts.get("asked") or {}
    yield "asked for", plain(", ".join(f"{name} {value}" for name, value in asked.items()))
    awaited = next_approval(job)
    missing = f" ({awaited[1].slot} more needed)" if awaited else ""
    yield "approved by", plain((", ".join(given) or ("nobody" if awaited else "")) + missing)


def _given(first: ReadEvent, name: str) -> dict[str, str]:
    given: dict[str, str] = first.facts.get(name, {})
    return given


def _list_followers(job: Job, log: list[ReadEvent]) -> Iterator[tuple[str, str]]:
    """Return which jobs followed from this one: its retry, and what undoes it."""
    again, by = find_next_try(log), undone_by(job)
    undone = next((event.facts.get("link") for event in log if event.type in COMPENSATIONS), None)
    yield "retried as", "" if again is None else str(again)
    yield "undone by", plain(undone or by) + ("" if undone or by is None else " (not yet)")


def _list_bodies(job: Job, log: list[ReadEvent], now: int) -> Iterator[tuple[str, str]]:
    """Return the job's arguments, its progress while it runs, and its result."""
    if is_command(job):
        yield from _list_command(job, read_spec(log[0].payload))
    else:
        yield "arguments", _body(log[0])
    progress = _find_progress(log)
    if progress is not None and not job.succeeded:
        text = progress_text(progress, BODY_LENGTH)
        yield "progress", f"{text}  ({progress_age(progress, now)})"
    if job.succeeded:
        last = next((event for event in reversed(log) if event.type in ENDS), None)
        yield "result", "" if last is None else _body(last)


def _list_command(job: Job, spec: CommandSpec | None) -> Iterator[tuple[str, str]]:
    """Return what a command or an agent was to run, and with what."""
    if spec is None:
        yield "command", "(erased)"
    else:
        for name, value in (
            ("command", command_line(spec)),
            ("agent's task", spec.task),
            ("context", spec.context),
            ("git branch", spec.git_branch),
            ("profile", spec.profile),
            ("image", spec.image),
            ("runner", spec.runner),
        ):
            yield name, short(value, BODY_LENGTH)
    yield "cpus", plain(job.cpus)
    yield "memory", "" if job.memory_mb is None else f"{job.memory_mb // 1024} GB"
    yield "time limit", "" if job.policy.timeout is None else _minutes(job.policy.timeout)
    if spec is not None and spec.asked:
        yield "asked for", ", ".join(f"{name} {value}" for name, value in spec.asked.items())


def _minutes(span: int) -> str:
    return f"{span // (60 * SECOND)} min"


def _body(event: ReadEvent) -> str:
    if event.payload is None:
        return ""
    return short(json.dumps(event.payload, ensure_ascii=False), BODY_LENGTH)


def _find_progress(log: list[ReadEvent]) -> ProgressView | None:
    """Return the last progress that the handler reported; not that it cannot be killed."""
    for event in reversed(log):
        if event.type in PROGRESS_REPORTS and "kill" not in event.facts:
            return ProgressView(
                value=event.payload, at=instant(event.ts), attempt=event.attempt, rev=event.rev
            )
    return None


def _attempt_lines(tries: list[ShownAttempt]) -> list[str]:
    rows = [
        (
            str(one.attempt),
            short(one.owner, 40),
            time_text(one.claimed_at, millis=True),
            seconds_text(one.claimed_at, one.started_at),
            seconds_text(one.started_at, one.ended_at),
            plain(one.ended_by or "–"),
            short(one.cause),
        )
        for one in tries
    ]
    titles = ("ATTEMPT", "OWNER", "CLAIMED", "WAITED", "RAN", "ENDED BY", "CAUSE")
    return ["", *align_table(titles, rows)] if rows else []


def _event_lines(shown: list[ReadEvent], total: int) -> Iterator[str]:
    rows = [
        (
            str(one.rev),
            time_text(one.ts, millis=True),
            plain(one.type),
            plain(one.to_status),
            str(one.attempt),
            short(one.actor, 40),
            short(", ".join(_event_details(one)), 100),
        )
        for one in shown
    ]
    yield ""
    yield from align_table(("REV", "AT", "EVENT", "STATE", "ATTEMPT", "BY", "DETAILS"), rows)
    if left_out := total - len(shown):
        yield f"({left_out:,} more: heartbeats, and what --events leaves out)"


def _event_details(event: ReadEvent) -> Iterator[str]:
    """Return what an event has beside its type: which step, which signal, why."""
    details = event.facts
    if (step := details.get("step")) is not None:
        use = details.get("step_use")
        yield f"{step} #{use}" if use and use > 1 else str(step)
    if (wait := details.get("wait_for")) is not None:
        yield f"for {wait_text(wait)}"
    for name, phrase in _PHRASES:
        if (value := details.get(name)) is not None:
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


def _error_lines(log: list[ReadEvent]) -> list[str]:
    for event in reversed(log):
        if (summary := error_summary(event.payload)) is not None:
            return ["", f"{event.type}: {plain(summary)}", *traceback_lines(event.payload)]
    return []


def _tree_lines(shown: Lineage) -> Iterator[str]:
    """Draw the line above a job and the tree below it; the job itself is marked."""
    for depth, node in enumerate(shown.above):
        yield f"{'   ' * depth}{_node_text(node)}"
    margin = "   " * len(shown.above)
    yield f"{margin}{_node_text(shown.tree)}{'  <' if shown.above else ''}"
    yield from (margin + line for line in _draw_below(shown.tree))


def _draw_below(node: Node) -> Iterator[str]:
    last = len(node.below) - 1
    for number, child in enumerate(node.below):
        ends = number == last and not node.left_out
        yield f"{'└─ ' if ends else '├─ '}{_node_text(child)}"
        for line in _draw_below(child):
            yield ("   " if ends else "│  ") + line
    if node.left_out:
        yield "└─ … and more"


def _node_text(node: Node) -> str:
    number = "" if node.step_index is None else f" {node.step_index}"
    link = "" if node.link is None else f"{node.link}{number}: "
    error = "" if node.error_code is None else f" ({plain(node.error_code)})"
    return f"{link}{plain(node.job_id)}  {plain(node.task)}  {node.state}{error}"
