"""Upkeep: what sweeps and operators do. Due work, queues, retention, the epoch, rebuilding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import RequestIdReused
from holdfast.identity import mint_secret
from holdfast.lifecycle.clock import ClockState, ClockStep
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.seal import switched
from holdfast.lifecycle.times import SECOND
from holdfast.ports import (
    LOG_LINES,
    WORKER_MEMORY,
    Due,
    KeyRow,
    Mark,
    QueueStatus,
    Token,
    Webhook,
)
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.due import look_again_at, oldest_first
from holdfast.stores.logs import Row
from holdfast.stores.sqlite.read import queue_status, split_ids
from holdfast.stores.sqlite.rows import job_row
from holdfast.stores.sqlite.session import SQL, Session, fragment
from holdfast.stores.sqlite.turn import Turn
from holdfast.stores.task_terms import TERMS_LIMIT
from holdfast.stores.tokens import read_token
from holdfast.stores.webhooks import read_webhook
from holdfast.stores.workers import FORGET_BATCH

CLAIM_MEMORY = 600 * SECOND
"""How long a claim of which nothing is held any more is still known when it is asked for again."""
GIVE_BACK_PAGES = 2000
"""Pages that one transaction gives back: others wait for the write lock meanwhile."""
FREE_BATCH = 10_000
"""How many keys one transaction looks at to free those of no job."""


def epoch(session: Session) -> int:
    """Read the epoch under which claims are made."""
    return int(session.meta()["epoch"])


def clock_state(session: Session) -> tuple[ClockState, ClockStep | None]:
    """Read how far the store's clock has come, and the last time a machine's was set back."""
    row = session.row("clock")
    assert row is not None
    mark, shift, since, at, by = row
    return ClockState(mark, shift, since), None if at is None else ClockStep(at, by)


def due_wakes(session: Session, now: int, limit: int) -> Due | None:
    """List jobs whose deadline, timeout or wait has run out; None if a lease may have passed.

    The common answer of a sweep, without the write lock: only claims are tidied up when looked at.
    """
    current = epoch(session)
    if session.rows("due_claims", (now, current, 1)):
        return None
    rows = session.rows("due_wakes", (now, limit))
    jobs = session.readable_jobs(rows)
    return Due(now=now, epoch=current, jobs=jobs, more=len(rows) == limit)


def due(turn: Turn, limit: int) -> Due:
    """List the same and jobs whose lease has passed; tidy up the claims that were looked at."""
    wakes = turn.rows("due_wakes", (turn.now, limit))
    found = {job.id: job for job in turn.readable_jobs(wakes)}
    claims = turn.rows("due_claims", (turn.now, turn.epoch, limit))
    more = limit in (len(wakes), len(claims))
    for request_id, ids, at in claims:
        rows = [row for id_ in split_ids(ids) for row in turn.rows("due_leases", (id_,))]
        held = turn.readable_jobs(rows)
        _tidy_claim(turn, request_id, at, held)
        found |= {job.id: job for job in held if _is_lost(turn, job)}
    turn.set_aside(turn.bad)
    jobs = oldest_first(found.values(), limit)
    return Due(now=turn.now, epoch=turn.epoch, jobs=jobs, more=more or len(found) > limit)


def quarantine(turn: Turn, bad: Mapping[JobId, str]) -> None:
    """Set jobs aside."""
    turn.set_aside(bad)


def release_quarantined(turn: Turn, ids: Sequence[JobId]) -> int:
    """Let jobs be claimed and swept again; their leases are looked for by a claim of their own."""
    released = turn.write("release_quarantined", [(id_.bytes,) for id_ in ids])
    turn.write("add_claims", [(id_.bytes,) for id_ in ids])
    for id_ in ids:
        job = turn.get(id_.bytes)
        if job is not None:
            turn.wake(job)
    return released


def close_claims(turn: Turn, requests: Sequence[str]) -> None:
    """Look no more at claims of which nothing is held."""
    turn.write("close_claims", [(request,) for request in requests])


def _is_lost(turn: Turn, job: Job) -> bool:
    return (job.lease_expires_at or 0) <= turn.now or (job.epoch or 1) < turn.epoch


def _tidy_claim(turn: Turn, request_id: str, at: int, held: Sequence[Job]) -> None:
    """Look at a claim again when a lease may pass; close, later forget it if nothing is held."""
    if not held and at + CLAIM_MEMORY <= turn.now:
        turn.write("drop_claims", [(request_id,)])
    else:
        soonest = min((look_again_at(job, turn.now) for job in held), default=at + CLAIM_MEMORY)
        turn.write("push_claims", [(soonest, bool(held), request_id)])


def move_queue(
    turn: Turn,
    type: str,
    queue: str,
    *,
    actor: str,
    reason: str | None = None,
    request_id: str | None = None,
) -> QueueStatus:
    """Pause or resume a queue, with an entry in its ledger; repeating is success."""
    if not _is_queue_repeat(turn, type, queue, actor, request_id):
        if type == "paused":
            moved = turn.write("pause", [(queue, turn.now, actor, reason)])
        else:
            moved = turn.write("resume", [(queue,)])
            turn.woken.add(queue)
        if moved:
            turn.write("queue_event", [(queue, type, turn.now, actor, reason, request_id)])
    row = turn.row("queue", (queue,))
    return QueueStatus(name=queue) if row is None else queue_status(row)


def _is_queue_repeat(turn: Turn, type: str, queue: str, actor: str, request_id: str | None) -> bool:
    known = None if request_id is None else turn.row("queue_request", (request_id,))
    if known is not None and known != (queue, type, actor):
        raise RequestIdReused(
            f"request_id {request_id!r} already stands for queue {known[0]!r} {known[1]}"
        )
    return known is not None


def announce(turn: Turn, row: tuple[Any, ...]) -> None:
    """Note that a worker lives; forget some that were not seen for long."""
    name, *rest = row
    turn.write("announce", [(name, turn.now, *rest)])
    turn.write("forget_workers", [(turn.now - WORKER_MEMORY, FORGET_BATCH)])


def publish_terms(turn: Turn, tenant: str, rows: Sequence[tuple[str, str]]) -> None:
    """Keep the terms of tasks; forget those published longest ago beyond the limit."""
    turn.write("publish_terms", [(tenant, task, turn.now, body) for task, body in rows])
    turn.write("forget_terms", [(tenant, TERMS_LIMIT)])


def seen(turn: Turn, name: str) -> None:
    """Note that a worker still lives."""
    turn.write("seen", [(turn.now, name)])


def retire(turn: Turn, name: str) -> None:
    """Note that a worker ended in order."""
    turn.write("retire", [(turn.now, name)])


def logs(turn: Turn, rows: Sequence[Row]) -> None:
    """Keep lines of jobs' logs, and of each of these the newest."""
    turn.write("keep_logs", [(id_.bytes, *rest) for id_, *rest in rows])
    turn.write("trim_logs", [(id_.bytes, LOG_LINES) for id_ in {row[0] for row in rows}])


