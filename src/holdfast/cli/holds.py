"""`holdfast hold`, `unhold` and `reschedule`: keep a job from being claimed, or move its due time.

Exit codes: 0 done, 1 no such job, 2 bad input, 3 the store failed, 4 refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated

import typer

from holdfast.cli.asking import JobName, Reason, Tenant, find_job, read_moment
from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_job, run, with_operations
from holdfast.cli.showing import instant, plain, say
from holdfast.errors import BadData
from holdfast.flow.intervene import OPERATOR_HOLD
from holdfast.lifecycle.job import Job
from holdfast.operations import Operations, Which
from holdfast.spans import span_seconds

HoldName = Annotated[
    str, typer.Option("--name", help="Which hold; a job may have several at once.")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("hold")(hold_job)
    app.command("unhold")(unhold_job)
    app.command("reschedule")(reschedule_job)


def hold_job(
    job: JobName,
    *,
    name: HoldName = OPERATOR_HOLD,
    reason: Reason = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Keep a job from being claimed until the hold is lifted."""

    async def work(operations: Operations, found: Which) -> Job:
        return await operations.hold(found, name, reason=reason)

    record = _changed(job, tenant, url, work)
    _show(record, as_json, f"is held by {plain(', '.join(record.held_by))}")


def unhold_job(
    job: JobName,
    *,
    name: HoldName = OPERATOR_HOLD,
    reason: Reason = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Lift a hold; other holds of the job stay."""

    async def work(operations: Operations, found: Which) -> Job:
        return await operations.unhold(found, name, reason=reason)

    record = _changed(job, tenant, url, work)
    left = f"is still held by {plain(', '.join(record.held_by))}" if record.held_by else "is free"
    _show(record, as_json, left)


def reschedule_job(
    job: JobName,
    *,
    delay: Annotated[str | None, typer.Option("--in", help="Due after: 5m, 1h30m, 0.")] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Due at a time: 2026-11-16T10:00 (UTC).")
    ] = None,
    reason: Reason = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a job that no worker has due at another time: later, or at once (--in 0)."""

    async def work(operations: Operations, found: Which) -> Job:
        seconds, run_at = _due(delay, at)
        return await operations.reschedule(found, delay=seconds, run_at=run_at, reason=reason)

    record = _changed(job, tenant, url, work)
    due = "" if record.run_at is None else instant(record.run_at)
    _show(record, as_json, f"is due {due}")


def _due(delay: str | None, at: str | None) -> tuple[float | None, datetime | None]:
    if (delay is None) == (at is None):
        raise BadData("say either --in or --at")
    try:
        return (None if delay is None else span_seconds(delay, "--in")), read_moment(at, "--at")
    except ValueError as error:
        raise BadData(str(error)) from error


def _changed(
    job: str,
    tenant: str | None,
    url: str,
    work: Callable[[Operations, Which], Awaitable[Job]],
) -> Job:
    async def main(operations: Operations) -> Job:
        return await work(operations, await find_job(operations, job))

    return run(with_operations(url, tenant, main))


def _show(record: Job, as_json: bool, text: str) -> None:
    if as_json:
        print_job(record)
    else:
        say(out, f"job {plain(record.public_id)} ({record.state}) {text}")
