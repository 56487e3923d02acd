"""A job's history as a reader wants it: every event complete in itself (B18, B25)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import NoSuchJob
from holdfast.lifecycle.job import JobId, LoggedEvent
from holdfast.lifecycle.payload import decode_body
from holdfast.ports import Jobs, Store

PAGE = 1000
"""How many events are read at once."""


class ReadEvent(Struct, frozen=True, kw_only=True):
    """One event with what the ledger keeps once per job filled in."""

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
    """What else the event says: the stage, evidence of a kill, the step, …"""


async def event_pages(store: Jobs, id: JobId) -> AsyncGenerator[list[LoggedEvent]]:
    """Read a job's events page by page; most histories are one."""
    after = 0
    while page := await store.events(id, after=after, limit=PAGE):
        yield page
        if len(page) < PAGE:
            return
        after = page[-1].rev


async def all_events(store: Jobs, id: JobId) -> list[LoggedEvent]:
    """Read a whole history."""
    return [event async for page in event_pages(store, id) for event in page]


async def history(store: Store, id: JobId) -> list[ReadEvent]:
    """Read all events of a job; correlation and trace are those of its first event."""
    events = await all_events(store, id)
    if not events:
        raise NoSuchJob(f"no job {id}", job_id=str(id))
    return [complete(event, events[0]) for event in events]


def complete(event: LoggedEvent, first: LoggedEvent) -> ReadEvent:
    """Fill in what only a job's first event says."""
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
        facts=msgspec.to_builtins(event.facts),
    )
