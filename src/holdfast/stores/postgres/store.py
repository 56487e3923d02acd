"""The store on PostgreSQL: the port's duties, translated into the statements of queries.sql."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from holdfast.errors import LeaseConflictError, RequestIdReused
from holdfast.identity import mint_request
from holdfast.lifecycle.job import Change, Job, JobId, NewJob
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.rebase import has_landed
from holdfast.lifecycle.states import State
from holdfast.lifecycle.submit import freed_keys
from holdfast.lifecycle.times import SECOND
from holdfast.ports import (
    Claimed,
    ClaimRequest,
    Committed,
    Due,
    KeyRow,
    Lost,
    Outcome,
    QueueStatus,
    Rejected,
    SubmitOutcome,
    SubmitRefused,
    Submitted,
)
from holdfast.stores.batch import STALE, Fold, fold, stamp
from holdfast.stores.columns import claimed_job, read_created_text, read_job
from holdfast.stores.due import oldest_first
from holdfast.stores.law import AGEING
from holdfast.stores.postgres.claiming import Cursors, claim_fitting, claim_ranges
from holdfast.stores.postgres.connections import Connection, Connections
from holdfast.stores.postgres.migrate import check_schema
from holdfast.stores.postgres.reading import Reading
from holdfast.stores.postgres.rebuilding import rebuild_rows
from holdfast.stores.postgres.shapes import commit_arrays, commit_sql
from holdfast.stores.postgres.submitting import DATA_ERRORS, insert_jobs, known_ids, take_keys
from holdfast.stores.postgres.wake import WakeUp
from holdfast.stores.ranges import ranges, servable, window
from holdfast.stores.submitting import Existing, Plan

CLAIM_MEMORY = 600 * SECOND
"""How long a claim of which nothing is held any more is still known when it is asked for again."""


class _ChildRefused(Exception):
    """A job that hangs on a change was refused, and so is the change."""

    def __init__(self, refusal: SubmitRefused) -> None:
        """Keep why."""
        super().__init__(refusal.message)
        self.refusal = refusal


class PostgresStore(Reading):
    """The ledger on PostgreSQL 14 or later.

    `pooled`: the url leads through PgBouncer in transaction mode; `listen_url` then names a direct
    address for wake-ups (without it, waiting means polling).
    """

    def __init__(
        self,
        url: str,
        *,
        pooled: bool = False,
        listen_url: str | None = None,
        connections: int = 4,
        deadline_seconds: float = 30.0,
        attempt_seconds: float = 10.0,
    ) -> None:
        """Take the settings; `open` connects."""
        super().__init__(
            Connections(
                url,
                pooled=pooled,
                size=connections,
                deadline_seconds=deadline_seconds,
                attempt_seconds=attempt_seconds,
            )
        )
        self._wake = WakeUp(listen_url or (None if pooled else url))
        self._cursors = Cursors()
        self._turn = 0

    async def open(self) -> None:
        """Connect, and check the schema."""
        await self._connections.open()
        try:
            await self._run(check_schema)
        except BaseException:
            await self._connections.close()
            raise

    async def close(self) -> None:
        """Let go of the database."""
        await self._wake.close()
        await self._connections.close()

    async def wake_up(self, queues: Sequence[str], *, limit_seconds: float) -> bool:
        """Wait until work may have come, or the limit."""
        return await self._wake.wait(queues, limit_seconds)

    # -- submit

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        """Insert decided jobs with their first events and keys."""
        if not jobs:
            return []
        await self._remember(jobs)
        # Once each: a caller that sends again may meet its first try in the same batch.
        outcomes = await self._submit_some(list({job.record.id: job for job in jobs}.values()))
        self._wake.tell({job.record.queue for job in jobs})
        return [outcomes[job.record.id] for job in jobs]

    async def _submit_some(
        self, jobs: Sequence[NewJob], *, settle: bool = False
    ) -> dict[JobId, SubmitOutcome]:
        try:
            return await self._run(self._submitter(jobs, settle=settle), keep=DATA_ERRORS)
        except DATA_ERRORS as error:
            if isinstance(error, asyncpg.UniqueViolationError) and not settle:
                # An earlier try, given up for lost, has committed after all.
                return await self._submit_some(jobs, settle=True)
            if len(jobs) == 1:
                return {jobs[0].record.id: _refused(error)}
        half = len(jobs) // 2
        first = await self._submit_some(jobs[:half], settle=settle)
        return first | await self._submit_some(jobs[half:], settle=settle)

    def _submitter(self, jobs: Sequence[NewJob], *, settle: bool = False) -> Any:
        plain = not settle and not any(job.keys for job in jobs)

        async def work(connection: Connection, tries: int) -> dict[JobId, SubmitOutcome]:
            if plain and not tries:
                now = await insert_jobs(connection, self._sql, jobs)
                return {job.record.id: _submitted(job, now) for job in jobs}
            async with connection.transaction():
                return await self._submit_with_keys(connection, jobs)

        return work

    async def _submit_with_keys(
        self, connection: Connection, jobs: Sequence[NewJob]
    ) -> dict[JobId, SubmitOutcome]:
        known = await known_ids(connection, self._sql, jobs)
        plan = Plan([job for job in jobs if job.record.id not in known])
        await self._point_to_ids(connection, plan)
        await take_keys(connection, self._sql, plan)
        new = plan.winners()
        now = await insert_jobs(connection, self._sql, new) if new else 0
        verdicts = {job.record.id: plan.verdict(job) for job in plan.jobs}
        existing = {v.id for v in verdicts.values() if isinstance(v, Existing)} | known
        rows = await connection.fetch(self._sql["get"], list(existing))
        found: dict[UUID, Job] = {job.id: job for job in await self._jobs(rows)}
        found.update({job.record.id: stamp(job.record, now, 0) for job in new})
        return {job.record.id: _verdict(job, verdicts, found, known) for job in jobs}

    async def _point_to_ids(self, connection: Connection, plan: Plan) -> None:
        """Let a job_id that is the text of an internal id refer to that job (A1)."""
        for job, id_ in plan.as_ids():
            row = await connection.fetchrow(self._sql["look_up_id"], id_, job.record.tenant)
            if row is not None:
                plan.refers(job, row[0])

    # -- claim

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Give due jobs to an owner under lease."""
        check_text(request.owner, "owner", limit=200)
        needs = servable(await self._known_needs(), request.capabilities)
        wanted = window(ranges(request.queues, needs), self._turn)
        self._turn += 1
        starts = self._cursors.starts(wanted)

        async def work(connection: Connection, tries: int) -> list[Any]:
            if request.capacity is not None:
                return await claim_fitting(connection, request, wanted)
            return await claim_ranges(connection, request, wanted, starts)

        try:
            rows = await self._run(work, keep=(asyncpg.UniqueViolationError,))
        except asyncpg.UniqueViolationError:
            rows = []
        if not rows and (held := await self._repeated_claim(request)) is not None:
            return held
        jobs = await self._claimed(rows, request.owner)
        self._cursors.learn(jobs, request.limit, AGEING)
        return jobs

    async def _claimed(self, rows: Sequence[Any], owner: str) -> list[Claimed]:
        await self._learn_created(row[1] for row in rows)
        return [claimed_job(row, JobId(row[0]), owner, self._seen) for row in rows]

    async def _repeated_claim(self, request: ClaimRequest) -> list[Claimed] | None:
        """Answer a request that took something before; None if it never did."""
        rows = await self._fetch("claim_of", request.request_id)
        if not rows:
            return None
        held = [row for row in rows if row[0] == request.owner and row[1]]
        if not held:
            raise LeaseConflictError(
                f"claim request {request.request_id!r} was answered before, and nothing of it is "
                "held any more; claim with a new request_id"
            )
        await self._learn_created(row[3] for row in held)
        return [
            Claimed(
                job=read_job(row[6:], self._seen),
                created=read_created_text(row[3], self._seen),
                body=None if row[4] is None else row[4].encode(),
                correlation_id=row[5],
            )
            for row in held
        ]

    # -- commit

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write each change where its revision still holds."""
        if not changes:
            return []
        folds, numbers = fold(changes)
        children = [job for one in folds if not one.ordinary for job in one.submits]
        if children:
            await self._remember(children)
        outcomes = await self._commit_some(folds, mint_request())
        self._wake.tell(_woken(folds, outcomes))
        if STALE not in numbers:
            return [outcomes[number] for number in numbers]
        current = await self.get([change.id for change in changes])
        return [
            Lost(job) if number == STALE else outcomes[number]
            for number, job in zip(numbers, current, strict=True)
        ]

    async def _commit_some(self, folds: Sequence[Fold], request_id: str) -> list[Outcome]:
        try:
            return await self._run(self._committer(folds, request_id), keep=DATA_ERRORS)
        except _ChildRefused as error:
            if len(folds) == 1:
                return [Rejected(code=error.refusal.code, message=error.refusal.message)]
        except DATA_ERRORS as error:
            if len(folds) == 1:
                return [Rejected(code="law_broken", message=f"PostgreSQL refused it: {error}")]
        half = len(folds) // 2
        first = await self._commit_some(folds[:half], request_id)
        return first + await self._commit_some(folds[half:], request_id)

    def _committer(self, folds: Sequence[Fold], request_id: str) -> Any:
        frees = {one.id: kinds for one in folds if (kinds := _freed(one))}
        alone = not frees and not any(
            one.submits or one.adopts for one in folds if not one.ordinary
        )

        async def work(connection: Connection, tries: int) -> list[Outcome]:
            if alone:
                return await self._write(connection, folds, request_id)
            async with connection.transaction():
                outcomes = await self._write(connection, folds, request_id)
                await self._write_more(connection, folds, outcomes, frees)
                return outcomes

        return work

    async def _write(
        self, connection: Connection, folds: Sequence[Fold], request_id: str
    ) -> list[Outcome]:
        arrays = commit_arrays(folds, request_id)
        sql = commit_sql(rest=arrays.rest, beats=arrays.beats)
        now, hits = await connection.fetchrow(sql, *arrays.arguments)
        if hits is None:
            return [Committed(_stamped(one, now)) for one in folds]
        won = set(hits)
        missed = [one for one in folds if one.id not in won]
        settled = await self._settle(connection, missed, request_id)
        return [
            Committed(_stamped(one, now)) if one.id in won else settled[one.id] for one in folds
        ]

    async def _settle(
        self, connection: Connection, missed: Sequence[Fold], request_id: str
    ) -> dict[JobId, Outcome]:
        """Tell of each miss whether its write had landed before, and what stands there now."""
        rows = await connection.fetch(self._sql["get"], [one.id for one in missed])
        current = {job.id: job for job in await self._jobs(rows)}
        ids, revs = [one.id for one in missed], [one.last.event.rev for one in missed]
        found = await connection.fetch(self._sql["event_at"], ids, revs)
        events = {event.id: event for event in await self._events(found)}
        return {
            one.id: Committed(current[one.id], repeated=True)
            if one.id in current
            and has_landed(one.last, events.get(one.id), batch_request=request_id)
            else Lost(current.get(one.id))
            for one in missed
        }

    async def _write_more(
        self,
        connection: Connection,
        folds: Sequence[Fold],
        outcomes: Sequence[Outcome],
        frees: dict[JobId, int],
    ) -> None:
        """Write what hangs on accepted changes: freed keys, and the jobs they submit."""
        accepted = [
            one
            for one, outcome in zip(folds, outcomes, strict=True)
            if isinstance(outcome, Committed) and not outcome.repeated
        ]
        freed = [one.id for one in accepted if one.id in frees]
        if freed:
            masks = [frees[id_] for id_ in freed]
            await connection.execute(self._sql["free_keys"], freed, masks)
        adopted = [one.id for one in accepted if one.adopts]
        if adopted:
            await connection.execute(self._sql["add_claims"], adopted)
        children = [job for one in accepted for job in one.submits]
        if children:
            for outcome in (await self._submit_with_keys(connection, children)).values():
                if isinstance(outcome, SubmitRefused):
                    raise _ChildRefused(outcome)

    # -- sweeps

    async def due(self, *, limit: int = 500) -> Due:
        """List jobs whose lease, deadline, timeout or wait has run out."""
        clock = await self.clock()
        jobs = await self._jobs(await self._fetch("due_wakes", clock.now, limit))
        claims = await self._fetch("due_claims", clock.now, clock.epoch, limit)
        ids = list({id_ for _, held, _ in claims for id_ in held})
        owned = {job.id: job for job in await self._jobs(await self._fetch("due_leases", ids))}
        await self._tidy_claims(claims, owned, clock.now)
        found = {job.id: job for job in jobs}
        for job in owned.values():
            if (job.lease_expires_at or 0) <= clock.now or (job.epoch or 1) < clock.epoch:
                found[job.id] = job
        return Due(now=clock.now, epoch=clock.epoch, jobs=oldest_first(found.values(), limit))

    async def _tidy_claims(self, claims: Sequence[Any], owned: dict[JobId, Job], now: int) -> None:
        """Look at each claim again when a lease may pass; forget it when nothing is held."""
        pushed: dict[str, int] = {}
        gone = []
        for request_id, held, at in claims:
            leases = [_look_at(owned[id_], now) for id_ in held if id_ in owned]
            if leases or at + CLAIM_MEMORY > now:
                pushed[request_id] = min(leases, default=at + CLAIM_MEMORY)
            else:
                gone.append(request_id)
        if gone:
            await self._fetch("drop_claims", gone)
        if pushed:
            await self._fetch("push_claims", list(pushed), list(pushed.values()))

    async def fold_counts(self) -> None:
        """Fold the summaries' deltas."""
        await self._fetch("fold_counts")

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        """Erase bodies of jobs that are being cleaned."""
        return len(await self._fetch("erase_bodies", list(ids)))

    async def drop_beats(self, *, before: int, limit: int = 10_000) -> int:
        """Drop old heartbeats."""
        return len(await self._fetch("drop_beats", before, limit))

    async def bump_epoch(self) -> int:
        """Fence all claims made so far."""
        return int((await self._fetch("bump_epoch"))[0][0])

    async def set_sealing(self, on: bool) -> None:
        """Turn the hash chain over new events on or off."""

        async def work(connection: Connection, tries: int) -> None:
            async with connection.transaction():
                await connection.execute(self._sql["sealing_on" if on else "sealing_off"])

        await self._run(work)

    # -- queues

    async def pause(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let no job of a queue be claimed."""
        return await self._move_queue("paused", queue, actor, reason, request_id)

    async def resume(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let a queue's jobs be claimed again."""
        status = await self._move_queue("resumed", queue, actor, reason, request_id)
        self._wake.tell({queue})
        return status

    async def _move_queue(
        self, type: str, queue: str, actor: str, reason: str | None, request_id: str | None
    ) -> QueueStatus:
        check_text(queue, "queue", limit=200)
        check_text(actor, "actor", limit=200)
        for name, value in (("reason", reason), ("request_id", request_id)):
            if value is not None:
                check_text(value, name)
        sql = self._sql

        async def work(connection: Connection, tries: int) -> None:
            async with connection.transaction():
                if await self._queue_repeat(connection, type, queue, actor, request_id):
                    return
                arguments = (queue, actor, reason) if type == "paused" else (queue,)
                moved = await connection.fetch(
                    sql["pause" if type == "paused" else "resume"], *arguments
                )
                if moved:
                    entry = (queue, type, actor, reason, request_id)
                    await connection.fetch(sql["queue_event"], *entry)

        await self._run(work)
        statuses = {status.name: status for status in await self.queues()}
        return statuses.get(queue) or QueueStatus(name=queue)

    async def _queue_repeat(
        self, connection: Connection, type: str, queue: str, actor: str, request_id: str | None
    ) -> bool:
        if request_id is None:
            return False
        row = await connection.fetchrow(self._sql["queue_request"], request_id)
        if row is not None and tuple(row) != (queue, type, actor):
            raise RequestIdReused(
                f"request_id {request_id!r} already stands for queue {row[0]!r} {row[1]}"
            )
        return row is not None

    # -- rebuild

    async def rebuild(self, jobs: Sequence[Job], *, keys: Sequence[tuple[JobId, KeyRow]]) -> None:
        """Replace the projection of these jobs. Nobody else may write meanwhile."""
        await self._run(lambda connection, tries: rebuild_rows(connection, self._sql, jobs, keys))

    async def recount(self) -> None:
        """Count the summaries anew."""
        await self._fetch("recount")


def _look_at(job: Job, now: int) -> int:
    """When a job's lease may have passed: a start may cut a claim's lease short."""
    lease = job.lease_expires_at or 0
    return lease if job.state is State.RUNNING else min(lease, now + job.policy.running_lease)


def _refused(error: BaseException) -> SubmitRefused:
    return SubmitRefused(code="bad_data", message=f"PostgreSQL refused it: {error}")


def _submitted(job: NewJob, now: int) -> Submitted:
    return Submitted(stamp(job.record, now, 0), created=True)


def _verdict(
    job: NewJob,
    verdicts: Mapping[JobId, Existing | SubmitRefused | None],
    found: Mapping[UUID, Job],
    known: Collection[UUID],
) -> SubmitOutcome:
    id_ = job.record.id
    if id_ in known:
        return Submitted(found[id_], created=True)
    match verdicts[id_]:
        case SubmitRefused() as refused:
            return refused
        case Existing(id=holder):
            return Submitted(found[holder], created=False)
        case None:
            return Submitted(found[id_], created=True)


def _freed(one: Fold) -> int:
    before = one.changes[0].record
    return freed_keys(before, one.last.next) if before.key_kinds else 0


def _stamped(one: Fold, now: int) -> Job:
    floor: Any = one.changes[0].record.updated_at
    return stamp(one.changes[-1].next, now, floor)


def _woken(folds: Sequence[Fold], outcomes: Sequence[Outcome]) -> set[str]:
    """Name the queues in which these writes made a job claimable."""
    woken = {
        one.last.next.queue
        for one, outcome in zip(folds, outcomes, strict=True)
        if not one.ordinary and isinstance(outcome, Committed) and one.last.next.claimable
    }
    return woken | {job.record.queue for one in folds if not one.ordinary for job in one.submits}
