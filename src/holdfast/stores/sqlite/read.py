"""What only reads: jobs, lists, events, the tail, the ledger. Each in one short snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.seal import read_switches
from holdfast.lifecycle.states import EventType, KeyKind, State
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports import (
    Aged,
    Count,
    EventQuery,
    LedgerEntry,
    LogLine,
    Mark,
    Page,
    Purgeable,
    PurgedJob,
    PurgeEntry,
    Quarantine,
    Quarantined,
    Query,
    QueueEvent,
    QueueStatus,
    Tail,
    Token,
    Webhook,
    WorkerStatus,
)
from holdfast.stores.columns import EVENT_COLUMNS, JOB_COLUMNS
from holdfast.stores.cursors import LAST_REV, read_position, write_position
from holdfast.stores.entries import dictionary_problems, entries, named
from holdfast.stores.logs import read_log
from holdfast.stores.narrowing import looks, narrowing
from holdfast.stores.purging import purge_entry
from holdfast.stores.quarantine import report_left_out, sift
from holdfast.stores.side_tables import (
    cursor_problems,
    mark_problems,
    queue_problems,
    signal_problems,
    token_problems,
    webhook_problems,
)
from holdfast.stores.sqlite.session import Row, Session, fragment, job_id
from holdfast.stores.task_terms import choose_terms
from holdfast.stores.tokens import read_token
from holdfast.stores.webhooks import read_webhook
from holdfast.stores.workers import read_worker

EVER = 2**62
HIGHEST = b"\xff" * 16
LEDGER_EVENTS = 8
"""Events, heartbeats or keys per job that a batch of the ledger may hold; then it ends earlier."""
Ledger: TypeAlias = tuple[bytes, list[LedgerEntry]]


def get(session: Session, ids: Sequence[JobId], *, signals: bool) -> list[Job | None]:
    """Read jobs by internal id."""
    return [session.get(id_.bytes, signals=signals) for id_ in ids]


def look_up(session: Session, tenant: str, kind: KeyKind, key: str) -> JobId | None:
    """Find who holds a key; a job_id that was not given is the text of the internal id."""
    # A dedupe key is stored under one kind, whatever its term.
    stored = KeyKind.DEDUPE if kind is KeyKind.DEDUPE_LIVE else kind
    row = session.row("look_up", (tenant, stored.code, key))
    if row is None and kind is KeyKind.JOB_ID and (id_ := _as_id(key)) is not None:
        row = session.row("look_up_id", (id_.bytes, tenant))
    return None if row is None else job_id(row[0])


def _as_id(key: str) -> UUID | None:
    try:
        return UUID(key)
    except ValueError:
        return None


def find(session: Session, query: Query) -> Page:
    """List jobs, newest first."""
    given = _given(query)
    narrow = narrowing(query)
    filters = [fragment(f"find_{name}") for name in given]
    filters += [fragment(f"narrow_{narrow}")] if narrow in ("tenant", "queue") else []
    bound = _look_bound(session, query, narrow, given) if looks(query) else None
    if bound is not None:
        filters.append(fragment("find_bound"))
        given["bound"] = bound
    # One more than asked for tells whether there is a next page.
    given["limit"] = query.limit + 1
    sql = fragment("find", filters="\n".join(filters))
    rows = session.connection.execute(sql, given).fetchall()
    jobs = session.readable_jobs(rows[: query.limit])
    last: Any = rows[query.limit - 1][0] if len(rows) > query.limit else bound
    return Page(jobs, None if last is None else job_id(last), list(session.bad))


def _given(query: Query) -> dict[str, Any]:
    given = {
        name: value
        for name in query.__struct_fields__
        if (value := getattr(query, name)) not in (None, ()) and name not in ("limit", "look")
    }
    if "states" in given:
        given["states"] = msgspec.json.encode([state.code for state in query.states]).decode()
    if query.labels:
        given["labels"] = msgspec.json.encode(dict(query.labels)).decode()
    if query.letter is not None:
        given["letter"] = query.letter.code
    for name in ("parent_id", "before"):
        if name in given:
            given[name] = given[name].bytes
    return given


def _look_bound(
    session: Session, query: Query, narrow: str | None, given: dict[str, Any]
) -> bytes | None:
    """Find the last job that is looked at; None if there are fewer than may be."""
    names = [name for name in (narrow, "before") if name in given]
    filters = [fragment(f"find_{name}") for name in names]
    filters += [fragment(f"narrow_{narrow}")] if narrow in ("tenant", "queue") else []
    values = {name: given[name] for name in names} | {"look": query.look}
    sql = fragment("look_bound", filters="\n".join(filters))
    row = session.connection.execute(sql, values).fetchone()
    return None if row is None else bytes(row[0])


def events(
    session: Session, id: JobId, after: int, limit: int, max_bytes: int | None
) -> list[LoggedEvent]:
    """Read one job's events after a revision, and of their bodies about so many bytes."""
    last = LAST_REV
    if max_bytes is not None:
        [[reached]] = session.rows("bytes_reached", (id.bytes, after, limit, max_bytes))
        last = LAST_REV if reached is None else reached
    return session.events("events", (id.bytes, after, limit, last))


