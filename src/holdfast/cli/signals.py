"""`holdfast signal` and `resolve`: what a person tells a job that waits.

Exit codes: 0 sent, 1 no such job, 2 bad input, 3 the store failed, 4 refused: it has ended, or does
not wait for that.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.asking import JobName, Tenant, find_job
from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_job, run, with_operations
from holdfast.cli.showing import plain, say
from holdfast.errors import BadData
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.payload import check_body, check_text, decode_body
from holdfast.operations import Operations

SignalName = Annotated[str, typer.Argument(metavar="NAME", help="What a wait_for waits for.")]
StepName = Annotated[str, typer.Argument(metavar="STEP", help="The step that it asks about.")]
Payload = Annotated[str, typer.Option("--payload", help="What is sent: JSON, null unless given.")]
RequestId = Annotated[
    str | None, typer.Option("--request-id", help="Sent again under it, it is sent once.")
]
Verdict = Annotated[
    bool | None,
    typer.Option("--happened/--not-happened", help="Whether the step had its effect."),
]
Result = Annotated[
    str | None, typer.Option("--result", help="What the step returned, as JSON; null unless given.")
]
Force = Annotated[bool, typer.Option("--force", help="Also if the job does not wait for it.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("signal")(send_signal)
    app.command("resolve")(resolve_step)


def send_signal(
    job: JobName,
    name: SignalName,
    *,
    payload: Payload = "null",
    request_id: RequestId = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send a job a signal: it goes on if it waits for it, else the signal is kept for its wait."""

    async def work(operations: Operations) -> Job:
        body = check_body(payload.encode(errors="surrogatepass"), "--payload")
        check_text(name, "NAME")
        sent = await operations.signal(
            await find_job(operations, job), name, body, request_id=request_id
        )
        return await _whole(operations, sent)

    _told(run(with_operations(url, tenant, work)), name, as_json)


def resolve_step(
    job: JobName,
    step: StepName,
    *,
    happened: Verdict = None,
    result: Result = None,
    force: Force = False,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say whether a step happened that a job asks about: its attempt died in it, nobody else knows.

    With --happened it goes on with the step's result; with --not-happened it runs the step.
    """

    async def work(operations: Operations) -> Job:
        said = _result(happened, result)
        found = await find_job(operations, job)
        sent = await operations.resolve(
            found, step, happened=bool(happened), result=said, force=force
        )
        return await _whole(operations, sent)

    _told(run(with_operations(url, tenant, work)), f"resolve:{step}", as_json)


def _result(happened: bool | None, result: str | None) -> Any:
    if happened is None:
        raise BadData("say --happened or --not-happened")
    if result is None:
        return None
    if not happened:
        raise BadData("what did not happen has no --result")
    return decode_body(check_body(result.encode(errors="surrogatepass"), "--result"))


async def _whole(operations: Operations, job: Job) -> Job:
    """Read a job with all the signals it keeps, to count those of one name."""
    return await operations.get(job.id) if job.unread_signals else job


def _told(job: Job, name: str, as_json: bool) -> None:
    kept = sum(one.name == name for one in job.signals)
    if as_json:
        print_job(job, signal=name, kept=kept)
    elif kept:
        then = f"kept until it waits for it ({kept} of that name)"
        say(out, f"job {plain(job.public_id)} is {job.state}: {plain(name)} is {then}")
    else:
        say(out, f"job {plain(job.public_id)} was told {plain(name)} and goes on")
