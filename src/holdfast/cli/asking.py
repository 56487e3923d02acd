"""What commands about jobs are asked with: which job, which of them, since when, and by whom."""

from __future__ import annotations

import getpass
import re
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from holdfast.errors import BadData, NoSuchJob
from holdfast.lifecycle.job import Actor, Job, JobId
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.states import KeyKind, Role
from holdfast.lifecycle.times import SECOND
from holdfast.ports import Store
from holdfast.spans import span_micros

DEFAULT_TENANT = "default"

JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job_id, or the internal id.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Whose job it is.")]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Of this tenant alone.")]
OfQueue = Annotated[str | None, typer.Option("--queue", help="Of this queue alone.")]
OfTask = Annotated[str | None, typer.Option("--task", help="Of this task alone.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Submitted since: 2h, 7d, or 2026-11-16T10:00 (UTC)."),
]
Until = Annotated[
    str | None, typer.Option("--until", help="Submitted before: a time as in --since.")
]
Before = Annotated[
    str | None, typer.Option("--before", help="Go on after a page: the id that it ended with.")
]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept in the job's history.")]


def operator() -> Actor:
    """Say who types: the user's name, as far as the system knows it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "cli"
    return Actor(Role.CONTROL, name)


async def find_job(store: Store, name: str, tenant: str) -> Job:
    """Find a job by what a person calls it."""
    check_text(name, "JOB")
    check_text(tenant, "--tenant")
    id_ = await store.look_up(tenant, KeyKind.JOB_ID, name)
    job = None if id_ is None else (await store.get([id_]))[0]
    if job is None:
        raise NoSuchJob(f"no job {name!r} of tenant {tenant!r}", job_id=name)
    return job


def check_texts(**options: str | None) -> None:
    """Refuse what no database text can hold before any database is asked."""
    for name, text in options.items():
        if text is not None:
            check_text(text, f"--{name}")


def read_cursor(text: str | None) -> JobId | None:
    """Read the id that a page ended with."""
    if text is None:
        return None
    try:
        return JobId(UUID(text))
    except ValueError as error:
        raise BadData(f"--before must be the id that a page ended with, not {text!r}") from error


def read_delay(text: str | None) -> int:
    """Read a span, in microseconds."""
    try:
        return 0 if text is None else span_micros(text, "--delay")
    except ValueError as error:
        raise BadData(str(error)) from error


async def read_time(store: Store, text: str | None, option: str) -> int | None:
    """Read a time: so long ago by the store's clock, or a date (UTC unless it says otherwise)."""
    if text is None:
        return None
    try:
        if _SPAN.fullmatch(text):
            return (await store.clock()).now - span_micros(text)
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp()) * SECOND
    except (ValueError, OverflowError) as error:
        hint = "say 2h, 7d or 2026-11-16T10:00"
        raise BadData(f"{option} must be a time, not {text!r}: {hint}") from error


_SPAN = re.compile(r"(?:[\d.]+(?:d|h|m|s|ms))+", re.ASCII)
