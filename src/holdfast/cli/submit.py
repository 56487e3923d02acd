"""`holdfast submit TASK`: submit a job and, with --wait, wait for its result."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec import Raw
from msgspec.structs import replace
from typer import Argument, Option

from holdfast.admission.topics import NO_TOPICS
from holdfast.cli.options import (
    JobCommand,
    find_job,
    read_date,
    read_json,
    read_pair,
    read_priority,
    read_seconds,
    words,
)
from holdfast.cli.output import plain, print_line
from holdfast.cli.runtime import FOUND_PROBLEMS
from holdfast.errors import BadData
from holdfast.flow.submit_topic import WantedTopic
from holdfast.lifecycle.holds import next_approval
from holdfast.lifecycle.payload import check_text, decode_body, encode_body
from holdfast.operations.request import Operations
from holdfast.operations.requests import SubmitJob, WantedJob
from holdfast.operations.sequences import wait_for_outcome
from holdfast.ports.models import Submitted
from holdfast.queries.outcomes import Outcome


def submit_job(
    command: JobCommand,
    task: Annotated[
        str | None, Argument(metavar="TASK", help="The task's name; not with --topic.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        Argument(
            metavar="[NAME=TEXT | NAME:=JSON]...", help="Its arguments: image=a.png width:=100"
        ),
    ] = None,
    *,
    topic: Annotated[
        str | None,
        Option(help="Submit to the pool of a topic, instead of a task: job.chat.simple."),
    ] = None,
    args: Annotated[str | None, Option(help="All arguments at once, as a JSON object.")] = None,
    queue: Annotated[str | None, Option(help="The queue to submit to.")] = None,
    priority: Annotated[str | None, Option(help="critical, interactive or batch.")] = None,
    needs: Annotated[
        str | None, Option(help="Capabilities that its worker must have: gpu,cuda.")
    ] = None,
    delay: Annotated[str | None, Option(help="Due after this time: 5m, 1h30m.")] = None,
    run_at: Annotated[str | None, Option(help="Due at a time: 2026-11-16T10:00 (UTC).")] = None,
    deadline: Annotated[str | None, Option(help="Must end within this time: 2h.")] = None,
    retries: Annotated[int | None, Option(min=0, help="How often it may be retried.")] = None,
    timeout: Annotated[str | None, Option(help="How long one attempt may run: 5m.")] = None,
    job_id: Annotated[str | None, Option(help="An id of your choice.")] = None,
    client_job_id: Annotated[
        str | None,
        Option(help="A version 4 UUID of your own: a repeated submit returns the first job."),
    ] = None,
    request_id: Annotated[
        str | None, Option(help="For scripts: a repeated submit returns the first job.")
    ] = None,
    dedupe_key: Annotated[
        str | None, Option(help="A second job with this key is not created.")
    ] = None,
    unique: Annotated[
        bool, Option("--unique-live", help="The dedupe key is freed when the job ends.")
    ] = False,
    parent: Annotated[
        str | None, Option(help="Its parent: a job_id, an internal id, or first digits.")
    ] = None,
    correlation: Annotated[
        str | None, Option(help="An id that its events can be found by.")
    ] = None,
    labels: Annotated[
        list[str] | None, Option("--label", help="NAME=TEXT; may be repeated.")
    ] = None,
    env: Annotated[
        list[str] | None, Option("--env", help="Metadata for its worker, NAME=TEXT; repeatable.")
    ] = None,
    context_ptr: Annotated[
        str | None, Option(help="A pointer for its worker, such as a URI; it is never read.")
    ] = None,
    adapter_id: Annotated[
        str | None, Option("--adapter", help="Only a worker that has this adapter may claim it.")
    ] = None,
    wait: Annotated[
        str | None, Option(help="Wait up to this time for the result and print it: 30s, 5m.")
    ] = None,
) -> None:
    """Submit a job of a task, or to a topic's pool. The task need not be known here."""
    fields: dict[str, Any] = {
        "priority": read_priority(priority),
        "needs": None if needs is None else words(needs),
        "delay": delay,
        "run_at": read_date(run_at, "--run-at"),
        "deadline": deadline,
        "job_id": job_id,
        "client_job_id": client_job_id,
        "request_id": request_id,
        "dedupe_key": dedupe_key,
        "unique": "live" if unique else None,
        "correlation_id": correlation,
        "labels": dict(read_pair(label, "--label") for label in labels) if labels else None,
        "env": dict(read_pair(one, "--env") for one in env) if env else None,
        "context_ptr": context_ptr,
        "adapter_id": adapter_id,
    }
    terms = {"queue": queue, "retries": retries, "timeout": timeout}
    wanted = _build_wanted(task, topic, arguments or [], args, fields=fields, terms=terms)
    # Before anything is submitted: a bad option must not leave a job behind.
    wait_seconds = read_seconds(wait, "--wait")

    async def submit(operations: Operations) -> Submitted:
        found = None if parent is None else str(await find_job(operations, parent))
        return await operations.do(SubmitJob(job=replace(wanted, parent=found)))

    made = command.ask(submit, topics=NO_TOPICS if topic is None else command.topics())
    if wait_seconds is None:
        command.show(_submitted_as_data(made, None), submitted_line(made))
    else:
        _show_outcome(command, made, wait_seconds)


