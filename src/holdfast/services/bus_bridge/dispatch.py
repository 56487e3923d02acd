"""Dispatch out: claim for the bus, send to the topic, and take back what nobody listened to."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from msgspec import Struct

from holdfast.admission.topics import Route
from holdfast.buses.cap import PACKET_BYTES, Dispatch, write_dispatch
from holdfast.crash_points import reach
from holdfast.errors import JobBusy, StoreError
from holdfast.ids import mint_request
from holdfast.lifecycle.lease import shortest_grant
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import CLAIMABLE, OWNED, Kind
from holdfast.lifecycle.times import SECOND
from holdfast.ports.bus import Delivery, Outgoing
from holdfast.ports.models import Claimed, ClaimRequest
from holdfast.services.bus_bridge.cancel_orders import CancelOrders
from holdfast.services.bus_bridge.known_jobs import KnownJobs
from holdfast.services.bus_bridge.leases import Leases
from holdfast.services.bus_bridge.listeners import Listeners
from holdfast.services.bus_bridge.settings import BridgeParts
from holdfast.services.bus_bridge.turn import DispatchTurn
from holdfast.services.loop import Loop, wait_for_first
from holdfast.worker_protocol.apply_reports import apply_reports
from holdfast.worker_protocol.bus_reports import BusFail, BusRelease, BusStart, RunEnd
from holdfast.worker_protocol.report_commands import Report
from holdfast.worker_protocol.reports import ReleaseReport, Trouble

log = logging.getLogger(__name__)

BATCH = 200
IDLE_SECONDS = 0.5
AWAY_SECONDS = 0.25
ANNOUNCE_SECONDS = 10.0
_RELEASED = {
    Delivery.NO_LISTENER: "no worker listens to the topic",
    Delivery.NOT_SENT: "the bus is not connected",
}


class _Load(Struct):
    """How many jobs of a topic are due or soon, and how many are out."""

    waiting: int = 0
    out: int = 0


class Dispatcher(Loop):
    """Sends due jobs to the bus."""

    def __init__(
        self,
        parts: BridgeParts,
        turn: DispatchTurn,
        listeners: Listeners,
        known: KnownJobs,
        leases: Leases,
        *,
        orders: CancelOrders,
        look: asyncio.Event,
    ) -> None:
        super().__init__(
            "bus-dispatch",
            self._pass,
            meters=parts.meters,
            first_pause_seconds=0.1,
            longest_pause_seconds=5.0,
        )
        self._parts = parts
        self._settings = parts.settings
        self._turn = turn
        self._listeners = listeners
        self._known = known
        self._leases = leases
        self._orders = orders
        self._look = look
        self._announced_at = -ANNOUNCE_SECONDS
        self._announced: list[str] = []
        self._owed: list[tuple[Report, Job]] = []
        """Reports on jobs that reached nobody, which the store has not taken yet. Only this bridge
        knows of them; there are no more than jobs may be out."""

    async def run(self) -> None:
        """Send until stopped."""
        await super().run()
        with suppress(StoreError):
            await self._repeat_owed()

    async def _pass(self) -> float:
        await self._repeat_owed()
        self._look.clear()
        if not self._parts.bus.connected:
            return self._stand_by(AWAY_SECONDS)
        # Before the counts: another bridge may have sent until now.
        if not await self._turn.take():
            return self._stand_by(IDLE_SECONDS)
        topics = await self._find_topics()
        sent = await self._send_due(topics)
        await self._announce(topics)
        if not sent:
            await self._wait(topics)
        return 0.0

    def _stand_by(self, seconds: float) -> float:
        """Rest: all bridges announce under one name, and one that does not send knows less."""
        self._announced_at = -ANNOUNCE_SECONDS
        return seconds

    async def _wait(self, topics: Mapping[str, _Load]) -> None:
        names = tuple(topics) or ("",)
        await wait_for_first(
            self._look.wait(), self._parts.store.wake_up(names, limit_seconds=IDLE_SECONDS)
        )

    async def _find_topics(self) -> dict[str, _Load]:
        """Return the topics that have live jobs, and those that are known by name."""
        found = {topic: _Load() for topic in self._settings.topics.routes if self._is_plain(topic)}
        for count in await self._parts.store.counts(self._settings.tenant):
            if count.state in CLAIMABLE | OWNED and self._settings.route(count.queue) is not None:
                load = found.setdefault(count.queue, _Load())
                if count.state in OWNED:
                    load.out += count.jobs
                else:
                    load.waiting += count.jobs
        return found

    def _is_plain(self, pattern: str) -> bool:
        wild = {"*", ">"} & set(pattern.split("."))
        return not wild and self._settings.route(pattern) is not None

    async def _announce(self, topics: Mapping[str, _Load]) -> None:
        """Note which topics are served: `why` of the others then names what is missing."""
        served = [topic for topic in topics if not self._listeners.is_silent(topic)][:BATCH]
        due = monotonic() - self._announced_at >= ANNOUNCE_SECONDS
        if due or served != self._announced:
            self._announced_at, self._announced = monotonic(), served
            await self._leases.announce(served, self._capabilities)

    @property
    def _capabilities(self) -> frozenset[str]:
        return self._settings.capabilities | self._listeners.capabilities

    async def _send_due(self, topics: Mapping[str, _Load]) -> int:
        sent = 0
        for topic, load in topics.items():
            route = self._settings.route(topic)
            if route is not None and load.waiting > 0 and self._listeners.is_open(topic):
                sent += await self._send_topic(topic, route, load.out)
        return sent

    async def _send_topic(self, topic: str, route: Route, out: int) -> int:
        """Claim and send what a topic has room for; return how many found a listener."""
        # The first job shows whether there is a listener: the others need not be claimed in vain.
        most = BATCH if self._listeners.is_served(topic) else 1
        limit = min(route.max_in_flight - out, most)
        if limit <= 0 or not self._turn.held:
            return 0
        asked = monotonic()
        claimed = await self._parts.store.claim(
            ClaimRequest(
                request_id=mint_request(),
                owner=self._settings.owner,
                queues=(topic,),
                limit=limit,
                tasks=(topic,),
                tenant=self._settings.tenant,
                capabilities=self._capabilities,
            )
        )
        reach("bus.claimed")
        if not claimed:
            return 0
        self._parts.meters.claimed(len(claimed))
        self._known.remember(one.job for one in claimed)
        sent = await self._send(topic, self._sort_out(await self._call_off(claimed)), asked)
        # After the send: what can be sent must not wait for a store that is away.
        await self._write_owed()
        return sent

    async def _call_off(self, claimed: Sequence[Claimed]) -> list[Claimed]:
        """Give back the jobs that a cancel waits for, which ends them; return the others."""
        off = {one.job.id for one in claimed if self._orders.has(one.job.public_id)}
        await self._orders.cancel_known([one.job.public_id for one in claimed if one.job.id in off])
        # More may have come while the store was asked.
        off |= {one.job.id for one in claimed if self._orders.has(one.job.public_id)}
        for one in claimed:
            if one.job.id in off:
                self._owed.append((_release(one.job, "a cancel came before it was sent"), one.job))
        return [one for one in claimed if one.job.id not in off]

    def _sort_out(self, claimed: Sequence[Claimed]) -> list[tuple[Claimed, bytes]]:
        """Return the jobs that can be sent, with their packets; settle the others."""
        ready: list[tuple[Claimed, bytes]] = []
        for one in claimed:
            made = self._make_packet(one)
            if isinstance(made, bytes):
                ready.append((one, made))
            else:
                self._owed += [(report, one.job) for report in made]
        return ready

    def _make_packet(self, claimed: Claimed) -> bytes | list[Report]:
        job = claimed.job
        named: dict[str, Any] = {"internal_id": job.id, "attempt": job.attempt}
        if job.kind is not Kind.BUS:
            reason = "its topic led to a queue when it was submitted"
            return [ReleaseReport(**named, reason=reason, unserved=True)]
        try:
            data = write_dispatch(_make_dispatch(claimed), self._parts.trust)
        except Exception as error:  # noqa: BLE001  one job that no packet can hold stops no other
            return self._refuse(claimed, f"no packet can be made of it: {error}")
        if len(data) > PACKET_BYTES:
            return self._refuse(claimed, f"its packet has {len(data):,} bytes")
        return data

    def _refuse(self, claimed: Claimed, why: str) -> list[Report]:
        named: dict[str, Any] = {"internal_id": claimed.job.id, "attempt": claimed.job.attempt}
        error = Trouble(message=why, code="undeliverable")
        end = RunEnd(worker=self._parts.trust.sender_id)
        return [BusStart(**named), BusFail(**named, end=end, error=error, permanent=True)]

    async def _send(self, topic: str, ready: Sequence[tuple[Claimed, bytes]], asked: float) -> int:
        if not ready:
            return 0
        # A process that was stopped in between must not send what others may have taken over.
        limit = min(shortest_grant(one.job.policy) for one, _ in ready) / SECOND / 2
        if monotonic() - asked < limit:
            messages = [Outgoing(subject=topic, data=data) for _, data in ready]
            found = await self._parts.bus.send(messages)
        else:
            found = [Delivery.NOT_SENT] * len(ready)
        reach("bus.published")
        self._settle(topic, [one for one, _ in ready], found)
        return sum(one in (Delivery.SENT, Delivery.UNKNOWN) for one in found)

    def _settle(self, topic: str, claimed: Sequence[Claimed], found: Sequence[Delivery]) -> None:
        """Give back what reached no worker; what may have left is left to its start timeout."""
        counts = Counter(found)
        for delivery, jobs in counts.items():
            self._parts.meters.bus.send(delivery, jobs)
        if counts[Delivery.NO_LISTENER]:
            self._listeners.close(topic)
        elif counts[Delivery.SENT]:
            self._listeners.serve(topic)
        for one, delivery in zip(claimed, found, strict=True):
            if delivery in _RELEASED:
                self._owed.append((_release(one.job, _RELEASED[delivery]), one.job))

    async def _repeat_owed(self) -> None:
        """Write what is still owed, each upon the job as it is now."""
        if self._owed:
            found = await self._parts.store.get([job.id for _, job in self._owed])
            pairs = zip(self._owed, found, strict=True)
            self._owed = [(report, job) for (report, _), job in pairs if job is not None]
            await self._write_owed()

    async def _write_owed(self) -> None:
        """Write what is owed. After an error of the store, and of a locked job, it stays owed.

        That is safe: a report that was written before, or came too late, changes nothing.
        """
        reports, jobs = [report for report, _ in self._owed], [job for _, job in self._owed]
        outcomes = await apply_reports(self._parts.store, self._settings.owner, reports, jobs)
        pairs = list(zip(self._owed, outcomes, strict=True))
        self._owed = [one for one, outcome in pairs if isinstance(outcome.error, JobBusy)]
        for (_, job), outcome in pairs:
            if outcome.error is not None:
                log.warning("job %s was not settled: %s", job.public_id, outcome.error)


def _release(job: Job, reason: str) -> BusRelease:
    return BusRelease(internal_id=job.id, attempt=job.attempt, reason=reason)


def _make_dispatch(claimed: Claimed) -> Dispatch:
    job, created = claimed.job, claimed.created
    return Dispatch(
        job_id=job.public_id,
        topic=job.queue,
        tenant=job.tenant,
        attempt=job.attempt,
        trace_id=claimed.correlation_id or job.public_id,
        at=job.updated_at,
        priority=job.priority,
        context_ptr=created.context_ptr,
        adapter_id=created.adapter_id,
        env=created.env,
        labels=created.labels,
        workflow_id=job.workflow_id,
        step_index=job.step_index,
        rest=decode_body(claimed.body),
    )
