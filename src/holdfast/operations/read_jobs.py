"""Handlers that read one job: its record, its events, its outcome, and why it is where it is."""

from __future__ import annotations

import time

from msgspec.structs import replace

from holdfast.durations import instant
from holdfast.lifecycle.dialects.vocabularies import DIALECTS
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job, JobId
from holdfast.operations import requests as q
from holdfast.operations.command_view import is_command, read_spec, render_command
from holdfast.operations.scope import CallerScope
from holdfast.operations.views import JobOutcome, ProgressView, Rendered
from holdfast.queries.dead_letters import DeadLetterView, read_letter
from holdfast.queries.history import (
    EventPage,
    ReadEvent,
    read_event_page,
    read_events_without_bodies,
    read_some_events,
)
from holdfast.queries.lineage import Lineage, read_lineage
from holdfast.queries.outcomes import find_linked_retry, last_event, make_outcome
from holdfast.queries.why.why import Why, why

COMMANDS_DIALECT = "D"
"""The words of the document of commands, which shows more of them."""
DIALECT_EVENTS = 10_000
"""How many events a history in a dialect may have: it is not paged."""


async def get_job(scope: CallerScope, request: q.GetJob | q.GetJobInDialect) -> Job:
    """Read a job, once it has ended or the wait is over."""
    if request.wait:
        ended = await _wait_until_ended(scope, await scope.id_of(request.job), request.wait)
        if ended is not None:
            return ended
    return await scope.get(request.job)


async def get_job_in_dialect(scope: CallerScope, request: q.GetJobInDialect) -> Rendered:
    job = await get_job(scope, request)
    events = await read_events_without_bodies(scope.store, job, DIALECT_EVENTS)
    document = DIALECTS[request.dialect].render(job, events)
    if request.dialect == COMMANDS_DIALECT and is_command(job):
        [first] = await scope.store.events(job.id, limit=1)
        document |= render_command(job, read_spec(first.body), (await scope.store.clock()).now)
    return Rendered(document=document, rev=job.rev)


async def get_history(scope: CallerScope, request: q.GetHistory | q.GetJobEvents) -> EventPage:
    """Read a page of a job's events, each complete in itself, in bounded memory."""
    job = await scope.get(request.job)
    page = await read_event_page(scope.store, job, after=request.after, limit=request.limit)
    if scope.served:
        return page
    events = [replace(one, payload=decode_body(bytes(one.payload))) for one in page.events]
    return replace(page, events=events)


async def get_history_in_dialect(scope: CallerScope, request: q.GetHistoryInDialect) -> Rendered:
    job = await scope.get(request.job)
    events = await read_events_without_bodies(scope.store, job, DIALECT_EVENTS)
    return Rendered(document={"events": DIALECTS[request.dialect].history(events)})


async def await_events(scope: CallerScope, request: q.AwaitEvents) -> list[ReadEvent]:
    """Read some events of a job after a revision; if there are none, wait for one."""
    id_ = await scope.id_of(request.job)
    if scope.awaited is not None:
        await scope.awaited(id_)
    events = await read_some_events(scope.store, id_, request.after)
    if not events and request.wait_seconds > 0:
        await scope.session.watcher.moved(id_, request.after, request.wait_seconds)
        events = await read_some_events(scope.store, id_, request.after)
    return events


async def get_progress(scope: CallerScope, request: q.GetProgress) -> ProgressView:
    event = await scope.store.last_progress(await scope.id_of(request.job))
    if event is None:
        return ProgressView()
    return ProgressView(
        value=decode_body(event.body), at=instant(event.at), attempt=event.attempt, rev=event.rev
    )


async def get_result(scope: CallerScope, request: q.GetResult) -> JobOutcome | Job:
    """Wait for the outcome of a job's last try; return the job if it does not come in time."""
    until = time.monotonic() + request.wait
    first = job = await _wait_until_ended(scope, await scope.id_of(request.job), request.wait)
    while first is not None and job is not None:
        last = await last_event(scope.store, job.id)
        again = await find_linked_retry(scope.store, last)
        if again is None:
            return JobOutcome(job=first, outcome=make_outcome(job, last, first.public_id))
        job = await _wait_until_ended(scope, again.id, max(0.0, until - time.monotonic()))
    return await scope.get(request.job)


async def _wait_until_ended(scope: CallerScope, id_: JobId, seconds: float) -> Job | None:
    """Wait until a job has ended; None if that takes longer."""
    if scope.awaited is not None:
        await scope.awaited(id_)
    if seconds > 0:
        return await scope.session.watcher.ended(id_, seconds)
    job = await scope.get(id_)
    return job if job.terminal else None


async def explain_job(scope: CallerScope, request: q.ExplainJob) -> Why:
    return await why(scope.store, await scope.id_of(request.job), tenant=scope.tenant)


async def get_lineage(scope: CallerScope, request: q.GetLineage) -> Lineage:
    return await read_lineage(scope.store, await scope.get(request.job), may_see=scope.may_see)


async def get_letter(scope: CallerScope, request: q.GetLetter) -> DeadLetterView:
    return await read_letter(scope.store, await scope.id_of(request.job))
