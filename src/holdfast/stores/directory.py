"""The duties beside the ledger: written once, for both engines, over the rows of `side_tables`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.flow.policy_book import compile_book
from holdfast.ids import mint_secret
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.models import (
    LOG_LINES,
    WORKER_MEMORY,
    Announcement,
    AppliedPolicy,
    Limits,
    LogEntry,
    LogLine,
    NewToken,
    NewWebhook,
    PolicyEvent,
    QueueEvent,
    QueueStatus,
    Token,
    Webhook,
    WorkerStatus,
)
from holdfast.stores.side_tables import (
    ALL_TENANTS,
    FORGET_BATCH,
    NAME_LIMIT,
    NEWEST_TOKEN,
    NEWEST_WEBHOOK,
    POLICY_BOOKS,
    POLICY_EVENTS,
    QUEUE_EVENTS,
    QUEUES,
    TERMS_LIMIT,
    TOKENS,
    WEBHOOKS,
    WORKERS,
    PolicyMove,
    QueueMove,
    check_actor,
    check_id,
    check_queue_move,
    check_webhook_key,
    check_worker_name,
    choose_terms,
    log_row,
    terms_rows,
    token_row,
    webhook_row,
    worker_row,
)
from holdfast.stores.statements import EngineStore
from holdfast.stores.tenant_limits import read_limits, write_limits


class SharedDirectory(EngineStore):
    """Queues, workers, logs, tokens, webhooks, cursors, notes, limits and published terms."""

    async def pause(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let no job of a queue be claimed."""
        return await self._check_and_move_queue("paused", queue, actor, reason, request_id)

    async def resume(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let a queue's jobs be claimed again."""
        return await self._check_and_move_queue("resumed", queue, actor, reason, request_id)

    async def _check_and_move_queue(
        self, type: str, queue: str, actor: str, reason: str | None, request_id: str | None
    ) -> QueueStatus:
        check_queue_move(queue, actor, reason, request_id)
        await self._move_queue(
            QueueMove(queue=queue, type=type, actor=actor, reason=reason, request_id=request_id)
        )
        found = (status for status in await self.queues() if status.name == queue)
        return next(found, QueueStatus(name=queue))

    async def queues(self) -> list[QueueStatus]:
        """List queues that are, or were, paused."""
        return [QUEUES.read(row) for row in await self._session.rows("queues")]

    async def queue_events(self, queue: str | None = None) -> list[QueueEvent]:
        """Read the queues' ledger."""
        return [QUEUE_EVENTS.read(row) for row in await self._session.rows("queue_events", queue)]

    async def announce(self, worker: Announcement) -> None:
        """Note that a worker lives, and what it serves; forget some that were not seen for long."""
        await self._check_schema()
        await self._session.write("announce", *worker_row(worker))
        await self._session.write("forget_workers", worker.name, WORKER_MEMORY, FORGET_BATCH)

    async def seen(self, name: str) -> None:
        """Note that a worker still lives."""
        if self._recheck.due:
            await self._check_schema()
        await self._session.write("seen", check_worker_name(name))

    async def retire(self, name: str) -> None:
        """Note that a worker ended in order."""
        await self._session.write("retire", check_worker_name(name))

    async def workers(
        self, *, seen_since: int | None = None, limit: int = 1000
    ) -> list[WorkerStatus]:
        """List workers, the most recently seen first."""
        rows = await self._session.rows("workers", seen_since or 0, limit)
        return [WORKERS.read(row) for row in rows]

    async def worker(self, name: str) -> WorkerStatus | None:
        """Read one worker."""
        rows = await self._session.rows("worker", name)
        return WORKERS.read(rows[0]) if rows else None

    async def publish_terms(self, terms: Sequence[TaskTerms], *, tenant: str | None = None) -> None:
        """Keep the terms of tasks; forget those published longest ago beyond the limit."""
        rows = terms_rows(terms)
        whose = ALL_TENANTS if tenant is None else check_text(tenant, "tenant", limit=NAME_LIMIT)
        if rows:
            await self._session.write_rows("publish_terms", rows, whose)
            await self._session.write("forget_terms", whose, TERMS_LIMIT)

    async def task_terms(self, tenant: str, tasks: Sequence[str]) -> list[TaskTerms | None]:
        """Read the terms of tasks that workers published."""
        return choose_terms(tasks, await self._session.rows("task_terms", tenant, list(tasks)))

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        """Keep lines of jobs' logs, the newest of each job."""
        rows = [log_row(entry) for entry in entries]
        if rows:
            await self._session.write_rows("keep_logs", rows)
            await self._session.write("trim_logs", list({row[0] for row in rows}), LOG_LINES)

    async def logs(self, id: JobId, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Read one job's log after a position."""
        return [
            LogLine(id=id, position=position, attempt=attempt, at=at, level=level, message=message)
            for position, attempt, at, level, message in await self._session.rows(
                "logs", id, after, limit
            )
        ]

    async def add_token(self, token: NewToken) -> Token:
        """Keep a token."""
        await self._write_durably("add_token", *token_row(token))
        [kept] = await self.look_up_tokens([token.id])
        assert kept is not None
        return kept

    async def look_up_tokens(self, ids: Sequence[str]) -> list[Token | None]:
        """Read tokens by id."""
        rows = await self._session.rows("look_up_tokens", [check_id(id, "token") for id in ids])
        found = {row[0]: TOKENS.read(row) for row in rows}
        return [found.get(id) for id in ids]

    async def tokens(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Token]:
        """List tokens, newest first."""
        below = NEWEST_TOKEN if before is None else check_id(before, "token")
        rows = await self._session.rows("tokens", below, tenant, limit)
        return [TOKENS.read(row) for row in rows]

    async def revoke_token(self, id: str, *, actor: str) -> Token | None:
        """End a token for ever."""
        await self._write_durably("revoke_token", check_id(id, "token"), check_actor(actor))
        return (await self.look_up_tokens([id]))[0]

    async def add_webhook(self, hook: NewWebhook) -> Webhook:
        """Keep a webhook."""
        await self._write_durably("add_webhook", *webhook_row(hook))
        [kept] = await self.look_up_webhooks(hook.id, tenant=hook.tenant)
        return kept

    async def look_up_webhooks(self, id: str, *, tenant: str | None = None) -> list[Webhook]:
        """Read webhooks by id."""
        rows = await self._session.rows("look_up_webhooks", check_id(id, "webhook"), tenant)
        return [WEBHOOKS.read(row) for row in rows]

    async def webhooks(
        self,
        *,
        tenant: str | None = None,
        before: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> list[Webhook]:
        """List webhooks that are not removed, newest first."""
        below = NEWEST_WEBHOOK if before is None else check_webhook_key(before)
        rows = await self._session.rows("webhooks", *below, tenant, limit)
        return [WEBHOOKS.read(row) for row in rows]

    async def remove_webhook(self, id: str, *, tenant: str, actor: str) -> Webhook | None:
        """End a webhook and forget its secret."""
        key = check_webhook_key((id, tenant))
        await self._write_durably("remove_webhook", *key, check_actor(actor))
        return next(iter(await self.look_up_webhooks(id, tenant=tenant)), None)

    async def policy(self) -> AppliedPolicy | None:
        """Read the rules that are applied."""
        return next(map(POLICY_BOOKS.read, await self._session.rows("current_policy")), None)

    async def policy_book(self, digest: str) -> AppliedPolicy | None:
        """Read rules that are, or were, applied."""
        return next(map(POLICY_BOOKS.read, await self._session.rows("policy_book", digest)), None)

    async def policy_books(self, *, limit: int = 100) -> list[AppliedPolicy]:
        """List all rules that were ever applied, those applied last first."""
        return [POLICY_BOOKS.read(row) for row in await self._session.rows("policy_books", limit)]

    async def policy_events(self, *, limit: int = 100) -> list[PolicyEvent]:
        """Read the ledger of policies, newest first."""
        return [POLICY_EVENTS.read(row) for row in await self._session.rows("policy_events", limit)]

    async def apply_policy(
        self, body: str | None, *, actor: str, reason: str | None = None
    ) -> AppliedPolicy | None:
        """Apply rules, or remove those that are applied."""
        check_actor(actor)
        if reason is not None:
            check_text(reason, "reason")
        digest = None if body is None else compile_book(body).digest
        await self._apply_policy(PolicyMove(digest=digest, body=body, actor=actor, reason=reason))
        await self.await_durable()
        return await self.policy()

    async def _write_durably(self, name: str, *parameters: object) -> None:
        """Write; where nothing had to be written, wait until what is there is durable.

        A statement that writes nothing does not wait until the rows of others are replicated.
        """
        if not await self._session.write(name, *parameters):
            await self.await_durable()

    async def cursor(self, name: str) -> str | None:
        """Read how far a follower of the tail has come."""
        rows = await self._session.rows("cursor", name)
        return str(rows[0][0]) if rows else None

    async def move_cursor(self, name: str, *, before: str | None, to: str) -> bool:
        """Move it on, if it still is where it was."""
        if before is None:
            return bool(await self._session.write("add_cursor", name, to))
        return bool(await self._session.write("move_cursor", name, before, to))

    async def note(self, name: str) -> str | None:
        """Read what all processes of this store agreed on under a name."""
        return dict(map(tuple, await self._session.rows("meta"))).get(f"note:{name}")

    async def move_note(self, name: str, *, before: str | None, to: str) -> bool:
        """Set it, if it still is what it was."""
        key = f"note:{name}"
        if before is None:
            return bool(await self._session.write("keep_meta", key, to))
        return bool(await self._session.write("move_meta", key, before, to))

    async def limits(self) -> Limits:
        """Read how many names a tenant's jobs may have, and how many signals a job may keep."""
        return read_limits(dict(map(tuple, await self._session.rows("meta"))))

    async def set_limits(self, limits: Limits) -> None:
        """Set these limits."""
        for key, value in write_limits(limits):
            await self._session.write("set_meta", key, value)

    async def secret(self, name: str) -> bytes:
        """Read a random value of this database; the first call makes it."""
        key = f"secret:{name}"
        await self._session.write("keep_meta", key, mint_secret().hex())
        return bytes.fromhex(dict(map(tuple, await self._session.rows("meta")))[key])
