"""Submit: one statement without keys, one short transaction with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg

from holdfast.errors import LawBroken, PolicyChanged, StoreUnavailable
from holdfast.lifecycle.alike import AlikeJobs, gather_alike
from holdfast.lifecycle.keys import Existing, KeyHolder, KeyPlan, KeyRefusal, KeyVerdict
from holdfast.lifecycle.record import Job, JobId, Key, NewJob
from holdfast.lifecycle.stamp import stamp
from holdfast.lifecycle.states import KeyKind, Link
from holdfast.ports.models import SubmitOutcome, SubmitRefused, Submitted
from holdfast.stores.claim_ranges import range_of
from holdfast.stores.outcomes import (
    refused_as_purged,
    refused_as_unreadable,
    refused_by_key,
    settle_known,
)
from holdfast.stores.postgres.policy import freshen_policy, under_current_policy
from holdfast.stores.postgres.pool import ConnectionUse
from holdfast.stores.postgres.rows import alike_arguments, submit_arrays
from holdfast.stores.postgres.session import SQL, PostgresSession
from holdfast.stores.postgres.wakeup import CarriedHint
from holdfast.stores.sql_files import put_in, without_comment
from holdfast.stores.tenant_limits import LIMIT_KEYS

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
"""How long a statement waits for a key that another transaction is just inserting. After that the
wait continues without a connection: an app's transaction may hold the key for long."""
KEY_TRIES = 8
"""How often keys that change hands meanwhile are tried before the whole submit is."""
Submitter: TypeAlias = Callable[[PostgresSession, int], Awaitable[list[SubmitOutcome]]]


class KeyHeld(asyncpg.LockNotAvailableError):  # type: ignore[misc]  # asyncpg has no types
    """A transaction that has not ended holds a key. Any other lock is waited for like an outage."""


async def submit(
    session: PostgresSession, jobs: Sequence[NewJob], *, await_keys: bool
) -> list[SubmitOutcome]:
    """Insert decided jobs with their first events and keys, as the policy lets them be born."""

    async def judge_and_submit(last_try: bool) -> list[SubmitOutcome]:
        await freshen_policy(session)
        return await _submit(session, session.policy.judge(jobs), await_keys=await_keys)

    return await under_current_policy(session, judge_and_submit)


async def submit_alike(session: PostgresSession, jobs: AlikeJobs) -> int | None:
    """Insert jobs that differ in id and body alone; None where `submit` has to settle each."""
    await freshen_policy(session)
    # The rules may read the arguments, so each job is judged by itself.
    if session.policy.is_any or await _find_over_limits(session, [jobs.first]):
        return None
    await session.remember([jobs.first.record])

    try:
        # Where a try that was given up for lost has committed, the next one meets its ids.
        now = await session.run(lambda bound, tries: _insert_alike(bound, jobs), keep=DATA_ERRORS)
    except (*DATA_ERRORS, PolicyChanged):
        return None
    session.wake.hint({jobs.first.record.queue})
    return now


async def _submit(
    session: PostgresSession, jobs: Sequence[NewJob], *, await_keys: bool
) -> list[SubmitOutcome]:
    # Whether jobs with keys are new is not known yet.
    refused = await _find_over_limits(session, [job for job in jobs if not job.keys])
    if refused:
        within = [job for job in jobs if job.record.id not in refused]
        taken = iter(await _submit(session, within, await_keys=await_keys) if within else ())
        return [refused.get(job.record.id) or next(taken) for job in jobs]
    await session.remember([job.record for job in jobs])
    # Once each: a caller that sends again may meet its first try in the same batch.
    # By number: an id's own hash is a Python function.
    once = {job.record.id.int: job for job in jobs}
    alone = await_keys and len(once) == 1
    queues = {job.record.queue for job in jobs}
    # A worker that knows the one range need not look for it; many jobs are worth a look at all.
    only = range_of(jobs[0].record) if len(jobs) == 1 else None
    hint = session.wake.carry(queues, only)
    try:
        outcomes = await _submit_by_halves(session, list(once.values()), alone=alone, hint=hint)
    finally:
        session.wake.note_carried(hint)
    session.wake.hint(queues, hint, only=only)
    if len(once) == len(jobs):
        return outcomes
    by_id = dict(zip(once, outcomes, strict=True))
    return [by_id[job.record.id.int] for job in jobs]