def request_event(session: Session, id: JobId, request_id: str) -> LoggedEvent | None:
    """Read the first event of a job under a request_id."""
    found = session.events("request_event", (id.bytes, request_id))
    return found[0] if found else None


def latest_events(
    session: Session, id: JobId, types: Sequence[EventType], limit: int
) -> list[LoggedEvent]:
    """Read one job's newest events of these types."""
    codes = msgspec.json.encode([kind.code for kind in types]).decode()
    return session.events("latest_events", (id.bytes, codes, limit))


def step_events(session: Session, id: JobId, steps: Sequence[tuple[str, int]]) -> list[LoggedEvent]:
    """Read what one job recorded of some steps."""
    return session.events("step_events", (id.bytes, msgspec.json.encode(steps).decode()))


def find_events(session: Session, query: EventQuery) -> list[LoggedEvent]:
    """Look events up across jobs."""
    since, until = query.since or 0, EVER if query.until is None else query.until
    if query.correlation_id is not None:
        return session.events(
            "events_by_correlation", (query.correlation_id, since, until, query.limit, query.type)
        )
    return session.events("events_by_type", (query.type, since, until, query.limit))


def tail(session: Session, cursor: str | None, limit: int) -> Tail:
    """Read all events after a cursor."""
    rows = session.rows("tail", (read_position(cursor), limit))
    found, bad = sift(
        rows, lambda row: (row[0], session.event(row[1:])), lambda row: job_id(row[1])
    )
    report_left_out(bad)
    return Tail(
        events=[event for _, event in found],
        cursors=[write_position(position) for position, _ in found],
        cursor=write_position(rows[-1][0]) if rows else cursor or write_position(0),
    )


def tail_end(session: Session) -> str:
    """Tell the cursor of the last event."""
    row = session.row("tail_end")
    return write_position((row and row[0]) or 0)


def owned(session: Session, owner: str) -> tuple[list[Job], list[str]]:
    """List what an owner holds, and its claims of which it holds nothing any more."""
    found: dict[JobId, Job] = {}
    over = []
    for request_id, ids in session.rows("owned", (owner,)):
        rows = [row for id_ in split_ids(ids) for row in session.rows("owned_job", (id_, owner))]
        found |= {job.id: job for job in session.readable_jobs(rows)}
        if not rows:
            over.append(request_id)
    return sorted(found.values(), key=lambda job: job.id.int), over


def split_ids(ids: bytes) -> list[bytes]:
    """Read the ids of a claim."""
    return [ids[i : i + 16] for i in range(0, len(ids), 16)]


def marked(session: Session, limit: int) -> list[Mark]:
    """List marks, the oldest first."""
    return [Mark(row[0], job_id(row[1])) for row in session.rows("marked", (limit,))]


def children(
    session: Session, parents: Sequence[JobId], live_only: bool, after: JobId | None, limit: int
) -> list[Job]:
    """List what these jobs spawned."""
    name = "live_children" if live_only else "children"
    low = after.bytes if after else b""
    return [
        job
        for parent in sorted(set(parents))
        for job in session.jobs(name, (parent.bytes, low, limit))
    ]


