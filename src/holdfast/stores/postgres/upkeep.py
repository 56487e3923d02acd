"""Upkeep: what sweeps and operators do. Due work, the clock, queues, retention, rebuild."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.lifecycle.clock import ClockState, ClockStep, ClockWatch, tend
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.seal import switched
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Clock, Due, KeyRow
from holdfast.stores.columns import JOB_COLUMNS, write_job
from holdfast.stores.door import CURRENT
from holdfast.stores.due_claims import DueClaim, due_jobs, tidy
from holdfast.stores.postgres.lineage import start_lineage
from holdfast.stores.postgres.session import SQL, PostgresSession
from holdfast.stores.side_tables import PolicyMove, QueueMove

log = logging.getLogger(__name__)
FOLD_BATCH, FOLD_ROUNDS = 10_000, 100
"""Deltas that one statement folds, and statements that one call makes at most."""
RECOUNT_SECONDS = 3600.0
"""How long all jobs may take to be counted: in one statement, so that the sums fit together."""


async def read_clock(session: PostgresSession) -> tuple[Clock, ClockState, int]:
    """Read the clock, with what is kept about it and the server's own."""
    [[now, epoch, machine, mark, shift, since, at, by]] = await session.rows("clock")
    state = ClockState(mark, shift, since)
    step = None if at is None else ClockStep(at, by)
    return Clock(now, epoch, state.ahead(machine), step), state, machine


async def tend_clock(session: PostgresSession, watch: ClockWatch) -> Clock:
    """Move the clock's mark on, and notice that the server's clock was set back."""
    clock, state, machine = await read_clock(session)
    changed = tend(state, machine, steady=watch.steady(machine, time.monotonic()))
    if changed is None:
        return clock
    kept, step = changed

    async def work(session: PostgresSession) -> None:
        values = (kept.mark, kept.shift, kept.since, state.mark, state.shift, state.since)
        won = await session.write("set_clock", *values)
        if won and step is not None:
            await session.write("add_clock_step", step.at, step.by)

    await session.transact(work)
    if step is not None:
        log.warning("the server's clock was set back by %.1f s", step.by / SECOND)
    return (await read_clock(session))[0]


async def due(session: PostgresSession, clock: Clock, limit: int) -> Due:
    """List jobs whose lease, deadline, timeout or wait is over."""
    now, epoch = clock.now, clock.epoch
    wakes = await session.rows("due_wakes", now, limit)
    jobs = await session.sweep(wakes)
    rows = await session.rows("due_claims", now, epoch, limit)
    claims = [DueClaim(request_id, session.ids(ids), at) for request_id, ids, at in rows]
    ids = list({id_ for claim in claims for id_ in claim.ids})
    held = await session.sweep(await session.rows("due_leases", ids)) if ids else []
    owned = {job.id: job for job in held}
    tidied = tidy(claims, owned, now)
    if tidied.gone:
        await session.write("drop_claims", tidied.gone)
    if tidied.pushed:
        await session.write_rows("push_claims", tidied.pushed)
    return due_jobs(jobs, owned, now, epoch, limit, more=limit in (len(wakes), len(claims)))


async def release_quarantined(session: PostgresSession, ids: Sequence[JobId]) -> int:
    """Let jobs be claimed and swept again; their leases are found by a claim of their own."""

    async def work(session: PostgresSession) -> Sequence[Any]:
        released = await session.write("release_quarantined", list(ids))
        await session.write("add_claims", [id_ for id_, _, is_owned in released if is_owned])
        return released

    released = await session.transact(work)
    if not released:
        await session.await_standby()
    session.wake.hint({queue for _, queue, _ in released})
    return len(released)


async def move_queue(session: PostgresSession, move: QueueMove) -> None:
    """Pause or resume a queue, with an entry in its ledger; repeating is success."""

    async def work(session: PostgresSession) -> None:
        known = None
        if move.request_id is not None:
            known = next(iter(await session.rows("queue_request", move.request_id)), None)
        if not move.is_repeat(known):
            if move.pauses:
                moved = await session.write("pause", move.queue, move.actor, move.reason)
            else:
                moved = await session.write("resume", move.queue)
            if moved:
                await session.write("queue_event", *move.entry)
                return
        # The answer rests on what was found, and that may not be replicated.
        await session.await_standby()

    await session.transact(work)
    if not move.pauses:
        session.wake.hint({move.queue})


async def fold_counts(session: PostgresSession) -> None:
    """Fold the summaries' deltas, batch by batch while that leaves far fewer of them."""
    for _ in range(FOLD_ROUNDS):
        [[gone, folded]] = await session.write("fold_counts")
        if gone < FOLD_BATCH or folded * 2 > gone:
            return


