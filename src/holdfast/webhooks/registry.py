"""Webhooks: which addresses are notified of ends and requested approvals, and by what messages.

Messages are signed as standardwebhooks.com specifies, so that receivers find a library for it in
their language; in Python `check_signature` is enough.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.durations import Instant, instant
from holdfast.errors import BadData, Forbidden, KeyConflict, NoSuchWebhook, about
from holdfast.flow.notify import FOLLOWER
from holdfast.ids import mint_id, mint_key
from holdfast.lifecycle.holds import UNADMITTED, expires_at, read_approval
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import TERMINAL, State
from holdfast.ports.models import NewWebhook, Webhook
from holdfast.ports.store import Store
from holdfast.webhooks.egress import Outside, read_target
from holdfast.webhooks.signature import PREFIX

TASK, QUEUE = "holdfast.webhook", "holdfast.webhooks"
"""The jobs that deliver messages. Their own ends are not reported."""
LIMIT = 100
"""Webhooks of a tenant: each end of a job makes a job for every one of them."""
READ_AT_ONCE = 100
"""How many are read at once, at least, for a caller that may see only some of them."""
DEFAULT_TENANT = "default"


class WebhookEvent(StrEnum):
    """What a webhook is notified of."""

    ENDED = "ended"
    APPROVAL_REQUESTED = "approval_requested"


class WantedWebhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook as it is asked for."""

    url: str
    states: list[State] | None = None
    """The states whose ends it receives; null: all."""
    events: list[WebhookEvent] | None = None
    """What it is notified of: `ended`, `approval_requested`, or both; null: of ends."""
    queue: str | None = None
    """The queue whose jobs it receives; null: all."""
    task: str | None = None
    """The task whose jobs it receives; null: all."""
    tenant: str | None = None
    """Only for a caller that acts for all tenants; else it is the caller's own."""
    id: str | None = None
    """Letters and digits of your own choice: the same again makes no second one of the tenant."""


class WebhookView(Struct, frozen=True, kw_only=True):
    """A webhook without its secret."""

    id: str
    tenant: str
    url: str
    states: list[State] | None
    events: list[WebhookEvent]
    queue: str | None
    task: str | None
    created_at: Instant
    created_by: str
    removed_at: Instant | None
    removed_by: str | None

    @classmethod
    def of(cls, hook: Webhook) -> WebhookView:
        """Show a webhook."""
        return cls(
            id=hook.id,
            tenant=hook.tenant,
            url=hook.url,
            states=_read_states(hook),
            events=_read_events(hook),
            queue=hook.queue,
            task=hook.task,
            created_at=instant(hook.created_at),
            created_by=hook.created_by,
            removed_at=None if hook.removed_at is None else instant(hook.removed_at),
            removed_by=hook.removed_by,
        )


class MadeWebhook(Struct, frozen=True, kw_only=True):
    """A new webhook, and the secret that its messages are signed with."""

    secret: str | None
    """Shown once, when it is made; null where it existed before."""
    created: bool
    about: WebhookView


class WebhookList(Struct, frozen=True, kw_only=True):
    """Webhooks, newest first; `next` is the cursor of the page after, null at the end."""

    webhooks: list[WebhookView]
    next: str | None


class EndedJob(Struct, frozen=True, kw_only=True):
    """A job that has ended, as a webhook receives it. Its result has to be read separately."""

    id: str
    internal_id: str
    tenant: str
    task: str
    queue: str
    state: State
    rev: int
    epoch: int
    attempt: int
    """With the epoch and the id the token of the attempt that ended it (B32)."""
    error_code: str | None
    workflow_id: str | None
    created_at: Instant
    finished_at: Instant


class RequestingJob(Struct, frozen=True, kw_only=True):
    """A job that people have to approve, as a webhook receives it."""

    id: str
    internal_id: str
    tenant: str
    task: str
    queue: str
    state: State
    rev: int
    rule: str
    reason: str | None
    """The rule's."""
    needs: int
    """How many people have to approve it."""
    submitter: str
    created_at: Instant
    expires_at: Instant | None


class RequestMessage(Struct, frozen=True, kw_only=True):
    """What a webhook receives when an approval is requested."""

    type: str
    """`job.approval_requested`."""
    timestamp: Instant
    data: RequestingJob


class Message(Struct, frozen=True, kw_only=True):
    """What a webhook receives."""

    type: str
    """`job.` and the state."""
    timestamp: Instant
    """When the job ended, by the store's clock."""
    data: EndedJob


