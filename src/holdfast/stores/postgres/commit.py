"""Commit: compare-and-set writes, and the settling of those whose reply was lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

import asyncpg

from holdfast.errors import JobBusy, PolicyChanged
from holdfast.ids import mint_request
from holdfast.lifecycle.keys import freed_keys
from holdfast.lifecycle.plan import PlannedEnd
from holdfast.lifecycle.rebase import has_landed
from holdfast.lifecycle.record import Change, Draft, Job, JobId, LoggedEvent
from holdfast.lifecycle.stamp import stamp
from holdfast.ports.models import (
    LOCKED_EVENTS,
    Committed,
    DecideLocked,
    Lost,
    Outcome,
    Rejected,
    SubmitRefused,
)
from holdfast.stores.columns import EVENT_COLUMNS, JOB_COLUMNS
from holdfast.stores.cursors import LAST_REV
from holdfast.stores.fold import STALE, Fold, fold
from holdfast.stores.outcomes import ChildRefused, rejected_as_unreadable
from holdfast.stores.postgres.policy import freshen_policy, under_current_policy
from holdfast.stores.postgres.pool import ConnectionUse
from holdfast.stores.postgres.rows import commit_arrays
from holdfast.stores.postgres.session import SQL, PostgresSession
from holdfast.stores.postgres.submit import DATA_ERRORS, submit_with_keys
from holdfast.stores.quarantine import STRAY_EVENT
from holdfast.stores.sql_files import put_in, without_comment

LOCKED_KNOWN = 10_000
"""Locked rows that are remembered."""
_REV, _EVENT_REV = JOB_COLUMNS.index("rev"), EVENT_COLUMNS.index("rev")


class _Unremembered(Exception):
    """Records that a commit writes name a policy or needs that are not written yet."""

    def __init__(self, records: Sequence[Draft]) -> None:
        super().__init__()
        self.records = records


class _Locked:
    """What a locked commit decides, and has decided so far."""

    def __init__(self, id: JobId, decide: DecideLocked, after: int | None) -> None:
        self.id = id
        self.after = after
        self.request_id = mint_request()
        self.folds: list[Fold] = []
        self._decide = decide

    async def decide_on(
        self, session: PostgresSession, current: Job, events: Sequence[LoggedEvent]
    ) -> bool:
        """Decide on the record; return whether there is anything to write."""
        changes = self._decide(current, events) if len(events) <= LOCKED_EVENTS else ()
        self.folds = fold(await _judge_changes(session, changes))[0]
        return bool(changes)


class LockedRows:
    """The jobs whose rows were found locked: the next commit of one does not wait for it again."""

    def __init__(self) -> None:
        self._ids: set[JobId] = set()

    def has_any(self, writes: Sequence[Fold] | Sequence[PlannedEnd]) -> bool:
        """Return whether one of these jobs was locked when it was last looked at."""
        return bool(self._ids) and any(one.id in self._ids for one in writes)

    def note(self, ids: Sequence[JobId], locked: set[JobId]) -> None:
        """Take note of which of these are locked."""
        self._ids.difference_update(ids)
        if len(self._ids) < LOCKED_KNOWN:
            self._ids |= locked


async def commit(
    session: PostgresSession, changes: Sequence[Change], locked_rows: LockedRows
) -> list[Outcome]:
    """Write each change where its revision still holds."""
    # One for all tries: what an earlier one has written is recognised by it.
    request_id = mint_request()
    return await under_current_policy(
        session, lambda last: _commit(session, changes, request_id, locked_rows, last_try=last)
    )


async def _commit(
    session: PostgresSession,
    changes: Sequence[Change],
    request_id: str,
    locked_rows: LockedRows,
    *,
    last_try: bool,
) -> list[Outcome]:
    changes = await _judge_changes(session, changes)
    folds, numbers = fold(changes)
    if named := _list_naming_records(folds):
        await session.remember(named)
    outcomes = await _commit_by_halves(
        session, folds, request_id, locked_rows, settles_policy=last_try
    )
    session.wake.hint(_list_woken_queues(folds, outcomes))
    if STALE not in numbers:
        return [outcomes[number] for number in numbers]
    stale = [one.id for one, number in zip(changes, numbers, strict=True) if number == STALE]
    current, bad = await session.readable_jobs(await session.rows("get", stale))
    await session.set_aside(bad)
    found: dict[JobId, Outcome] = {job.id: Lost(job) for job in current}
    found |= rejected_as_unreadable(bad)
    return [
        found.get(change.id, Lost(None)) if number == STALE else outcomes[number]
        for number, change in zip(numbers, changes, strict=True)
    ]


async def _judge_changes(session: PostgresSession, changes: Sequence[Change]) -> Sequence[Change]:
    """Return changes whose new jobs are judged; those without depend on no policy."""
    if not any(change.submits for change in changes):
        return changes
    await freshen_policy(session)
    return session.policy.judge_changes(changes)


async def commit_locked(
    session: PostgresSession, id: JobId, decide: DecideLocked, after: int | None
) -> Outcome:
    """Decide on a job's current record under its row lock, and commit."""
    locked = _Locked(id, decide, after)
    return await under_current_policy(
        session, lambda last: _commit_locked(session, locked, last_try=last)
    )


