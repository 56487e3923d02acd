"""Options that commands share, in groups; and how what is typed is read.

A command is a function of typer's options and of groups of them: a parameter that is a class of
`Options` brings the options of its fields. Each command takes one group that knows the store or
server to ask, and prints the answer.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints
from uuid import UUID

import typer
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, replace
from typer import Argument, Option

from holdfast.admission.topics import NO_TOPICS, Topics
from holdfast.app.app import Holdfast
from holdfast.cli.output import print_answer
from holdfast.cli.runtime import exit_on_error, load_app, with_operations, with_store
from holdfast.config import ConfigFile, variable
from holdfast.durations import instant, span_micros, span_seconds
from holdfast.errors import BadData, NoSuchJob
from holdfast.lifecycle.payload import check_body, check_text, decode_body
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import KNOWN, Priority, State
from holdfast.operations.json_format import json_of
from holdfast.operations.request import Operations, Request
from holdfast.operations.requests import GetClock, GetJob, ListJobs, Which
from holdfast.operations.views import JobView
from holdfast.ports.store import Store

if TYPE_CHECKING:
    from holdfast.cli.settings import CommandFileOptions

R = TypeVar("R")
DEFAULT_URL = "holdfast.db"

JobName = Annotated[
    str,
    Argument(metavar="JOB", help="A job_id, an internal id, or the first digits of one."),
]
OfQueue = Annotated[str | None, Option("--queue", help="Only jobs of this queue.")]
OfState = Annotated[
    list[str] | None, Option("--state", help="Only jobs in this state; may be repeated.")
]
OfTask = Annotated[str | None, Option("--task", help="Only jobs of this task.")]
OfLabel = Annotated[
    list[str] | None,
    Option("--label", help="Only jobs with this label, NAME=TEXT; may be repeated."),
]
Since = Annotated[
    str | None, Option("--since", help="Submitted since: 2h, 7d, or 2026-11-16T10:00 (UTC).")
]
Until = Annotated[str | None, Option("--until", help="Submitted before: a time as in --since.")]
Before = Annotated[
    str | None, Option("--before", help="The next page: the id that the last page ended with.")
]
Limit = Annotated[int, Option("--limit", min=1, max=1000, help="Maximum rows to list.")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object instead of text.")]
Reason = Annotated[str | None, Option("--reason", help="Why; kept in the history.")]


class Options(Struct):
    """A group of options, one per field, that a command takes as one parameter."""


class StoreOptions(Options):
    """Which store a command works on."""

    ctx: typer.Context
    url: Annotated[
        str,
        Option(
            envvar="HOLDFAST_URL",
            help="The store: a SQLite file, sqlite:///path or postgresql://user@host/database; "
            "or a server: http(s)://host, with its token in HOLDFAST_TOKEN.",
        ),
    ] = DEFAULT_URL
    app: Annotated[
        str | None,
        Option(
            metavar="MODULE:APP",
            envvar=variable("app"),
            help="Use the store of this app, package.module:app, unless --url is given.",
        ),
    ] = None

    @property
    def address(self) -> str:
        """The url by flag, environment or settings file; else the app's own; else the default."""
        app = self._app_of_store()
        return self.url if app is None else app.url

    def command_dir(self, given: Path | None) -> Path | None:
        """Return the directory that was given, else that of the store's app; None: the default."""
        app = self._app_of_store() if given is None else None
        return given if app is None else app.command_dir

    def blobs(self, given: str | None) -> str | None:
        """Return the place of blobs that was given, else that of the store's app."""
        app = self._app_of_store() if given is None else None
        return given if app is None else app.blobs

    def topics(self) -> Topics:
        """Return the topics of the settings file, else those of the app."""
        topics = read_file_topics(self.ctx)
        if topics.routes or self.app is None:
            return topics
        return load_app(self.app).topics

    def _app_of_store(self) -> Holdfast | None:
        """Return the app whose store is used; None if an address was given instead."""
        source = self.ctx.get_parameter_source("url")
        is_default = source is not None and source.name == "DEFAULT"
        return load_app(self.app) if self.app is not None and is_default else None

    def on_store(self, work: Callable[[Store], Awaitable[R]]) -> R:
        """Do work on the store."""
        return asyncio.run(with_store(self.address, work))


