"""The reading half of the PostgreSQL store: jobs, lists, events, the tail, the ledger."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from holdfast.errors import LawBroken
from holdfast.lifecycle.clock import ClockState, ClockStep
from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.seal import read_switches
from holdfast.lifecycle.states import EventType, KeyKind, Letter, State
from holdfast.ports import (
    Aged,
    Clock,
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
from holdfast.stores import webhooks
from holdfast.stores.cursors import LAST_REV, LOWEST, read_cursor, write_cursor
from holdfast.stores.entries import dictionary_problems, entries, named
from holdfast.stores.logs import read_log
from holdfast.stores.narrowing import looks, narrowing
from holdfast.stores.postgres.base import BY_BLOCKS, PLANNED_EACH_TIME, Base
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.lineage import Moved, follow_move, tail_bounds, tail_rows
from holdfast.stores.purging import purge_entry
from holdfast.stores.quarantine import report_left_out, report_refused, report_set_aside
from holdfast.stores.side_tables import (
    cursor_problems,
    mark_problems,
    queue_problems,
    signal_problems,
    token_problems,
    webhook_problems,
)
from holdfast.stores.tokens import NEWEST, check_id, read_token
from holdfast.stores.webhooks import check_webhook_id, check_webhook_key, read_webhook
from holdfast.stores.workers import read_worker

R = TypeVar("R")
EVER = 2**62
HIGHEST = UUID(int=2**128 - 1)
_ANY = re.compile(r"\$\d+")
LEDGER_EVENTS = 8
"""Events, heartbeats or keys per job that a batch of the ledger may hold; then it ends earlier."""


class Reading(Base):
    """What reads and changes nothing."""

    async def clock(self) -> Clock:
        """Read the store's clock and epoch."""
        return (await self._read_clock())[0]

    async def _read_clock(self) -> tuple[Clock, ClockState, int]:
        """Read the clock, with what is kept about it and the server's own."""
        now, epoch, machine, mark, shift, since, at, by = (await self._fetch("clock"))[0]
        state = ClockState(mark, shift, since)
        step = None if at is None else ClockStep(at, by)
        return Clock(now, epoch, state.ahead(machine), step), state, machine

    async def get(self, ids: Sequence[JobId], *, signals: bool = True) -> list[Job | None]:
        """Read jobs by internal id."""
        rows = await self._fetch("get" if signals else "get_unread", list(ids))
        jobs = {job.id: job for job in await self._jobs(rows)}
        return [jobs.get(id_) for id_ in ids]

    async def look_up(self, tenant: str, kind: KeyKind, key: str) -> JobId | None:
        """Find who holds a key."""
        rows = await self._fetch("look_up", tenant, _stored_kind(kind), key)
        if not rows and kind is KeyKind.JOB_ID and (id_ := _as_id(key)) is not None:
            rows = await self._fetch("look_up_id", id_, tenant)
        return JobId(rows[0][0]) if rows else None

    async def find(self, query: Query) -> Page:
        """List jobs, newest first."""
        bound = await self._look_bound(query) if looks(query) else None
        # One more than asked for tells whether there is a next page.
        labels = msgspec.json.encode(dict(query.labels)).decode() if query.labels else None
        arguments = (*_find_arguments(query), bound or LOWEST, labels)
        rows = await self._fetch_text(_find_sql(self._sql, query), *arguments)
        jobs, bad = await self._readable_jobs(rows[: query.limit])
        last = JobId(rows[query.limit - 1][0]) if len(rows) > query.limit else bound
        return Page(jobs, last, list(bad))

    async def _look_bound(self, query: Query) -> JobId | None:
        """Find the last job that is looked at; None if there are fewer than may be."""
        narrow = narrowing(query)
        text, value = "$1::text IS NULL", None
        if narrow is not None:
            text, value = _ANY.sub("$1", self._sql[f"narrow_{narrow}"]), getattr(query, narrow)
        sql = _narrowed(self._sql["look_bound"], text, narrow)
        value = value.code if isinstance(value, Letter) else value
        rows = await self._fetch_text(sql, value, query.before or HIGHEST, query.look)
        return JobId(rows[0][0]) if rows else None

    async def events(
        self, id: JobId, *, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[LoggedEvent]:
        """Read one job's events, heartbeats included."""
        last = LAST_REV
        if max_bytes is not None:
            [[reached]] = await self._fetch("bytes_reached", id, after, limit, max_bytes)
            last = LAST_REV if reached is None else reached
        return await self._events(await self._fetch("events", id, after, limit, last))

    async def request_event(self, id: JobId, request_id: str) -> LoggedEvent | None:
        """Read the event of a job that was written under a request_id."""
        found = await self._events(await self._fetch("request_event", id, request_id))
        return found[0] if found else None

    async def latest_events(
        self, id: JobId, types: Sequence[EventType], *, limit: int = 100
    ) -> list[LoggedEvent]:
        """Read one job's newest events of these types."""
        codes = [kind.code for kind in types]
        return await self._events(await self._fetch("latest_events", id, codes, limit))

    async def last_progress(self, id: JobId) -> LoggedEvent | None:
        """Read the newest report of how far one job is."""
        found = await self._events(await self._fetch("last_progress", id))
        return found[0] if found else None

    async def step_events(self, id: JobId, steps: Sequence[tuple[str, int]]) -> list[LoggedEvent]:
        """Read what one job recorded of some steps."""
        names, uses = [name for name, _ in steps], [use for _, use in steps]
        return await self._events(await self._fetch("step_events", id, names, uses))

    async def find_events(self, query: EventQuery) -> list[LoggedEvent]:
        """Look events up across jobs."""
        since, until = query.since or 0, EVER if query.until is None else query.until
        span = (since, until, query.limit)
        values: tuple[Any, ...]
        if query.correlation_id is not None:
            by, values = "events_by_correlation", (query.correlation_id, *span, query.type)
        else:
            by, values = "events_by_type", (query.type, *span)
        settings = f"{PLANNED_EACH_TIME}; {BY_BLOCKS}"
        return await self._events(await self._fetch_with(settings, self._sql[by], *values))

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        """Read all events after a cursor, up to the oldest transaction still under way."""
        after = read_cursor(cursor)

        async def work(connection: Connection, tries: int) -> tuple[list[Any], int, int | None]:
            async with connection.transaction():
                await connection.execute(BY_BLOCKS)
                return await tail_rows(connection, self._sql, after, limit)

        rows, reached, blocker = await self._following(work)
        events, bad = await self._readable_events([row[1:] for row in rows])
        report_left_out(bad)
        read = {(event.id, event.rev) for event in events} if bad else None
        cursors = [write_cursor(*row[:3]) for row in rows if read is None or row[1:3] in read]
        if len(rows) == limit:
            return Tail(events=events, cursors=cursors, cursor=write_cursor(*rows[-1][:3]))
        end = write_cursor(reached, LOWEST, 0)
        return Tail(events=events, cursors=cursors, cursor=end, held_back_by=blocker)

    async def tail_end(self) -> str:
        """Tell the cursor before the oldest transaction still under way."""
        bounds = await self._following(lambda connection, _: tail_bounds(connection, self._sql))
        return write_cursor(bounds["oldest"], LOWEST, 0)

    async def _following(self, work: Callable[[Connection, int], Awaitable[R]]) -> R:
        """Read the tail; where the database has moved to another cluster, follow it first."""
        try:
            return await self._run(work)
        except Moved:
            await self._run(lambda connection, _: follow_move(connection, self._sql))
            return await self._run(work)

    async def _set_aside(self, bad: Mapping[JobId, str], *, on: Connection | None = None) -> None:
        """Keep damaged jobs out of claims and sweeps, each by itself: a mark may be refused."""
        for id_, reason in bad.items():
            arguments = ([id_], [reason])
            try:
                if on is None:
                    marked = await self._fetch("quarantine", *arguments)
                else:
                    async with on.transaction():
                        marked = await on.fetch(self._sql["quarantine"], *arguments)
            except (LawBroken, asyncpg.IntegrityConstraintViolationError) as error:
                report_refused([id_], error)
            else:
                report_set_aside({JobId(row[0]): reason for row in marked})

    async def _sweep(self, name: str, *arguments: Any) -> tuple[list[Job], int]:
        """Read jobs, setting damaged ones aside; also tells how many rows there were."""
        rows = await self._fetch(name, *arguments)
        jobs, bad = await self._readable_jobs(rows)
        await self._set_aside(bad)
        return jobs, len(rows)

    async def quarantined(self, *, after: JobId | None = None, limit: int = 100) -> Quarantine:
        """List jobs that are set aside."""
        rows = await self._fetch("quarantined", after or LOWEST, limit)
        jobs = [Quarantined(id=JobId(row[0]), since=row[1], reason=row[2] or "") for row in rows]
        return Quarantine(jobs, (await self._fetch("count_quarantined"))[0][0])

    async def owned(self, owner: str) -> list[Job]:
        """List what an owner holds."""
        jobs, _ = await self._sweep("owned", owner)
        return sorted({job.id: job for job in jobs}.values(), key=lambda job: job.id)

    async def marked(self, *, limit: int = 500) -> list[Mark]:
        """List marks, the oldest first."""
        return [Mark(row[0], JobId(row[1])) for row in await self._fetch("marked", limit)]

    async def children(
        self,
        parents: Sequence[JobId],
        *,
        live_only: bool = False,
        after: JobId | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """List what these jobs spawned."""
        name = "live_children" if live_only else "children"
        return await self._jobs(
            await self._fetch(name, list(dict.fromkeys(parents)), after or LOWEST, limit)
        )

    async def families(self, *, after: JobId | None = None, limit: int = 500) -> list[JobId]:
        """List jobs that have live children or wait for children."""
        return [JobId(row[0]) for row in await self._fetch("families", after or LOWEST, limit)]

    async def aged(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Aged:
        """List ended jobs that are not cleaned, among the next ones by id."""
        low = after or LOWEST
        bound = await self._fetch("aged_bound", low, look_at)
        high = JobId(bound[0][0]) if bound else None
        jobs, _ = await self._sweep("aged", low, high or HIGHEST, ended_before)
        return Aged(jobs, high)

    async def continued(self, ids: Sequence[JobId]) -> set[JobId]:
        """Return those of these jobs whose records another job may still read."""
        return {JobId(row[0]) for row in await self._fetch("continued", list(ids))}

    async def purgeable(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Purgeable:
        """List ended jobs among the next ones by id."""
        low = after or LOWEST
        bound = await self._fetch("aged_bound", low, look_at)
        high = JobId(bound[0][0]) if bound else None
        rows = await self._fetch("purgeable", low, high or HIGHEST, ended_before)
        jobs, bad = await self._readable_jobs([row[1:] for row in rows])
        await self._set_aside(bad)
        return Purgeable(jobs, frozenset(JobId(row[1]) for row in rows if row[0]), high)

    async def purged(self, ids: Sequence[JobId]) -> list[PurgedJob | None]:
        """Read what is left of purged jobs."""
        found = {
            row[0]: PurgedJob(id=JobId(row[0]), tenant=row[1], at=row[2], actor=row[3])
            for row in await self._fetch("purged", list(ids))
        }
        return [found.get(id_) for id_ in ids]

    async def purges(self, *, before: int | None = None, limit: int = 100) -> list[PurgeEntry]:
        """Read the ledger of purges."""
        below = EVER if before is None else before
        return [purge_entry(row) for row in await self._fetch("purges", below, limit)]

    async def counts(self, tenant: str | None = None) -> list[Count]:
        """Tell how many jobs are in which state."""
        rows = await self._fetch("counts", tenant)
        return [Count(row[0], row[1], State.of(row[2]), int(row[3])) for row in rows]

    async def queues(self) -> list[QueueStatus]:
        """List queues that are, or were, paused."""
        return [_queue(row) for row in await self._fetch("queues")]

    async def queue_events(self, queue: str | None = None) -> list[QueueEvent]:
        """Read the queues' ledger."""
        return [
            QueueEvent(
                queue=row[0], type=row[1], at=row[2], actor=row[3], reason=row[4], request_id=row[5]
            )
            for row in await self._fetch("queue_events", queue)
        ]

    async def workers(
        self, *, seen_since: int | None = None, limit: int = 1000
    ) -> list[WorkerStatus]:
        """List workers, the most recently seen first."""
        return [read_worker(row) for row in await self._fetch("workers", seen_since or 0, limit)]

    async def worker(self, name: str) -> WorkerStatus | None:
        """Read one worker."""
        return next((read_worker(row) for row in await self._fetch("worker", name)), None)

    async def logs(self, id: JobId, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Read one job's log after a position."""
        return [read_log(id, row) for row in await self._fetch("logs", id, after, limit)]

    async def look_up_tokens(self, ids: Sequence[str]) -> list[Token | None]:
        """Read tokens by id."""
        rows = await self._fetch("look_up_tokens", [check_id(id) for id in ids])
        found = {row[0]: read_token(row) for row in rows}
        return [found.get(id) for id in ids]

    async def tokens(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Token]:
        """List tokens, newest first."""
        below = NEWEST if before is None else check_id(before)
        return [read_token(row) for row in await self._fetch("tokens", below, tenant, limit)]

    async def look_up_webhooks(self, id: str, *, tenant: str | None = None) -> list[Webhook]:
        """Read webhooks by id."""
        rows = await self._fetch("look_up_webhooks", check_webhook_id(id), tenant)
        return [read_webhook(row) for row in rows]

    async def webhooks(
        self,
        *,
        tenant: str | None = None,
        before: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> list[Webhook]:
        """List webhooks that are not removed, newest first."""
        below = webhooks.NEWEST if before is None else check_webhook_key(before)
        return [read_webhook(row) for row in await self._fetch("webhooks", *below, tenant, limit)]

    async def cursor(self, name: str) -> str | None:
        """Read how far somebody who follows the tail has come."""
        rows = await self._fetch("cursor", name)
        return str(rows[0][0]) if rows else None

    async def size(self) -> int:
        """Estimate how many jobs there are."""
        rows = await self._fetch("size")
        # The planner's figure is -1 or 0 until the first ANALYZE; then counting is cheap enough.
        return int(rows[0][0]) or int((await self._fetch("size_exactly"))[0][0])

    async def ledger(
        self, *, after: JobId | None = None, batch: int = 500
    ) -> AsyncIterator[list[LedgerEntry]]:
        """Read every job and all its events by id, in short snapshots.

        Up to the newest id at the beginning: live work would otherwise keep it going for ever.
        """
        low: UUID = after or LOWEST
        [[end]] = await self._fetch("ledger_end", low)
        while end is not None and low < end:
            high, rows = await self._run(self._ledger_reader(low, end, batch))
            yield await self._entries(rows)
            low = high

    def _ledger_reader(self, low: UUID, end: UUID, batch: int) -> Any:
        async def work(connection: Connection, tries: int) -> tuple[UUID, Any]:
            # One snapshot for rows and events: a job that moves meanwhile raises no false alarm.
            if connection.is_in_transaction():
                await connection.execute(
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
                )
                return await self._ledger_batch(connection, low, end, batch)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await self._ledger_batch(connection, low, end, batch)

        return work

    async def _ledger_batch(
        self, connection: Connection, low: UUID, end: UUID, batch: int
    ) -> tuple[UUID, Any]:
        sql = self._sql
        high = await connection.fetchval(
            sql["ledger_bound"], low, batch, batch * LEDGER_EVENTS, end
        )
        jobs = await connection.fetch(sql["ledger_jobs"], low, high)
        events = await connection.fetch(sql["ledger_events"], low, high)
        keys = await connection.fetch(sql["ledger_keys"], low, high)
        unclaimed = await connection.fetch(sql["ledger_unclaimed"], low, high)
        aside = await connection.fetch(sql["ledger_quarantined"], low, high)
        purged = await connection.fetch(sql["ledger_purged"], low, high)
        _, switches = await connection.fetchrow(sql["sealing_log"])
        marks = {
            "unclaimed": {row[0] for row in unclaimed},
            "quarantined": {row[0]: row[1] for row in aside},
            "purged": {row[0] for row in purged},
        }
        return high, (jobs, events, keys, marks, switches)

    async def _entries(self, rows: tuple[Any, ...]) -> list[LedgerEntry]:
        jobs, events, keys, marks, log = rows
        await self._learn(named(jobs, events))
        switches = read_switches(log)
        return entries(jobs, events, keys, self._seen, switches=switches, **marks)

    async def side_problems(self) -> list[str]:
        """Name what is wrong beside the ledger."""
        # The cursors first: the tail's end only moves on.
        cursors = await self._fetch("all_cursors")
        return [
            *queue_problems(await self.queues(), await self.queue_events()),
            *mark_problems(await self._fetch("stray_marks")),
            *signal_problems([id_ for (id_,) in await self._fetch("stray_signals")]),
            *token_problems(await self._fetch("all_tokens"), read_token),
            *webhook_problems(await self._fetch("all_webhooks"), read_webhook),
            *cursor_problems(cursors, await self.tail_end(), read_cursor),
        ]

    async def dictionary_problems(self) -> list[str]:
        """Say which policies and needs are not what their key stands for."""
        return dictionary_problems(await self._fetch("dictionary"))


def _stored_kind(kind: KeyKind) -> int:
    return KeyKind.DEDUPE.code if kind is KeyKind.DEDUPE_LIVE else kind.code


def _as_id(key: str) -> UUID | None:
    try:
        return UUID(key)
    except ValueError:
        return None


def _find_sql(sql: dict[str, str], query: Query) -> str:
    narrow = narrowing(query)
    return _narrowed(sql["find"], sql[f"narrow_{narrow or 'none'}"], narrow)


def _narrowed(sql: str, text: str, narrow: str | None) -> str:
    order = f"j.{narrow} DESC," if narrow in ("tenant", "queue") else ""
    return sql.replace(":narrow", text).replace(":order ", order)


def _find_arguments(query: Query) -> list[Any]:
    return [
        query.tenant,
        [state.code for state in query.states] or None,
        query.queue,
        query.task,
        query.parent_id,
        query.workflow_id,
        query.correlation_id,
        query.error_code,
        query.letter and query.letter.code,
        query.created_from or 0,
        EVER if query.created_until is None else query.created_until,
        query.before or HIGHEST,
        query.limit + 1,
    ]


def _queue(row: Sequence[Any]) -> QueueStatus:
    return QueueStatus(name=row[0], paused_at=row[1], paused_by=row[2], reason=row[3])
