"""`holdfast why JOB`: what a job is doing, why it is not running, and who did that.

Exit codes: 0 answered, 1 no such job, 2 bad input, 3 the store failed.
"""

from __future__ import annotations

from collections.abc import Iterator

import typer

from holdfast.cli.asking import JobName, Tenant, find_job
from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_json, run, with_operations
from holdfast.cli.showing import plain, say_facts
from holdfast.flow.reasons import Reason, tell
from holdfast.flow.why import Why
from holdfast.json_format import json_of
from holdfast.operations import Operations


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(why)


def why(
    job: JobName, tenant: Tenant = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Say what a job is doing, why it is not running, and who did that."""

    async def work(operations: Operations) -> Why:
        return await operations.why(await find_job(operations, job))

    answer = run(with_operations(url, tenant, work))
    if as_json:
        said = {"text": answer.text, "advice": answer.advice}
        print_json(json_of(answer) | said)
    else:
        say_facts(out, _facts(answer))


def _facts(answer: Why) -> Iterator[tuple[str, str]]:
    yield "job", plain(answer.job_id)
    yield "task", plain(answer.task)
    yield "queue", plain(answer.queue)
    yield "state", f"{answer.state}, attempt {answer.attempt}"
    yield "why", _sentence(answer.reason, answer.now)
    if answer.advice is not None:
        yield "to do", plain(answer.advice)
    for reason in answer.also:
        yield "also", _sentence(reason, answer.now)
    if answer.last_failure is not None and answer.reason.code != "backoff":
        yield "last failure", plain(tell(answer.last_failure, answer.now))


def _sentence(reason: Reason, now: int) -> str:
    return plain(f"[{reason.code}] {reason.say(now)}")
