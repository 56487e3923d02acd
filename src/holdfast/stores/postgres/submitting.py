"""Submit on PostgreSQL: one statement without keys, one short transaction with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg

from holdfast.errors import LawBroken, StoreUnavailable
from holdfast.lifecycle.job import Job, JobId, Key, NewJob
from holdfast.lifecycle.states import KeyKind, Link
from holdfast.ports import Limits, SubmitOutcome, SubmitRefused, Submitted
from holdfast.stores.batch import stamp
from holdfast.stores.postgres.arrays import submit_arrays
from holdfast.stores.postgres.base import PACKAGE
from holdfast.stores.postgres.connections import Connection, Connections, await_standby
from holdfast.stores.postgres.pool import Lane
from holdfast.stores.postgres.reading import Reading
from holdfast.stores.postgres.wake import WakeUp
from holdfast.stores.purging import refused_as_purged
from holdfast.stores.quarantine import refused_as_unreadable
from holdfast.stores.submitting import Existing, Holder, Plan, settle_known
from holdfast.stores.tenant_limits import (
    NEEDS_KEY,
    QUEUES_KEY,
    SIGNALS_KEY,
    read_limits,
    written_limits,
)
from holdfast.stores.text import blocks

Sql: TypeAlias = dict[str, str]


DATA_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.exceptions.UntranslatableCharacterError,
    asyncpg.ProgramLimitExceededError,
    OverflowError,
    # A lone surrogate, which no encoder of ours or of the driver's writes.
    UnicodeEncodeError,
)
"""What one bad row causes: the batch is bisected and the culprit alone refused."""
KEY_WAIT = "100ms"
"""How long a statement waits for a key that another transaction is just inserting. Longer waits go
on without a connection: whoever holds the key may be an app whose transaction takes its time."""
KEY_TRIES = 8
"""How often keys that change hands meanwhile are tried before the whole submit is."""


class KeyHeld(asyncpg.LockNotAvailableError):  # type: ignore[misc]  # asyncpg has no types
    """A transaction that has not ended holds a key. Any other lock is waited for like an outage."""


async def insert_jobs(connection: Connection, jobs: Sequence[NewJob]) -> int:
    """Insert jobs that hold their keys, and return the clock they were stamped with."""
    text = submit_sql(marks=any(job.record.link_kind is Link.CHILD for job in jobs))
    now: int = await connection.fetchval(text, *submit_arrays(jobs))
    return now


@cache
def submit_sql(*, marks: bool) -> str:
    """Write the submit; with marks where there are children in the batch."""
    sql = blocks(PACKAGE)
    return sql["submit"].replace(":marks", sql["submit_marks"] if marks else "")


async def take_keys(connection: Connection, sql: Sql, plan: Plan) -> None:
    """Take the keys of all jobs, and settle who holds those that were taken.

    A key that another transaction is just inserting makes this one wait for its end; the look at
    the holder is a statement of its own, so that it sees what that transaction committed. A holder
    that ends between the two leaves a key that nobody has: then it is tried again.
    """
    for _ in range(KEY_TRIES):
        wanted = plan.wanted()
        if not wanted:
            break
        try:
            taken = await connection.fetch(sql["submit_keys"], *_key_columns(wanted), KEY_WAIT)
        except asyncpg.LockNotAvailableError as error:
            raise KeyHeld(str(error)) from error
        plan.took({(row[0], row[1]) for row in taken})
        asked = [(tenant, key.kind, key.key) for tenant, key, _ in plan.wanted()]
        if asked:
            rows = await connection.fetch(sql["held_keys"], *_asked_columns(asked))
            plan.held({asked[row[0] - 1]: Holder(row[1], row[2]) for row in rows})
    else:
        # Retried whole, like any conflict that PostgreSQL itself reports.
        raise asyncpg.SerializationError("a key changed hands again and again")
    losers = plan.losers()
    if losers:
        await connection.execute(sql["drop_keys"], losers)


def _key_columns(wanted: Sequence[tuple[str, Key, UUID]]) -> list[list[Any]]:
    rows = sorted(
        (tenant, key.kind, key.key, id_.bytes, id_, key.digest) for tenant, key, id_ in wanted
    )
    return [
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[4] for row in rows],
        [row[5] for row in rows],
    ]


def _asked_columns(asked: Sequence[tuple[str, int, str]]) -> list[list[Any]]:
    return [list(column) for column in zip(*asked, strict=True)]


class Submitting(Reading):
    """The half of the store that takes jobs in."""

    def __init__(self, connections: Connections, wake: WakeUp) -> None:
        """Take the connections, and whom to tell of new work."""
        super().__init__(connections)
        self._wake = wake

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        """Insert decided jobs with their first events and keys."""
        if not jobs:
            return []
        # Of jobs with keys it is not known yet whether they are new.
        refused = await self._over_limits([job for job in jobs if not job.keys])
        if refused:
            within = [job for job in jobs if job.record.id not in refused]
            taken = iter(await self.submit(within, await_keys=await_keys))
            return [refused.get(job.record.id) or next(taken) for job in jobs]
        await self.remember(jobs)
        # Once each: a caller that sends again may meet its first try in the same batch.
        # By number: an id's own hash is a Python function.
        once = {job.record.id.int: job for job in jobs}
        alone = await_keys and len(once) == 1
        outcomes = await self._submit_some(list(once.values()), alone=alone)
        self._wake.tell({job.record.queue for job in jobs})
        if len(once) == len(jobs):
            return outcomes
        by_id = dict(zip(once, outcomes, strict=True))
        return [by_id[job.record.id.int] for job in jobs]

    async def _over_limits(
        self, jobs: Sequence[NewJob], *, on: Connection | None = None
    ) -> dict[JobId, SubmitRefused]:
        """Return which new jobs give their tenants more queues or needs than they may have."""
        known = self._seen.names
        if not (new := known.new(jobs)):
            return {}
        for tenant in known.stale(new):
            rows = await self._look("tenant_names", tenant, [QUEUES_KEY, NEEDS_KEY], on=on)
            queues = {name for kind, name in rows if kind == "queue"}
            needs = {int(name) for kind, name in rows if kind == "needs"}
            known.learn(tenant, queues, needs, read_limits(dict(map(tuple, rows))))
        return known.refused(jobs)

    async def limits(self) -> Limits:
        """Read how many names a tenant's jobs may have, and how many signals a job may keep."""
        rows = await self._fetch("limits", [QUEUES_KEY, NEEDS_KEY, SIGNALS_KEY])
        return read_limits(dict(map(tuple, rows)))

    async def set_limits(self, limits: Limits) -> None:
        """Set these limits."""
        for key, value in written_limits(limits):
            await self._fetch("set_meta", key, value)

    async def _submit_some(
        self, jobs: Sequence[NewJob], *, settle: bool = False, alone: bool = False
    ) -> list[SubmitOutcome]:
        """Insert jobs, each with another id; answers in their order.

        `alone`: a single job may wait for its key as long as any request waits.
        """
        keep = (*DATA_ERRORS, KeyHeld)
        lane = Lane.KEYS if any(job.keys for job in jobs) else Lane.FREE
        try:
            return await self._run(self._submitter(jobs, settle=settle), keep=keep, lane=lane)
        except KeyHeld:
            if len(jobs) == 1:
                return [await self._await_key(jobs[0]) if alone else await self._busy(jobs[0])]
        except DATA_ERRORS as error:
            if isinstance(error, asyncpg.UniqueViolationError) and not settle:
                # An earlier try, given up for lost, has committed after all.
                return await self._submit_some(jobs, settle=True, alone=alone)
            if len(jobs) == 1:
                return [_refused(error)]
        half = len(jobs) // 2
        first = await self._submit_some(jobs[:half], settle=settle)
        return first + await self._submit_some(jobs[half:], settle=settle)

    async def _await_key(self, job: NewJob) -> SubmitOutcome:
        """Try again and again, with no connection in between, until the key's transaction ends."""
        try:
            work = self._submitter([job], settle=True)
            outcomes: list[SubmitOutcome] = await self._run(
                work, keep=DATA_ERRORS, lane=Lane.KEY_WAITS
            )
            return outcomes[0]
        except DATA_ERRORS as error:
            return _refused(error)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, KeyHeld):
                return await self._busy(job)
            raise

    async def _busy(self, job: NewJob) -> SubmitRefused:
        """Say which key waits, and for whom as far as the server shows it."""
        rows = await self._fetch("key_holders")
        holder = (
            f"; process {rows[0][0]} ({rows[0][1] or 'unnamed'}) has had one open for "
            f"{rows[0][2]:,} s"
            if rows
            else ""
        )
        names = ", ".join(f"{KeyKind.of(key.kind)} {key.key!r}" for key in job.keys)
        return SubmitRefused(
            code="key_busy",
            message=f"{names}: a transaction that has not ended holds it{holder}; nothing was "
            "submitted, try again once it has ended",
        )

    def _submitter(self, jobs: Sequence[NewJob], *, settle: bool = False) -> Any:
        plain = not settle and not any(job.keys for job in jobs)

        async def work(connection: Connection, tries: int) -> list[SubmitOutcome]:
            if plain and not tries:
                now = await insert_jobs(connection, jobs)
                return [_submitted(job, now) for job in jobs]
            async with connection.transaction():
                outcomes = await self._submit_with_keys(connection, jobs)
                return [outcomes[job.record.id] for job in jobs]

        return work

    async def _submit_with_keys(
        self, connection: Connection, jobs: Sequence[NewJob]
    ) -> dict[JobId, SubmitOutcome]:
        outcomes = await self._settle_known(connection, jobs)
        waiting = [job for job in jobs if job.record.id not in outcomes]
        inserted = False
        while waiting:
            plan = Plan(waiting)
            await self._point_to_ids(connection, plan)
            await take_keys(connection, self._sql, plan)
            refused = plan.refuse(await self._over_limits(plan.winners(), on=connection))
            if refused:
                await connection.execute(self._sql["drop_keys"], refused)
            outcomes |= await self._insert_planned(connection, plan)
            inserted = inserted or bool(plan.winners())
            waiting = plan.later
        if not inserted:
            # The answer rests on what was found, and that may not be replicated.
            await await_standby(connection)
        return outcomes

    async def _settle_known(
        self, connection: Connection, jobs: Sequence[NewJob]
    ) -> dict[JobId, SubmitOutcome]:
        """Answer submits whose ids are there already: their first reply was lost."""
        ids = [job.record.id for job in jobs]
        rows = await connection.fetch(self._sql["get"], ids)
        if not rows:
            return {}
        readable, bad = await self._readable_jobs(rows, on=connection)
        known = {job.id: job for job in readable}
        found = await connection.fetch(self._sql["event_at"], list(known), [1] * len(known))
        events, unread = await self._readable_events(found, on=connection)
        first = {event.id: event for event in events}
        bad |= unread
        await self._set_aside(bad, on=connection)
        return {
            job.record.id: settle_known(job, known[job.record.id], first.get(job.record.id))
            for job in jobs
            if job.record.id in known
        } | {id_: refused_as_unreadable(id_, reason) for id_, reason in bad.items()}

    async def _point_to_ids(self, connection: Connection, plan: Plan) -> None:
        """Let a job_id that is the text of an internal id refer to that job (A1)."""
        for job, id_ in plan.as_ids():
            row = await connection.fetchrow(self._sql["look_up_id"], id_, job.record.tenant)
            if row is not None:
                # Of a purged job the body is not known: whatever this one's is, it is refused.
                plan.refers(job, row[0], job.event.digest if row[2] else row[1])

    async def _insert_planned(
        self, connection: Connection, plan: Plan
    ) -> dict[JobId, SubmitOutcome]:
        new = plan.winners()
        now = await insert_jobs(connection, new) if new else 0
        verdicts = {job.record.id: plan.verdict(job) for job in plan.jobs}
        existing = [verdict.id for verdict in verdicts.values() if isinstance(verdict, Existing)]
        rows = await connection.fetch(self._sql["get"], existing) if existing else []
        readable, bad = await self._readable_jobs(rows, on=connection)
        await self._set_aside(bad, on=connection)
        verdicts |= {
            id_: refused_as_unreadable(verdict.id, bad[verdict.id])
            for id_, verdict in verdicts.items()
            if isinstance(verdict, Existing) and verdict.id in bad
        }
        found = {job.id: job for job in readable}
        lost = [id_ for id_ in existing if id_ not in found and id_ not in bad]
        gone = await connection.fetch(self._sql["purged"], lost) if lost else []
        purged = {row[0] for row in gone}
        return {job.record.id: _outcome(job, verdicts[job.record.id], found, purged, now)
                for job in plan.jobs}  # fmt: skip


def _refused(error: BaseException) -> SubmitRefused:
    return SubmitRefused(code="bad_data", message=f"PostgreSQL refused it: {error}")


def _submitted(job: NewJob, now: int) -> Submitted:
    return Submitted(stamp(job.record, now, 0), created=True)


def _outcome(
    job: NewJob,
    verdict: Existing | SubmitRefused | None,
    found: Mapping[JobId, Job],
    purged: Collection[UUID],
    now: int,
) -> SubmitOutcome:
    match verdict:
        case None:
            return _submitted(job, now)
        case Existing(id=holder):
            if holder in purged:
                return refused_as_purged(holder)
            if holder not in found:
                raise LawBroken(f"a key of tenant {job.record.tenant!r} belongs to no job {holder}")
            return Submitted(found[holder], created=False)
        case refused:
            return refused