def families(session: Session, after: JobId | None, limit: int) -> list[JobId]:
    """List jobs that have live children or wait for children."""
    low = after.bytes if after else b""
    return [job_id(row[0]) for row in session.rows("families", (low, limit))]


def aged(session: Session, ended_before: int, after: JobId | None, look_at: int) -> Aged:
    """List ended jobs that are not cleaned, among the next ones by id."""
    low = after.bytes if after else b""
    bound = session.row("aged_bound", (low, look_at))
    high = HIGHEST if bound is None else bound[0]
    jobs = session.readable_jobs(session.rows("aged", (low, high, ended_before)))
    return Aged(jobs, None if bound is None else job_id(bound[0]))


def continued(session: Session, ids: Sequence[JobId]) -> set[JobId]:
    """Return those of these jobs whose records another job may still read."""
    return {id_ for id_ in ids if session.row("continued", (id_.bytes,)) is not None}


def purgeable(session: Session, ended_before: int, after: JobId | None, look_at: int) -> Purgeable:
    """List ended jobs among the next ones by id."""
    low = after.bytes if after else b""
    bound = session.row("aged_bound", (low, look_at))
    high = HIGHEST if bound is None else bound[0]
    rows = session.rows("purgeable", (low, high, ended_before))
    linked = frozenset(job_id(row[1]) for row in rows if row[0])
    jobs = session.readable_jobs([row[1:] for row in rows])
    return Purgeable(jobs, linked, None if bound is None else job_id(bound[0]))


def purged(session: Session, ids: Sequence[JobId]) -> list[PurgedJob | None]:
    """Read what is left of purged jobs."""
    rows = [session.row("purged", (id_.bytes,)) for id_ in ids]
    return [
        None
        if row is None
        else PurgedJob(id=job_id(row[0]), tenant=row[1], at=row[2], actor=row[3])
        for row in rows
    ]


def purges(session: Session, before: int, limit: int) -> list[PurgeEntry]:
    """Read the ledger of purges."""
    return [purge_entry(row) for row in session.rows("purges", (before, limit))]


def counts(session: Session, tenant: str | None) -> list[Count]:
    """Tell how many jobs are in which state."""
    return [
        Count(row[0], row[1], State.of(row[2]), row[3]) for row in session.rows("counts", (tenant,))
    ]


def size(session: Session) -> int:
    """Tell how many jobs there are."""
    row = session.row("size")
    return 0 if row is None else int(row[0])


def quarantined(session: Session, after: JobId | None, limit: int) -> Quarantine:
    """List jobs that are set aside."""
    rows = session.rows("quarantined", (after.bytes if after else b"", limit))
    jobs = [Quarantined(id=job_id(row[0]), since=row[1], reason=row[2] or "") for row in rows]
    [(total,)] = session.rows("count_quarantined")
    return Quarantine(jobs, total)


def queues(session: Session) -> list[QueueStatus]:
    """List queues that are, or were, paused."""
    return [queue_status(row) for row in session.rows("queues")]


def queue_status(row: Row) -> QueueStatus:
    """Read how a queue stands."""
    return QueueStatus(name=row[0], paused_at=row[1], paused_by=row[2], reason=row[3])


def queue_events(session: Session, queue: str | None) -> list[QueueEvent]:
    """Read the queues' ledger."""
    names = ("queue", "type", "at", "actor", "reason", "request_id")
    return [
        QueueEvent(**dict(zip(names, row, strict=True)))
        for row in session.rows("queue_events", (queue,))
    ]


def workers(session: Session, seen_since: int, limit: int) -> list[WorkerStatus]:
    """List workers, the most recently seen first."""
    return [read_worker(row) for row in session.rows("workers", (seen_since, limit))]


def worker(session: Session, name: str) -> WorkerStatus | None:
    """Read one worker."""
    return next((read_worker(row) for row in session.rows("worker", (name,))), None)


def task_terms(session: Session, tenant: str, tasks: Sequence[str]) -> list[TaskTerms | None]:
    """Read the terms of tasks that workers published."""
    found = (row for task in tasks for row in session.rows("task_terms", (tenant, task)))
    return choose_terms(tasks, ((row[0], row[1], row[2]) for row in found))


