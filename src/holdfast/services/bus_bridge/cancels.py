"""Cancels: asked of workers on the bus, recorded after the grace; and asked by clients there.

A bus cannot kill: a job whose worker does not answer ends `cancelled`, with the kill unconfirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from holdfast.buses.cap import SUBJECTS, write_cancel
from holdfast.errors import HoldfastError, StoreError
from holdfast.flow.cancel import cancel
from holdfast.lifecycle.payload import TEXT_LIMIT
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import CancelMode, Role
from holdfast.ports.bus import BusChannel, BusWord, CancelOrder, Delivery, Outgoing
from holdfast.queries.error_reports import writable
from holdfast.services.bus_bridge.known_jobs import KnownJobs
from holdfast.services.bus_bridge.refusals import Refusals
from holdfast.services.bus_bridge.settings import BridgeParts
from holdfast.worker_protocol.bus_reports import BusCancelled

_REASON = "cancel requested"


class Cancels:
    """Carries cancels both ways."""

    def __init__(self, parts: BridgeParts, refusals: Refusals, known: KnownJobs) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._refusals = refusals
        self._known = known
        self._asked: dict[tuple[JobId, int], float] = {}
        """When each was first seen here, by the monotonic clock; only of jobs that are owned."""
        self._sent: set[tuple[JobId, int]] = set()

    async def watch(self, owned: Sequence[Job], now: int) -> dict[JobId, BusCancelled]:
        """Ask workers to end what is to be cancelled; return the reports on those that had time."""
        wanted = {(job.id, job.attempt): job for job in owned if job.cancel_requested is not None}
        self._asked = {key: self._asked.get(key, monotonic()) for key in wanted}
        self._sent &= wanted.keys()
        await self._ask([job for key, job in wanted.items() if key not in self._sent], now)
        return {
            job.id: BusCancelled(internal_id=job.id, attempt=job.attempt)
            for key, job in wanted.items()
            if monotonic() - self._asked[key] >= self._grace(job)
        }

    def _grace(self, job: Job) -> float:
        hard = job.cancel_requested is CancelMode.HARD
        return 0.0 if hard else self._settings.cancel_grace_seconds

    async def _ask(self, jobs: Sequence[Job], now: int) -> None:
        if not jobs:
            return
        trust = self._parts.trust
        packets = [
            write_cancel(job.public_id, job.attempt, _REASON, at=now, trust=trust) for job in jobs
        ]
        subject = SUBJECTS[BusChannel.CANCEL]
        found = await self._parts.bus.send([Outgoing(subject=subject, data=one) for one in packets])
        for job, delivery in zip(jobs, found, strict=True):
            # Nobody listens to cancels, as far as the SDK's own workers go; that is an answer.
            if delivery is not Delivery.NOT_SENT:
                self._sent.add((job.id, job.attempt))

    async def handle(self, words: Sequence[BusWord]) -> None:
        """Cancel what senders on the bus ask for, as a control would."""
        for word in words:
            assert isinstance(word, CancelOrder)
            await self._cancel(word)

    async def _cancel(self, order: CancelOrder) -> None:
        [job] = await self._known.find([order.job_id])
        if job is None or not self._settings.is_own(job):
            self._refusals.add(BusChannel.CANCEL, "unknown_job", f"{order.sender}: {order.job_id}")
            return
        asked_by = f"{order.requested_by}: {order.reason}" if order.reason else order.requested_by
        actor = Actor(Role.CONTROL, f"{self._settings.owner}/{writable(order.sender, 200)}")
        try:
            await cancel(self._parts.store, job.id, actor, reason=writable(asked_by, TEXT_LIMIT))
        except StoreError:
            raise
        except HoldfastError as error:
            self._refusals.add(BusChannel.CANCEL, error.code, str(error))
        else:
            self._parts.meters.bus.apply(BusChannel.CANCEL)
