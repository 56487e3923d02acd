"""`holdfast submit TASK`: ask for a job, and wait for its result if that is wanted.

Exit codes: 0 submitted (with --wait: it succeeded), 1 with --wait: it ended otherwise, or not in
time, 2 bad input, 3 the store or the server failed, 4 refused: a key is taken, or the token does
not cover it.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from msgspec import Raw
from msgspec.structs import replace

from holdfast.cli.asking import Tenant, find_job, read_moment
from holdfast.cli.running import (
    DEFAULT_URL,
    FOUND_PROBLEMS,
    AsJson,
    Url,
    err,
    out,
    print_json,
    run,
    telling,
    with_operations,
)
from holdfast.cli.showing import plain, say
from holdfast.errors import BadData, HoldfastError
from holdfast.flow.outcomes import Outcome
from holdfast.lifecycle.payload import check_body, check_text, decode_body, encode_body
from holdfast.lifecycle.states import Priority
from holdfast.operations import Operations, Wanted
from holdfast.ports import Submitted
from holdfast.spans import span_seconds

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=TEXT | NAME:=JSON]...", help="Its arguments: image=a.png width:=100"
    ),
]
ArgsJson = Annotated[
    str | None, typer.Option("--args", help="All arguments at once, as a JSON object.")
]
Queue = Annotated[str | None, typer.Option("--queue", help="Into this queue.")]
PriorityName = Annotated[
    str | None, typer.Option("--priority", help="critical, interactive or batch.")
]
Needs = Annotated[str | None, typer.Option("--needs", help="What its worker must have, by comma.")]
Delay = Annotated[str | None, typer.Option("--delay", help="Due only after so long: 5m, 1h30m.")]
RunAt = Annotated[
    str | None, typer.Option("--run-at", help="Due at a time: 2026-11-16T10:00 (UTC).")
]
Deadline = Annotated[str | None, typer.Option("--deadline", help="Ended at the latest after: 2h.")]
Retries = Annotated[int | None, typer.Option("--retries", min=0, help="How often it is retried.")]
Timeout = Annotated[str | None, typer.Option("--timeout", help="How long one try may take: 5m.")]
JobIdOption = Annotated[str | None, typer.Option("--job-id", help="Its id, chosen by you.")]
ClientJobId = Annotated[
    str | None,
    typer.Option(
        "--client-job-id",
        help="A UUID of version 4, made by you: the same one again is one job.",
    ),
]
RequestId = Annotated[
    str | None, typer.Option("--request-id", help="For scripts: the same one again is one job.")
]
DedupeKey = Annotated[
    str | None, typer.Option("--dedupe-key", help="A job of the same key is not made twice.")
]
Unique = Annotated[
    bool, typer.Option("--unique-live", help="The dedupe key holds only until the job ends.")
]
Parent = Annotated[
    str | None,
    typer.Option("--parent", help="The job that it is a child of, or the first digits of its id."),
]
Correlation = Annotated[
    str | None, typer.Option("--correlation", help="What its events are looked up by.")
]
Labels = Annotated[
    list[str] | None, typer.Option("--label", help="NAME=TEXT; may be said repeatedly.")
]
Wait = Annotated[
    str | None, typer.Option("--wait", help="Wait so long for its result, and print it: 30s, 5m.")
]


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command("submit")(submit_job)


def submit_job(
    task: TaskName,
    arguments: Arguments = None,
    *,
    args: ArgsJson = None,
    queue: Queue = None,
    priority: PriorityName = None,
    needs: Needs = None,
    delay: Delay = None,
    run_at: RunAt = None,
    deadline: Deadline = None,
    retries: Retries = None,
    timeout: Timeout = None,
    job_id: JobIdOption = None,
    client_job_id: ClientJobId = None,
    request_id: RequestId = None,
    dedupe_key: DedupeKey = None,
    unique: Unique = False,
    parent: Parent = None,
    correlation: Correlation = None,
    labels: Labels = None,
    wait: Wait = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Submit a job of a task, which need not be known here."""
    with telling():
        wanted = Wanted(
            task=check_text(task, "TASK", limit=200),
            args=Raw(_arguments(arguments or [], args)),
            queue=queue,
            priority=_priority(priority),
            needs=None if needs is None else tuple(filter(None, needs.split(","))),
            delay=delay,
            run_at=read_moment(run_at, "--run-at"),
            deadline=deadline,
            retries=retries,
            timeout=timeout,
            job_id=job_id,
            client_job_id=client_job_id,
            request_id=request_id,
            dedupe_key=dedupe_key,
            unique="live" if unique else None,
            parent=parent,
            correlation_id=correlation,
            labels=dict(_pair(label, "--label") for label in labels) if labels else None,
        )
        # Before anything is submitted: a bad option must not leave a job behind.
        wait_seconds = _seconds(wait)

    async def work(operations: Operations) -> Submitted:
        found = None if parent is None else str(await find_job(operations, parent))
        [answer] = await operations.submit([replace(wanted, parent=found)])
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    made = run(with_operations(url, tenant, work))
    if not as_json:
        _say_submitted(made)
    outcome = None if wait_seconds is None else _waited(made, wait_seconds, tenant, url)
    if as_json:
        print_json(_as_data(made, outcome))
    elif outcome is not None:
        _say_outcome(outcome)
    if outcome is not None and outcome.error() is not None:
        raise typer.Exit(FOUND_PROBLEMS)