def logs(session: Session, id: JobId, after: int, limit: int) -> list[LogLine]:
    """Read one job's log after a position."""
    return [read_log(id, row) for row in session.rows("logs", (id.bytes, after, limit))]


def look_up_tokens(session: Session, ids: Sequence[str]) -> list[Token | None]:
    """Read tokens by id."""
    rows = [session.row("look_up_tokens", (id,)) for id in ids]
    return [None if row is None else read_token(row) for row in rows]


def tokens(session: Session, tenant: str | None, before: str, limit: int) -> list[Token]:
    """List tokens, newest first."""
    return [read_token(row) for row in session.rows("tokens", (before, tenant, limit))]


def look_up_webhooks(session: Session, id: str, tenant: str | None) -> list[Webhook]:
    """Read webhooks by id."""
    return [read_webhook(row) for row in session.rows("look_up_webhooks", (id, tenant))]


def webhooks(
    session: Session, tenant: str | None, before: tuple[str, str], limit: int
) -> list[Webhook]:
    """List webhooks that are not removed, newest first."""
    return [read_webhook(row) for row in session.rows("webhooks", (*before, tenant, limit))]


def cursor(session: Session, name: str) -> str | None:
    """Read how far somebody has come."""
    row = session.row("cursor", (name,))
    return None if row is None else str(row[0])


def ledger_end(session: Session) -> bytes:
    """Find the highest id there is; nothing in an empty ledger."""
    row = session.row("ledger_end")
    return b"" if row is None or row[0] is None else bytes(row[0])


def ledger(session: Session, after: bytes, end: bytes, batch: int) -> Ledger:
    """Read the next jobs by id with all that belongs to them, and the bound they end at."""
    [(high,)] = session.rows("ledger_bound", (after, batch, batch * LEDGER_EVENTS, end))
    jobs = [_readable(row, _JOB_IDS) for row in session.rows("ledger_jobs", (after, high))]
    events = [_readable(row, _EVENT_IDS) for row in session.rows("ledger_events", (after, high))]
    keys = [_readable(row, (0,)) for row in session.rows("ledger_keys", (after, high))]
    unclaimed = {job_id(row[0]) for row in session.rows("ledger_unclaimed", (after, high))}
    aside = {job_id(row[0]): row[1] for row in session.rows("ledger_quarantined", (after, high))}
    purged = {job_id(row[0]) for row in session.rows("ledger_purged", (after, high))}
    for policy, needs in named(jobs, events):
        session.learn(policy, needs)
    switches = read_switches(session.meta().get("sealing_log"))
    seen = session.seen
    return high, entries(
        jobs,
        events,
        keys,
        seen,
        switches=switches,
        unclaimed=unclaimed,
        quarantined=aside,
        purged=purged,
    )


def dictionary(session: Session) -> list[str]:
    """Say which policies and needs are not what their key stands for."""
    return dictionary_problems(session.rows("dictionary"))


def side(session: Session) -> list[str]:
    """Name what is wrong with tables beside the ledger."""
    marks = [(number, job_id(id_)) for number, id_ in session.rows("stray_marks")]
    # The cursors first: the tail's end only moves on.
    cursors = session.rows("all_cursors")
    return [
        *queue_problems(queues(session), queue_events(session, None)),
        *mark_problems(marks),
        *signal_problems([job_id(id_) for (id_,) in session.rows("stray_signals")]),
        *token_problems(session.rows("all_tokens"), read_token),
        *webhook_problems(session.rows("all_webhooks"), read_webhook),
        *cursor_problems(cursors, tail_end(session), read_position),
    ]


_JOB_IDS = (JOB_COLUMNS.index("id"), JOB_COLUMNS.index("parent_id"))
_EVENT_IDS = (EVENT_COLUMNS.index("id"),)


def _readable(row: Sequence[Any], ids: Sequence[int]) -> list[Any]:
    values = list(row)
    for i in ids:
        if isinstance(values[i], bytes) and len(values[i]) == 16:
            values[i] = job_id(values[i])
    return values
