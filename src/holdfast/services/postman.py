"""The postman: follows the ends of jobs, and delivers what webhooks are to be told, as jobs.

A message that is not taken is tried again for about a day, then it lies in the dead letters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from holdfast import __version__
from holdfast.context import Context
from holdfast.errors import PermanentError, Undelivered
from holdfast.flow.tell import Errand, Route, Told, is_ending, tell
from holdfast.lifecycle.job import Actor, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import TERMINAL, Role
from holdfast.lifecycle.times import SECOND
from holdfast.options import Backoff
from holdfast.outside import Outside, Reply
from holdfast.ports import Store, Webhook
from holdfast.runners.lazily import LazyProcesses
from holdfast.services.rounds import Rounds, first_of
from holdfast.services.worker import Worker
from holdfast.tasks import TaskSet, make_task
from holdfast.telemetry import Meters
from holdfast.webhooks import QUEUE, TASK, message_of, signed

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5
"""Rest after a look that found nothing new: how late a message may set out."""
CONCURRENCY = 100
"""Messages on their way at once: they mostly wait for somebody else."""
GRACE_SECONDS = 5.0
RETRIES = 30
BACKOFF = Backoff(first="5s", factor=2, max="1h")
LONGEST_RETRY_SECONDS = 3600.0
"""How long a receiver may put us off."""
GONE = 410


class Follower(Rounds):
    """One loop of looks at what came since."""

    def __init__(
        self,
        store: Store,
        name: str,
        route: Route,
        *,
        idle_seconds: float = IDLE_SECONDS,
        on_look: Callable[[Told], None] | None = None,
        meters: Meters | None = None,
    ) -> None:
        """Take the store; `run` begins."""
        super().__init__("webhooks", self._turn, meters=meters)
        self._store = store
        self._actor = Actor(Role.GATEWAY, name)
        self._route = route
        self._idle = idle_seconds
        self._on_look = on_look

    async def _turn(self) -> float:
        report = await tell(self._store, self._actor, self._route)
        for problem in report.refused:
            log.error("a webhook's message could not be submitted: %s", problem)
        if self._on_look is not None:
            self._on_look(report)
        return 0.0 if report.more else self._idle


class Postman:
    """The follower, and a worker for what it finds once there is somebody to be told."""

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
        """Take an open store, and what makes others for the worker; `run` begins."""
        self._store = store
        self._make_store = make_store
        self._tick = tick_seconds
        self._wanted, self._over = asyncio.Event(), asyncio.Event()
        self._task = make_task(
            Delivery(store, outside or Outside()).deliver,
            {"name": TASK, "queue": QUEUE, "retries": RETRIES, "backoff": BACKOFF},
        )
        self._follower = Follower(
            store,
            name,
            Route(task=TASK, queue=QUEUE, policy=self._task.policy),
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
        """End in order: what is on its way gets a moment, the rest is given back."""
        self._follower.stop()

    def _looked(self, report: Told) -> None:
        if report.webhooks:
            self._wanted.set()

    async def _deliver(self) -> None:
        if not await self._has_mail():
            await self._wanted.wait()
        if self._over.is_set():
            return
        async with self._worker() as worker:
            await first_of(self._over.wait(), worker.stopped())
        if worker.failed is not None:
            raise worker.failed

    async def _has_mail(self) -> bool:
        """Whether messages are on their way, also where all webhooks have been removed since."""
        counts = await self._store.counts()
        return any(
            count.jobs for count in counts if count.queue == QUEUE and count.state not in TERMINAL
        )

    def _worker(self) -> Worker:
        tasks = TaskSet()
        tasks.add(self._task)
        return Worker(
            self._make_store(),
            tasks,
            keeper_store=self._make_store(),
            children=LazyProcesses(_no_module, 1),
            queues=[QUEUE],
            concurrency=CONCURRENCY,
            grace_seconds=GRACE_SECONDS,
            tick_seconds=self._tick,
            reconcile=False,
        )


def _no_module() -> str:
    raise PermanentError("no message is delivered in a process of its own")


class Delivery:
    """Delivers one message at a time."""

    def __init__(self, store: Store, outside: Outside) -> None:
        """Read from an open store, send through `outside`."""
        self._store = store
        self._outside = outside

    async def deliver(
        self, ctx: Context, webhook: str, internal_id: str, rev: int
    ) -> dict[str, Any]:
        """Send a webhook's message; return what the receiver answered."""
        errand = Errand(webhook=webhook, internal_id=internal_id, rev=rev)
        return await self.send(errand, ctx.job.tenant)

    async def send(self, errand: Errand, tenant: str) -> dict[str, Any]:
        """Send the message that a delivery job of `tenant` carries.

        The job that ended and the webhook must both be that tenant's. What the message says is
        read from the ledger, not from the delivery job, so that no caller can have a false
        message signed.
        """
        ended, event = await self._ending(errand, tenant)
        hook = await self._hook(errand.webhook, tenant)
        if hook.secret is None:
            return {"skipped": "the webhook was removed"}
        body = message_of(ended, event)
        now = (await self._store.clock()).now
        id_ = f"msg_{hook.id}_{ended.id.hex}_{errand.rev}"
        headers = {
            "content-type": "application/json",
            "user-agent": f"holdfast/{__version__}",
            **signed(hook.secret, id_, now // SECOND, body),
        }
        return _settled(await self._outside.post(hook.url, headers, body))

    async def _hook(self, id: str, tenant: str) -> Webhook:
        for hook in await self._store.look_up_webhooks(id, tenant=tenant):
            return hook
        raise PermanentError(f"tenant {tenant!r} has no webhook {id!r}")

    async def _ending(self, errand: Errand, tenant: str) -> tuple[Job, LoggedEvent]:
        try:
            id_ = JobId(UUID(errand.internal_id))
        except ValueError as error:
            raise PermanentError(f"{errand.internal_id!r} is no job's internal id") from error
        [job] = await self._store.get([id_])
        events = await self._store.events(id_, after=errand.rev - 1, limit=1)
        # Another tenant's job is answered like one that does not exist: the caller reads this.
        foreign = job is None or job.tenant != tenant
        if job is None or foreign or not events or not is_ending(events[0]):
            raise PermanentError(f"job {errand.internal_id} did not end at revision {errand.rev}")
        return job, events[0]


def _settled(reply: Reply) -> dict[str, Any]:
    """Judge an answer: taken, never to be sent again, or to be tried again."""
    if 200 <= reply.status < 300:
        return {"status": reply.status}
    if reply.status == GONE:
        raise PermanentError("the receiver answers 410: it wants no more", code="webhook_gone")
    after = reply.retry_after_seconds
    raise Undelivered(
        f"the receiver answers {reply.status}",
        retry_in=None if after is None else min(after, LONGEST_RETRY_SECONDS),
    )