async def _commit_locked(session: PostgresSession, locked: _Locked, *, last_try: bool) -> Outcome:
    while True:
        try:
            outcome = await session.run(
                lambda session, tries: _commit_under_lock(session, locked),
                keep=DATA_ERRORS,
                use=ConnectionUse.LOCKS,
            )
        except _Unremembered as error:
            # Outside the transaction: it must not wait for a second connection.
            await session.remember(error.records)
            continue
        except ChildRefused as error:
            return error.rejected
        except PolicyChanged as error:
            if not last_try:
                raise
            return _reject_as_unjudged(session, locked.folds[-1], error)
        except DATA_ERRORS as error:
            return await _describe_refusal(session, locked.folds[-1], error)
        if locked.folds:
            session.wake.hint(_list_woken_queues(locked.folds, [outcome]))
        return outcome


async def _commit_under_lock(session: PostgresSession, locked: _Locked) -> Outcome:
    async with session.transaction():
        await session.rows("lock_job", locked.id)
        jobs, bad = await session.readable_jobs(await session.rows("get", [locked.id]))
        if bad:
            await session.set_aside(bad)
            return rejected_as_unreadable(bad)[locked.id]
        if not jobs:
            return Lost(None)
        if locked.folds:
            # An earlier try may have been committed, and only its reply lost.
            settled = await _settle_missed(session, locked.folds, locked.request_id)
            if isinstance(settled[locked.id], Committed):
                return settled[locked.id]
        events: list[LoggedEvent] = []
        if locked.after is not None:
            bounds = (locked.after, LOCKED_EVENTS + 1, LAST_REV)
            events = await session.events(await session.rows("events", locked.id, *bounds))
        if not await locked.decide_on(session, jobs[0], events):
            # Durable all the same: taking the row's lock is written, and so waited for.
            return Lost(jobs[0])
        named = _list_naming_records(locked.folds)
        if not session.is_remembered(named):
            raise _Unremembered(named)
        outcomes = await _write_folds(session, locked.folds, locked.request_id)
        await _write_dependents(session, locked.folds, outcomes, _list_freed_keys(locked.folds))
        return outcomes[-1]


async def _commit_by_halves(
    session: PostgresSession,
    folds: Sequence[Fold],
    request_id: str,
    locked_rows: LockedRows,
    *,
    around_locks: bool = False,
    settles_policy: bool = False,
) -> list[Outcome]:
    """Commit, by halves where one row cannot be written.

    `around_locks`: wait for no row; a job that another transaction has locked is busy.
    `settles_policy`: reject what the policy has not judged, and write the others.
    """
    around_locks = around_locks or locked_rows.has_any(folds)
    keep: tuple[type[BaseException], ...] = DATA_ERRORS
    if not around_locks or any(job.keys for one in folds for job in one.submits):
        keep = (*DATA_ERRORS, asyncpg.LockNotAvailableError)
    work = _make_commit_work(folds, request_id, locked_rows if around_locks else None)
    try:
        return await session.run(work, keep=keep, use=ConnectionUse.LOCKS)
    except asyncpg.LockNotAvailableError:
        if not around_locks:
            return await _commit_by_halves(
                session,
                folds,
                request_id,
                locked_rows,
                around_locks=True,
                settles_policy=settles_policy,
            )
        # No row of these, so it is the key of a job that one of them submits.
        if len(folds) == 1:
            return [_reject_as_busy(folds[0])]
    except ChildRefused as error:
        if len(folds) == 1:
            return [error.rejected]
    except PolicyChanged as error:
        if not settles_policy:
            raise
        if len(folds) == 1:
            return [_reject_as_unjudged(session, folds[0], error)]
    except DATA_ERRORS as error:
        if len(folds) == 1:
            return [await _describe_refusal(session, folds[0], error)]
    half = len(folds) // 2
    parts = [
        await _commit_by_halves(
            session,
            some,
            request_id,
            locked_rows,
            around_locks=around_locks,
            settles_policy=settles_policy,
        )
        for some in (folds[:half], folds[half:])
    ]
    return [outcome for part in parts for outcome in part]


