"""A job's history for readers: every event complete in itself (B18, B25)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.durations import span_text
from holdfast.errors import Refused
from holdfast.lifecycle.execution_policy import POLICY_SPANS
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job, JobId, LoggedEvent
from holdfast.lifecycle.states import BOXED
from holdfast.lifecycle.submission import TRACEPARENT
from holdfast.ports.store import Jobs, Store
from holdfast.queries.absence import missing_job_error

PAGE = 1000
"""How many events are read at once."""
PAGE_BYTES = 4 * 1024 * 1024
"""How many bytes of bodies one page has, plus what its last event has beyond that."""


class ReadEvent(Struct, frozen=True, kw_only=True):
    """One event, with what the ledger keeps once per job filled in."""

    id: str
    job_id: str
    type: str
    ts: int
    actor: str
    correlation_id: str | None
    trace_id: str | None
    cause: str | None
    payload: Any
    version: int
    from_status: str | None
    to_status: str
    attempt: int
    request_id: str | None
    rev: int
    facts: dict[str, Any]
    """What else the event has: the stage, evidence of a kill, the step, …"""


class EventPage(Struct, frozen=True, kw_only=True):
    """Some of a job's events, oldest first; `next` is the `after` of the page behind, or None."""

    events: list[ReadEvent]
    next: int | None


async def read_all_events(store: Jobs, id: JobId) -> list[LoggedEvent]:
    """Read a whole history, page by page; most are one."""
    events: list[LoggedEvent] = []
    while page := await store.events(id, after=events[-1].rev if events else 0, limit=PAGE):
        events += page
        if len(page) < PAGE:
            break
    return events


async def read_event_page(store: Jobs, job: Job, *, after: int, limit: int) -> EventPage:
    """Read some of a job's events, complete; their bodies are about PAGE_BYTES at most.

    `job` is the record as it was read just before: it shows whether there are more.
    """
    found = await store.events(job.id, after=after, limit=limit, max_bytes=PAGE_BYTES)
    first = found[:1] if after == 0 else await store.events(job.id, limit=1)
    events = [complete_event_undecoded(event, first[0]) for event in found]
    more = bool(events) and events[-1].rev < job.rev
    return EventPage(events=events, next=events[-1].rev if more else None)


async def read_events_without_bodies(store: Jobs, job: Job, limit: int) -> list[LoggedEvent]:
    """Read a whole history, and keep of it only what is small; Refused if it is longer."""
    if job.rev > limit:
        raise Refused(
            f"job {job.public_id} has {job.rev:,} events; more than {limit:,} are not shown in "
            "a dialect: read them without one",
            code="history_too_long",
            job_id=job.public_id,
        )
    events: list[LoggedEvent] = []
    while not events or events[-1].rev < job.rev:
        after = events[-1].rev if events else 0
        page = await store.events(job.id, after=after, limit=PAGE, max_bytes=PAGE_BYTES)
        if not page:
            break
        events += [replace(event, body=None) for event in page]
    return events


async def read_history(store: Store, id: JobId) -> list[ReadEvent]:
    """Read all events of a job; correlation and trace are those of its first event."""
    events = await read_all_events(store, id)
    if not events:
        raise await missing_job_error(store, id, id=id)
    return [complete_event(event, events[0]) for event in events]


async def read_some_events(store: Jobs, id: JobId, after: int) -> list[ReadEvent]:
    """Read some of a job's events after a revision; none if there is no more yet."""
    found = await store.events(id, after=after, limit=PAGE, max_bytes=PAGE_BYTES)
    first = found[:1] if after == 0 or not found else await store.events(id, limit=1)
    return [complete_event(event, first[0]) for event in found]


def complete_event_undecoded(event: LoggedEvent, first: LoggedEvent) -> ReadEvent:
    """Complete an event as `complete_event` does, with the payload as stored JSON.

    It is only written out again, and decoded JSON may take twenty times as much memory.
    """
    payload = Raw(b"null" if event.body is None else event.body)
    return replace(complete_event(replace(event, body=None), first), payload=payload)


def complete_event(event: LoggedEvent, first: LoggedEvent) -> ReadEvent:
    """Fill in what only a job's first event has."""
    made = first.created
    return ReadEvent(
        id=f"{event.id}/{event.rev}",
        job_id=(made and made.job_id) or str(event.id),
        type=event.type,
        ts=event.at,
        actor=event.actor,
        correlation_id=event.correlation_id or first.correlation_id,
        trace_id=made.trace_id if made else None,
        cause=event.reason or event.facts.error_code,
        payload=decode_body(event.body),
        version=event.version,
        from_status=event.from_state,
        to_status=event.to_state,
        attempt=event.attempt,
        request_id=event.request_id,
        rev=event.rev,
        facts=show_facts(event) | _show_given(event),
    )


def show_facts(event: LoggedEvent) -> dict[str, Any]:
    """Return an event's facts as they are shown, a policy's spans with their unit."""
    shown: dict[str, Any] = msgspec.to_builtins(event.facts)
    for name, one in shown.get("policy", {}).items():
        if name in POLICY_SPANS and one is not None:
            shown["policy"][name] = span_text(one)
    return shown


def _show_given(event: LoggedEvent) -> dict[str, Any]:
    """Return what a submitter gave along with the job, as far as it gave any."""
    made = event.created
    if made is None:
        return {}
    given = {"labels": made.labels, "context_ptr": made.context_ptr, "adapter_id": made.adapter_id}
    if made.kind not in BOXED:
        # Those of a command are variables of its environment, and may be secrets.
        given["env"] = {name: text for name, text in made.env.items() if name != TRACEPARENT}
    return {name: value for name, value in given.items() if value}