def _build_wanted(
    task: str | None,
    topic: str | None,
    pairs: list[str],
    args: str | None,
    *,
    fields: dict[str, Any],
    terms: dict[str, Any],
) -> WantedJob | WantedTopic:
    """Return the job of a task, or of a topic: then what is in the task's place is an argument."""
    if topic is None:
        if task is None:
            raise BadData("name the TASK, or give --topic")
        name = check_text(task, "TASK", limit=200)
        return WantedJob(task=name, args=Raw(_read_arguments(pairs, args)), **fields, **terms)
    for name, value in terms.items():
        if value is not None:
            raise BadData(f"--{name} is not for a topic: its pool determines it")
    pairs = pairs if task is None else [task, *pairs]
    return WantedTopic(topic=topic, args=Raw(_read_arguments(pairs, args)), **fields)


def _show_outcome(command: JobCommand, made: Submitted, seconds: float) -> None:
    """Wait for a job's end and show its outcome; exit with 1 if it did not succeed."""
    if not command.as_json:
        print_line(submitted_line(made))
    job = made.job.id
    outcome = command.ask(lambda on: wait_for_outcome(on, job, seconds)).outcome
    error = outcome.error()
    if error is not None:
        command.show(_submitted_as_data(made, outcome), notes=[plain(error)])
        raise typer.Exit(FOUND_PROBLEMS)
    body = "null" if outcome.body is None else outcome.body.decode()
    command.show(_submitted_as_data(made, outcome), plain(body))


def submitted_line(made: Submitted) -> str:
    """Return which job a submit led to, in words."""
    name = plain(made.job.public_id)
    if made.created and made.job.terminal:
        return f"job {name} is {made.job.state}; `holdfast policy explain {name}` shows why"
    if made.created and (awaited := next_approval(made.job)) is not None:
        people = "1 person" if awaited[1].slot == 1 else f"{awaited[1].slot} people"
        return f"job {name} awaits the approval of {people}, by rule {plain(awaited[1].rule)}"
    if made.created:
        return f"job {name} submitted to queue {plain(made.job.queue)}"
    return f"job {name} already exists ({made.job.state})"


def _submitted_as_data(made: Submitted, outcome: Outcome | None) -> dict[str, Any]:
    data = {
        "job_id": made.job.public_id,
        "internal_id": str(made.job.id),
        "created": made.created,
        "state": made.job.state.value if outcome is None else outcome.state.value,
    }
    if outcome is None:
        return data
    body = decode_body(outcome.body)
    if outcome.error() is None:
        return data | {"result": body}
    return data | {"error_code": outcome.error_code, "error": body}


def _read_arguments(pairs: list[str], whole: str | None) -> bytes:
    given: dict[str, Any] = {}
    if whole is not None:
        given = read_json(whole, "--args")
        if not isinstance(given, dict):
            raise BadData("--args must be a JSON object of named arguments")
    for pair in pairs:
        name, value = _read_argument(pair)
        if name in given:
            raise BadData(f"argument {name!r} is given twice")
        given[name] = value
    return encode_body(given, "the arguments")


def _read_argument(pair: str) -> tuple[str, Any]:
    name, text = read_pair(pair, "an argument")
    if not name.endswith(":"):
        return name, text
    name = name.removesuffix(":")
    return name, read_json(text, f"argument {name!r}")
