"""Jobs whose lease or due time can only come from a clock that was ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.lifecycle.history import SETS_TIMES
from holdfast.lifecycle.lease import longest_grant
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import OWNED, EventType
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import EventQuery, Query
from holdfast.ports.store import Store

TOLERANCE = 60 * SECOND
"""What is ahead by less is a matter of a minute, and repairs itself."""
PAGE = 1000
LOOK = 20_000
"""How many jobs one page of the list of owned ones looks at."""


async def find_jobs_ahead(store: Store, *, owned: bool = False) -> AsyncIterator[Job]:
    """List jobs with a lease or due time that only a clock that was ahead can have set.

    They are found by their events; with `owned`, all jobs with an owner are examined, too: only a
    heartbeat may have been written in that moment.
    """
    now = (await store.clock()).now
    seen: set[JobId] = set()
    for type_ in SETS_TIMES:
        async for id_ in _find_events_ahead(store, type_, now + TOLERANCE):
            if id_ not in seen:
                seen.add(id_)
                [job] = await store.get([id_])
                if job is not None and is_ahead(job, now):
                    yield job
    if owned:
        async for job in _list_owned(store):
            if job.id not in seen and is_ahead(job, now):
                yield job


def is_ahead(job: Job, now: int) -> bool:
    """Return whether a job's lease or due time can only come from a clock that was ahead."""
    if job.finished_at is not None or job.updated_at <= now + TOLERANCE:
        return False
    if job.owned:
        return (job.lease_expires_at or 0) > now + longest_grant(job.policy) + TOLERANCE
    return (job.run_at or 0) > now + TOLERANCE


async def _find_events_ahead(store: Store, type_: EventType, since: int) -> AsyncIterator[JobId]:
    while True:
        events = await store.find_events(EventQuery(type=type_.code, since=since, limit=PAGE))
        for event in events:
            yield event.id
        if len(events) < PAGE or events[-1].at == since:
            return
        since = events[-1].at


async def _list_owned(store: Store) -> AsyncIterator[Job]:
    before: JobId | None = None
    while True:
        page = await store.find(Query(states=tuple(OWNED), before=before, limit=PAGE, look=LOOK))
        for job in page.jobs:
            yield job
        if page.next is None:
            return
        before = page.next