async def _find_over_limits(
    session: PostgresSession, jobs: Sequence[NewJob]
) -> dict[JobId, SubmitRefused]:
    """Return which new jobs give their tenants more queues or needs than they may have."""
    known = session.seen.names
    if not (new := known.find_new(jobs)):
        return {}
    for tenant in known.list_stale_tenants(new):
        known.learn(tenant, await session.rows("tenant_names", tenant, LIMIT_KEYS))
    return known.find_refused(jobs)


async def _submit_by_halves(
    session: PostgresSession,
    jobs: Sequence[NewJob],
    *,
    settle: bool = False,
    alone: bool = False,
    hint: CarriedHint | None = None,
) -> list[SubmitOutcome]:
    """Insert jobs, each with another id; answers in their order.

    `alone`: a single job may wait for its key as long as any request waits.
    `hint` goes with the first try only.
    """
    use = ConnectionUse.KEYS if any(job.keys for job in jobs) else ConnectionUse.FREE
    try:
        work = _make_submit_work(jobs, settle=settle, hint=hint)
        return await session.run(work, keep=(*DATA_ERRORS, KeyHeld), use=use)
    except KeyHeld:
        if len(jobs) == 1:
            wait = _await_key if alone else _refuse_as_busy
            return [await wait(session, jobs[0])]
    except DATA_ERRORS as error:
        if isinstance(error, asyncpg.UniqueViolationError) and not settle:
            # An earlier try, given up for lost, has committed after all.
            return await _submit_by_halves(session, jobs, settle=True, alone=alone)
        if hint is not None:
            # It may be the hint that was refused: the server's queue of notices has a limit.
            return await _submit_by_halves(session, jobs, settle=settle, alone=alone)
        if len(jobs) == 1:
            return [_refused(error)]
    except PolicyChanged as error:
        refused = _refuse_as_unjudged(session, error)
        if len(jobs) == 1:
            return [refused]
    half = len(jobs) // 2
    first = await _submit_by_halves(session, jobs[:half], settle=settle)
    return first + await _submit_by_halves(session, jobs[half:], settle=settle)


async def _await_key(session: PostgresSession, job: NewJob) -> SubmitOutcome:
    """Try again and again, with no connection in between, until the key's transaction ends."""
    try:
        work = _make_submit_work([job], settle=True)
        return (await session.run(work, keep=DATA_ERRORS, use=ConnectionUse.KEY_WAITS))[0]
    except DATA_ERRORS as error:
        return _refused(error)
    except PolicyChanged as error:
        return _refuse_as_unjudged(session, error)
    except StoreUnavailable as error:
        if isinstance(error.__cause__, KeyHeld):
            return await _refuse_as_busy(session, job)
        raise


def _refuse_as_unjudged(session: PostgresSession, error: PolicyChanged) -> SubmitRefused:
    """Refuse a job that nobody here can judge; raise the error where it can be tried again."""
    problem = session.policy.problem
    if problem is None:
        raise error
    return SubmitRefused(code=problem.code, message=str(problem))


async def _refuse_as_busy(session: PostgresSession, job: NewJob) -> SubmitRefused:
    """Name the key that waits, and its holder as far as the server shows it."""
    rows = await session.rows("key_holders")
    holder = (
        f"; process {rows[0][0]} ({rows[0][1] or 'unnamed'}) has had one open for {rows[0][2]:,} s"
        if rows
        else ""
    )
    names = ", ".join(f"{KeyKind.of(key.kind)} {key.key!r}" for key in job.keys)
    return SubmitRefused(
        code="key_busy",
        message=f"{names}: a transaction that has not ended holds it{holder}; nothing was "
        "submitted, retry once it has ended",
    )


