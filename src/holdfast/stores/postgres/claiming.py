"""Claim on PostgreSQL: the ranges of a worker, merged; or, with bounded resources, a first fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from holdfast.errors import LeaseConflictError, RequestIdReused
from holdfast.lifecycle.job import JobId
from holdfast.lifecycle.payload import check_text
from holdfast.ports import Claimed, ClaimRequest
from holdfast.stores.columns import claimed_job, read_created_text, read_job
from holdfast.stores.fit import fit
from holdfast.stores.postgres.claim_statements import (
    claim_fitting,
    claim_greedily,
    claim_locked,
    claim_ranges,
    heads_of,
    lock_due,
)
from holdfast.stores.postgres.connections import Connection, Connections
from holdfast.stores.postgres.entering import Cursors, Wanted, at_their_beginnings, searches
from holdfast.stores.postgres.submitting import DATA_ERRORS, Submitting
from holdfast.stores.postgres.wake import WakeUp
from holdfast.stores.quarantine import (
    FIRST_EVENT_MISSING,
    MOST_SET_ASIDE,
    REASON_LIMIT,
    UNREADABLE,
    sift,
)
from holdfast.stores.ranges import Range

_PENDING = 15
"""Where a claimed row has the number of pending signals."""


class _Tried(Exception):
    """Undoes a claim that was only tried."""

    def __init__(self, bad: dict[JobId, str]) -> None:
        """Keep which jobs of it cannot be read."""
        super().__init__()
        self.bad = bad


def is_repeated(error: BaseException) -> bool:
    """Whether a claim was refused because its request took something before.

    Any other key that is taken is a damaged job's: an event that is ahead of its row.
    """
    return isinstance(error, asyncpg.UniqueViolationError) and error.table_name == "claims"


def _fitting(rows: Sequence[Any], request: ClaimRequest) -> list[UUID]:
    if request.capacity is None:
        return [row[1] for row in rows]
    chosen = fit([(row[2], row[3]) for row in rows], request.capacity, request.limit)
    return [rows[i][1] for i in chosen]


class Claiming(Submitting):
    """The half of the store that gives jobs out."""

    def __init__(self, connections: Connections, wake: WakeUp) -> None:
        """Begin at the beginning of every range."""
        super().__init__(connections, wake)
        self._cursors = Cursors()
        self._heard = 0
        """The number of the last hint that came before the last claim."""

    async def wake_up(self, queues: Sequence[str], *, limit_seconds: float) -> bool:
        """Wait until work may have come since the last claim, or the limit."""
        return await self._wake.wait(queues, limit_seconds, since=self._heard)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Give due jobs to an owner under lease."""
        check_text(request.owner, "owner", limit=200)
        check_text(request.request_id, "request_id")
        self._heard = self._wake.number
        rows = await self._claim_some(request)
        jobs = await self._claimed(rows, request.owner) if rows else []
        if request.tenant is None:
            # Of one tenant's jobs nothing follows for where those of all begin.
            self._cursors.learn(jobs, request.limit)
        return jobs or await self._repeated_claim(request) or []

    async def _claim_some(self, request: ClaimRequest) -> list[Any]:
        """Claim; nothing if the request took something before."""
        of_all = request.tenant is None
        search = searches(request.queues, request.tasks)
        wanted = self._cursors.wanted(search) if of_all else Wanted(search=search)

        async def work(connection: Connection, tries: int) -> list[Any]:
            if request.capacity is not None:
                return await claim_fitting(connection, request, wanted)
            rows = await claim_ranges(connection, request, wanted)
            heads = [] if rows else await heads_of(connection, request, wanted)
            return rows or (await claim_greedily(connection, request, heads) if heads else [])

        began = time.monotonic()
        try:
            rows = await self._run(work, keep=DATA_ERRORS)
        except DATA_ERRORS as error:
            if is_repeated(error):
                return []
            return await self._claim_carefully(request, wanted)
        if of_all:
            self._cursors.took(wanted, time.monotonic() - began, len(rows))
        return rows

    async def _claim_carefully(self, request: ClaimRequest, wanted: Wanted) -> list[Any]:
        """Claim by halves until the damaged rows are found; set them aside, take the others."""

        async def work(connection: Connection, tries: int) -> list[Any]:
            async with connection.transaction():
                good: list[UUID] = []
                for one in await heads_of(connection, request, wanted):
                    good += await self._sift_range(connection, request, one, len(good))
                    if len(good) >= request.limit:
                        break
                return await claim_locked(connection, request, good) if good else []

        try:
            return await self._run(work, keep=(asyncpg.UniqueViolationError,))
        except asyncpg.UniqueViolationError:
            # Another try of the same request came first; `claim` asks what it took.
            return []

    async def _sift_range(
        self, connection: Connection, request: ClaimRequest, one: Range, found: int
    ) -> list[UUID]:
        """Lock what is due of a range; set aside what cannot be claimed, until there is enough."""
        known: dict[JobId, str] = {}
        while True:
            # As far again as damaged rows are in the way: the mark of some may be refused.
            limit = (request.lookahead if request.capacity else request.limit) + len(known)
            rows = await lock_due(connection, request, at_their_beginnings([one]), limit)
            ids = _fitting([row for row in rows if row[1] not in known], request)
            bad = await self._sift(connection, request, ids)
            await self._set_aside(bad, on=connection)
            known |= bad
            good = [id_ for id_ in ids if id_ not in bad]
            if not bad or len(good) + found >= request.limit or len(known) >= MOST_SET_ASIDE:
                return good

    async def _sift(
        self, connection: Connection, request: ClaimRequest, ids: Sequence[UUID]
    ) -> dict[JobId, str]:
        """Try to claim locked jobs, and undo it; tells which cannot be claimed, and why."""
        if not ids:
            return {}
        try:
            async with connection.transaction():
                rows = await claim_locked(connection, request, ids)
                _, bad = await self._sifted(rows, request.owner, on=connection)
                raise _Tried(bad)
        except _Tried as tried:
            return tried.bad
        except DATA_ERRORS as error:
            if is_repeated(error):
                raise
            if len(ids) == 1:
                said = str(error).partition("\n")[0]
                return {JobId(ids[0]): f"it cannot be claimed: {said}"[:REASON_LIMIT]}
        half = len(ids) // 2
        first = await self._sift(connection, request, ids[:half])
        return first | await self._sift(connection, request, ids[half:])

    async def _claimed(self, rows: Sequence[Any], owner: str) -> list[Claimed]:
        """Read what was claimed. What cannot be read is set aside: its claim is committed."""
        jobs, bad = await self._sifted(rows, owner)
        await self._set_aside(bad)
        return jobs

    async def _sifted(
        self, rows: Sequence[Any], owner: str, *, on: Connection | None = None
    ) -> tuple[list[Claimed], dict[JobId, str]]:
        await self._learn_created((row[1] for row in rows), on=on)
        await self._learn(((row[-1], 0) for row in rows), on=on)
        rows = await self._with_signals(rows, on=on)
        try:
            return [claimed_job(row, JobId(row[0]), owner, self._seen) for row in rows], {}
        except UNREADABLE:
            return sift(rows, lambda row: self._claimed_one(row, owner), lambda row: JobId(row[0]))

    async def _with_signals(
        self, rows: Sequence[Any], *, on: Connection | None
    ) -> Sequence[Sequence[Any]]:
        """Add the names of pending signals to claimed rows; most have none."""
        ids = [row[0] for row in rows if row[_PENDING] is not None]
        if not ids:
            return rows
        found = dict(await self._look("claimed_signals", ids, on=on))
        return [
            row
            if row[_PENDING] is None
            else (*row[:_PENDING], found.get(row[0]), *row[_PENDING + 1 :])
            for row in map(tuple, rows)
        ]

    def _claimed_one(self, row: Sequence[Any], owner: str) -> Claimed:
        if row[1] is None:
            raise ValueError(FIRST_EVENT_MISSING)
        return claimed_job(row, JobId(row[0]), owner, self._seen)

    async def _repeated_claim(self, request: ClaimRequest) -> list[Claimed] | None:
        """Answer a request that took something before; None if it never did."""
        rows = await self._fetch("claim_of", request.request_id)
        if not rows:
            return None
        # The same attempt must not be given out again after a failover.
        await self.await_durable()
        if rows[0][0] != request.owner:
            raise RequestIdReused(
                f"claim request {request.request_id!r} was made by {rows[0][0]}; use a new one"
            )
        held = [row for row in rows if row[1]]
        if not held:
            raise LeaseConflictError(
                f"claim request {request.request_id!r} was answered before, and nothing of it is "
                "held any more; claim with a new request_id"
            )
        await self._learn_created(row[3] for row in held)
        jobs, bad = sift(held, self._repeated_one, lambda row: JobId(row[2]))
        await self._set_aside(bad)
        return jobs

    def _repeated_one(self, row: Sequence[Any]) -> Claimed:
        return Claimed(
            job=read_job(row[6:], self._seen),
            created=read_created_text(row[3], self._seen),
            body=None if row[4] is None else row[4].encode(),
            correlation_id=row[5],
        )