class StoreCommand(StoreOptions):
    """A command on a store that prints an answer."""

    as_json: AsJson = False

    def show(self, answer: Any, *lines: str, notes: Iterable[str] = ()) -> None:
        """Print an answer: as JSON, or as lines on stdout with notes on stderr."""
        data = json_of(answer) if self.as_json else None
        print_answer(data, *lines, notes=notes, as_json=self.as_json)


class ServerCommand(StoreCommand):
    """A command on all that a store or a server has."""

    @property
    def whose(self) -> str | None:
        """The tenant whose jobs it is about; None means all of them."""
        return None

    def ask(
        self,
        work: Callable[[Operations], Awaitable[R]],
        *,
        files: CommandFileOptions | None = None,
        topics: Topics = NO_TOPICS,
    ) -> R:
        """Do work that takes several requests; `files` is where logs and other files are.

        `topics` is where jobs go that it submits by topic to a store.
        """
        directory = self.command_dir(None if files is None else files.command_dir)
        blobs = self.blobs(None if files is None else files.blobs)
        doing = with_operations(
            self.address,
            self.whose,
            work,
            command_dir=directory,
            blobs=blobs,
            topics=topics,
        )
        return asyncio.run(doing)

    def do(self, request: Request[R]) -> R:
        """Carry out one request; its job may be named by the first digits of its id."""

        async def work(operations: Operations) -> R:
            job = getattr(request, "job", None)
            if not isinstance(job, str):
                return await operations.do(request)
            return await operations.do(replace(request, job=await find_job(operations, job)))

        return self.ask(work)

    def show_job(self, job: Job, *lines: str, notes: Iterable[str] = (), **more: Any) -> None:
        """Print a job: as HTTP answers with it and `more` of it, or as lines."""
        self.show(json_of(JobView.of(job)) | more, *lines, notes=notes)


