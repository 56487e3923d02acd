"""What a job's latest events show: how it ended, who took it, why it waits, what became of it."""

from __future__ import annotations

from collections.abc import Sequence, Set

from holdfast.lifecycle.record import LoggedEvent
from holdfast.lifecycle.states import LETTERED, OWNED, EventType, Operation
from holdfast.lifecycle.transitions import ENDS, EVENTS, LEAVES, SUBMIT_EVENT, TABLE, TAKES

_O = Operation
FAILED_ATTEMPTS = EVENTS[_O.RETRY] | EVENTS[_O.STALL]
"""The events that end an attempt by a failure and leave the job to another one."""
SETS_RUN_AT = (
    FAILED_ATTEMPTS
    | EVENTS[_O.RELEASE]
    | EVENTS[_O.REQUEUE]
    | EVENTS[_O.RESUME]
    | EVENTS[_O.RESCHEDULE]
    | {SUBMIT_EVENT}
)
"""The events that set when a job is due."""
SETS_TIMES = SETS_RUN_AT | TAKES | EVENTS[_O.START] | EVENTS[_O.WAIT]
"""The events that set when a job is due, or grant a lease."""
SETTLEMENTS = frozenset(event for row in TABLE if row.sources == LETTERED for event in row.events)
"""The events that settle a dead letter."""
REDRIVES = EVENTS[_O.REDRIVEN]
COMPENSATIONS = EVENTS[_O.COMPENSATED]
STARTS, PROGRESS_REPORTS = EVENTS[_O.START], EVENTS[_O.PROGRESS]
WAITS, WAKES = EVENTS[_O.WAIT], EVENTS[_O.RESUME]
STEP_STARTS = frozenset({EventType.STEP_STARTED})
STEP_FAILURES = frozenset({EventType.STEP_FAILED})
STEP_ENDS = EVENTS[_O.STEP] - STEP_STARTS
STEP_EVENTS = EVENTS[_O.STEP]
RECORDS = STEP_ENDS | EVENTS[_O.SIGNAL]
"""The events whose bodies a successor of the job continues from."""


class History:
    """A job's latest events of the types in `TYPES`, newest first."""

    TYPES = (
        ENDS
        | SETTLEMENTS
        | SETS_RUN_AT
        | TAKES
        | COMPENSATIONS
        | EVENTS[_O.HOLD]
        | WAITS
        | EVENTS[_O.REQUEST_CANCEL]
        | PROGRESS_REPORTS
        | STARTS
    )

    def __init__(self, events: Sequence[LoggedEvent]) -> None:
        self.events = events

    def _last(self, types: Set[EventType]) -> LoggedEvent | None:
        return next((event for event in self.events if event.type in types), None)

    @property
    def end(self) -> LoggedEvent | None:
        """How it ended."""
        return self._last(ENDS)

    @property
    def departure(self) -> LoggedEvent | None:
        """How its last ownership ended."""
        leaves = (event for event in self.events if event.type in LEAVES)
        return next((event for event in leaves if event.from_state in OWNED), None)

    @property
    def settlement(self) -> LoggedEvent | None:
        """What became of its dead letter."""
        return self._last(SETTLEMENTS)

    @property
    def redrives(self) -> list[LoggedEvent]:
        """How its dead letter was submitted again."""
        return [event for event in self.events if event.type in REDRIVES]

    @property
    def compensation(self) -> LoggedEvent | None:
        """That what it did was undone."""
        return self._last(COMPENSATIONS)

    @property
    def cancel_request(self) -> LoggedEvent | None:
        """How its owner was asked to end it."""
        return self._last(EVENTS[_O.REQUEST_CANCEL])

    @property
    def take(self) -> LoggedEvent | None:
        """How its present or last owner took it."""
        return self._last(TAKES)

    @property
    def start(self) -> LoggedEvent | None:
        """How its handler was last started."""
        return self._last(STARTS)

    @property
    def progress(self) -> LoggedEvent | None:
        """The last report of progress that carries facts."""
        return self._last(PROGRESS_REPORTS)

    @property
    def wait(self) -> LoggedEvent | None:
        """How it came to wait."""
        return self._last(WAITS)

    @property
    def failed_attempt(self) -> LoggedEvent | None:
        """How its last failed attempt ended."""
        return self._last(FAILED_ATTEMPTS)

    @property
    def due_by(self) -> LoggedEvent | None:
        """What set when it is due."""
        return self._last(SETS_RUN_AT)
