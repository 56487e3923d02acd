"""Commit on PostgreSQL: compare-and-set writes, and the settling of those whose reply was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from holdfast.errors import JobBusy, JobUnreadable
from holdfast.identity import mint_request
from holdfast.lifecycle.job import Change, Draft, Job, JobId, LoggedEvent
from holdfast.lifecycle.rebase import has_landed
from holdfast.lifecycle.submit import freed_keys
from holdfast.ports import (
    LOCKED_EVENTS,
    Committed,
    DecideLocked,
    Lost,
    Outcome,
    Rejected,
    SubmitRefused,
)
from holdfast.stores.batch import STALE, Fold, fold, stamp
from holdfast.stores.columns import EVENT_COLUMNS, JOB_COLUMNS
from holdfast.stores.cursors import LAST_REV
from holdfast.stores.postgres.claiming import Claiming
from holdfast.stores.postgres.connections import Connection, Connections, await_standby
from holdfast.stores.postgres.pool import Lane
from holdfast.stores.postgres.shapes import commit_arrays, commit_sql
from holdfast.stores.postgres.submitting import DATA_ERRORS
from holdfast.stores.postgres.wake import WakeUp
from holdfast.stores.quarantine import STRAY_EVENT, unreadable

LOCKED_KNOWN = 10_000
"""How many locked rows are remembered."""
_REV, _EVENT_REV = JOB_COLUMNS.index("rev"), EVENT_COLUMNS.index("rev")


class _ChildRefused(Exception):
    """A job that hangs on a change was refused, and so is the change."""

    def __init__(self, refusal: SubmitRefused) -> None:
        """Keep why."""
        super().__init__(refusal.message)
        self.refusal = refusal


class _Unremembered(Exception):
    """Records that a commit writes name a policy or needs that are not written yet."""

    def __init__(self, records: Sequence[Draft]) -> None:
        """Keep the records."""
        super().__init__()
        self.records = records


class _Locked:
    """What a locked commit decides, and has decided so far."""

    def __init__(self, decide: DecideLocked, after: int | None, request_id: str) -> None:
        """Decide nothing yet."""
        self.after = after
        self.request_id = request_id
        self.folds: list[Fold] = []
        self._decide = decide

    def decided(self, current: Job, events: Sequence[LoggedEvent]) -> bool:
        """Decide on the record; whether there is anything to write."""
        changes = self._decide(current, events) if len(events) <= LOCKED_EVENTS else ()
        self.folds = fold(changes)[0]
        return bool(changes)


class _LockedRows:
    """The jobs whose rows were found locked: the next commit of one does not wait for it again."""

    def __init__(self) -> None:
        """Know of none."""
        self._ids: set[JobId] = set()

    def has_any(self, folds: Sequence[Fold]) -> bool:
        """Whether one of these was locked when it was last looked at."""
        return bool(self._ids) and any(one.id in self._ids for one in folds)

    def note(self, ids: Sequence[JobId], locked: set[JobId]) -> None:
        """Take note of which of these are locked."""
        self._ids.difference_update(ids)
        if len(self._ids) < LOCKED_KNOWN:
            self._ids |= locked


class Committing(Claiming):
    """The half of the store that writes what became of jobs."""

    def __init__(self, connections: Connections, wake: WakeUp) -> None:
        """Know of no locked row."""
        super().__init__(connections, wake)
        self._locked = _LockedRows()

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write each change where its revision still holds."""
        if not changes:
            return []
        folds, numbers = fold(changes)
        if named := _naming(folds):
            await self._remember(named)
        outcomes = await self._commit_some(folds, mint_request())
        self._wake.tell(_woken(folds, outcomes))
        if STALE not in numbers:
            return [outcomes[number] for number in numbers]
        stale = [one.id for one, number in zip(changes, numbers, strict=True) if number == STALE]
        rows = await self._fetch("get", stale)
        current, bad = await self._readable_jobs(rows)
        await self._set_aside(bad)
        found = {job.id: Lost(job) for job in current} | _rejected(bad)
        return [
            found.get(change.id, Lost(None)) if number == STALE else outcomes[number]
            for number, change in zip(numbers, changes, strict=True)
        ]

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        """Decide on a job's current record under its row lock, and commit."""
        locked = _Locked(decide, after, mint_request())
        while True:
            try:
                work = self._locked_committer(id, locked)
                outcome: Outcome = await self._run(work, keep=DATA_ERRORS, lane=Lane.LOCKS)
            except _Unremembered as error:
                # Outside the transaction: it must not wait for a second connection.
                await self._remember(error.records)
                continue
            except _ChildRefused as error:
                return Rejected(code=error.refusal.code, message=error.refusal.message)
            except DATA_ERRORS as error:
                return await self._refused(locked.folds[-1], error)
            if locked.folds:
                self._wake.tell(_woken(locked.folds, [outcome]))
            return outcome

    def _locked_committer(self, id: JobId, locked: _Locked) -> Any:
        async def work(connection: Connection, tries: int) -> Outcome:
            async with connection.transaction():
                await connection.fetch(self._sql["lock_job"], id)
                rows = await connection.fetch(self._sql["get"], [id])
                jobs, bad = await self._readable_jobs(rows, on=connection)
                if bad:
                    await self._set_aside(bad, on=connection)
                    return _rejected(bad)[id]
                if not jobs:
                    return Lost(None)
                current = jobs[0]
                if locked.folds:
                    # An earlier try may have been committed, and only its reply lost.
                    settled = await self._settle(connection, locked.folds, locked.request_id)
                    if isinstance(settled[id], Committed):
                        return settled[id]
                events = await self._events_after(connection, id, locked.after)
                if not locked.decided(current, events):
                    # Durable all the same: taking the row's lock is written, and so waited for.
                    return Lost(current)
                return await self._write_locked(connection, locked)

        return work

    async def _events_after(
        self, connection: Connection, id: JobId, after: int | None
    ) -> list[LoggedEvent]:
        if after is None:
            return []
        rows = await connection.fetch(self._sql["events"], id, after, LOCKED_EVENTS + 1, LAST_REV)
        return await self._events(rows, on=connection)

    async def _write_locked(self, connection: Connection, locked: _Locked) -> Outcome:
        named = _naming(locked.folds)
        if not self._remembered(named):
            raise _Unremembered(named)
        frees = {one.id: kinds for one in locked.folds if (kinds := _freed(one))}
        outcomes = await self._write(connection, locked.folds, locked.request_id)
        await self._write_more(connection, locked.folds, outcomes, frees)
        return outcomes[-1]

    async def _commit_some(
        self, folds: Sequence[Fold], request_id: str, *, around_locks: bool = False
    ) -> list[Outcome]:
        """Commit, by halves where one row cannot be written.

        `around_locks`: wait for no row; a job that another transaction has locked is busy.
        """
        around_locks = around_locks or self._locked.has_any(folds)
        keep: tuple[type[BaseException], ...] = DATA_ERRORS
        if not around_locks or any(job.keys for one in folds for job in one.submits):
            keep = (*DATA_ERRORS, asyncpg.LockNotAvailableError)
        work = self._committer(folds, request_id, around_locks=around_locks)
        try:
            return await self._run(work, keep=keep, lane=Lane.LOCKS)
        except asyncpg.LockNotAvailableError:
            if not around_locks:
                return await self._commit_some(folds, request_id, around_locks=True)
            # No row of these, so it is the key of a job that one of them submits.
            if len(folds) == 1:
                return [_busy(folds[0])]
        except _ChildRefused as error:
            if len(folds) == 1:
                return [Rejected(code=error.refusal.code, message=error.refusal.message)]
        except DATA_ERRORS as error:
            if len(folds) == 1:
                return [await self._refused(folds[0], error)]
        half = len(folds) // 2
        first = await self._commit_some(folds[:half], request_id, around_locks=around_locks)
        rest = await self._commit_some(folds[half:], request_id, around_locks=around_locks)
        return first + rest

    async def _refused(self, one: Fold, error: BaseException) -> Outcome:
        """Tell why a change was refused; where the log is ahead of the row, the job is damaged."""
        if isinstance(error, asyncpg.UniqueViolationError):
            revs = list(range(one.expected + 1, one.last.event.rev + 1))
            at = await self._fetch("event_at", [one.id] * len(revs), revs)
            row = await self._fetch("get", [one.id])
            if at and row and row[0][_REV] == one.expected:
                bad = {one.id: STRAY_EVENT.format(rev=min(event[_EVENT_REV] for event in at))}
                await self._set_aside(bad)
                return _rejected(bad)[one.id]
        return Rejected(code="law_broken", message=f"PostgreSQL refused it: {error}")

    def _committer(
        self, folds: Sequence[Fold], request_id: str, *, around_locks: bool = False
    ) -> Any:
        frees = {one.id: kinds for one in folds if (kinds := _freed(one))}
        alone = not frees and not any(
            one.submits or one.adopts for one in folds if not one.ordinary
        )

        async def work(connection: Connection, tries: int) -> list[Outcome]:
            if around_locks:
                return await self._write_unlocked(connection, folds, request_id, frees)
            if alone:
                return await self._write(connection, folds, request_id)
            async with connection.transaction():
                outcomes = await self._write(connection, folds, request_id)
                await self._write_more(connection, folds, outcomes, frees)
                return outcomes

        return work

    async def _write_unlocked(
        self,
        connection: Connection,
        folds: Sequence[Fold],
        request_id: str,
        frees: dict[JobId, int],
    ) -> list[Outcome]:
        """Write the jobs that no other transaction has locked; the others are busy."""
        async with connection.transaction():
            ids = [one.id for one in folds]
            rows = await connection.fetch(self._sql["lock_unlocked"], ids)
            locked = {JobId(row[0]) for row in rows}
            free = [one for one in folds if one.id not in locked]
            written = await self._write(connection, free, request_id) if free else []
            await self._write_more(connection, free, written, frees)
        self._locked.note(ids, locked)
        outcomes = iter(written)
        return [_busy(one) if one.id in locked else next(outcomes) for one in folds]

    async def _write(
        self, connection: Connection, folds: Sequence[Fold], request_id: str
    ) -> list[Outcome]:
        arrays = commit_arrays(folds, request_id)
        sql = commit_sql(
            rest=arrays.rest,
            beats=arrays.beats,
            marks=arrays.marks,
            terms=arrays.terms,
            signals=arrays.signals,
        )
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
        jobs, bad = await self._readable_jobs(rows, on=connection)
        current = {job.id: job for job in jobs}
        await self._set_aside(bad, on=connection)
        ids, revs = [one.id for one in missed], [one.last.event.rev for one in missed]
        found = await connection.fetch(self._sql["event_at"], ids, revs)
        events = {
            event.id: event for event in (await self._readable_events(found, on=connection))[0]
        }
        await await_standby(connection)
        return {
            one.id: Committed(current[one.id], repeated=True)
            if one.id in current
            and has_landed(one.last, events.get(one.id), batch_request=request_id)
            else Lost(current.get(one.id))
            for one in missed
        } | _rejected(bad)

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


def _rejected(bad: Mapping[JobId, str]) -> dict[JobId, Outcome]:
    return {
        id_: Rejected(code=JobUnreadable.code, message=str(unreadable(id_, reason)))
        for id_, reason in bad.items()
    }


def _busy(one: Fold) -> Rejected:
    return Rejected(
        code=JobBusy.code,
        message=f"job {one.first.record.public_id}: another transaction keeps its row locked, or a "
        "key that it needs; nothing was written. End that transaction: see pg_stat_activity and "
        "pg_blocking_pids()",
    )


def _naming(folds: Sequence[Fold]) -> list[Draft]:
    """Return the records that may name new policies or needs: children, and corrected terms."""
    rare = [one for one in folds if not one.ordinary]
    children: list[Draft] = [job.record for one in rare for job in one.submits]
    return children + [one.last.next for one in rare if one.corrects]


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
