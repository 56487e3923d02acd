"""What goes over HTTP beside jobs themselves: requests and answers, alike for server and client."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import UNSET, Raw, Struct, UnsetType, field

from holdfast.flow.intervene import OPERATOR_HOLD
from holdfast.flow.why import Why
from holdfast.lifecycle.states import EventType, State
from holdfast.operations import BULK, Depth, Progress, Spoken, Wanted
from holdfast.views import Instant, JobView, LogView, instant, micros

NOTHING = Raw(b"null")
# By a factory where it is a default: the schemas of the OpenAPI document cannot tell it.


class Problem(Struct, frozen=True, kw_only=True):
    """What went wrong, for a program and for a person."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    advice: str
    """What to do about it."""
    request_id: str
    job_id: str | UnsetType = UNSET
    """The job that it is about."""
    field: str | UnsetType = UNSET
    """Where in the request, as a JSON path."""


class Receipt(Struct, frozen=True, kw_only=True):
    """What a submit led to (D11)."""

    job_id: str
    created: bool
    job: JobView
    message: str | None = None


class Many(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs to submit together; each is answered for itself."""

    jobs: list[Wanted]


class Each(Struct, frozen=True, kw_only=True):
    """What became of one of many: it was accepted, or there is a problem."""

    accepted: Receipt | None = None
    problem: Problem | None = None


class Receipts(Struct, frozen=True, kw_only=True):
    """What became of each, in order."""

    jobs: list[Each]


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a job stands where it stands, in sentences and as data."""

    text: str
    advice: str | None = None
    """What a person can do about it, with the command."""
    why: Why


class JobList(Struct, frozen=True, kw_only=True):
    """Jobs, newest first; `next` is the cursor of the page after, null at the end."""

    jobs: list[JobView]
    next: str | None


class Cancelling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to cancel."""

    hard: bool = False
    """Leave its owner no grace."""
    reason: str | None = None


class Signalling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A signal."""

    name: str
    payload: Raw = field(default_factory=lambda: NOTHING)
    """Any JSON."""


class Holding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which hold to put or to lift."""

    hold: str = OPERATOR_HOLD
    reason: str | None = None


class Rescheduling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a job shall be due: after `delay`, or at `run_at`."""

    delay: Spoken | None = None
    run_at: datetime | None = None
    reason: str | None = None


class Resolving(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of a step that nobody knew of."""

    step: str
    happened: bool
    result: Any = None
    force: bool = False


class Result(Struct, frozen=True, kw_only=True):
    """How a job ended: its result, or its error."""

    job_id: str
    """The job that came to it: the last one, where the job was tried again as a new one."""
    task: str
    state: State
    result: Raw = field(default_factory=lambda: NOTHING)
    error_code: str | None = None
    error: Raw = field(default_factory=lambda: NOTHING)
    reason: str | None = None
    erased: bool = False
    job: JobView
    """The job that was asked for."""


class Redriving(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shall be otherwise in the new job."""

    queue: str | None = None
    retries: int | None = None
    delay_seconds: float = 0.0
    from_start: bool = False
    """Do all of it again, instead of continuing from the recorded steps."""
    again: bool = False
    """Also if it was redriven or discarded before."""
    reason: str | None = None


class Discarding(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a letter is put away."""

    reason: str | None = None


class LettersWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which open letters are to be settled, newest job first."""

    tenant: str | None = None
    queue: str | None = None
    task: str | None = None
    error_code: str | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None
    before: UUID | None = None
    """Go on after this job: the `next` of the run before."""
    limit: int = BULK
    """How many at most, up to 1,000 in one request."""


class RedrivingAll(LettersWanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters are redriven, and what shall be otherwise in the new jobs."""

    to_queue: str | None = None
    retries: int | None = None
    delay_seconds: float = 0.0
    from_start: bool = False
    """Do all of it again, instead of continuing from the recorded steps."""
    reason: str | None = None


class DiscardingAll(LettersWanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters are put away, and why."""

    reason: str | None = None


class Counted(Struct, frozen=True, kw_only=True):
    """How many letters there are."""

    letters: int


class ClockView(Struct, frozen=True, kw_only=True):
    """The store's clock."""

    now: int


class Queues(Struct, frozen=True, kw_only=True):
    """Queues by name."""

    queues: list[Depth]


class Pausing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a queue is paused or resumed."""

    reason: str | None = None


class FeedEvent(Struct, frozen=True, kw_only=True):
    """An event in the feed of all jobs: whose it is and what happened, without bodies."""

    id: str
    tenant: str
    queue: str
    task: str
    job_id: str
    internal_id: UUID
    rev: int
    type: EventType
    ts: Instant
    actor: str
    attempt: int
    from_status: str | None
    to_status: str
    cause: str | None
    request_id: str | None
    correlation_id: str | None
    facts: dict[str, Any]
    """What else the event says: the stage, evidence of a kill, the step, …"""


class FeedPage(Struct, frozen=True, kw_only=True):
    """Events of all jobs, oldest first. `next` is the `after` of what comes behind them."""

    events: list[FeedEvent]
    next: str


class Crew(Struct, frozen=True, kw_only=True):
    """How many workers live, have fallen silent, or ended in order within the last week."""

    live: int
    silent: int
    ended: int
    slots: int
    """Jobs that the live ones can run at a time."""


class Stats(Struct, frozen=True, kw_only=True):
    """How much there is of everything that the asker may see."""

    version: str
    now: Instant
    """The store's clock."""
    total: int
    jobs: dict[State, int]
    queues: int
    paused: list[str]
    """Queues of which nothing is claimed."""
    workers: Crew


class ProgressView(Struct, frozen=True, kw_only=True):
    """How far a job is, as its handler last reported it; all null if it made no report."""

    value: Any = None
    at: Instant | None = None
    attempt: int | None = None
    rev: int | None = None

    @classmethod
    def of(cls, progress: Progress | None) -> ProgressView:
        """Show a report."""
        if progress is None:
            return cls()
        return cls(
            value=progress.value,
            at=instant(progress.at),
            attempt=progress.attempt,
            rev=progress.rev,
        )

    def read(self) -> Progress | None:
        """Read the report back."""
        if self.at is None or self.attempt is None or self.rev is None:
            return None
        return Progress(value=self.value, at=micros(self.at), attempt=self.attempt, rev=self.rev)


class Log(Struct, frozen=True, kw_only=True):
    """Lines of a job's log, oldest first; `after=` the last one's position reads on."""

    job_id: str
    internal_id: UUID
    lines: list[LogView]