def write_message(job: Job, event: LoggedEvent) -> bytes:
    """Return a message; the same at every try."""
    data = EndedJob(
        id=job.public_id,
        internal_id=str(job.id),
        tenant=job.tenant,
        task=job.task,
        queue=job.queue,
        state=event.to_state,
        rev=event.rev,
        epoch=job.epoch or 1,
        attempt=event.attempt,
        error_code=job.error_code,
        workflow_id=job.workflow_id,
        created_at=instant(job.created_at),
        finished_at=instant(event.at),
    )
    type = f"job.{event.to_state.value}"
    return msgspec.json.encode(Message(type=type, timestamp=instant(event.at), data=data))


def write_request_message(
    job: Job, event: LoggedEvent, *, submitter: str, reason: str | None
) -> bytes:
    """Return the message that a job asks for approval; the same at every try."""
    placed = (event.facts.held, *event.facts.holds)
    holds = [hold for name in placed if name and (hold := read_approval(name)) is not None]
    needed = max(holds, key=lambda hold: hold.slot)
    end = expires_at(job, needed)
    data = RequestingJob(
        id=job.public_id,
        internal_id=str(job.id),
        tenant=job.tenant,
        task=job.task,
        queue=job.queue,
        state=event.to_state,
        rev=event.rev,
        rule=needed.rule,
        reason=reason,
        needs=needed.slot,
        submitter=submitter,
        created_at=instant(job.created_at),
        expires_at=None if end is None else instant(end),
    )
    type = f"job.{WebhookEvent.APPROVAL_REQUESTED.value}"
    return msgspec.json.encode(RequestMessage(type=type, timestamp=instant(event.at), data=data))


def _keep_states(wanted: WantedWebhook) -> frozenset[State] | None:
    """Return the states that are kept: requests are kept as the state that jobs are in then."""
    events = {WebhookEvent.ENDED} if wanted.events is None else set(wanted.events)
    ends = None if wanted.states is None else frozenset(wanted.states)
    if not (ends or TERMINAL) <= TERMINAL:
        names = ", ".join(sorted(TERMINAL))
        raise BadData(
            f"a webhook reports ends of jobs: its states must be some of {names}", field="states"
        )
    if WebhookEvent.ENDED not in events:
        if ends:
            raise BadData("states are of ends: add `ended` to events", field="states")
        ends = frozenset()
    if WebhookEvent.APPROVAL_REQUESTED not in events:
        return ends
    return (TERMINAL if ends is None else ends) | UNADMITTED


def _read_states(hook: Webhook) -> list[State] | None:
    """Return the states whose ends a webhook receives; None: all."""
    if hook.states is None or hook.states >= TERMINAL:
        return None
    return sorted(hook.states - UNADMITTED)


def _read_events(hook: Webhook) -> list[WebhookEvent]:
    ends = hook.states is None or bool(hook.states - UNADMITTED)
    requests = [WebhookEvent.APPROVAL_REQUESTED] if hook.receives_requests else []
    return [*([WebhookEvent.ENDED] if ends else []), *requests]


