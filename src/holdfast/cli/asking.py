"""What commands about jobs are asked with: which job, which of them, since when, and by whom."""

from __future__ import annotations

import getpass
import re
from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from holdfast.errors import BadData, NoSuchJob
from holdfast.lifecycle.job import Actor, JobId
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.states import Role, State
from holdfast.lifecycle.times import SECOND
from holdfast.operations import Operations, Which
from holdfast.ports import Query
from holdfast.spans import span_micros

JobName = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A job_id, the internal id, or enough of its first digits."),
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Whose job it is; else the token's, or the tenant `default`."),
]
OfTenant = Annotated[str | None, typer.Option("--tenant", help="Of this tenant alone.")]
OfQueue = Annotated[str | None, typer.Option("--queue", help="Of this queue alone.")]
OfState = Annotated[
    list[str] | None, typer.Option("--state", help="In this state; may be said repeatedly.")
]
OfTask = Annotated[str | None, typer.Option("--task", help="Of this task alone.")]
OfLabel = Annotated[
    list[str] | None,
    typer.Option("--label", help="With this label, NAME=TEXT; may be said repeatedly."),
]
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


async def find_job(operations: Operations, name: str) -> Which:
    """Return the id that a name is the start of; any other name is returned as it is.

    BadData if several ids start with it. A job_id chosen by its submitter is never cut short.
    """
    if not _PREFIX.fullmatch(name):
        return name
    try:
        return (await operations.get(name)).id
    except NoSuchJob:
        digits = name.replace("-", "").lower()
        last = JobId(UUID(digits.ljust(32, "f")))
        page = await operations.find(Query(before=last, limit=2))
        found = [job for job in page.jobs if job.id.hex.startswith(digits)]
    if len(found) > 1:
        several = ", ".join(str(job.id) for job in found)
        raise BadData(f"several jobs' ids start with {name}: {several}, …; give more digits")
    return found[0].id if found else name


_PREFIX = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{1,4}){0,5}", re.ASCII | re.IGNORECASE)
"""At least the first group of an id. A whole id fits no less, and is found as it is."""


def check_texts(**options: str | None) -> None:
    """Refuse what no database text can hold before any database is asked."""
    for name, text in options.items():
        if text is not None:
            check_text(text, f"--{name}")


def read_labels(pairs: list[str] | None) -> dict[str, str]:
    """Read labels written as NAME=TEXT."""
    found = {}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise BadData(f"--label is written NAME=TEXT, not {pair!r}")
        found[name] = text
    return found


def read_state(word: str) -> State:
    """Read a state's name."""
    state = State.named(word)
    if state is State.UNKNOWN:
        known = ", ".join(one for one in State if one is not State.UNKNOWN)
        raise BadData(f"--state must be one of {known}; not {word!r}")
    return state


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


def read_moment(text: str | None, option: str) -> datetime | None:
    """Read a date with its time; UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "such as 2026-11-16T10:00"
        raise BadData(f"{option} must be a time {hint}, not {text!r}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


async def read_time(operations: Operations, text: str | None, option: str) -> int | None:
    """Read a time: so long ago by the store's clock, or a date (UTC unless it says otherwise)."""
    if text is None:
        return None
    try:
        if _SPAN.fullmatch(text):
            return await operations.now() - span_micros(text)
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp()) * SECOND
    except (ValueError, OverflowError) as error:
        hint = "say 2h, 7d or 2026-11-16T10:00"
        raise BadData(f"{option} must be a time, not {text!r}: {hint}") from error


_SPAN = re.compile(r"(?:[\d.]+(?:d|h|m|s|ms))+|\d{1,7}", re.ASCII)
"""Seconds may stand alone; eight digits are a date."""
