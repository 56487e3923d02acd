"""What the ledger recorded of durable calls: by earlier attempts of a job, and by the jobs that it
continues from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.durable.messages import Entry
from holdfast.flow.succession import recorded_line
from holdfast.lifecycle.job import RECHECKS, Created, JobId, LoggedEvent
from holdfast.lifecycle.states import EventType
from holdfast.ports import Store


async def recorded_entries(store: Store, job: JobId, created: Created) -> list[Entry]:
    """Read what is recorded for a job, in order."""
    return entries_of(await recorded_line(store, job, created))


def entries_of(line: Sequence[Sequence[LoggedEvent]]) -> list[Entry]:
    """List what a line of jobs recorded of durable calls, in order.

    A name's uses are counted along the whole line: a job that resumes goes on counting.
    """
    reading = _Reading()
    for number, events in enumerate(line, 1):
        reading.read(events, carried=number < len(line))
    return list(reading.found.values())


class _Reading:
    """The entries that were found so far."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, int], Entry] = {}
        self._waits: Counter[str] = Counter()
        self._begun: Counter[tuple[str, int]] = Counter()

    def read(self, events: Sequence[LoggedEvent], *, carried: bool) -> None:
        """Add what one job recorded; `carried` is for the jobs before the last."""
        signals = {event.rev: event for event in events if event.facts.signal is not None}
        waiting = ""
        for event in events:
            facts = event.facts
            entry: Entry | None = None
            if event.type is EventType.WAITING:
                waiting = facts.wait_for or ""
            elif event.type is EventType.WAIT_COMPLETED:
                entry = self._wait(waiting, signals.get(facts.consumed or 0), timer=facts.timer)
            elif event.type is EventType.STEP_COMPLETED and facts.consumed is not None:
                entry = self._wait(facts.step or "", signals.get(facts.consumed))
            elif event.type is EventType.STEP_STARTED:
                key = facts.step or "", facts.step_use or 1
                self._begun[key] += 1
                entry = Entry(kind="step", name=key[0], use=key[1], begun=self._begun[key])
            elif event.type in (EventType.STEP_COMPLETED, EventType.STEP_FAILED):
                entry = _step(event, carried=carried)
            if entry is not None:
                self.found[entry.kind, entry.name, entry.use] = entry

    def _wait(self, name: str, signal: LoggedEvent | None, *, timer: bool = False) -> Entry | None:
        if name in RECHECKS:
            # The worker parked the job, not the handler: no call of it waits for that.
            return None
        self._waits[name] += 1
        return Entry(
            kind="wait",
            name=name,
            use=self._waits[name],
            timed_out=timer,
            signal=None if signal is None else signal.facts.signal,
            body=None if signal is None else signal.body,
        )


def _step(event: LoggedEvent, *, carried: bool) -> Entry:
    is_child = event.facts.link is not None
    return Entry(
        kind="child" if is_child else "step",
        name=event.facts.step or "",
        use=event.facts.step_use or 1,
        failed=event.type is EventType.STEP_FAILED,
        carried=carried and is_child,
        body=event.body,
    )