def add_token(turn: Turn, row: tuple[Any, ...]) -> Token:
    """Keep a token, or find that it is there."""
    turn.write("add_token", [(*row, turn.now)])
    return read_token(turn.rows("look_up_tokens", row[:1])[0])


def revoke_token(turn: Turn, id: str, actor: str) -> Token | None:
    """End a token, and read it."""
    turn.write("revoke_token", [(id, actor, turn.now)])
    row = turn.row("look_up_tokens", (id,))
    return None if row is None else read_token(row)


def add_webhook(turn: Turn, row: tuple[Any, ...]) -> Webhook:
    """Keep a webhook, or find that it is there."""
    turn.write("add_webhook", [(*row, turn.now)])
    return read_webhook(turn.rows("look_up_webhooks", row[:2])[0])


def remove_webhook(turn: Turn, key: tuple[str, str], actor: str) -> Webhook | None:
    """End a webhook, and read it."""
    turn.write("remove_webhook", [(*key, actor, turn.now)])
    row = turn.row("look_up_webhooks", key)
    return None if row is None else read_webhook(row)


def move_cursor(turn: Turn, name: str, before: str | None, to: str) -> bool:
    """Begin to follow, or go on from where it was."""
    if before is None:
        return turn.write("begin_cursor", [(name, to)]) == 1
    return turn.write("move_cursor", [(name, before, to)]) == 1


def unmark(turn: Turn, marks: Sequence[Mark]) -> None:
    """Remove marks that were seen."""
    turn.write("unmark", [(mark.number,) for mark in marks])


def erase_bodies(turn: Turn, ids: Sequence[JobId]) -> int:
    """Erase bodies of jobs that are being cleaned, and their logs."""
    turn.write("erase_logs", [(id_.bytes,) for id_ in ids])
    return turn.write("erase_bodies", [(id_.bytes,) for id_ in ids])