class JobCommand(ServerCommand):
    """A command on one job, or on the jobs of one tenant."""

    tenant: Annotated[
        str | None,
        Option(
            help="The tenant. Default: the token's, or `default` for a job_id and all for a list."
        ),
    ] = None

    @property
    def whose(self) -> str | None:
        """The tenant that was named."""
        return self.tenant


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command's function as typer needs it: each group replaced by its options.

    A HoldfastError becomes one line and an exit code.
    """
    signature = inspect.signature(function, eval_str=True)
    parameters: dict[str, inspect.Parameter] = {}
    groups: dict[str, type[Options]] = {}
    # What every command takes comes last in its help.
    for one in sorted(signature.parameters.values(), key=lambda one: _is(one, StoreOptions)):
        if _is(one, Options):
            groups[one.name] = one.annotation
            parameters |= {each.name: each for each in _parameters_of(one.annotation)}
        else:
            # By name alone: typer passes all values by name.
            parameters[one.name] = one.replace(kind=inspect.Parameter.KEYWORD_ONLY)

    @wraps(function)
    def command(**given: Any) -> None:
        taken = {
            name: group(**{field: given[field] for field in group.__struct_fields__})
            for name, group in groups.items()
        }
        own = {name: given[name] for name in signature.parameters.keys() - groups.keys()}
        with exit_on_error():
            function(**own, **taken)

    made: Any = command
    made.__signature__ = signature.replace(parameters=list(parameters.values()))
    made.__annotations__ = {one.name: one.annotation for one in parameters.values()}
    return command


def read_file_topics(ctx: typer.Context) -> Topics:
    """Return the topics of the settings file."""
    file = ctx.find_root().obj
    return file.topics if isinstance(file, ConfigFile) else NO_TOPICS


def _is(parameter: inspect.Parameter, group: type[Options]) -> bool:
    kind = parameter.annotation
    return isinstance(kind, type) and issubclass(kind, group)


def _parameters_of(group: type[Options]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is NODEFAULT else one.default,
            annotation=hints[one.name],
        )
        for one in fields(group)
    ]


async def find_job(operations: Operations, name: str) -> Which:
    """Return the id that starts with a name; any other name is returned as it is.

    BadData if several ids start with it. A job_id chosen by its submitter is never cut short.
    """
    if not _PREFIX.fullmatch(name):
        return name
    try:
        return (await operations.do(GetJob(job=name))).id
    except NoSuchJob:
        digits = name.replace("-", "").lower()
        last = JobId(UUID(digits.ljust(32, "f")))
        page = await operations.do(ListJobs(before=last, limit=2))
        found = [job for job in page.jobs if job.id.hex.startswith(digits)]
    if len(found) > 1:
        several = ", ".join(str(job.id) for job in found)
        raise BadData(f"several jobs' ids start with {name}: {several}, …; give more digits")
    return found[0].id if found else name


_PREFIX = re.compile(r"[0-9a-f]{8}(?:-?[0-9a-f]{1,4}){0,5}", re.ASCII | re.IGNORECASE)
"""At least the first group of an id. A whole id matches, too, and is found as it is."""


def check_texts(**options: str | None) -> None:
    """Refuse what no database text can hold, before any database is asked."""
    for name, text in options.items():
        if text is not None:
            check_text(text, f"--{name}")


def read_pair(text: str, what: str) -> tuple[str, str]:
    """Read NAME=TEXT."""
    name, equals, value = text.partition("=")
    if not equals or not name.removesuffix(":"):
        hint = "; --args takes a JSON object" if text.startswith("{") else ""
        raise BadData(f"{what} is written NAME=TEXT, not {text!r}{hint}")
    return name, value


def read_json(text: str, what: str) -> Any:
    """Read JSON that was typed."""
    return decode_body(check_body(text.encode(errors="surrogatepass"), what))


def read_state(word: str) -> State:
    """Read a state's name."""
    state = State.named(word)
    if state not in KNOWN:
        known = ", ".join(one for one in State if one in KNOWN)
        raise BadData(f"--state must be one of {known}; not {word!r}")
    return state


def read_priority(word: str | None) -> Any:
    """Read a priority's name."""
    known = [one.value for one in Priority if one.code]
    if word is not None and word not in known:
        raise BadData(f"--priority must be one of {', '.join(known)}; not {word!r}")
    return word


def read_cursor(text: str | None) -> JobId | None:
    """Read the id that a page ended with."""
    if text is None:
        return None
    try:
        return JobId(UUID(text))
    except ValueError as error:
        raise BadData(f"--before must be the id that a page ended with, not {text!r}") from error


def read_seconds(text: str | None, option: str) -> float | None:
    """Read a span, in seconds."""
    try:
        return None if text is None else span_seconds(text, option)
    except ValueError as error:
        raise BadData(str(error)) from error


def read_date(
    text: str | None, option: str, *, example: str = "2026-11-16T10:00"
) -> datetime | None:
    """Read a date with its time; UTC unless it names another zone."""
    if text is None:
        return None
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadData(f"{option} must be a time such as {example}, not {text!r}") from error
    return date if date.tzinfo else date.replace(tzinfo=UTC)


async def read_time(operations: Operations, text: str | None, option: str) -> datetime | None:
    """Read a time: a date, or how long ago it was by the store's clock."""
    if text is None or not _SPAN.fullmatch(text):
        return read_date(text, option, example="2h, 7d or 2026-11-16T10:00")
    try:
        ago = span_micros(text, option)
    except ValueError as error:
        raise BadData(str(error)) from error
    return instant(max(0, (await operations.do(GetClock())).now - ago))


_SPAN = re.compile(r"(?:[\d.]+(?:d|h|m|s|ms))+|\d{1,7}", re.ASCII)
"""Seconds need no unit; eight digits are a date."""


def words(text: str) -> tuple[str, ...]:
    """Read names that are separated by commas."""
    return tuple(word for part in text.split(",") if (word := part.strip()))
