"""Submits in: what clients ask for on the bus becomes jobs, each stored before it is acknowledged.

The same job_id again is the same job. Another request under a known id is refused, counted, and an
alert is published.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from holdfast.buses.cap import SUBJECTS, write_alert
from holdfast.crash_points import reach
from holdfast.errors import BadData, KeyBusy
from holdfast.flow.bus_job import build_bus_job
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import Actor, JobId, NewJob
from holdfast.lifecycle.states import KeyKind, Role
from holdfast.ports.bus import BusChannel, BusWord, JobOffer, Outgoing
from holdfast.ports.models import SubmitOutcome, Submitted
from holdfast.queries.error_reports import writable
from holdfast.services.bus_bridge.refusals import Refusals
from holdfast.services.bus_bridge.settings import BridgeParts

ALERT_TEXT = 500
MOST_ALERTS = 20
"""Alerts of one batch: the rest is only counted."""


class Submits:
    """Turns offers into jobs."""

    def __init__(
        self,
        parts: BridgeParts,
        refusals: Refusals,
        on_submitted: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._refusals = refusals
        self._on_submitted = on_submitted
        self._alerts: list[tuple[JobOffer, str, str]] = []

    async def handle(self, words: Sequence[BusWord]) -> None:
        """Store a batch of offers."""
        built: list[tuple[JobOffer, NewJob]] = []
        for word in words:
            assert isinstance(word, JobOffer)
            job = await self._build(word)
            if job is not None:
                built.append((word, job))
        outcomes = await self._parts.store.submit([job for _, job in built]) if built else []
        for (offer, _), outcome in zip(built, outcomes, strict=True):
            self._note(offer, outcome)
        reach("bus.submitted")
        if built:
            await self._on_submitted([offer.job_id for offer, _ in built])
        await self._send_alerts()

    async def _build(self, offer: JobOffer) -> NewJob | None:
        route = self._settings.route(offer.topic)
        if route is None:
            self._refuse(offer, "topic", f"topic {offer.topic!r} does not lead to this bus")
            return None
        if offer.tenant not in (None, self._settings.tenant):
            self._refuse(offer, "tenant", f"tenant {offer.tenant!r} is not served here")
            return None
        try:
            return build_bus_job(
                offer,
                route,
                Actor(Role.GATEWAY, f"{self._settings.owner}/{writable(offer.sender, 200)}"),
                tenant=self._settings.tenant,
                parent_id=await self._find_parent(offer),
                policy=self._settings.policy(route),
            )
        except BadData as error:
            self._refuse(offer, "bad_request", str(error))
            return None

    async def _find_parent(self, offer: JobOffer) -> JobId | None:
        """Return the parent, if it is known here; its name goes to the worker in any case."""
        if offer.parent_job_id is None:
            return None
        check_text(offer.parent_job_id, "parent_job_id")
        return await self._parts.store.look_up(
            self._settings.tenant, KeyKind.JOB_ID, offer.parent_job_id
        )

    def _note(self, offer: JobOffer, outcome: SubmitOutcome) -> None:
        if isinstance(outcome, Submitted):
            if outcome.created:
                self._parts.meters.submitted(offer.topic, offer.topic)
            else:
                self._refusals.add(BusChannel.SUBMIT, "duplicate", offer.job_id)
        elif outcome.code == KeyBusy.code:
            # Another transaction holds the key: the batch is handled again.
            raise KeyBusy(outcome.message)
        else:
            self._refuse(offer, "conflict", outcome.message)

    def _refuse(self, offer: JobOffer, reason: str, text: str) -> None:
        self._refusals.add(BusChannel.SUBMIT, reason, f"{offer.sender}: {offer.job_id}: {text}")
        if len(self._alerts) < MOST_ALERTS:
            self._alerts.append((offer, reason, text))

    async def _send_alerts(self) -> None:
        if not self._alerts:
            return
        alerts, self._alerts = self._alerts, []
        now = (await self._parts.store.clock()).now
        packets = [
            write_alert(
                f"submit_{reason}",
                writable(f"job {offer.job_id}: {text}", ALERT_TEXT),
                trace_id=offer.trace_id,
                at=now,
                trust=self._parts.trust,
            )
            for offer, reason, text in alerts
        ]
        subject = SUBJECTS[BusChannel.ALERT]
        await self._parts.bus.send([Outgoing(subject=subject, data=one) for one in packets])