def _make_submit_work(
    jobs: Sequence[NewJob], *, settle: bool = False, hint: CarriedHint | None = None
) -> Submitter:
    plain = not settle and not any(job.keys for job in jobs)

    async def work(session: PostgresSession, tries: int) -> list[SubmitOutcome]:
        # A repeated try does not take the lock that a hint takes.
        carried = None if tries else hint
        outcomes: list[SubmitOutcome]
        if plain and not tries:
            now = await _insert(session, jobs, carried)
            outcomes = [_submitted(job, now) for job in jobs]
        else:
            async with session.transaction():
                by_id = await submit_with_keys(session, jobs, carried)
            outcomes = [by_id[job.record.id] for job in jobs]
        if carried is not None:
            carried.is_sent = True
        return outcomes

    return work


async def _insert(
    session: PostgresSession, jobs: Sequence[NewJob], hint: CarriedHint | None = None
) -> int:
    """Insert jobs that hold their keys, and return the clock they were stamped with."""
    carried = () if hint is None else (hint.channel, hint.notices)
    alike = gather_alike(jobs)
    if alike is not None:
        return await _insert_alike(session, alike, carried)
    marks = any(job.record.link_kind is Link.CHILD for job in jobs)
    text = submit_sql(marks=marks, hint=bool(carried))
    rows = await session.fetch(text, *submit_arrays(jobs), *carried)
    return rows[0][0]  # type: ignore[no-any-return]


async def _insert_alike(
    session: PostgresSession, jobs: AlikeJobs, carried: tuple[Any, ...] = ()
) -> int:
    arguments = alike_arguments(jobs)
    rows = await session.fetch(alike_sql(hint=bool(carried)), *arguments, *carried)
    return rows[0][0]  # type: ignore[no-any-return]


@cache
def submit_sql(*, marks: bool, hint: bool) -> str:
    """Write the submit; with marks where there are children in the batch, or with its hint."""
    parts = {"marks": without_comment(SQL["submit_marks"]) if marks else ""}
    return put_in(SQL["submit"], parts | _write_hint(hint, after=30))


@cache
def alike_sql(*, hint: bool) -> str:
    """Write the submit of alike jobs; with its hint."""
    return put_in(SQL["submit_alike"], _write_hint(hint, after=22))


def _write_hint(hint: bool, *, after: int) -> dict[str, str]:
    """Return the part of a submit that sends its hint; its parameters come after the others."""
    text = without_comment(SQL["submit_hint"]) if hint else ""
    numbers = {"channel": f"${after + 1}", "notices": f"${after + 2}"}
    return {"hint": put_in(text, numbers)}


async def submit_with_keys(
    session: PostgresSession, jobs: Sequence[NewJob], hint: CarriedHint | None = None
) -> dict[JobId, SubmitOutcome]:
    """Insert jobs in the transaction that is open, and settle whose keys they are."""
    outcomes = await _settle_known(session, jobs)
    waiting = [job for job in jobs if job.record.id not in outcomes]
    inserted = False
    while waiting:
        plan = KeyPlan(waiting)
        await _point_to_ids(session, plan)
        await _take_keys(session, plan)
        refused = await _find_over_limits(session, plan.winners())
        if given_back := plan.withdraw(refused):
            await session.write("remove_keys", given_back)
        outcomes |= refused
        outcomes |= await _insert_planned(session, plan, hint)
        inserted = inserted or bool(plan.winners())
        waiting = plan.later
    if not inserted:
        # The answer rests on what was found, and that may not be replicated.
        await session.await_standby()
    return outcomes