async def _describe_refusal(session: PostgresSession, one: Fold, error: BaseException) -> Outcome:
    """Describe why a change was refused; where the log is ahead of the row, the job is damaged."""
    if isinstance(error, asyncpg.UniqueViolationError):
        revs = list(range(one.expected + 1, one.last.event.rev + 1))
        at = await session.rows("event_at", [one.id] * len(revs), revs)
        row = await session.rows("get", [one.id])
        if at and row and row[0][_REV] == one.expected:
            bad = {one.id: STRAY_EVENT.format(rev=min(event[_EVENT_REV] for event in at))}
            await session.set_aside(bad)
            return rejected_as_unreadable(bad)[one.id]
    return Rejected(code="law_broken", message=f"PostgreSQL refused it: {error}")


def _make_commit_work(
    folds: Sequence[Fold], request_id: str, locked_rows: LockedRows | None
) -> Callable[[PostgresSession, int], Awaitable[list[Outcome]]]:
    """Return how to write these; with `locked_rows` without waiting for any row."""
    frees = _list_freed_keys(folds)
    alone = not frees and not any(one.submits or one.adopts for one in folds if not one.ordinary)

    async def work(session: PostgresSession, tries: int) -> list[Outcome]:
        if locked_rows is not None:
            return await _write_unlocked(session, folds, request_id, frees, locked_rows)
        if alone:
            return await _write_folds(session, folds, request_id)
        async with session.transaction():
            outcomes = await _write_folds(session, folds, request_id)
            await _write_dependents(session, folds, outcomes, frees)
            return outcomes

    return work


async def _write_unlocked(
    session: PostgresSession,
    folds: Sequence[Fold],
    request_id: str,
    frees: dict[JobId, int],
    locked_rows: LockedRows,
) -> list[Outcome]:
    """Write the jobs that no other transaction has locked; the others are busy."""
    async with session.transaction():
        ids = [one.id for one in folds]
        locked = {JobId(row[0]) for row in await session.rows("lock_unlocked", ids)}
        free = [one for one in folds if one.id not in locked]
        written = await _write_folds(session, free, request_id) if free else []
        await _write_dependents(session, free, written, frees)
    locked_rows.note(ids, locked)
    outcomes = iter(written)
    return [_reject_as_busy(one) if one.id in locked else next(outcomes) for one in folds]


async def _write_folds(
    session: PostgresSession, folds: Sequence[Fold], request_id: str
) -> list[Outcome]:
    arrays = commit_arrays(folds, request_id)
    sql = commit_sql(
        rest=arrays.rest,
        beats=arrays.beats,
        marks=arrays.marks,
        terms=arrays.terms,
        signals=arrays.signals,
    )
    [[now, hits]] = await session.fetch(sql, *arrays.arguments)
    if hits is None:
        return [Committed(_stamped(one, now)) for one in folds]
    won = set(hits)
    settled = await _settle_missed(session, [one for one in folds if one.id not in won], request_id)
    return [Committed(_stamped(one, now)) if one.id in won else settled[one.id] for one in folds]


@cache
def commit_sql(
    *,
    rest: bool,
    beats: bool,
    marks: bool = False,
    terms: bool = False,
    signals: bool = False,
) -> str:
    """Write the commit with the parts that a batch needs."""

    def part(name: str, needed: bool = True) -> str:
        return without_comment(SQL[name]) if needed else ""

    parts = {
        "rows": part("commit_rows"),
        "returned": part("commit_returned"),
        "events": part("commit_events"),
        "beats": part("commit_beats", beats),
        "marks": part("commit_marks", marks or signals),
        "signals": part("commit_signals", signals),
        "counts": part("commit_counts"),
        "rest": part("commit_rest", rest),
        "terms": part("commit_terms", terms),
        "run_at": part("commit_run_at", rest) or "j.run_at",
        "held_by": part("commit_held_by", rest) or "j.held_by",
    }
    text = put_in(SQL["commit"], parts | _LOOKED_UP)
    # The planner drops what is NULL.
    return text if rest else text.replace("d.rest", "NULL::jsonb")