async def purge(
    session: PostgresSession, ids: Sequence[JobId], actor: str, reason: str | None
) -> list[JobId]:
    """Remove cleaned jobs whole, and enter it."""

    async def work(session: PostgresSession) -> list[JobId]:
        rows = await session.write("purge_jobs", list(ids))
        gone, tenants, queues, states = ([row[n] for row in rows] for n in range(4))
        if not gone:
            return []
        [[events]] = await session.write("purge_events", gone)
        for name in ("purge_beats", "purge_logs", "remove_signals", "purge_keys"):
            await session.write(name, gone)
        await session.write("purge_counts", tenants, queues, states)
        [[number]] = await session.write("purge_entry", actor, reason, len(gone), events)
        await session.write("purge_ids", gone, tenants, number)
        return session.ids(gone)

    # After a commit whose reply was lost it finds nothing left, and enters nothing twice.
    return await session.transact(work)


async def bump_epoch(session: PostgresSession) -> int:
    """Fence all claims made so far."""
    # The fence first, in a transaction of its own: it waits for nobody.
    [[epoch]] = await session.write("bump_epoch")
    try:
        # A restore may have taken back events that clients have read: their cursors must not pass
        # over what comes instead.
        await session.transact(start_lineage)
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"all claims made so far are fenced (epoch {epoch}), but positions in the feed "
            "could not be raised: a transaction that reads events is open (pg_dump, a long "
            f"query); end it, then run `holdfast epoch bump` again ({error})"
        ) from error
    return int(epoch)


async def set_sealing(session: PostgresSession, on: bool) -> None:
    """Turn the hash chain over new events on or off."""

    async def work(session: PostgresSession) -> None:
        await session.script(SQL["sealing_on" if on else "sealing_off"])
        # Writers are locked out from here on, so that this time parts them.
        [[now, switches]] = await session.rows("sealing_log")
        await session.write("set_meta", "sealing_log", switched(switches, now, on))

    await session.transact(work)


async def apply_policy(session: PostgresSession, move: PolicyMove) -> None:
    """Apply or remove rules: the digest, the guard, and the entry."""

    async def work(session: PostgresSession) -> None:
        # First, as it waits for all who write: what they were judged by is current until then.
        await session.script(SQL["policy_off" if move.digest is None else "policy_on"])
        current = dict(map(tuple, await session.rows("meta"))).get(CURRENT)
        if current == move.digest:
            return
        if move.digest is None:
            await session.write("forget_meta", CURRENT)
            await session.write("policy_event", "removed", current, move.actor, move.reason)
            return
        await session.write("add_policy_book", move.digest, move.body, move.actor, move.reason)
        await session.write("set_meta", CURRENT, move.digest)
        await session.write("policy_event", "applied", move.digest, move.actor, move.reason)

    await session.transact(work)


async def rebuild(
    session: PostgresSession, all_jobs: Sequence[Job], all_keys: Sequence[tuple[JobId, KeyRow]]
) -> list[JobId]:
    """Replace the projection of these jobs; the triggers on job rows are set aside meanwhile."""
    # The events carry corrected terms whole: a policy that the store lost is written again.
    await session.remember(all_jobs, again=True)
    return await session.transact(lambda session: _rebuild_locked(session, all_jobs, all_keys))


async def _rebuild_locked(
    session: PostgresSession, all_jobs: Sequence[Job], all_keys: Sequence[tuple[JobId, KeyRow]]
) -> list[JobId]:
    """Replace rows and keys in one transaction that locks everyone out.

    Returns the jobs that have moved on since they were read; they are left as they are.
    """
    await session.script(SQL["drop_guards"])
    # Read under the lock: nobody writes an event without its row.
    revs = dict(map(tuple, await session.rows("last_revs", [job.id for job in all_jobs])))
    moved = {job.id for job in all_jobs if revs[job.id] != job.rev}
    jobs = [job for job in all_jobs if job.id not in moved]
    ids = [job.id for job in jobs]
    for name in ("remove_jobs", "remove_keys", "remove_signals", "remove_holds"):
        await session.write(name, ids)
    keys = [
        (key.tenant, key.kind.code, key.key, id_, key.digest)
        for id_, key in all_keys
        if id_ not in moved
    ]
    await session.write("free_held_keys", *([row[n] for row in keys] for n in range(3)))
    signals = [(job.id, one.rev, one.name) for job in jobs for one in job.signals]
    rows = [dict(zip(JOB_COLUMNS, write_job(job), strict=True)) for job in jobs]
    await session.write("restore_jobs", rows)
    await _copy_rows(session, "signals", signals, ("id", "rev", "name"))
    await _copy_rows(session, "keys", keys, ("tenant", "kind", "key", "id", "digest"))
    await session.write("add_claims", [job.id for job in jobs if job.owner])
    await session.write("restore_holds", ids)
    await session.script(SQL["restore_guards"])
    return sorted(moved)


async def _copy_rows(
    session: PostgresSession, table: str, rows: Sequence[Any], columns: Sequence[str]
) -> None:
    connection: Any = session.connection
    await connection.copy_records_to_table(table, records=rows, columns=list(columns))


async def recount(session: PostgresSession) -> None:
    """Count the summaries again, however many jobs there are."""
    # To read every row, their order on the disk is best. Nothing queues behind it, so it may wait
    # for a lock as long as it may count.
    await session.script("SET LOCAL enable_seqscan = on; SET LOCAL lock_timeout = 0")
    await session.script(SQL["recount"], timeout=RECOUNT_SECONDS)
