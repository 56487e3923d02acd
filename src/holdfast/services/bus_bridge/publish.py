"""Publish back: what clients on the bus could not learn from a worker.

Results that no worker sent go to the subject of results, dead letters to theirs, with an alert.
A cursor over all events moves on only once they have left: each is published at least once.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.buses.cap import SUBJECTS, PublishedOutcome, write_alert, write_outcome
from holdfast.errors import BusUnavailable
from holdfast.lifecycle.dialects.vocabularies import A
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import Letter
from holdfast.ports.bus import BusChannel, Delivery, Outgoing
from holdfast.queries.error_reports import MESSAGE_LIMIT, writable
from holdfast.services.bus_bridge.settings import BridgeParts
from holdfast.services.bus_bridge.turn import DispatchTurn
from holdfast.services.loop import Loop

PAGE = 500
IDLE_SECONDS = 0.5


class Publisher(Loop):
    """Follows the ends of the bus's jobs."""

    def __init__(self, parts: BridgeParts, turn: DispatchTurn) -> None:
        super().__init__(
            "bus-publish",
            self._follow,
            meters=parts.meters,
            first_pause_seconds=0.2,
            longest_pause_seconds=5.0,
        )
        self._parts = parts
        self._settings = parts.settings
        self._turn = turn
        self._cursor = f"bus:{parts.settings.name}"

    async def start(self) -> None:
        """Set the cursor of a new bus: what ended before is nobody's news."""
        store = self._parts.store
        if await store.cursor(self._cursor) is None:
            await store.move_cursor(self._cursor, before=None, to=await store.tail_end())

    async def _follow(self) -> float:
        if not self._parts.bus.connected or not self._turn.held:
            return IDLE_SECONDS
        store = self._parts.store
        at = await store.cursor(self._cursor)
        tail = await store.tail(at, limit=PAGE)
        await self._publish([event for event in tail.events if event.ends])
        if tail.cursor != at:
            await store.move_cursor(self._cursor, before=at, to=tail.cursor)
        return 0.0 if len(tail.events) == PAGE else IDLE_SECONDS

    async def _publish(self, ends: Sequence[LoggedEvent]) -> None:
        jobs = await self._parts.store.get([event.id for event in ends]) if ends else []
        messages: list[Outgoing] = []
        for event, job in zip(ends, jobs, strict=True):
            if job is not None and self._settings.is_own(job):
                messages += await self._make_messages(job, event)
        if not messages:
            return
        found = await self._parts.bus.send(messages)
        if {Delivery.NOT_SENT, Delivery.UNKNOWN} & set(found):
            raise BusUnavailable("the bus was lost while results were published")
        self._parts.meters.bus.published += len(messages)

    async def _make_messages(self, job: Job, event: LoggedEvent) -> list[Outgoing]:
        by_worker = event.facts.worker not in (None, self._parts.trust.sender_id)
        dead = job.letter is Letter.OPEN
        if by_worker and not dead:
            return []
        outcome = await self._make_outcome(job, event)
        data = write_outcome(outcome, self._parts.trust)
        made: list[Outgoing] = []
        if not by_worker:
            made.append(Outgoing(subject=SUBJECTS[BusChannel.RESULT], data=data))
        if dead:
            made.append(Outgoing(subject=SUBJECTS[BusChannel.DEAD_LETTER], data=data))
            alert = write_alert(
                outcome.error_code or "failed",
                f"job {outcome.job_id} of {job.queue} is a dead letter",
                trace_id=outcome.trace_id,
                at=event.at,
                trust=self._parts.trust,
            )
            made.append(Outgoing(subject=SUBJECTS[BusChannel.ALERT], data=alert))
        return made

    async def _make_outcome(self, job: Job, event: LoggedEvent) -> PublishedOutcome:
        [first] = await self._parts.store.events(job.id, limit=1)
        return PublishedOutcome(
            job_id=job.public_id,
            trace_id=first.correlation_id or job.public_id,
            at=event.at,
            status=A.states[event.to_state],
            result_ptr=job.result_ptr,
            error_code=job.error_code,
            error_message=_read_message(event),
            attempt=job.attempt,
        )


def _read_message(event: LoggedEvent) -> str | None:
    """Return the message of an error, as far as it is kept."""
    body = decode_body(event.body) if event.body is not None else None
    message = body.get("message") if isinstance(body, dict) else None
    text = message if isinstance(message, str) else event.reason
    return None if text is None else writable(text, MESSAGE_LIMIT)
