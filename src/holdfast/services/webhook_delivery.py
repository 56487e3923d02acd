"""Webhook delivery: follow the ends of jobs, and deliver the messages about them, as jobs.

A message that is not accepted is retried for about a day; then it is a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from holdfast import __version__
from holdfast.errors import PermanentError, Undelivered
from holdfast.flow.notify import DeliveryRequest, Notified, is_reported, notify
from holdfast.flow.options import Backoff
from holdfast.flow.policy_book import find_book, find_reason
from holdfast.flow.submit import KnownTask
from holdfast.lifecycle.record import Actor, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import TERMINAL, Kind, Role
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Webhook
from holdfast.ports.store import Store
from holdfast.runners.function import FunctionRunner
from holdfast.services.loop import Loop, wait_for_first
from holdfast.tasks.context import Context
from holdfast.tasks.tasks import TaskSet, make_task
from holdfast.telemetry import Meters
from holdfast.webhooks.egress import Outside, Reply
from holdfast.webhooks.registry import QUEUE, TASK, write_message, write_request_message
from holdfast.webhooks.signature import sign_headers
from holdfast.worker.worker import Worker

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5
"""Rest after a pass that found nothing new: how late a message may be sent."""
CONCURRENCY = 100
"""Messages on their way at once: they mostly wait for their receivers."""
GRACE_SECONDS = 5.0
RETRIES = 30
BACKOFF = Backoff(first="5s", factor=2, max="1h")
LONGEST_RETRY_SECONDS = 3600.0
"""The longest pause that a receiver may ask for."""
GONE = 410


class WebhookFollower(Loop):
    """The loop that makes jobs of what came since."""

    def __init__(
        self,
        store: Store,
        name: str,
        task: KnownTask,
        *,
        idle_seconds: float = IDLE_SECONDS,
        on_look: Callable[[Notified], None] | None = None,
        meters: Meters | None = None,
    ) -> None:
        super().__init__("webhooks", self._follow, meters=meters)
        self._store = store
        self._actor = Actor(Role.GATEWAY, name)
        self._task = task
        self._idle = idle_seconds
        self._on_look = on_look

    async def _follow(self) -> float:
        report = await notify(self._store, self._actor, self._task)
        for problem in report.refused:
            log.error("a webhook's message could not be submitted: %s", problem)
        if self._on_look is not None:
            self._on_look(report)
        return 0.0 if report.more else self._idle


class WebhookDelivery:
    """The follower, and a worker for what it finds once there is a webhook."""

    def __init__(
        self,
        store: Store,
        make_store: Callable[[], Store],
        name: str,
        *,
        outside: Outside | None = None,
        meters: Meters | None = None,
        tick_seconds: float = 1.0,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Deliver from `store`, which is open; `make_store` makes those of the worker."""
        self._store = store
        self._make_store = make_store
        self._tick = tick_seconds
        self._wanted, self._over = asyncio.Event(), asyncio.Event()
        self._task = make_task(
            MessageSender(store, outside or Outside()).deliver,
            {"name": TASK, "queue": QUEUE, "retries": RETRIES, "backoff": BACKOFF},
        )
        self._follower = WebhookFollower(
            store,
            name,
            self._task,
            idle_seconds=idle_seconds,
            on_look=self._looked,
            meters=meters,
        )

    async def run(self) -> None:
        """Follow and deliver, until stopped or cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deliver())
            await self._follower.run()
            self._over.set()
            self._wanted.set()

    def stop(self) -> None:
        """Stop in order: what is on its way gets a moment, the rest is released."""
        self._follower.stop()

    def _looked(self, report: Notified) -> None:
        if report.webhooks:
            self._wanted.set()

    async def _deliver(self) -> None:
        if not await self._has_messages():
            await self._wanted.wait()
        if self._over.is_set():
            return
        async with self._make_worker() as worker:
            await wait_for_first(self._over.wait(), worker.stopped())
        if worker.failed is not None:
            raise worker.failed

    async def _has_messages(self) -> bool:
        """Return whether messages are under way, also where all webhooks were removed since."""
        counts = await self._store.counts()
        return any(
            count.jobs for count in counts if count.queue == QUEUE and count.state not in TERMINAL
        )

    def _make_worker(self) -> Worker:
        tasks = TaskSet()
        tasks.add(self._task)
        return Worker(
            self._make_store(),
            {Kind.FUNCTION: [FunctionRunner(tasks, threads=1)]},
            keeper_store=self._make_store(),
            queues=[QUEUE],
            concurrency=CONCURRENCY,
            grace_seconds=GRACE_SECONDS,
            tick_seconds=self._tick,
        )


class MessageSender:
    """Delivers one message at a time."""

    def __init__(self, store: Store, outside: Outside) -> None:
        self._store = store
        self._outside = outside

    async def deliver(
        self, ctx: Context, webhook: str, internal_id: str, rev: int
    ) -> dict[str, Any]:
        """Send a webhook's message; return what the receiver replied."""
        request = DeliveryRequest(webhook=webhook, internal_id=internal_id, rev=rev)
        return await self.send(request, ctx.job.tenant)

    async def send(self, request: DeliveryRequest, tenant: str) -> dict[str, Any]:
        """Send the message that a delivery job of `tenant` carries.

        The job that it is about and the webhook must both be that tenant's. The message is made
        from the ledger, not from the delivery job, so that no caller can have a false message
        signed.
        """
        job, event = await self._read_event(request, tenant)
        hook = await self._hook(request.webhook, tenant)
        if hook.secret is None:
            return {"skipped": "the webhook was removed"}
        body = await self._write(job, event)
        now = (await self._store.clock()).now
        id_ = f"msg_{hook.id}_{job.id.hex}_{request.rev}"
        headers = {
            "content-type": "application/json",
            "user-agent": f"holdfast/{__version__}",
            **sign_headers(hook.secret, id_, now // SECOND, body),
        }
        return _judge_reply(await self._outside.post(hook.url, headers, body))

    async def _write(self, job: Job, event: LoggedEvent) -> bytes:
        if event.ends:
            return write_message(job, event)
        [first] = await self._store.events(job.id, limit=1)
        book = await find_book(self._store, event.facts.rules)
        reason = event.reason or find_reason(book, event.facts.rule)
        return write_request_message(job, event, submitter=first.actor, reason=reason)

    async def _hook(self, id: str, tenant: str) -> Webhook:
        for hook in await self._store.look_up_webhooks(id, tenant=tenant):
            return hook
        raise PermanentError(f"tenant {tenant!r} has no webhook {id!r}")

    async def _read_event(self, request: DeliveryRequest, tenant: str) -> tuple[Job, LoggedEvent]:
        try:
            id_ = JobId(UUID(request.internal_id))
        except ValueError as error:
            raise PermanentError(f"{request.internal_id!r} is not a job's internal id") from error
        [job] = await self._store.get([id_])
        events = await self._store.events(id_, after=request.rev - 1, limit=1)
        # Another tenant's job is answered like one that does not exist: the caller reads this.
        foreign = job is None or job.tenant != tenant
        if job is None or foreign or not events or not is_reported(events[0]):
            raise PermanentError(
                f"job {request.internal_id} did not end at revision {request.rev}, nor ask for an "
                "approval"
            )
        return job, events[0]


def _judge_reply(reply: Reply) -> dict[str, Any]:
    """Judge a reply: accepted, never to be sent again, or to be retried."""
    if 200 <= reply.status < 300:
        return {"status": reply.status}
    if reply.status == GONE:
        raise PermanentError(
            "the receiver replied 410: it wants no more messages", code="webhook_gone"
        )
    after = reply.retry_after_seconds
    raise Undelivered(
        f"the receiver replied {reply.status}",
        retry_in=None if after is None else min(after, LONGEST_RETRY_SECONDS),
    )
