"""Cancels out: asked of workers on the bus, and recorded after the grace.

A bus cannot kill: a job whose worker does not answer ends `cancelled`, with the kill unconfirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from holdfast.buses.cap import SUBJECTS, write_cancel
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import CancelMode
from holdfast.ports.bus import BusChannel, Delivery, Outgoing
from holdfast.services.bus_bridge.settings import BridgeParts
from holdfast.worker_protocol.bus_reports import BusCancelled

_REASON = "cancel requested"


class Cancels:
    """Carries cancels to workers."""

    def __init__(self, parts: BridgeParts) -> None:
        self._parts = parts
        self._settings = parts.settings
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
