"""The store on SQLite: the port's duties, handed to the one writer or to a reader."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.errors import JobUnreadable, LawBroken, StoreError
from holdfast.lifecycle.clock import ClockState, ClockStep, ClockWatch, agreed, tend
from holdfast.lifecycle.job import Change, Job, JobId, LoggedEvent, NewJob
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.states import BEATS, EventType, KeyKind
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import SECOND
from holdfast.ports import (
    Aged,
    Announcement,
    Claimed,
    ClaimRequest,
    Clock,
    Count,
    DecideLocked,
    Due,
    EventQuery,
    KeyRow,
    LedgerEntry,
    Limits,
    LogEntry,
    LogLine,
    Mark,
    NewToken,
    NewWebhook,
    Outcome,
    Page,
    Purgeable,
    PurgedJob,
    PurgeEntry,
    Quarantine,
    Query,
    QueueEvent,
    QueueStatus,
    SubmitOutcome,
    Tail,
    Token,
    Webhook,
    WorkerStatus,
)
from holdfast.stores import webhooks
from holdfast.stores.logs import log_row
from holdfast.stores.quarantine import REASON_LIMIT
from holdfast.stores.sqlite import keep, read
from holdfast.stores.sqlite.claim import claim, claim_carefully
from holdfast.stores.sqlite.commit import commit, commit_locked
from holdfast.stores.sqlite.connections import Place, translate
from holdfast.stores.sqlite.database import Database, check_not_forked, join, leave
from holdfast.stores.sqlite.guest import Guest, be_guest
from holdfast.stores.sqlite.migrate import check_schema, prepare
from holdfast.stores.sqlite.session import Session
from holdfast.stores.sqlite.submit import submit
from holdfast.stores.sqlite.turn import Turn
from holdfast.stores.task_terms import ALL_TENANTS, terms_row
from holdfast.stores.tenant_limits import written_limits
from holdfast.stores.tokens import NEWEST, check_actor, check_id, token_row
from holdfast.stores.versions import Recheck
from holdfast.stores.webhooks import check_webhook_id, check_webhook_key, webhook_row
from holdfast.stores.workers import worker_row

T = TypeVar("T")
CLAIMED_LIMIT = 1000
"""Of how many sets of queues it is remembered what their last claim has seen."""
log = logging.getLogger(__name__)
TEND_SECONDS = 1.0
"""How often a process looks at the clock's mark, and moves it on."""


def wall_clock() -> int:
    """Tell the time in microseconds: the store's clock, unless a test hands in another."""
    return time.time_ns() // 1000


