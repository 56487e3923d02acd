"""Upkeep: what sweeps and operators do. Due work, queues, retention, the epoch, rebuild.

differs from postgres: each is done in one turn of the writer's, which nobody else can interrupt.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.seal import switched
from holdfast.ports.models import Due, KeyRow
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.door import CURRENT
from holdfast.stores.due_claims import DueClaim, due_jobs, tidy
from holdfast.stores.side_tables import PolicyMove, QueueMove
from holdfast.stores.sqlite.rows import SQL, fragment, job_id, job_row, split_ids
from holdfast.stores.sqlite.session import SqliteSession
from holdfast.stores.sqlite.turn import ReadSnapshot, Turn

GIVE_BACK_PAGES = 2000
"""Pages that one transaction gives back: others wait for the write lock meanwhile."""


def epoch(snapshot: ReadSnapshot) -> int:
    """Read the epoch under which claims are made."""
    return next(int(value) for key, value in snapshot.rows("meta") if key == "epoch")


async def due(session: SqliteSession, limit: int) -> Due:
    """List jobs whose lease, deadline, timeout or wait is over."""
    now = session.clock.now()

    def looked(snapshot: ReadSnapshot) -> tuple[int, bool]:
        current = epoch(snapshot)
        return current, bool(snapshot.rows("due_claims", now, current, 1))

    # Mostly no claim is due, and then a sweep does not need the write lock.
    current, has_claims = await session.read(looked)
    if has_claims:
        return await session.perform(lambda turn: _list_due_and_tidy(turn, limit))
    rows = await session.rows("due_wakes", now, limit)
    jobs = await session.sweep(rows)
    return due_jobs(jobs, {}, now, current, limit, more=len(rows) == limit)


def _list_due_and_tidy(turn: Turn, limit: int) -> Due:
    """List the same and jobs whose lease has passed; tidy up the claims that were looked at."""
    now, current = turn.now, turn.epoch
    wakes = turn.rows("due_wakes", now, limit)
    jobs, bad = turn.readable_jobs(wakes)
    rows = turn.rows("due_claims", now, current, limit)
    claims = [DueClaim(request_id, split_ids(ids), at) for request_id, ids, at in rows]
    ids = list({id_ for claim in claims for id_ in claim.ids})
    held, unreadable = turn.readable_jobs(turn.rows("due_leases", ids))
    turn.set_aside(bad | unreadable)
    owned = {job.id: job for job in held}
    tidied = tidy(claims, owned, now)
    turn.rows("drop_claims", tidied.gone)
    turn.write("push_claims", tidied.pushed)
    return due_jobs(jobs, owned, now, current, limit, more=limit in (len(wakes), len(claims)))


def release_quarantined(turn: Turn, ids: Sequence[JobId]) -> int:
    """Let jobs be claimed and swept again; their leases are found by a claim of their own."""
    released = turn.rows("release_quarantined", ids)
    turn.rows("add_claims", ids)
    turn.woken.update(queue for _, queue, _ in released)
    return len(released)


def move_queue(turn: Turn, move: QueueMove) -> None:
    """Pause or resume a queue, with an entry in its ledger; repeating is success."""
    known = None if move.request_id is None else turn.row("queue_request", move.request_id)
    if not move.is_repeat(known):
        if move.pauses:
            moved = turn.rows("pause", move.queue, move.actor, move.reason)
        else:
            moved = turn.rows("resume", move.queue)
            turn.woken.add(move.queue)
        if moved:
            turn.rows("queue_event", *move.entry)


def forget_unused(turn: Turn) -> int:
    """Forget sets of needs that no job has any more, and queues of the summaries without jobs."""
    turn.rows("forget_counts")
    return len(turn.rows("forget_needs"))


def purge(turn: Turn, ids: Sequence[JobId], actor: str, reason: str | None) -> list[JobId]:
    """Remove cleaned jobs whole, and enter it. The job of the newest event stays."""
    newest = turn.row("newest_event")
    rows = turn.rows("purge_jobs", [id_ for id_ in ids if newest != (id_.bytes,)])
    if not rows:
        return []
    for _, tenant, queue, state in rows:
        turn.count(tenant, queue, state, -1)
    gone = [job_id(row[0]) for row in rows]
    events = turn.write("purge_events", [(gone,)])
    for name in ("purge_beats", "purge_logs", "remove_signals", "purge_keys"):
        turn.rows(name, gone)
    [[number]] = turn.rows("purge_entry", actor, reason, len(gone), events)
    turn.write("purge_ids", [row[:2] for row in rows], (number,))
    return gone


def give_back_space(turn: Turn) -> int:
    """Return free pages to the file system, as many as one transaction may move."""
    before = turn.connection.pragma("page_count")
    turn.connection.execute(f"PRAGMA incremental_vacuum({GIVE_BACK_PAGES})").fetchall()
    freed = before - turn.connection.pragma("page_count")
    return int(freed * turn.connection.pragma("page_size"))


def bump_epoch(turn: Turn) -> int:
    """Fence all claims made so far."""
    turn.rows("set_meta", "epoch", str(turn.epoch + 1))
    return turn.epoch + 1


def set_sealing(turn: Turn, on: bool) -> None:
    """Turn the hash chain over new events on or off."""
    [[now, switches]] = turn.rows("sealing_log")
    turn.rows("set_meta", "sealing", "on" if on else "off")
    turn.rows("set_meta", "sealing_log", switched(switches, now, on))


def apply_policy(turn: Turn, move: PolicyMove) -> None:
    """Apply or remove rules: the digest, the guard, and the entry."""
    [current] = [row[1] for row in turn.rows("meta") if row[0] == CURRENT] or [None]
    if current == move.digest:
        return
    if move.digest is None:
        turn.rows("policy_off")
        turn.rows("forget_meta", CURRENT)
        turn.rows("policy_event", "removed", current, move.actor, move.reason)
        return
    turn.rows("add_policy_book", move.digest, move.body, move.actor, move.reason)
    turn.rows("set_meta", CURRENT, move.digest)
    turn.rows("policy_on")
    turn.rows("policy_event", "applied", move.digest, move.actor, move.reason)


def rebuild(
    turn: Turn, all_jobs: Sequence[Job], all_keys: Sequence[tuple[JobId, KeyRow]]
) -> list[JobId]:
    """Replace the projection of these jobs; the triggers on job rows are set aside meanwhile."""
    revs = {job_id(id_): rev for id_, rev in turn.rows("last_revs", [job.id for job in all_jobs])}
    moved = {job.id for job in all_jobs if revs[job.id] != job.rev}
    jobs = [job for job in all_jobs if job.id not in moved]
    guards = turn.rows("guards")
    for name, _ in guards:
        turn.connection.execute(fragment("drop_guards", guard=name))
    ids = [job.id for job in jobs]
    for name in ("remove_jobs", "remove_keys", "remove_signals", "remove_holds"):
        turn.rows(name, ids)
    turn.remember(jobs)
    marks = ", ".join("?" * len(JOB_COLUMNS))
    turn.write_text(fragment("restore_jobs", marks=marks), [job_row(job) for job in jobs])
    signals = [(job.id.bytes, one.rev, one.name) for job in jobs for one in job.signals]
    turn.write("add_signals", signals)
    keys = [
        (key.tenant, key.kind.code, key.key, id_.bytes, key.digest)
        for id_, key in all_keys
        if id_ not in moved
    ]
    turn.write("restore_keys", keys)
    turn.rows("add_claims", ids)
    turn.rows("restore_holds", ids)
    for _, text in guards:
        turn.connection.execute(text)
    return sorted(moved)


def recount(turn: Turn) -> None:
    """Count the summaries again."""
    turn.connection.execute(SQL["clear_counts"])
    turn.connection.execute(SQL["recount"])