def purge(turn: Turn, ids: Sequence[JobId], actor: str, reason: str | None) -> list[JobId]:
    """Remove cleaned jobs whole, and enter it."""
    newest = turn.row("newest_event")
    gone: dict[JobId, str] = {}
    for id_ in ids:
        row = None if newest == (id_.bytes,) else turn.row("purge_job", (id_.bytes,))
        if row is not None:
            tenant, queue, state = row
            gone[id_] = tenant
            turn.count(tenant, queue, state, -1)
    if not gone:
        return []
    keys = [(id_.bytes,) for id_ in gone]
    events = turn.write("purge_events", keys)
    for name in ("purge_beats", "purge_logs", "purge_signals", "purge_keys"):
        turn.write(name, keys)
    [(number,)] = turn.rows("purge_entry", (turn.now, actor, reason, len(gone), events))
    turn.write("purge_id", [(id_.bytes, tenant, number) for id_, tenant in gone.items()])
    return list(gone)


def give_back_space(turn: Turn) -> int:
    """Return free pages to the file system, as many as one transaction may move."""
    before = turn.connection.pragma("page_count")
    turn.connection.execute(f"PRAGMA incremental_vacuum({GIVE_BACK_PAGES})").fetchall()
    freed = before - turn.connection.pragma("page_count")
    return int(freed * turn.connection.pragma("page_size"))


def drop_beats(turn: Turn, before: int, limit: int) -> int:
    """Drop old heartbeats."""
    return turn.write("drop_beats", [(before, limit)])


def bump_epoch(turn: Turn) -> int:
    """Fence all claims made so far."""
    turn.write("set_meta", [("epoch", str(turn.epoch + 1))])
    return turn.epoch + 1


def set_sealing(turn: Turn, on: bool) -> None:
    """Turn the hash chain over new events on or off."""
    log = switched(turn.meta().get("sealing_log"), turn.now, on)
    turn.write("set_meta", [("sealing", "on" if on else "off"), ("sealing_log", log)])


def secret(turn: Turn, name: str) -> bytes:
    """Read a random value of this database; the first to ask makes it."""
    key = f"secret:{name}"
    turn.write("keep_meta", [(key, mint_secret().hex())])
    return bytes.fromhex(turn.meta()[key])


def free_stray_keys(turn: Turn, low: bytes) -> tuple[bytes | None, int]:
    """Free the keys of no job among the next ones by id; tell where these end, None at the end."""
    bound = turn.row("stray_keys_bound", (low, FREE_BATCH))
    high = None if bound is None else bytes(bound[0])
    return high, turn.write("free_stray_keys", [(low, high)])


def rebuild(
    turn: Turn, all_jobs: Sequence[Job], all_keys: Sequence[tuple[JobId, KeyRow]]
) -> list[JobId]:
    """Replace the projection of these jobs; the triggers on job rows are set aside meanwhile."""
    moved = {job.id for job in all_jobs if turn.row("last_revs", (job.id.bytes,)) != (job.rev,)}
    jobs = [job for job in all_jobs if job.id not in moved]
    keys = [(id_, key) for id_, key in all_keys if id_ not in moved]
    guards = turn.rows("guards")
    for name, _ in guards:
        turn.connection.execute(fragment("drop_guard", guard=name))
    ids = [(job.id.bytes,) for job in jobs]
    turn.write("remove_job", ids)
    turn.write("remove_keys", ids)
    turn.write("remove_signals", ids)
    turn.remember(jobs)
    marks = ", ".join("?" * len(JOB_COLUMNS))
    turn.write_text(fragment("restore_job", marks=marks), [job_row(job) for job in jobs])
    pending = [(job.id.bytes, one.rev, one.name) for job in jobs for one in job.signals]
    turn.write("add_signals", pending)
    turn.write(
        "restore_keys",
        [(key.tenant, key.kind.code, key.key, id_.bytes, key.digest) for id_, key in keys],
    )
    turn.write("add_claims", ids)
    for _, text in guards:
        turn.connection.execute(text)
    return sorted(moved)


def recount(turn: Turn) -> None:
    """Count the summaries anew."""
    turn.connection.execute(SQL["clear_counts"])
    turn.connection.execute(SQL["recount"])


def forget_unused(turn: Turn) -> int:
    """Forget sets of needs that no job has any more, and queues of the summaries without jobs."""
    turn.write("forget_counts", [()])
    return turn.write("forget_needs", [(turn.now,)])
