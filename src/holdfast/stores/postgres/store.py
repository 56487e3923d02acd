"""The store on PostgreSQL: the port's duties, translated into the statements of queries.sql."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from holdfast.errors import RequestIdReused, StoreUnavailable
from holdfast.identity import mint_secret
from holdfast.lifecycle.clock import ClockWatch, tend
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.seal import switched
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import SECOND
from holdfast.ports import (
    LOG_LINES,
    WORKER_MEMORY,
    Announcement,
    Clock,
    Due,
    KeyRow,
    LogEntry,
    Mark,
    NewToken,
    NewWebhook,
    QueueStatus,
    Token,
    Webhook,
)
from holdfast.stores.cursors import LOWEST
from holdfast.stores.due import look_again_at, oldest_first
from holdfast.stores.logs import log_row
from holdfast.stores.postgres.committing import Committing
from holdfast.stores.postgres.connections import Connection, Connections, await_standby
from holdfast.stores.postgres.lineage import begin_lineage
from holdfast.stores.postgres.migrate import check_schema
from holdfast.stores.postgres.rebuilding import rebuild_rows, recount_jobs
from holdfast.stores.postgres.schema import DEFAULT_SCHEMA
from holdfast.stores.postgres.wake import WakeUp
from holdfast.stores.quarantine import REASON_LIMIT
from holdfast.stores.task_terms import ALL_TENANTS, TERMS_LIMIT, choose_terms, terms_row
from holdfast.stores.tokens import check_actor, check_id, token_row
from holdfast.stores.versions import Recheck
from holdfast.stores.webhooks import check_webhook_key, webhook_row
from holdfast.stores.workers import FORGET_BATCH, worker_row

log = logging.getLogger(__name__)
FOLD_BATCH, FOLD_ROUNDS = 10_000, 100
"""How many deltas one statement folds, and how many of these one call makes at most."""
FREE_BATCH = 10_000
"""How many keys one statement looks at to free those of no job."""
CLAIM_MEMORY = 600 * SECOND
"""How long a claim of which nothing is held any more is still known when it is asked for again."""


class PostgresStore(Committing):
    """The ledger on PostgreSQL 14 or later, in a schema of its own.

    `pooled`: the url leads through PgBouncer in transaction mode; `listen_url` then names a direct
    address for wake-ups (without it, waiting means polling).
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
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
                schema=schema,
                pooled=pooled,
                size=connections,
                deadline_seconds=deadline_seconds,
                attempt_seconds=attempt_seconds,
            ),
            WakeUp(listen_url or (None if pooled else url), schema=schema),
        )
        self._clock_watch = ClockWatch()
        self._recheck = Recheck()

    async def open(self) -> None:
        """Connect, and check the schema."""
        await self._connections.open()
        try:
            await self._check_schema()
        except BaseException:
            await self._connections.close()
            raise

    async def _check_schema(self) -> None:
        """Raise SchemaMismatch where somebody has migrated to what this version must not touch."""
        await self._run(check_schema)
        self._recheck.done()

    async def close(self) -> None:
        """Let go of the database."""
        await self._wake.close()
        await self._connections.close()

    # -- sweeps

    async def due(self, *, limit: int = 500) -> Due:
        """List jobs whose lease, deadline, timeout or wait has run out."""
        if self._recheck.due:
            await self._check_schema()
        clock = await self._tend_clock()
        jobs, wakes = await self._sweep("due_wakes", clock.now, limit)
        claims = await self._fetch("due_claims", clock.now, clock.epoch, limit)
        ids = list({id_ for _, held, _ in claims for id_ in held})
        owned = {job.id: job for job in (await self._sweep("due_leases", ids))[0]}
        await self._tidy_claims(claims, owned, clock.now)
        found = {job.id: job for job in jobs}
        for job in owned.values():
            if (job.lease_expires_at or 0) <= clock.now or (job.epoch or 1) < clock.epoch:
                found[job.id] = job
        more = limit in (wakes, len(claims)) or len(found) > limit
        shown = oldest_first(found.values(), limit)
        return Due(now=clock.now, epoch=clock.epoch, jobs=shown, more=more)

    async def _tend_clock(self) -> Clock:
        """Move the clock's mark on, and notice that the server's clock was set back."""
        clock, state, machine = await self._read_clock()
        steady = self._clock_watch.steady(machine, time.monotonic())
        changed = tend(state, machine, steady=steady)
        if changed is None:
            return clock
        kept, step = changed

        async def work(connection: Connection, tries: int) -> None:
            async with connection.transaction():
                values = (kept.mark, kept.shift, kept.since, state.mark, state.shift, state.since)
                won = await connection.fetch(self._sql["set_clock"], *values)
                if won and step is not None:
                    await connection.execute(self._sql["add_clock_step"], step.at, step.by)

        await self._run(work)
        if step is not None:
            log.warning("the server's clock was set back by %.1f s", step.by / SECOND)
        return await self.clock()

    async def _tidy_claims(self, claims: Sequence[Any], owned: dict[JobId, Job], now: int) -> None:
        """Look at each again when a lease may pass; close, later forget it if nothing is held."""
        pushed: list[tuple[str, int, bool]] = []
        gone = []
        for request_id, held, at in claims:
            leases = [look_again_at(owned[id_], now) for id_ in held if id_ in owned]
            if leases or at + CLAIM_MEMORY > now:
                look_at = min(leases, default=at + CLAIM_MEMORY)
                pushed.append((request_id, look_at, bool(leases)))
            else:
                gone.append(request_id)
        if gone:
            await self._fetch("drop_claims", gone)
        if pushed:
            await self._fetch("push_claims", *map(list, zip(*pushed, strict=True)))

    async def quarantine(self, ids: Sequence[JobId], *, reason: str) -> None:
        """Keep jobs out of claims and sweeps."""
        await self._set_aside(dict.fromkeys(ids, reason[:REASON_LIMIT]))
        await self.await_durable()

    async def release_quarantined(self, ids: Sequence[JobId]) -> int:
        """Let jobs be claimed and swept again; their leases are found by a claim of their own."""

        async def work(connection: Connection, tries: int) -> list[Any]:
            async with connection.transaction():
                released: list[Any] = await connection.fetch(
                    self._sql["release_quarantined"], list(ids)
                )
                held = [row[0] for row in released if row[2]]
                await connection.execute(self._sql["add_claims"], held)
                return released

        released = await self._run(work)
        if not released:
            await self.await_durable()
        self._wake.tell({row[1] for row in released})
        return len(released)

    async def unmark(self, marks: Sequence[Mark]) -> None:
        """Remove marks that were seen."""
        if marks:
            await self._fetch("unmark", [mark.number for mark in marks])

    async def forget_unused(self) -> int:
        """Forget sets of needs that no job has any more."""
        return len(await self._fetch("forget_needs"))

    async def fold_counts(self) -> None:
        """Fold the summaries' deltas, batch by batch while that leaves far fewer of them."""
        for _ in range(FOLD_ROUNDS):
            [(gone, folded)] = await self._fetch("fold_counts")
            if gone < FOLD_BATCH or folded * 2 > gone:
                return

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        """Erase bodies of jobs that are being cleaned, and their logs."""
        await self._fetch("erase_logs", list(ids))
        return len(await self._fetch("erase_bodies", list(ids)))

    async def purge(
        self, ids: Sequence[JobId], *, actor: str, reason: str | None = None
    ) -> list[JobId]:
        """Remove cleaned jobs whole."""
        check_text(actor, "actor", limit=200)
        sql = self._sql

        async def work(connection: Connection, tries: int) -> list[JobId]:
            async with connection.transaction():
                rows = await connection.fetch(sql["purge_job"], list(ids))
                gone, tenants, queues, states = ([row[n] for row in rows] for n in range(4))
                if not gone:
                    return []
                events = await connection.fetchval(sql["purge_events"], gone)
                for name in ("purge_beats", "purge_logs", "purge_signals", "purge_keys"):
                    await connection.execute(sql[name], gone)
                await connection.execute(sql["purge_counts"], tenants, queues, states)
                entry = (actor, reason, events, gone, tenants)
                await connection.execute(sql["purge_entry"], *entry)
                return [JobId(id_) for id_ in gone]

        # After a commit whose reply was lost it finds nothing left, and enters nothing twice.
        return await self._run(work) if ids else []

    async def give_back_space(self) -> int:
        """Do nothing: a vacuum makes the space free for other rows."""
        return 0

    async def drop_beats(self, *, before: int, limit: int = 10_000) -> int:
        """Drop old heartbeats."""
        return len(await self._fetch("drop_beats", before, limit))

    async def bump_epoch(self) -> int:
        """Fence all claims made so far."""

        async def fence(connection: Connection, tries: int) -> int:
            return int(await connection.fetchval(self._sql["bump_epoch"]))

        async def move_on(connection: Connection, tries: int) -> None:
            async with connection.transaction():
                await begin_lineage(connection, self._sql)

        # The fence first, in a transaction of its own: it waits for nobody.
        epoch = await self._run(fence)
        try:
            # A restore may have taken back events that somebody has read: the cursors of those who
            # did must not pass over what comes instead.
            await self._run(move_on)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"all claims made so far are fenced (epoch {epoch}), but positions in the feed "
                "could not be moved on: a transaction that reads events is open (pg_dump, a long "
                f"query); end it, then run `holdfast epoch bump` again ({error})"
            ) from error
        return epoch

    async def set_sealing(self, on: bool) -> None:
        """Turn the hash chain over new events on or off."""

        async def work(connection: Connection, tries: int) -> None:
            async with connection.transaction():
                await connection.execute(self._sql["sealing_on" if on else "sealing_off"])
                # Writers are locked out from here on, so that this time parts them.
                now, log = await connection.fetchrow(self._sql["sealing_log"])
                await connection.execute(self._sql["set_sealing_log"], switched(log, now, on))

        await self._run(work)

    async def secret(self, name: str) -> bytes:
        """Read a random value of this database."""
        key = f"secret:{name}"
        await self._fetch("keep_meta", key, mint_secret().hex())
        return bytes.fromhex((await self._fetch("read_meta", key))[0][0])

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
                    await await_standby(connection)
                    return
                arguments = (queue, actor, reason) if type == "paused" else (queue,)
                moved = await connection.fetch(
                    sql["pause" if type == "paused" else "resume"], *arguments
                )
                if moved:
                    entry = (queue, type, actor, reason, request_id)
                    await connection.fetch(sql["queue_event"], *entry)
                else:
                    await await_standby(connection)

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

    # -- workers

    async def announce(self, worker: Announcement) -> None:
        """Note that a worker lives, and what it serves."""
        await self._check_schema()
        await self._fetch("announce", *worker_row(worker), WORKER_MEMORY, FORGET_BATCH)

    async def publish_terms(self, terms: Sequence[TaskTerms], *, tenant: str | None = None) -> None:
        """Keep the terms of tasks for those who submit by name."""
        rows = {task: body for task, body in map(terms_row, terms)}  # noqa: C416  one of each
        whose = ALL_TENANTS if tenant is None else check_text(tenant, "tenant", limit=200)
        if rows:
            await self._fetch("publish_terms", whose, list(rows), list(rows.values()))
            await self._fetch("forget_terms", whose, TERMS_LIMIT)

    async def task_terms(self, tenant: str, tasks: Sequence[str]) -> list[TaskTerms | None]:
        """Read the terms of tasks that workers published."""
        found = await self._fetch("task_terms", tenant, list(tasks))
        return choose_terms(tasks, found)

    async def seen(self, name: str) -> None:
        """Note that a worker still lives."""
        if self._recheck.due:
            await self._check_schema()
        await self._fetch("seen", check_text(name, "the worker's name", limit=200))

    async def retire(self, name: str) -> None:
        """Note that a worker ended in order."""
        await self._fetch("retire", check_text(name, "the worker's name", limit=200))

    # -- logs

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        """Keep what handlers said."""
        rows = [log_row(entry) for entry in entries]
        if rows:
            await self._fetch("keep_logs", *map(list, zip(*rows, strict=True)))
            await self._fetch("trim_logs", list({row[0] for row in rows}), LOG_LINES)

    # -- tokens

    async def add_token(self, token: NewToken) -> Token:
        """Keep a token."""
        await self._fetch_durably("add_token", *token_row(token))
        [kept] = await self.look_up_tokens([token.id])
        assert kept is not None
        return kept

    async def revoke_token(self, id: str, *, actor: str) -> Token | None:
        """End a token for ever."""
        await self._fetch_durably("revoke_token", check_id(id), check_actor(actor))
        return (await self.look_up_tokens([id]))[0]

    # -- webhooks

    async def add_webhook(self, hook: NewWebhook) -> Webhook:
        """Keep a webhook."""
        await self._fetch_durably("add_webhook", *webhook_row(hook))
        [kept] = await self.look_up_webhooks(hook.id, tenant=hook.tenant)
        return kept

    async def remove_webhook(self, id: str, *, tenant: str, actor: str) -> Webhook | None:
        """End a webhook and forget its secret."""
        check_text(actor, "actor", limit=200)
        await self._fetch_durably("remove_webhook", *check_webhook_key((id, tenant)), actor)
        return next(iter(await self.look_up_webhooks(id, tenant=tenant)), None)

    async def move_cursor(self, name: str, *, before: str | None, to: str) -> bool:
        """Move it on, if it still is where it was."""
        if before is None:
            return bool(await self._fetch("begin_cursor", name, to))
        return bool(await self._fetch("move_cursor", name, before, to))

    # -- rebuild

    async def free_stray_keys(self) -> int:
        """Free the keys of no job, batch by batch: one statement has only so much time."""
        total = 0
        low: UUID | None = LOWEST
        while low is not None:
            [(low, freed)] = await self._fetch("free_stray_keys", low, FREE_BATCH)
            total += freed
        await self._fetch("drop_stray_signals")
        return total

    async def rebuild(
        self, jobs: Sequence[Job], *, keys: Sequence[tuple[JobId, KeyRow]]
    ) -> list[JobId]:
        """Replace the projection of these jobs, except of those that have moved on."""
        # The events carry corrected terms whole: a policy that the store lost is written again.
        await self._remember(jobs, again=True)
        return await self._run(
            lambda connection, tries: rebuild_rows(connection, self._sql, jobs, keys)
        )

    async def recount(self) -> None:
        """Count the summaries anew."""
        await self._run(lambda connection, tries: recount_jobs(connection, self._sql))
