"""Commands on jobs: `ls`, `cancel`, `signal`, `resolve`, `why`, `hold`, `unhold`, `reschedule`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer
from msgspec import Raw
from typer import Argument, Option

from holdfast.cli.options import (
    Before,
    JobCommand,
    JobName,
    Limit,
    OfLabel,
    OfQueue,
    OfState,
    OfTask,
    Reason,
    Since,
    Until,
    check_texts,
    read_cursor,
    read_date,
    read_json,
    read_pair,
    read_seconds,
    read_state,
    read_time,
)
from holdfast.cli.output import align_table, facts, plain, short, time_text
from holdfast.cli.runtime import REFUSED
from holdfast.errors import BadData
from holdfast.flow.hold import OPERATOR_HOLD
from holdfast.lifecycle.family import forsakes
from holdfast.lifecycle.payload import check_text, encode_body
from holdfast.lifecycle.record import Job
from holdfast.operations import requests as q
from holdfast.operations.json_format import json_of
from holdfast.operations.request import Operations
from holdfast.operations.views import JobList
from holdfast.ports.models import Page
from holdfast.queries.why.facts import failure_text
from holdfast.queries.why.reasons import Reason as Because
from holdfast.queries.why.why import Why

TITLES = ("JOB", "STATE", "TASK", "QUEUE", "TENANT", "ATTEMPT", "SUBMITTED", "ERROR")


def list_jobs(
    command: JobCommand,
    *,
    state: OfState = None,
    queue: OfQueue = None,
    task: OfTask = None,
    error: Annotated[str | None, Option(help="Only jobs with this error code.")] = None,
    workflow: Annotated[str | None, Option(help="Only jobs of this workflow.")] = None,
    correlation: Annotated[str | None, Option(help="Only jobs with this correlation id.")] = None,
    label: OfLabel = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    before: Before = None,
) -> None:
    """List jobs, newest first."""

    async def work(operations: Operations) -> Page:
        check_texts(queue=queue, task=task, error=error)
        check_texts(workflow=workflow, correlation=correlation)
        request = q.ListJobs(
            state=tuple(read_state(word) for word in state or ()),
            queue=queue,
            task=task,
            workflow_id=workflow,
            correlation_id=correlation,
            error_code=error,
            label=tuple("=".join(read_pair(pair, "--label")) for pair in label or ()),
            created_from=await read_time(operations, since, "--since"),
            created_until=await read_time(operations, until, "--until"),
            before=read_cursor(before),
            limit=limit,
        )
        return await operations.do(request)

    page = command.ask(work)
    lines = align_table(TITLES, map(_job_row, page.jobs)) if page.jobs else ["no such jobs"]
    notes = [] if page.next is None else [f"more: --before {page.next}"]
    command.show(JobList.of(page), *lines, notes=notes)


def _job_row(job: Job) -> tuple[str, ...]:
    return (
        plain(job.public_id),
        job.state.value,
        short(job.task, 30),
        short(job.queue, 20),
        short(job.tenant, 20),
        str(job.attempt),
        time_text(job.created_at),
        short(_list_error(job), 30),
    )


def _list_error(job: Job) -> str:
    """Return how a job failed in a word, a command with its exit code."""
    code = "" if job.exit_code in (None, 0) else f"exit {job.exit_code}"
    return " ".join(part for part in (job.error_code, code) if part)


def cancel_job(
    command: JobCommand,
    job: JobName,
    *,
    hard: Annotated[bool, Option("--hard", help="Kill it: its worker gets no grace.")] = False,
    reason: Reason = None,
) -> None:
    """Cancel a job: at once if no worker owns it, otherwise its worker is asked to stop it."""
    record = command.do(q.CancelJob(job=job, hard=hard, reason=reason))
    name = plain(record.public_id)
    if record.cancelled:
        command.show_job(record, f"job {name} is cancelled")
        return
    if not record.terminal:
        mode, owner = record.cancel_requested, plain(record.owner)
        command.show_job(record, f"cancel requested ({mode}); worker {owner} will stop job {name}")
        return
    below = "; its children that still run will be stopped" if hard and forsakes(record) else ""
    note = f"job {name} has already ended: {record.state}{below}"
    command.show_job(record, notes=[note])
    raise typer.Exit(REFUSED)


def send_signal(
    command: JobCommand,
    job: JobName,
    name: Annotated[str, Argument(metavar="NAME", help="The name that the job waits for.")],
    *,
    payload: Annotated[str, Option(help="What to send, as JSON.")] = "null",
    request_id: Annotated[
        str | None, Option(help="For scripts: a repeated signal is sent once.")
    ] = None,
) -> None:
    """Send a signal to a job. If the job does not wait for it yet, it is kept for later."""
    body = Raw(encode_body(read_json(payload, "--payload"), "--payload"))
    check_text(name, "NAME")
    record = command.do(q.SendSignal(job=job, name=name, payload=body, request_id=request_id))
    _show_signal(command, record, name, f"signal {plain(name)} sent")


def resolve_step(
    command: JobCommand,
    job: JobName,
    step: Annotated[str, Argument(metavar="STEP", help="The interrupted step.")],
    *,
    happened: Annotated[
        bool | None, Option("--happened/--not-happened", help="Whether the step took effect.")
    ] = None,
    result: Annotated[str | None, Option(help="What the step returned, as JSON.")] = None,
    force: Annotated[
        bool, Option("--force", help="Even if the job does not ask about this step.")
    ] = False,
) -> None:
    """Record whether an interrupted step took effect, so that the job can continue.

    With --happened the job continues with the step's result; with --not-happened it runs the step.
    """
    value = _read_result(happened, result)
    record = command.do(
        q.ResolveStep(job=job, step=step, happened=bool(happened), result=value, force=force)
    )
    _show_signal(command, record, f"resolve:{step}", f"step {plain(step)} resolved")


def _read_result(happened: bool | None, result: str | None) -> Any:
    if happened is None:
        raise BadData("use --happened or --not-happened")
    if result is None:
        return None
    if not happened:
        raise BadData("--result needs --happened: a step without effect returned nothing")
    return read_json(result, "--result")


def _show_signal(command: JobCommand, job: Job, signal: str, done: str) -> None:
    # The answer may leave out signals that are kept: read them all, to count those of one name.
    job = command.do(q.GetJob(job=job.id)) if job.unread_signals else job
    kept = sum(one.name == signal for one in job.signals)
    then = f"kept until job {plain(job.public_id)} ({job.state}) waits for it ({kept} kept)"
    line = f"{done}; {then}" if kept else f"{done}; job {plain(job.public_id)} continues"
    command.show_job(job, line, signal=signal, kept=kept)


def explain_job(command: JobCommand, job: JobName) -> None:
    """Explain what a job is doing, why it is not running, and who caused that."""
    answer = command.do(q.ExplainJob(job=job))
    data = json_of(answer) | {"text": answer.text, "advice": answer.advice}
    command.show(data, *facts(_reason_lines(answer)))


def _reason_lines(answer: Why) -> Iterator[tuple[str, str]]:
    yield "job", plain(answer.job_id)
    yield "task", plain(answer.task)
    yield "queue", plain(answer.queue)
    yield "state", f"{answer.state}, attempt {answer.attempt}"
    yield "why", _sentence(answer.reason, answer.now)
    yield "to do", plain(answer.advice)
    for reason in answer.also:
        yield "also", _sentence(reason, answer.now)
    if answer.last_failure is not None and answer.reason.code != "backoff":
        yield "last failure", plain(failure_text(answer.last_failure, answer.now))


def _sentence(reason: Because, now: int) -> str:
    return plain(f"[{reason.code}] {reason.sentence(now)}")


HoldName = Annotated[str, Option("--name", help="The name of the hold; a job may have several.")]


def hold_job(
    command: JobCommand, job: JobName, *, name: HoldName = OPERATOR_HOLD, reason: Reason = None
) -> None:
    """Keep a job from being claimed until the hold is lifted."""
    record = command.do(q.HoldJob(job=job, hold=name, reason=reason))
    _show_changed(command, record, f"is held by {plain(', '.join(record.held_by))}")


def unhold_job(
    command: JobCommand, job: JobName, *, name: HoldName = OPERATOR_HOLD, reason: Reason = None
) -> None:
    """Lift a hold; other holds of the job stay."""
    record = command.do(q.UnholdJob(job=job, hold=name, reason=reason))
    left = f"is still held by {plain(', '.join(record.held_by))}" if record.held_by else "is free"
    _show_changed(command, record, left)


def reschedule_job(
    command: JobCommand,
    job: JobName,
    *,
    delay: Annotated[str | None, Option("--in", help="Due after this time: 5m, 1h30m, 0.")] = None,
    at: Annotated[str | None, Option(help="Due at a time: 2026-11-16T10:00 (UTC).")] = None,
    reason: Reason = None,
) -> None:
    """Change when a job that no worker owns is due: later, or at once (--in 0)."""
    if (delay is None) == (at is None):
        raise BadData("use either --in or --at")
    seconds, run_at = read_seconds(delay, "--in"), read_date(at, "--at")
    record = command.do(q.RescheduleJob(job=job, delay=seconds, run_at=run_at, reason=reason))
    due = "" if record.run_at is None else time_text(record.run_at)
    _show_changed(command, record, f"is due {due}")


def _show_changed(command: JobCommand, job: Job, text: str) -> None:
    command.show_job(job, f"job {plain(job.public_id)} ({job.state}) {text}")