def _seconds(wait: str | None) -> float | None:
    try:
        return None if wait is None else span_seconds(wait, "--wait")
    except ValueError as error:
        raise BadData(str(error)) from error


def _waited(made: Submitted, seconds: float, tenant: str | None, url: str) -> Outcome:
    async def work(operations: Operations) -> Outcome:
        return (await operations.outcome(made.job.id, seconds)).outcome

    return run(with_operations(url, tenant, work))


def _arguments(pairs: list[str], whole: str | None) -> bytes:
    said: dict[str, Any] = {}
    if whole is not None:
        body = check_body(whole.encode(errors="surrogatepass"), "--args")
        said = decode_body(body)
        if not isinstance(said, dict):
            raise BadData("--args must be a JSON object of named arguments")
    for pair in pairs:
        name, value = _argument(pair)
        if name in said:
            raise BadData(f"argument {name!r} is given twice")
        said[name] = value
    return encode_body(said, "the arguments")


def _argument(pair: str) -> tuple[str, Any]:
    name, text = _pair(pair, "an argument")
    if not name.endswith(":"):
        return name, text
    name = name.removesuffix(":")
    return name, decode_body(check_body(text.encode(errors="surrogatepass"), f"argument {name!r}"))


def _pair(text: str, what: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.removesuffix(":"):
        hint = "; --args takes a JSON object" if text.startswith("{") else ""
        raise BadData(f"{what} is written NAME=TEXT, not {text!r}{hint}")
    return name, value


def _priority(word: str | None) -> Any:
    known = [one.value for one in Priority if one.code]
    if word is not None and word not in known:
        raise BadData(f"--priority must be one of {', '.join(known)}; not {word!r}")
    return word


def _as_data(made: Submitted, outcome: Outcome | None) -> dict[str, Any]:
    told = {
        "job_id": made.job.public_id,
        "internal_id": str(made.job.id),
        "created": made.created,
        "state": made.job.state.value if outcome is None else outcome.state.value,
    }
    if outcome is None:
        return told
    ended = msgspec.to_builtins(decode_body(outcome.body))
    if outcome.error() is None:
        return told | {"result": ended}
    return told | {"error_code": outcome.error_code, "error": ended}


def _say_submitted(made: Submitted) -> None:
    name = plain(made.job.public_id)
    if made.created:
        say(out, f"job {name} submitted to queue {plain(made.job.queue)}")
    else:
        say(out, f"job {name} was there before, and is {made.job.state}")


def _say_outcome(outcome: Outcome) -> None:
    if (error := outcome.error()) is not None:
        say(err, plain(error))
    else:
        say(out, plain("null" if outcome.body is None else outcome.body.decode()))