_LOOKED_UP = {
    **{f"shape.{name}": f"d.{name}" for name in ("state", "expected", "events", "flags", "owned")},
    "shape.beats": "($14::int[])[k]",
    "shape.lease": "($15::bigint[])[k]",
    "shape.timeout": "($16::bigint[])[k]",
}
"""How the commit finds for each job what the jobs of its shape share."""


async def _settle_missed(
    session: PostgresSession, missed: Sequence[Fold], request_id: str
) -> dict[JobId, Outcome]:
    """Return for each miss whether its write had landed before, and what stands there now."""
    ids, revs = [one.id for one in missed], [one.last.event.rev for one in missed]
    jobs, bad = await session.readable_jobs(await session.rows("get", ids))
    current = {job.id: job for job in jobs}
    await session.set_aside(bad)
    found = await session.rows("event_at", ids, revs)
    events = {event.id: event for event in (await session.readable_events(found))[0]}
    await session.await_standby()
    settled: dict[JobId, Outcome] = {
        one.id: Committed(current[one.id], repeated=True)
        if one.id in current and has_landed(one.last, events.get(one.id), batch_request=request_id)
        else Lost(current.get(one.id))
        for one in missed
    }
    return settled | rejected_as_unreadable(bad)


async def _write_dependents(
    session: PostgresSession,
    folds: Sequence[Fold],
    outcomes: Sequence[Outcome],
    frees: dict[JobId, int],
) -> None:
    """Write what depends on accepted changes: freed keys, and the jobs they submit."""
    accepted = [
        one
        for one, outcome in zip(folds, outcomes, strict=True)
        if isinstance(outcome, Committed) and not outcome.repeated
    ]
    freed = [(one.id, frees[one.id]) for one in accepted if one.id in frees]
    if freed:
        await session.write_rows("free_keys", freed)
    adopted = [one.id for one in accepted if one.adopts]
    if adopted:
        await session.write("add_claims", adopted)
    children = [job for one in accepted for job in one.submits]
    if children:
        for outcome in (await submit_with_keys(session, children)).values():
            if isinstance(outcome, SubmitRefused):
                raise ChildRefused(outcome)


def _reject_as_unjudged(session: PostgresSession, one: Fold, error: PolicyChanged) -> Rejected:
    why = session.policy.problem if one.submits else None
    return Rejected(code=(why or error).code, message=str(why or error))


def _reject_as_busy(one: Fold) -> Rejected:
    return Rejected(
        code=JobBusy.code,
        message=f"job {one.first.record.public_id}: another transaction keeps its row locked, or a "
        "key that it needs; nothing was written. End that transaction: see pg_stat_activity and "
        "pg_blocking_pids()",
    )


def _list_naming_records(folds: Sequence[Fold]) -> list[Draft]:
    """Return the records that may name new policies or needs: children, and corrected terms."""
    rare = [one for one in folds if not one.ordinary]
    children: list[Draft] = [job.record for one in rare for job in one.submits]
    return children + [one.last.next for one in rare if one.corrects]


def _list_freed_keys(folds: Sequence[Fold]) -> dict[JobId, int]:
    """Return which kinds of keys these changes free, by job."""
    keyed = [one for one in folds if one.changes[0].record.key_kinds]
    found = {one.id: freed_keys(one.first.record, one.last.next) for one in keyed}
    return {id_: kinds for id_, kinds in found.items() if kinds}


def _stamped(one: Fold, now: int) -> Job:
    floor: Any = one.changes[0].record.updated_at
    return stamp(one.changes[-1].next, now, floor)


def _list_woken_queues(folds: Sequence[Fold], outcomes: Sequence[Outcome]) -> set[str]:
    """Name the queues in which these writes made a job claimable."""
    woken = {
        one.last.next.queue
        for one, outcome in zip(folds, outcomes, strict=True)
        if not one.ordinary and isinstance(outcome, Committed) and one.last.next.claimable
    }
    return woken | {job.record.queue for one in folds if not one.ordinary for job in one.submits}
