"""What the ledger recorded of durable calls, by earlier attempts and by the jobs before this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.lifecycle.history import STEP_ENDS, STEP_FAILURES, STEP_STARTS, WAITS, WAKES
from holdfast.lifecycle.record import RECHECKS, Created, JobId, LoggedEvent
from holdfast.ports.store import Store
from holdfast.queries.succession import read_recorded_line
from holdfast.tasks.durable.protocol import QUESTION, Entry


async def recorded_entries(
    store: Store, job: JobId, created: Created, history: list[LoggedEvent] | None = None
) -> list[Entry]:
    """Read what is recorded for a job, in order; of itself in `history`, if that was read."""
    return entries_of(await read_recorded_line(store, job, created, history))


def entries_of(line: Sequence[Sequence[LoggedEvent]]) -> list[Entry]:
    """Return what a line of jobs recorded of durable calls, in order.

    A name's uses are counted along the whole line: a job that resumes continues the count.
    """
    reader = _EntryReader()
    for number, events in enumerate(line, 1):
        reader.read(events, carried=number < len(line))
    return list(reader.found.values())


class _EntryReader:
    """The entries that were found so far."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, int], Entry] = {}
        self._waits: Counter[str] = Counter()
        self._starts: Counter[tuple[str, int]] = Counter()

    def read(self, events: Sequence[LoggedEvent], *, carried: bool) -> None:
        """Add what one job recorded; `carried` is for the jobs before the last."""
        signals = {event.rev: event for event in events if event.facts.signal is not None}
        waiting = ""
        for event in events:
            facts = event.facts
            entry: Entry | None = None
            if event.type in WAITS:
                waiting = facts.wait_for or ""
            elif event.type in WAKES:
                entry = self._read_wait(
                    waiting, signals.get(facts.consumed or 0), timer=facts.timer
                )
            elif event.type in STEP_ENDS and facts.consumed is not None:
                entry = self._read_wait(facts.step or "", signals.get(facts.consumed))
            elif event.type in STEP_STARTS:
                key = facts.step or "", facts.step_use or 1
                self._starts[key] += 1
                starts = self._starts[key]
                entry = (
                    Entry(kind="step", name=key[0], use=key[1], starts=starts)
                    if event.body is None
                    else Entry(kind=QUESTION, name=key[0], use=starts, body=event.body)
                )
            elif event.type in STEP_ENDS:
                entry = _read_step(event, carried=carried)
            if entry is not None:
                self.found[entry.kind, entry.name, entry.use] = entry

    def _read_wait(
        self, name: str, signal: LoggedEvent | None, *, timer: bool = False
    ) -> Entry | None:
        if name in RECHECKS:
            # The worker suspended the job, not the handler: none of its calls waits for that.
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


def _read_step(event: LoggedEvent, *, carried: bool) -> Entry:
    is_child = event.facts.link is not None
    return Entry(
        kind="child" if is_child else "step",
        name=event.facts.step or "",
        use=event.facts.step_use or 1,
        failed=event.type in STEP_FAILURES,
        carried=carried and is_child,
        body=event.body,
    )