class SqliteStore:
    """The ledger in one SQLite file, or in memory (`:memory:`, shared within the process)."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], int] = wall_clock,
        deadline_seconds: float = 30.0,
        synchronous: str = "FULL",
        vfs: str | None = None,
    ) -> None:
        """Take the settings; `open` opens the file, and makes one that is not there."""
        self._place = Place.of(
            path, vfs=vfs, synchronous=synchronous, deadline_seconds=deadline_seconds
        )
        self._machine = clock
        self._clock_state = ClockState()
        self._clock_watch = ClockWatch()
        self._clock_step: ClockStep | None = None
        self._unnoted: ClockStep | None = None
        """What was noticed at opening, where nothing can be written."""
        self._tended_at = float("-inf")
        self._recheck = Recheck()
        self._seen_news: dict[frozenset[str], int] = {}
        self._database: Database | None = None
        self._opening: asyncio.Task[None] | None = None
        self._process = 0

    async def open(self) -> None:
        """Open the file; a new one gets the schema, any other must have this version's."""
        if self._database is not None:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._join())
        # Whoever is cancelled leaves it to the others, or to `close`: a thread cannot be stopped.
        await asyncio.shield(self._opening)

    async def _join(self) -> None:
        try:
            self._database = await asyncio.to_thread(join, self._place, prepare)
            self._process = os.getpid()
            self._unnoted = self._set_clock(*await self._read(keep.clock_state))
        except apsw.Error as error:
            raise translate(error) from error
        finally:
            self._opening = None

    async def close(self) -> None:
        """Finish what was begun and let go of the file."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        database, self._database = self._database, None
        if database is not None and self._process == os.getpid():
            await asyncio.to_thread(leave, self._place, database)

    def _opened(self) -> Database:
        if self._database is None:
            raise StoreError("the store is not open; await store.open() first")
        if self._process != os.getpid():
            check_not_forked(self._place)
        return self._database

    async def _read(self, action: Callable[[Session], T]) -> T:
        return await self._opened().read(action)

    async def _write(self, action: Callable[[Turn], T], *, urgent: bool = False) -> T:
        if time.monotonic() - self._tended_at >= TEND_SECONDS:
            action = partial(self._tend_clock, action)
        return await self._opened().writer.perform(action, self._clock, urgent=urgent)

    async def _check_schema(self) -> None:
        """Raise SchemaMismatch where somebody has migrated to what this version must not touch."""
        await self._read(lambda session: check_schema(session.connection))
        self._recheck.done()

    def _clock(self) -> int:
        return self._clock_state.now(self._machine())

    def _set_clock(self, kept: ClockState, step: ClockStep | None) -> ClockStep | None:
        """Go on from what is kept; returns the step back that this process's clock has made."""
        machine = self._machine()
        own = agreed(self._clock_state, kept, machine)
        lags = not self._clock_watch.was_set_back(machine)
        steady = self._clock_watch.steady(machine, time.monotonic())
        changed = tend(own, machine, steady=steady, lags=lags)
        self._clock_state, noticed = changed or (own, None)
        self._clock_step = noticed or step
        return noticed

    def _tend_clock(self, action: Callable[[Turn], T], turn: Turn) -> T:
        """Move the mark on with a write that comes anyway, and notice a clock that was set back."""
        kept, step = keep.clock_state(turn)
        noticed = self._set_clock(kept, step)
        if self._unnoted is not None and kept.mark < self._unnoted.at:
            # It was noticed when the store was opened, and nobody has noted it since.
            noticed = self._clock_step = noticed or self._unnoted
        self._unnoted = None
        state = self._clock_state
        if noticed is not None or state.mark > kept.mark:
            turn.write("set_clock", [(state.mark, state.shift, state.since)])
        if noticed is not None:
            turn.write("add_clock_step", [(noticed.at, noticed.by)])
            log.warning("this machine's clock was set back by %.1f s", noticed.by / SECOND)
        self._tended_at = time.monotonic()
        turn.now = self._clock()
        return action(turn)

    async def _sweep(self, action: Callable[[Session], T]) -> T:
        """Read, and set the jobs aside that were left out because they are damaged."""
        bad: dict[JobId, str] = {}

        def reading(session: Session) -> T:
            result = action(session)
            bad.update(session.bad)
            return result

        result = await self._read(reading)
        if bad:
            await self._write(lambda turn: keep.quarantine(turn, bad))
        return result

    async def clock(self) -> Clock:
        """Read the store's clock and epoch."""
        epoch = await self._read(keep.epoch)
        state, machine = self._clock_state, self._machine()
        return Clock(state.now(machine), epoch, state.ahead(machine), self._clock_step)

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        """Insert decided jobs with their first events and keys; here no key is ever undecided."""
        del await_keys
        return await self._write(lambda turn: submit(turn, jobs)) if jobs else []

    async def transact(self, work: Callable[[Guest], T]) -> T:
        """Do a caller's work in one transaction, on the writer's thread.

        It may be done again, where others made the transaction fail as a whole.
        """
        return await self._write(lambda turn: be_guest(turn, work))

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Give due jobs to an owner under lease."""
        check_text(request.owner, "owner", limit=200)
        queues = frozenset(request.queues)

        def action(turn: Turn) -> list[Claimed]:
            if len(self._seen_news) >= CLAIMED_LIMIT:
                # Whoever waits next looks once more than it has to.
                self._seen_news.clear()
            self._seen_news[queues] = turn.news
            return claim(turn, request)

        try:
            return await self._write(action)
        except (JobUnreadable, LawBroken):
            # One damaged row made the claim fail for all: find it, set it aside, take the others.
            return await self._write(lambda turn: claim_carefully(turn, request))

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write each change where its revision still holds."""
        if not changes:
            return []
        # A lease must not run out while its renewal waits behind a long queue of other work.
        urgent = all(change.event.type in BEATS for change in changes)
        return await self._write(lambda turn: commit(turn, changes), urgent=urgent)

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        """Decide on a job's current record and commit, in one transaction."""
        # Urgent, because it may be a renewal, and because it has lost several times already.
        return await self._write(lambda turn: commit_locked(turn, id, decide, after), urgent=True)

    async def get(self, ids: Sequence[JobId], *, signals: bool = True) -> list[Job | None]:
        """Read jobs by internal id."""
        return await self._read(lambda session: read.get(session, ids, signals=signals))

    async def look_up(self, tenant: str, kind: KeyKind, key: str) -> JobId | None:
        """Find who holds a key."""
        return await self._read(lambda session: read.look_up(session, tenant, kind, key))

    async def find(self, query: Query) -> Page:
        """List jobs, newest first."""
        return await self._read(lambda session: read.find(session, query))

    async def events(
        self, id: JobId, *, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[LoggedEvent]:
        """Read one job's events, heartbeats included."""
        return await self._read(lambda session: read.events(session, id, after, limit, max_bytes))

    async def request_event(self, id: JobId, request_id: str) -> LoggedEvent | None:
        """Read the event of a job that was written under a request_id."""
        return await self._read(lambda session: read.request_event(session, id, request_id))

    async def latest_events(
        self, id: JobId, types: Sequence[EventType], *, limit: int = 100
    ) -> list[LoggedEvent]:
        """Read one job's newest events of these types."""
        return await self._read(lambda session: read.latest_events(session, id, types, limit))

    async def await_durable(self) -> None:
        """Do nothing: SQLite shows a commit to readers only once it has synced it."""

    async def last_progress(self, id: JobId) -> LoggedEvent | None:
        """Read the newest report of how far one job is."""
        found = await self._read(lambda session: session.events("last_progress", (id.bytes,)))
        return found[0] if found else None

    async def step_events(self, id: JobId, steps: Sequence[tuple[str, int]]) -> list[LoggedEvent]:
        """Read what one job recorded of some steps."""
        return await self._read(lambda session: read.step_events(session, id, steps))

    async def find_events(self, query: EventQuery) -> list[LoggedEvent]:
        """Look events up across jobs."""
        return await self._read(lambda session: read.find_events(session, query))

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        """Read all events after a cursor."""
        return await self._read(lambda session: read.tail(session, cursor, limit))

    async def tail_end(self) -> str:
        """Tell the cursor of the last event."""
        return await self._read(read.tail_end)

    async def due(self, *, limit: int = 500) -> Due:
        """List jobs whose lease, deadline, timeout or wait has run out."""
        if self._recheck.due:
            await self._check_schema()
        if time.monotonic() - self._tended_at >= TEND_SECONDS:
            await self._write(lambda turn: None)
        now = self._clock()
        found = await self._sweep(lambda session: keep.due_wakes(session, now, limit))
        if found is not None:
            return found
        return await self._write(lambda turn: keep.due(turn, limit))

    async def owned(self, owner: str) -> list[Job]:
        """List what an owner holds; claims of which it holds nothing are not looked at again."""
        jobs, over = await self._sweep(lambda session: read.owned(session, owner))
        if over:
            await self._write(lambda turn: keep.close_claims(turn, over))
        return jobs

    async def marked(self, *, limit: int = 500) -> list[Mark]:
        """List marks, the oldest first."""
        return await self._read(lambda session: read.marked(session, limit))

    async def unmark(self, marks: Sequence[Mark]) -> None:
        """Remove marks that were seen."""
        if marks:
            await self._write(lambda turn: keep.unmark(turn, marks))

    async def children(
        self,
        parents: Sequence[JobId],
        *,
        live_only: bool = False,
        after: JobId | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """List what these jobs spawned."""
        return await self._read(
            lambda session: read.children(session, parents, live_only, after, limit)
        )

    async def families(self, *, after: JobId | None = None, limit: int = 500) -> list[JobId]:
        """List jobs that have live children or wait for children."""
        return await self._read(lambda session: read.families(session, after, limit))

    async def quarantine(self, ids: Sequence[JobId], *, reason: str) -> None:
        """Keep jobs out of claims and sweeps."""
        bad = dict.fromkeys(ids, reason[:REASON_LIMIT])
        await self._write(lambda turn: keep.quarantine(turn, bad))

    async def quarantined(self, *, after: JobId | None = None, limit: int = 100) -> Quarantine:
        """List jobs that are set aside."""
        return await self._read(lambda session: read.quarantined(session, after, limit))

    async def release_quarantined(self, ids: Sequence[JobId]) -> int:
        """Let jobs be claimed and swept again."""
        return await self._write(lambda turn: keep.release_quarantined(turn, ids))

    async def counts(self, tenant: str | None = None) -> list[Count]:
        """Tell how many jobs are in which state."""
        return await self._read(lambda session: read.counts(session, tenant))

    async def limits(self) -> Limits:
        """Read how many names a tenant's jobs may have, and how many signals a job may keep."""
        return await self._read(lambda session: session.limits())

    async def set_limits(self, limits: Limits) -> None:
        """Set these limits."""
        rows = written_limits(limits)
        await self._write(lambda turn: turn.write("set_meta", rows))

    async def forget_unused(self) -> int:
        """Forget sets of needs that no job has any more, and queues without jobs."""
        return await self._write(keep.forget_unused)

    async def fold_counts(self) -> None:
        """Do nothing: here the summaries are kept as they stand."""

    async def pause(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let no job of a queue be claimed."""
        return await self._move_queue("paused", queue, actor, reason, request_id)

    async def resume(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let a queue's jobs be claimed again."""
        return await self._move_queue("resumed", queue, actor, reason, request_id)

    async def _move_queue(
        self, type: str, queue: str, actor: str, reason: str | None, request_id: str | None
    ) -> QueueStatus:
        check_text(queue, "queue", limit=200)
        check_text(actor, "actor", limit=200)
        for name, value in (("reason", reason), ("request_id", request_id)):
            if value is not None:
                check_text(value, name)
        return await self._write(
            lambda turn: keep.move_queue(
                turn, type, queue, actor=actor, reason=reason, request_id=request_id
            )
        )

    async def queues(self) -> list[QueueStatus]:
        """List queues that are, or were, paused."""
        return await self._read(read.queues)

    async def queue_events(self, queue: str | None = None) -> list[QueueEvent]:
        """Read the queues' ledger."""
        return await self._read(lambda session: read.queue_events(session, queue))

    async def announce(self, worker: Announcement) -> None:
        """Note that a worker lives, and what it serves."""
        await self._check_schema()
        row = worker_row(worker)
        await self._write(lambda turn: keep.announce(turn, row))

    async def publish_terms(self, terms: Sequence[TaskTerms], *, tenant: str | None = None) -> None:
        """Keep the terms of tasks for those who submit by name."""
        rows = [terms_row(one) for one in terms]
        whose = ALL_TENANTS if tenant is None else check_text(tenant, "tenant", limit=200)
        if rows:
            await self._write(lambda turn: keep.publish_terms(turn, whose, rows))

    async def task_terms(self, tenant: str, tasks: Sequence[str]) -> list[TaskTerms | None]:
        """Read the terms of tasks that workers published."""
        return await self._read(lambda session: read.task_terms(session, tenant, tasks))

    async def seen(self, name: str) -> None:
        """Note that a worker still lives."""
        if self._recheck.due:
            await self._check_schema()
        check_text(name, "the worker's name", limit=200)
        await self._write(lambda turn: keep.seen(turn, name))

    async def retire(self, name: str) -> None:
        """Note that a worker ended in order."""
        check_text(name, "the worker's name", limit=200)
        await self._write(lambda turn: keep.retire(turn, name))

    async def workers(
        self, *, seen_since: int | None = None, limit: int = 1000
    ) -> list[WorkerStatus]:
        """List workers, the most recently seen first."""
        return await self._read(lambda session: read.workers(session, seen_since or 0, limit))

    async def worker(self, name: str) -> WorkerStatus | None:
        """Read one worker."""
        return await self._read(lambda session: read.worker(session, name))

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        """Keep what handlers said."""
        rows = [log_row(entry) for entry in entries]
        if rows:
            await self._write(lambda turn: keep.logs(turn, rows))

    async def logs(self, id: JobId, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Read one job's log after a position."""
        return await self._read(lambda session: read.logs(session, id, after, limit))

    async def add_token(self, token: NewToken) -> Token:
        """Keep a token."""
        row = token_row(token)
        return await self._write(lambda turn: keep.add_token(turn, row))

    async def look_up_tokens(self, ids: Sequence[str]) -> list[Token | None]:
        """Read tokens by id."""
        checked = [check_id(id) for id in ids]
        return await self._read(lambda session: read.look_up_tokens(session, checked))

    async def tokens(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Token]:
        """List tokens, newest first."""
        below = NEWEST if before is None else check_id(before)
        return await self._read(lambda session: read.tokens(session, tenant, below, limit))

    async def revoke_token(self, id: str, *, actor: str) -> Token | None:
        """End a token for ever."""
        check_id(id)
        check_actor(actor)
        return await self._write(lambda turn: keep.revoke_token(turn, id, actor))

    async def add_webhook(self, hook: NewWebhook) -> Webhook:
        """Keep a webhook."""
        row = webhook_row(hook)
        return await self._write(lambda turn: keep.add_webhook(turn, row))

    async def look_up_webhooks(self, id: str, *, tenant: str | None = None) -> list[Webhook]:
        """Read webhooks by id."""
        check_webhook_id(id)
        return await self._read(lambda session: read.look_up_webhooks(session, id, tenant))

    async def webhooks(
        self,
        *,
        tenant: str | None = None,
        before: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> list[Webhook]:
        """List webhooks that are not removed, newest first."""
        below = webhooks.NEWEST if before is None else check_webhook_key(before)
        return await self._read(lambda session: read.webhooks(session, tenant, below, limit))

    async def remove_webhook(self, id: str, *, tenant: str, actor: str) -> Webhook | None:
        """End a webhook and forget its secret."""
        key = check_webhook_key((id, tenant))
        check_text(actor, "actor", limit=200)
        return await self._write(lambda turn: keep.remove_webhook(turn, key, actor))

    async def cursor(self, name: str) -> str | None:
        """Read how far somebody who follows the tail has come."""
        return await self._read(lambda session: read.cursor(session, name))

    async def move_cursor(self, name: str, *, before: str | None, to: str) -> bool:
        """Move it on, if it still is where it was."""
        return await self._write(lambda turn: keep.move_cursor(turn, name, before, to))

    async def wake_up(self, queues: Sequence[str], *, limit_seconds: float) -> bool:
        """Wait until work may have come since the last claim from these queues, or the limit."""
        wanted = frozenset(queues)
        seen = self._seen_news.get(wanted, 0)
        writer = self._opened().writer
        return await writer.await_news(wanted, seen, limit_seconds=limit_seconds)

    async def aged(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Aged:
        """List ended jobs that are not cleaned, among the next ones by id."""
        return await self._sweep(lambda session: read.aged(session, ended_before, after, look_at))

    async def continued(self, ids: Sequence[JobId]) -> set[JobId]:
        """Return those of these jobs whose records another job may still read."""
        return await self._read(lambda session: read.continued(session, ids))

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        """Erase bodies of jobs that are being cleaned."""
        return await self._write(lambda turn: keep.erase_bodies(turn, ids))

    async def purgeable(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Purgeable:
        """List ended jobs among the next ones by id."""
        return await self._sweep(
            lambda session: read.purgeable(session, ended_before, after, look_at)
        )

    async def purge(
        self, ids: Sequence[JobId], *, actor: str, reason: str | None = None
    ) -> list[JobId]:
        """Remove cleaned jobs whole. The job of the newest event stays until there is a newer."""
        check_text(actor, "actor", limit=200)
        return await self._write(lambda turn: keep.purge(turn, ids, actor, reason)) if ids else []

    async def purged(self, ids: Sequence[JobId]) -> list[PurgedJob | None]:
        """Read what is left of purged jobs."""
        return await self._read(lambda session: read.purged(session, ids))

    async def purges(self, *, before: int | None = None, limit: int = 100) -> list[PurgeEntry]:
        """Read the ledger of purges."""
        below = read.EVER if before is None else before
        return await self._read(lambda session: read.purges(session, below, limit))

    async def give_back_space(self) -> int:
        """Return free pages to the file system; 0 for a file that was made without auto_vacuum."""
        return await self._write(keep.give_back_space)

    async def drop_beats(self, *, before: int, limit: int = 10_000) -> int:
        """Drop old heartbeats."""
        return await self._write(lambda turn: keep.drop_beats(turn, before, limit))

    async def bump_epoch(self) -> int:
        """Fence all claims made so far."""
        return await self._write(keep.bump_epoch)

    async def set_sealing(self, on: bool) -> None:
        """Turn the hash chain over new events on or off."""
        await self._write(lambda turn: keep.set_sealing(turn, on))

    async def secret(self, name: str) -> bytes:
        """Read a random value of this database."""
        return await self._write(lambda turn: keep.secret(turn, name))

    async def ledger(
        self, *, after: JobId | None = None, batch: int = 500
    ) -> AsyncIterator[list[LedgerEntry]]:
        """Read every job and all its events by id, in short snapshots.

        Up to the newest id at the beginning: live work would otherwise keep it going for ever.
        """
        low = after.bytes if after else b""
        end = await self._read(read.ledger_end)
        while low < end:
            low, entries = await self._read(partial(read.ledger, after=low, end=end, batch=batch))
            yield entries

    async def dictionary_problems(self) -> list[str]:
        """Say which policies and needs are not what their key stands for."""
        return await self._read(read.dictionary)

    async def side_problems(self) -> list[str]:
        """Name what is wrong beside the ledger."""
        return await self._read(read.side)

    async def size(self) -> int:
        """Tell how many jobs there are, by the summaries."""
        return await self._read(read.size)

    async def free_stray_keys(self) -> int:
        """Free the keys of no job, batch by batch: others may wait for the write lock."""
        total = 0
        low: bytes | None = b""
        while low is not None:
            low, freed = await self._write(partial(keep.free_stray_keys, low=low))
            total += freed
        await self._write(lambda turn: turn.write("drop_stray_signals", [()]))
        return total

    async def rebuild(
        self, jobs: Sequence[Job], *, keys: Sequence[tuple[JobId, KeyRow]]
    ) -> list[JobId]:
        """Replace the projection of these jobs, except of those that have moved on."""
        return await self._write(lambda turn: keep.rebuild(turn, jobs, keys))

    async def recount(self) -> None:
        """Count the summaries anew."""
        await self._write(keep.recount)
