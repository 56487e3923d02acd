"""Cancels in: what senders on the bus ask for, carried out as a control would.

Submits and cancels come by two ways, and a cancel may overtake its submit: one whose job is not
known yet waits for it a while, and the job is not sent meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from heapq import nsmallest
from time import monotonic

from msgspec import Struct

from holdfast.errors import BadData, HoldfastError, StoreError
from holdfast.flow.cancel import cancel
from holdfast.lifecycle.payload import TEXT_LIMIT, check_text
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import Role
from holdfast.ports.bus import BusChannel, CancelOrder
from holdfast.queries.error_reports import writable
from holdfast.services.bus_bridge.intake import Arrival
from holdfast.services.bus_bridge.known_jobs import KnownJobs
from holdfast.services.bus_bridge.refusals import Refusals
from holdfast.services.bus_bridge.settings import BridgeParts

log = logging.getLogger(__name__)

UNKNOWN_SECONDS = 60.0
"""How long a cancel waits for its job."""
MOST_WAITING = 10_000
MOST_KEPT = 200
"""Waiting cancels whose message stays unacknowledged, so that another bridge gets it if this one
dies. A server delivers none beyond 1,000: anyone could stop all cancels with unknown jobs."""
MOST_TRIES = 200
"""Waiting cancels whose job is looked up in one pass."""


class _Waiting(Struct, eq=False):
    arrival: Arrival
    actor: str
    reason: str
    since: float
    tried_at: float = 0.0


class CancelOrders:
    """Cancels jobs for senders on the bus."""

    def __init__(self, parts: BridgeParts, refusals: Refusals, known: KnownJobs) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._refusals = refusals
        self._known = known
        self._waiting: dict[str, _Waiting] = {}
        """By the job's public id, oldest first; also those that are being carried out."""

    def has(self, job_id: str) -> bool:
        """Return whether a cancel of a job is here that was not carried out yet."""
        return job_id in self._waiting

    async def handle(self, arrivals: Sequence[Arrival]) -> None:
        """Cancel what is asked for; what is not known yet waits, and is looked up again."""
        # All at once, before the store is asked: from now on none of these jobs is sent.
        for arrival in arrivals:
            self._add(arrival)
        for one in list(self._waiting.values())[:-MOST_KEPT]:
            one.arrival.kept = False
        await self._try(self._find_due())

    async def cancel_known(self, job_ids: Sequence[str]) -> None:
        """Cancel those of these jobs, which are known now, whose cancel waits."""
        found = [job_id for job_id in job_ids if job_id in self._waiting]
        if not found:
            return
        try:
            await self._try(found)
        except StoreError as error:
            # They still wait, and the next pass tries again.
            log.debug("waiting cancels were not carried out: %s", error)

    def _add(self, arrival: Arrival) -> None:
        order = arrival.word
        assert isinstance(order, CancelOrder)
        known = self._waiting.get(order.job_id)
        if known is not None:
            if known.arrival is not arrival:
                self._refuse(arrival, "duplicate")
            return
        try:
            check_text(order.job_id, "job_id")
        except BadData:
            self._refuse(arrival, "unknown_job")
            return
        if len(self._waiting) >= MOST_WAITING:
            oldest = self._waiting.pop(next(iter(self._waiting)))
            self._refuse(oldest.arrival, "unknown_job", "too many wait")
        asked_by = f"{order.requested_by}: {order.reason}" if order.reason else order.requested_by
        self._waiting[order.job_id] = _Waiting(
            arrival,
            actor=f"{self._settings.owner}/{writable(order.sender, 200)}",
            reason=writable(asked_by, TEXT_LIMIT),
            since=monotonic(),
        )
        # The texts of a sender may be long, and many may wait.
        arrival.word = CancelOrder(
            sender=writable(order.sender, 200), job_id=order.job_id, reason=None, requested_by=""
        )

    def _find_due(self) -> list[str]:
        """Return the jobs to look up: all that are new, and some that were not found before."""
        before = monotonic() - self._settings.tick_seconds
        new = [job_id for job_id, one in self._waiting.items() if not one.tried_at]
        old = [job_id for job_id, one in self._waiting.items() if 0 < one.tried_at <= before]
        return new + nsmallest(MOST_TRIES, old, key=lambda job_id: self._waiting[job_id].tried_at)

    async def _try(self, job_ids: Sequence[str]) -> None:
        found = await self._known.find(job_ids)
        for job_id, job in zip(job_ids, found, strict=True):
            if job is None:
                self._go_on_waiting(job_id)
            else:
                await self._cancel(job_id, job)

    def _go_on_waiting(self, job_id: str) -> None:
        one = self._waiting.get(job_id)
        if one is None:
            return
        one.tried_at = monotonic()
        if one.tried_at - one.since >= UNKNOWN_SECONDS:
            del self._waiting[job_id]
            self._refuse(one.arrival, "unknown_job")

    async def _cancel(self, job_id: str, job: Job) -> None:
        one = self._waiting.get(job_id)
        if one is None:
            return
        refusal = await self._ask(one, job) if self._settings.is_own(job) else "unknown_job"
        # The intake, a submit and a dispatch may all have tried: it is counted once.
        if self._waiting.pop(job_id, None) is None:
            return
        if refusal is not None:
            self._refuse(one.arrival, refusal)
        else:
            one.arrival.done = True
            self._parts.meters.bus.apply(BusChannel.CANCEL)

    async def _ask(self, one: _Waiting, job: Job) -> str | None:
        """Cancel a job; return why that was refused."""
        actor = Actor(Role.CONTROL, one.actor)
        try:
            await cancel(self._parts.store, job.id, actor, reason=one.reason)
        except StoreError:
            raise
        except HoldfastError as error:
            return error.code
        except Exception:
            # One cancel that cannot be carried out stops no other.
            log.debug("a cancel of %s failed", job.public_id, exc_info=True)
            return "internal"
        return None

    def _refuse(self, arrival: Arrival, reason: str, detail: str = "") -> None:
        arrival.done = True
        order = arrival.word
        assert isinstance(order, CancelOrder)
        self._refusals.add(BusChannel.CANCEL, reason, f"{order.sender}: {order.job_id} {detail}")