class WebhookRegistry:
    """Makes, lists and removes webhooks for an actor, within what it may see."""

    def __init__(
        self,
        store: Store,
        *,
        actor: str,
        tenant: str | None = None,
        queues: frozenset[str] | None = None,
        outside: Outside | None = None,
    ) -> None:
        """Act for a tenant and queues; None acts for all.

        `outside` refuses addresses that messages would not be sent to; without it, any valid url
        is accepted.
        """
        self._store = store
        self._actor = actor
        self._tenant = tenant
        self._queues = queues
        self._check_url = read_target if outside is None else outside.check

    async def add(self, wanted: WantedWebhook) -> MadeWebhook:
        """Make a webhook: from now on it is notified."""
        with about("tenant"):
            tenant = self._tenant_of(wanted.tenant)
        with about("url"):
            self._check_url(wanted.url)
        self._check_queue(wanted.queue)
        states = _keep_states(wanted)
        live = await self._store.webhooks(tenant=tenant, limit=LIMIT)
        if len(live) >= LIMIT and wanted.id not in {hook.id for hook in live}:
            raise BadData(f"tenant {tenant!r} has {LIMIT} webhooks; remove one first")
        if await self._store.cursor(FOLLOWER) is None:
            # Before the webhook exists: what ends from then on must come after the cursor.
            end = await self._store.tail_end()
            await self._store.move_cursor(FOLLOWER, before=None, to=end)
        secret = PREFIX + b64encode(mint_key()).decode()
        kept = await self._store.add_webhook(
            NewWebhook(
                id=wanted.id or mint_id().hex,
                tenant=tenant,
                url=wanted.url,
                secret=secret,
                states=states,
                queue=wanted.queue,
                task=wanted.task,
                created_by=self._actor,
            )
        )
        if not _is_same(kept, replace(wanted, tenant=tenant)) or kept.secret is None:
            raise KeyConflict(f"another webhook {kept.id!r} already exists")
        created = kept.secret == secret
        return MadeWebhook(
            secret=secret if created else None, created=created, about=WebhookView.of(kept)
        )

    async def page(self, *, before: str | None = None, limit: int = 100) -> WebhookList:
        """List webhooks, newest first."""
        # One more than asked for shows whether there is a next page.
        key = None if before is None else self._read_cursor(before)
        found = await self._read_visible(key, limit + 1)
        page = found[:limit]
        return WebhookList(
            webhooks=[WebhookView.of(hook) for hook in page],
            next=self._write_cursor(page[-1]) if len(found) > limit else None,
        )

    async def get(self, id: str) -> WebhookView:
        """Read a webhook."""
        return WebhookView.of(await self._require_webhook(id))

    async def remove(self, id: str) -> WebhookView:
        """End a webhook; what was not delivered yet is not. Repeating is success."""
        found = await self._require_webhook(id)
        removed = await self._store.remove_webhook(found.id, tenant=found.tenant, actor=self._actor)
        return WebhookView.of(removed or found)

    async def _read_visible(self, before: tuple[str, str] | None, count: int) -> list[Webhook]:
        """Read on past those of other queues until there are `count`, or the list ends."""
        at_once = count if self._queues is None else max(count, READ_AT_ONCE)
        mine: list[Webhook] = []
        while len(mine) < count:
            found = await self._store.webhooks(tenant=self._tenant, before=before, limit=at_once)
            mine += [hook for hook in found if self._covers(hook.queue)]
            if len(found) < at_once:
                break
            before = found[-1].key
        return mine[:count]

    async def _require_webhook(self, id: str) -> Webhook:
        known = await self._store.look_up_webhooks(id, tenant=self._tenant) if _is_id(id) else []
        mine = [hook for hook in known if self._covers(hook.queue)]
        if not mine:
            raise NoSuchWebhook(f"no webhook {id!r}")
        if len(mine) > 1:
            raise BadData(f"{len(mine)} tenants have a webhook {id!r}: name the tenant")
        return mine[0]

    def _write_cursor(self, hook: Webhook) -> str:
        """Return where a page ends: among webhooks of all tenants, an id alone is ambiguous."""
        if self._tenant is not None:
            return hook.id
        return f"{hook.id}.{urlsafe_b64encode(hook.tenant.encode()).decode().rstrip('=')}"

    def _read_cursor(self, text: str) -> tuple[str, str]:
        id, _, owner = text.partition(".")
        if self._tenant is not None:
            return id, self._tenant
        try:
            tenant = urlsafe_b64decode(owner + "=" * (-len(owner) % 4)).decode()
        except ValueError:
            tenant = ""
        if not tenant:
            raise BadData("invalid cursor: use the `next` of the previous page")
        return id, tenant

    def _tenant_of(self, asked: str | None) -> str:
        if self._tenant is None:
            return DEFAULT_TENANT if asked is None else check_text(asked, "tenant", limit=200)
        if asked not in (None, self._tenant):
            raise BadData(f"tenant must be left out, or be {self._tenant!r}")
        return self._tenant

    def _covers(self, queue: str | None) -> bool:
        return self._queues is None or queue in self._queues

    def _check_queue(self, queue: str | None) -> None:
        if not self._covers(queue):
            mine = ", ".join(sorted(self._queues or ()))
            raise Forbidden(f"this token covers {mine}: name one of these as the webhook's queue")


def _is_same(kept: Webhook, wanted: WantedWebhook) -> bool:
    """Return whether a webhook is the one asked for: the secret of another is not shown."""
    asked = (wanted.tenant, wanted.url, _keep_states(wanted), wanted.queue, wanted.task)
    return (kept.tenant, kept.url, kept.states, kept.queue, kept.task) == asked


def _is_id(text: str) -> bool:
    return text.isascii() and text.isalnum() and len(text) <= 40
