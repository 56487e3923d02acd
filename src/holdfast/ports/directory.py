"""The port to what lies beside the ledger: queues, workers, logs, tokens, webhooks, limits, …

Nothing here is part of a job's history. Except for a paused queue and the applied policy, nothing
that decides depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.models import (
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


class Directory(Protocol):
    """Queues, workers, logs, tokens, webhooks, policies, cursors, limits and published terms."""

    async def pause(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let no job of a queue be claimed; entered in the queues' ledger. Repeating is success."""

    async def resume(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let a queue's jobs be claimed again; entered in the queues' ledger."""

    async def queues(self) -> list[QueueStatus]:
        """List queues that are, or were, paused."""

    async def queue_events(self, queue: str | None = None) -> list[QueueEvent]:
        """Read the queues' ledger, oldest first."""

    async def announce(self, worker: Announcement) -> None:
        """Note that a worker lives, and what it serves. Nothing that decides depends on it.

        One that ended or was forgotten starts again. Workers not seen for a week are forgotten.
        SchemaMismatch where the schema was migrated to one that this version must not work on.
        """

    async def seen(self, name: str) -> None:
        """Note that a worker still lives; of one that ended, or is unknown, nothing changes."""

    async def retire(self, name: str) -> None:
        """Note that a worker ended in order; repeating, or an unknown name, changes nothing."""

    async def workers(
        self, *, seen_since: int | None = None, limit: int = 1000
    ) -> list[WorkerStatus]:
        """List workers, live, silent and ended ones, the most recently seen first."""

    async def worker(self, name: str) -> WorkerStatus | None:
        """Read one worker; None if it never was announced, or is forgotten."""

    async def publish_terms(self, terms: Sequence[TaskTerms], *, tenant: str | None = None) -> None:
        """Store the terms of tasks for clients that submit by name, for one tenant or for all.

        The last publisher's terms hold. No decision depends on them, and only the 10,000 tasks
        published last are kept per tenant.
        """

    async def task_terms(self, tenant: str, tasks: Sequence[str]) -> list[TaskTerms | None]:
        """Read the terms of tasks: the tenant's own, else those for all; None if there are none."""

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        """Keep lines of jobs' logs, the newest `LOG_LINES` of each job; not part of the ledger.

        It does not check whether the job is there, or the attempt still holds it. After an error
        the lines may be there or not; sent again, they may be there twice.
        """

    async def logs(self, id: JobId, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Read one job's log after a position, oldest line first."""

    async def add_token(self, token: NewToken) -> Token:
        """Keep a token. One whose id is there already changes nothing, and that one is returned."""

    async def look_up_tokens(self, ids: Sequence[str]) -> list[Token | None]:
        """Read tokens by id, revoked and expired ones too."""

    async def tokens(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Token]:
        """List tokens, newest first, after an id: of one tenant, or of all and of none."""

    async def revoke_token(self, id: str, *, actor: str) -> Token | None:
        """End a token for ever; the first who did stays its revoker. None if there is none."""

    async def add_webhook(self, hook: NewWebhook) -> Webhook:
        """Keep a webhook. One whose id its tenant has already stays as it is, and is returned."""

    async def look_up_webhooks(self, id: str, *, tenant: str | None = None) -> list[Webhook]:
        """Read webhooks by id, removed ones too: a tenant's, or each tenant's."""

    async def webhooks(
        self,
        *,
        tenant: str | None = None,
        before: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> list[Webhook]:
        """List webhooks that are not removed, newest first, after a key: a tenant's, or all."""

    async def remove_webhook(self, id: str, *, tenant: str, actor: str) -> Webhook | None:
        """End a webhook and forget its secret; the first who did stays its remover."""

    async def policy(self) -> AppliedPolicy | None:
        """Read the rules that are applied; None if there are none, and so nothing is judged."""

    async def policy_book(self, digest: str) -> AppliedPolicy | None:
        """Read rules that are, or were, applied: those that judged a job are never forgotten."""

    async def policy_books(self, *, limit: int = 100) -> list[AppliedPolicy]:
        """List all rules that were ever applied, those applied last first."""

    async def policy_events(self, *, limit: int = 100) -> list[PolicyEvent]:
        """Read the ledger of policies, newest first."""

    async def apply_policy(
        self, body: str | None, *, actor: str, reason: str | None = None
    ) -> AppliedPolicy | None:
        """Apply rules, or with None remove those that are applied; return what is applied now.

        Once this returns, no job enters a queue that these rules have not judged, from any
        process. BadPolicy for rules that cannot be read: then those before stay. Repeating
        is success, and enters nothing.
        """

    async def cursor(self, name: str) -> str | None:
        """Read how far a follower of the tail has come; None if it has not started."""

    async def move_cursor(self, name: str, *, before: str | None, to: str) -> bool:
        """Move it on, if it still is where it was; False if another process has moved it."""

    async def note(self, name: str) -> str | None:
        """Read what all processes of this store agreed on under a name; None if it is not set."""

    async def move_note(self, name: str, *, before: str | None, to: str) -> bool:
        """Set it, if it still is what it was; False if another process has set it."""

    async def limits(self) -> Limits:
        """Read how many names a tenant's jobs may have, and how many signals a job may keep."""

    async def set_limits(self, limits: Limits) -> None:
        """Set them, for all processes; another one may take a second to notice."""

    async def secret(self, name: str) -> bytes:
        """Read a random value of this database: made by the first call, then always the same."""
