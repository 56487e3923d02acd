"""Handlers that read a job's log, from where it is kept for jobs of its kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from holdfast.errors import Refused
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import Kind
from holdfast.operations import requests as q
from holdfast.operations.scope import CallerScope
from holdfast.operations.views import Log, LogView, Output
from holdfast.ports.models import LOG_LINES
from holdfast.queries.command_log import LogRange, PrintedPage

OUTPUT_BYTES = 1024 * 1024
"""How much text an output may have, give or take a line: the last of it."""
Source: TypeAlias = Callable[[CallerScope, Job, q.GetLogs], Awaitable[Log]]


async def get_logs(scope: CallerScope, request: q.GetLogs) -> Log:
    """Read lines of a job's log. Its state is read first: what has ended writes no more."""
    job = await scope.get(request.job)
    return await LOG_SOURCES.get(job.kind, _read_handler_log)(scope, job, request)


async def _read_handler_log(scope: CallerScope, job: Job, request: q.GetLogs) -> Log:
    wanted = request.limit if request.tail is None else LOG_LINES
    lines = await scope.store.logs(job.id, after=request.after, limit=wanted)
    if request.stream is not None:
        # A handler's lines have no stream.
        lines = []
    if request.tail is not None:
        lines = lines[-request.tail :][: request.limit]
    return Log(
        job_id=job.public_id,
        internal_id=job.id,
        lines=[LogView.of(line) for line in lines],
        next=lines[-1].position if lines else request.after,
        ended=job.terminal,
    )


async def _read_printed_log(scope: CallerScope, job: Job, request: q.GetLogs) -> Log:
    wanted = LogRange(
        after=request.after, limit=request.limit, tail=request.tail, stream=request.stream
    )
    page = await _read_printed(scope, job, wanted)
    return Log(
        job_id=job.public_id,
        internal_id=job.id,
        lines=[LogView.of_printed(line, job.attempt) for line in page.lines],
        next=page.next,
        ended=job.terminal,
        truncated=page.truncated,
        total_bytes=page.total_bytes,
    )


async def _read_printed(scope: CallerScope, job: Job, wanted: LogRange) -> PrintedPage:
    return await (await scope.session.command_logs()).read(job, wanted)


LOG_SOURCES: dict[Kind, Source] = {
    Kind.COMMAND: _read_printed_log,
    Kind.AGENT: _read_printed_log,
}
"""Where the log of a job is read from, by its kind; that of all others is in the store."""
PRINTING = frozenset(LOG_SOURCES)
"""The kinds of jobs whose log is what a command printed."""


async def get_output(scope: CallerScope, request: q.GetOutput) -> Output:
    """Read the last lines that a command printed, as one text of bounded size."""
    job = await scope.get(request.job)
    if job.kind not in PRINTING:
        text = f"job {job.public_id} is a {job.kind}, which prints nothing: read its log"
        raise Refused(text, code="no_output", job_id=job.public_id)
    page = await _read_printed(scope, job, LogRange(tail=request.tail))
    texts: deque[str] = deque()
    size = 0
    while True:
        for line in page.lines:
            texts.append(line.text if line.partial else f"{line.text}\n")
            size += len(texts[-1])
            while size - len(texts[0]) > OUTPUT_BYTES:
                size -= len(texts.popleft())
        following = await _read_printed(scope, job, LogRange(after=page.next))
        if following.next == page.next:
            break
        page = following
    output = "".join(texts)
    return Output(
        job_id=job.public_id,
        output=output,
        lines=output.count("\n") + (output[-1:] not in ("", "\n")),
        truncated=page.truncated,
        total_bytes=page.total_bytes,
    )
