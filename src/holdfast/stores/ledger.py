"""The duties of the ledger that only read: written once, for both engines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from holdfast.lifecycle.holds import NOT_ADMITTED
from holdfast.lifecycle.record import Job, JobId, LoggedEvent
from holdfast.lifecycle.states import EventType, KeyKind, Kind, State
from holdfast.ports.models import Count, EventQuery, Mark, Page, Query
from holdfast.stores.cursors import LAST_REV, LOWEST, NEVER
from holdfast.stores.list_plan import (
    bound_parameters,
    bound_sql,
    find_parameters,
    find_sql,
    may_end_early,
)
from holdfast.stores.statements import EngineStore, Row

LAST_CHARACTER = chr(0x10FFFF)
"""Sorts after every character that a name may have."""


class SharedLedger(EngineStore):
    """Reads jobs, events and lists of them. Each statement sees a snapshot of its own."""

    async def get(self, ids: Sequence[JobId], *, signals: bool = True) -> list[Job | None]:
        """Read jobs by internal id."""
        rows = await self._session.rows("get" if signals else "get_unread", list(ids))
        jobs = {job.id: job for job in await self._session.jobs(rows)}
        return [jobs.get(id_) for id_ in ids]

    async def owned_on(
        self, host: str, *, but: str, kinds: Collection[Kind] | None = None, limit: int = 1000
    ) -> list[Job]:
        """List what the workers of a host hold, but for one of them."""
        mask = -1 if kinds is None else sum(1 << kind.code for kind in set(kinds))
        # Names with this prefix sort from the first of these to the second.
        names = f"{host}:", f"{host};"
        rows = await self._session.rows("owned_on", *names, but, mask, limit)
        return await self._session.sweep(rows)

    async def held(self, hold: str, *, after: JobId | None = None, limit: int = 500) -> list[Job]:
        """List jobs under a hold."""
        rows = await self._session.rows("held", hold, after or LOWEST, limit)
        return await self._session.sweep(rows)

    async def hold_names(
        self, prefix: str, *, after: str | None = None, limit: int = 100
    ) -> list[str]:
        """List the names of holds that start with a prefix."""
        # A prefix that no name has by itself: '' is the hold of what is not admitted.
        bounds = (prefix, after or "", prefix + LAST_CHARACTER)
        return [row[0] for row in await self._session.rows("hold_names", *bounds, limit)]

    async def pending(self, *, after: JobId | None = None, limit: int = 500) -> list[Job]:
        """List jobs that are not admitted yet."""
        return await self.held(NOT_ADMITTED, after=after, limit=limit)

    async def look_up(self, tenant: str, kind: KeyKind, key: str) -> JobId | None:
        """Find who holds a key."""
        # A dedupe key is stored under one kind, whatever its term.
        stored = KeyKind.DEDUPE if kind is KeyKind.DEDUPE_LIVE else kind
        rows = await self._session.rows("look_up", tenant, stored.code, key)
        if not rows and kind is KeyKind.JOB_ID and (id_ := _read_id(key)) is not None:
            rows = await self._session.rows("look_up_id", id_, tenant)
        return self._session.id(rows[0][0]) if rows else None

    async def find(self, query: Query) -> Page:
        """List jobs, newest first."""
        session = self._session
        bound = None
        if may_end_early(query):
            found = await session.fetch(bound_sql(session.sql, query), *bound_parameters(query))
            bound = session.id(found[0][0]) if found else None
        rows = await session.fetch(find_sql(session.sql, query), *find_parameters(query, bound))
        jobs, bad = await session.readable_jobs(rows[: query.limit])
        is_full = len(rows) > query.limit
        return Page(jobs, session.id(rows[query.limit - 1][0]) if is_full else bound, list(bad))

    async def events(
        self, id: JobId, *, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[LoggedEvent]:
        """Read one job's events, heartbeats included."""
        last = LAST_REV
        if max_bytes is not None:
            reached = await self._session.rows("bytes_reached", id, after, limit, max_bytes)
            last = LAST_REV if reached[0][0] is None else reached[0][0]
        return await self._events("events", id, after, limit, last)

    async def histories(self, ids: Sequence[JobId], *, last: int) -> list[list[LoggedEvent]]:
        """Read several jobs' events up to a revision, heartbeats included."""
        found: dict[JobId, list[LoggedEvent]] = {id_: [] for id_ in ids}
        for event in await self._events("histories", list(found), last):
            found[event.id].append(event)
        return [found[id_] for id_ in ids]

    async def request_event(self, id: JobId, request_id: str) -> LoggedEvent | None:
        """Read the event of a job that was written under a request_id."""
        return next(iter(await self._events("request_event", id, request_id)), None)

    async def latest_events(
        self, id: JobId, types: Collection[EventType], *, limit: int = 100
    ) -> list[LoggedEvent]:
        """Read one job's newest events of these types."""
        return await self._events("latest_events", id, [kind.code for kind in types], limit)

    async def last_progress(self, id: JobId) -> LoggedEvent | None:
        """Read the newest report of how far one job is."""
        return next(iter(await self._events("last_progress", id)), None)

    async def step_events(self, id: JobId, steps: Sequence[tuple[str, int]]) -> list[LoggedEvent]:
        """Read what one job recorded of some steps."""
        names, uses = [name for name, _ in steps], [use for _, use in steps]
        return await self._events("step_events", id, names, uses)

    async def find_events(self, query: EventQuery) -> list[LoggedEvent]:
        """Look events up across jobs."""
        span = (query.since or 0, NEVER if query.until is None else query.until, query.limit)
        if query.correlation_id is not None:
            return await self._events(
                "events_by_correlation", query.correlation_id, *span, query.type
            )
        return await self._events("events_by_type", query.type, *span)

    async def _events(self, name: str, *parameters: Any) -> list[LoggedEvent]:
        return await self._session.events(await self._session.rows(name, *parameters))

    async def marked(self, *, limit: int = 500) -> list[Mark]:
        """List marks, the oldest first."""
        rows = await self._session.rows("marked", limit)
        return [Mark(number, self._session.id(id_)) for number, id_ in rows]

    async def children(
        self,
        parents: Sequence[JobId],
        *,
        live_only: bool = False,
        after: JobId | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """List what these jobs spawned."""
        name = "live_children" if live_only else "children"
        rows = await self._children(name, sorted(set(parents)), after or LOWEST, limit)
        return await self._session.jobs(rows)

    async def _children(
        self, name: str, parents: list[JobId], after: UUID, limit: int
    ) -> Sequence[Row]:
        return await self._session.rows(name, parents, after, limit)

    async def families(self, *, after: JobId | None = None, limit: int = 500) -> list[JobId]:
        """List jobs that have live children or wait for children."""
        rows = await self._session.rows("families", after or LOWEST, limit)
        return [self._session.id(row[0]) for row in rows]

    async def counts(self, tenant: str | None = None) -> list[Count]:
        """Return how many jobs are in which state."""
        rows = await self._session.rows("counts", tenant)
        return [
            Count(tenant, queue, State.of(state), int(jobs)) for tenant, queue, state, jobs in rows
        ]


def _read_id(key: str) -> UUID | None:
    try:
        return UUID(key)
    except ValueError:
        return None