async def _settle_known(
    session: PostgresSession, jobs: Sequence[NewJob]
) -> dict[JobId, SubmitOutcome]:
    """Answer submits whose ids are there already: their first reply was lost."""
    rows = await session.rows("get", [job.record.id for job in jobs])
    if not rows:
        return {}
    readable, bad = await session.readable_jobs(rows)
    known = {job.id: job for job in readable}
    found = await session.rows("event_at", list(known), [1] * len(known))
    events, unread = await session.readable_events(found)
    first = {event.id: event for event in events}
    bad |= unread
    await session.set_aside(bad)
    return {
        job.record.id: settle_known(job, known[job.record.id], first.get(job.record.id))
        for job in jobs
        if job.record.id in known
    } | {id_: refused_as_unreadable(id_, reason) for id_, reason in bad.items()}


async def _point_to_ids(session: PostgresSession, plan: KeyPlan) -> None:
    """Let a job_id that is the text of an internal id refer to that job (A1)."""
    for job, id_ in plan.as_ids():
        for found, digest, is_purged in await session.rows("look_up_id", id_, job.record.tenant):
            # The body of a purged job is not known: this one's is refused, whatever it is.
            plan.refers(job, found, job.event.digest if is_purged else digest)


async def _take_keys(session: PostgresSession, plan: KeyPlan) -> None:
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
            taken = await session.write("submit_keys", *_key_columns(wanted), KEY_WAIT)
        except asyncpg.LockNotAvailableError as error:
            raise KeyHeld(str(error)) from error
        plan.took({(kind, id_) for kind, id_ in taken})
        asked = [(tenant, key.kind, key.key) for tenant, key, _ in plan.wanted()]
        if asked:
            rows = await session.rows("held_keys", *map(list, zip(*asked, strict=True)))
            plan.held({asked[number - 1]: KeyHolder(id_, digest) for number, id_, digest in rows})
    else:
        # Retried whole, like any conflict that PostgreSQL itself reports.
        raise asyncpg.SerializationError("the owner of a key changed repeatedly during the submit")
    losers = plan.losers()
    if losers:
        await session.write("remove_keys", losers)


def _key_columns(wanted: Sequence[tuple[str, Key, UUID]]) -> list[list[Any]]:
    rows = sorted(
        (tenant, key.kind, key.key, id_.bytes, id_, key.digest) for tenant, key, id_ in wanted
    )
    return [[row[number] for row in rows] for number in (0, 1, 2, 4, 5)]


async def _insert_planned(
    session: PostgresSession, plan: KeyPlan, hint: CarriedHint | None
) -> dict[JobId, SubmitOutcome]:
    new = plan.winners()
    now = await _insert(session, new, hint) if new else 0
    verdicts = [(job, plan.verdict(job)) for job in plan.jobs]
    existing = [verdict.id for _, verdict in verdicts if isinstance(verdict, Existing)]
    rows = await session.rows("get", existing) if existing else []
    readable, bad = await session.readable_jobs(rows)
    await session.set_aside(bad)
    found = {job.id: job for job in readable}
    lost = [id_ for id_ in existing if id_ not in found and id_ not in bad]
    purged = {row[0] for row in await session.rows("purged", lost)} if lost else set()
    return {
        job.record.id: (
            refused_as_unreadable(verdict.id, bad[verdict.id])
            if isinstance(verdict, Existing) and verdict.id in bad
            else _find_outcome(job, verdict, found, purged, now)
        )
        for job, verdict in verdicts
    }


def _refused(error: BaseException) -> SubmitRefused:
    return SubmitRefused(code="bad_data", message=f"PostgreSQL refused it: {error}")


def _submitted(job: NewJob, now: int) -> Submitted:
    return Submitted(stamp(job.record, now, 0), created=True)


def _find_outcome(
    job: NewJob,
    verdict: KeyVerdict,
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
        case KeyRefusal() as refusal:
            return refused_by_key(refusal)
