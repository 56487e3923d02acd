"""The JSON views of jobs, queues and workers; a client turns them back into records."""

from __future__ import annotations

import logging
from functools import lru_cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import asdict

from holdfast.durations import Instant, instant, micros, span_micros, span_text
from holdfast.errors import BadData
from holdfast.lifecycle.dialects.vocabularies import DIALECTS
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, POLICY_SPANS, Policy
from holdfast.lifecycle.holds import expires_at, next_approval
from holdfast.lifecycle.record import Job, JobId, Record, Signal
from holdfast.lifecycle.states import (
    BOXED,
    SUCCESSFUL,
    CancelMode,
    EventType,
    Kind,
    Letter,
    Link,
    Priority,
    Retention,
    State,
)
from holdfast.operations.problems import ProblemDocument
from holdfast.ports.models import LogLine, Page, Submitted, WorkerStatus
from holdfast.queries.artifacts import Artifact, ArtifactManifest, SkippedArtifact, SkipReason
from holdfast.queries.log_records import OutputStream, PrintedLine
from holdfast.queries.outcomes import Outcome
from holdfast.queries.why.why import Why

NOTHING = Raw(b"null")
# By a factory where it is a default: the schemas of the OpenAPI document cannot show it.
EXISTING = "Existing job returned (idempotent)"


class PolicyView(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms of a job. Spans are text with a unit (`60s`); in a request also seconds."""

    max_attempts: int = DEFAULT_POLICY.max_attempts
    idempotent: bool = DEFAULT_POLICY.idempotent
    on_exhausted: str = DEFAULT_POLICY.on_exhausted
    letter_on_fail: bool = DEFAULT_POLICY.letter_on_fail
    on_silence: str = DEFAULT_POLICY.on_silence
    backoff_first: str | float = span_text(DEFAULT_POLICY.backoff_first)
    backoff_factor: float = DEFAULT_POLICY.backoff_factor
    backoff_max: str | float = span_text(DEFAULT_POLICY.backoff_max)
    lease: str | float = span_text(DEFAULT_POLICY.lease)
    heartbeat: str | float = span_text(DEFAULT_POLICY.heartbeat)
    start_timeout: str | float | None = None
    timeout: str | float | None = None
    host_recovery: str | float = span_text(DEFAULT_POLICY.host_recovery)
    compensates: bool = DEFAULT_POLICY.compensates

    @classmethod
    def of(cls, policy: Policy) -> PolicyView:
        return _policy_view(policy)

    def policy(self) -> Policy:
        """Return the policy; BadData names a span that is invalid."""
        terms: dict[str, Any] = asdict(self)
        for name in POLICY_SPANS:
            if terms[name] is not None:
                try:
                    terms[name] = span_micros(terms[name], name)
                except ValueError as error:
                    raise BadData(str(error), field=f"policy.{name}") from error
        return Policy(**terms)


# The same few come with every job.
@lru_cache(maxsize=1024)
def _policy_view(policy: Policy) -> PolicyView:
    terms: dict[str, Any] = asdict(policy)
    spans = {name: terms[name] for name in POLICY_SPANS if terms[name] is not None}
    return PolicyView(**terms | {name: span_text(one) for name, one in spans.items()})


class MissingApproval(Struct, frozen=True, kw_only=True):
    """The approvals that a job still awaits."""

    rule: str
    """The rule that asks for them."""
    missing: int
    """How many people still have to approve it."""
    expires_at: Instant | None

    @classmethod
    def of(cls, job: Job) -> MissingApproval | None:
        """Show what a job awaits; None if it awaits no approval."""
        awaited = next_approval(job) if job.held_by else None
        if awaited is None:
            return None
        hold = awaited[1]
        return cls(rule=hold.rule, missing=hold.slot, expires_at=_date(expires_at(job, hold)))


class JobView(Struct, frozen=True, kw_only=True):
    """A job. `id` is its public id: the id that its submitter gave, else the internal one."""

    id: str
    internal_id: UUID
    tenant: str
    kind: Kind
    task: str
    task_version: str | None = None
    """Only workers that have this version of the task may claim it; null means any version."""
    queue: str
    priority: Priority
    needs: tuple[str, ...]
    policy: PolicyView
    state: State
    rev: int
    """Rises with every change; `If-Match` compares it."""
    attempt: int
    failures: int
    releases: int
    created_at: Instant
    updated_at: Instant
    run_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None
    deadline_at: Instant | None
    timeout_at: Instant | None
    owner: str | None
    lost_owner: str | None
    """The last owner, if it was lost: it is unknown whether its run has ended."""
    lease_expires_at: Instant | None
    held_by: tuple[str, ...]
    cancel_requested: CancelMode | None
    wait_for: str | None
    signals: tuple[str, ...]
    """Names of unconsumed signals; the answer to a signal may have only that one."""
    signal_revs: tuple[int, ...]
    pending_signals: int
    """The number of unconsumed signals."""
    error_code: str | None
    exit_code: int | None
    result_ptr: str | None = None
    """Where the result is, if its worker put it elsewhere; also beside an error (A9)."""
    letter: Letter | None
    retention: Retention
    parent_id: UUID | None
    link_kind: Link | None
    workflow_id: str | None
    step_index: int | None
    cpus: int | None
    memory_mb: int | None
    approval: MissingApproval | None = None
    """Set while people have to approve it; `/policy` of the job shows all that was decided."""

    @classmethod
    def of(cls, job: Job) -> JobView:
        plain: dict[str, Any] = dict(zip(_SAME, _get_same(job), strict=True))
        dates: dict[str, Any] = dict(zip(_TIMES, map(_date, _get_times(job)), strict=True))
        return cls(
            id=job.public_id,
            internal_id=job.id,
            needs=tuple(sorted(job.needs)),
            policy=PolicyView.of(job.policy),
            signals=tuple(one.name for one in job.signals),
            signal_revs=tuple(one.rev for one in job.signals),
            pending_signals=job.pending_signals,
            approval=MissingApproval.of(job),
            **plain,
            **dates,
        )

    def record(self) -> Job:
        """Return the record; what only the store needs of it is left out."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        times: dict[str, Any] = {name: _time(getattr(self, name)) for name in _TIMES}
        given = None if self.id == str(self.internal_id) else self.id
        signals = zip(self.signals, self.signal_revs, strict=True)
        return Record(
            id=JobId(self.internal_id),
            job_id=given,
            needs=frozenset(self.needs),
            policy=self.policy.policy(),
            signals=tuple(Signal(name, rev) for name, rev in signals),
            unread_signals=self.pending_signals - len(self.signals),
            **plain,
            **times,
        )


class LogView(Struct, frozen=True, kw_only=True):
    """A line that a handler wrote by `ctx.log`, or a command printed.

    `at` is by its worker's clock. What a command printed has the level INFO.
    """

    position: int
    """The line's position in the log; `?after=` returns the lines behind it."""
    attempt: int
    at: Instant
    level: int
    """A level of Python's logging: 20 is INFO, 40 is ERROR."""
    message: str
    stream: OutputStream | UnsetType = UNSET
    """What a command printed it to."""
    partial: bool | UnsetType = UNSET
    """Whether it is only a part of what a command printed as one line: the next line of the same
    stream continues it."""

    @classmethod
    def of_printed(cls, line: PrintedLine, attempt: int) -> LogView:
        return cls(
            position=line.position,
            attempt=attempt,
            at=instant(line.at),
            level=logging.INFO,
            message=line.text,
            stream=line.stream,
            partial=line.partial,
        )

    @classmethod
    def of(cls, line: LogLine) -> LogView:
        return cls(
            position=line.position,
            attempt=line.attempt,
            at=instant(line.at),
            level=line.level,
            message=line.message,
        )

    def line(self, id: JobId) -> LogLine:
        return LogLine(
            id=id,
            position=self.position,
            attempt=self.attempt,
            at=micros(self.at),
            level=self.level,
            message=self.message,
        )


class Receipt(Struct, frozen=True, kw_only=True):
    """The job of a submit, and whether it is new (D11)."""

    job_id: str
    created: bool
    job: JobView
    message: str | None = None
    """That the job existed before, or what was limited of what it asked for."""
    status: str | None = None
    """The state of a command or an agent in the words of its document."""

    @classmethod
    def of(cls, submitted: Submitted) -> Receipt:
        job = submitted.job
        return cls(
            job_id=job.public_id,
            created=submitted.created,
            job=JobView.of(job),
            message=submitted.note if submitted.created else EXISTING,
            status=DIALECTS["D"].state(job) if job.kind in BOXED else None,
        )

    def submitted(self) -> Submitted:
        note = self.message if self.created else None
        return Submitted(self.job.record(), self.created, note)


class Each(Struct, frozen=True, kw_only=True):
    """The outcome of one submit of several: a job, or a problem."""

    accepted: Receipt | None = None
    problem: ProblemDocument | None = None


class Receipts(Struct, frozen=True, kw_only=True):
    """The outcome of each submit, in order."""

    jobs: list[Each]


class JobList(Struct, frozen=True, kw_only=True):
    """Jobs, newest first; `next` is the cursor of the page after, null at the end."""

    jobs: list[JobView]
    next: str | None

    @classmethod
    def of(cls, page: Page) -> JobList:
        following = None if page.next is None else str(page.next)
        return cls(jobs=[JobView.of(job) for job in page.jobs], next=following)

    def page(self) -> Page:
        following = None if self.next is None else JobId(UUID(self.next))
        return Page([view.record() for view in self.jobs], following)


class JobOutcome(Struct, frozen=True, kw_only=True):
    """A job that has ended, and its outcome: that of its last try, where it was retried."""

    job: Job
    outcome: Outcome


class Result(Struct, frozen=True, kw_only=True):
    """How a job ended: its result, or its error."""

    job_id: str
    """The job that ended so: the last one, if the job was retried as a new job."""
    task: str
    state: State
    result: Raw = field(default_factory=lambda: NOTHING)
    error_code: str | None = None
    error: Raw = field(default_factory=lambda: NOTHING)
    result_ptr: str | None = None
    """Where the result is, if its worker put it elsewhere; also beside an error."""
    worker_id: str | None = None
    """Who ran it, where that is not its owner: a worker on a bus."""
    execution_ms: int | None = None
    """How long it ran, by its worker."""
    reason: str | None = None
    erased: bool = False
    job: JobView
    """The requested job."""

    @classmethod
    def of(cls, ended: JobOutcome) -> Result:
        outcome = ended.outcome
        body = NOTHING if outcome.body is None else Raw(outcome.body)
        good = outcome.state in SUCCESSFUL
        return cls(
            job_id=outcome.job_id,
            task=outcome.task,
            state=outcome.state,
            result=body if good else NOTHING,
            error=NOTHING if good else body,
            error_code=outcome.error_code,
            result_ptr=outcome.result_ptr,
            worker_id=outcome.worker_id,
            execution_ms=outcome.execution_ms,
            reason=outcome.reason,
            erased=outcome.erased,
            job=JobView.of(ended.job),
        )

    def outcome(self) -> JobOutcome:
        body = bytes(self.result if self.state in SUCCESSFUL else self.error)
        outcome = Outcome(
            job_id=self.job_id,
            task=self.task,
            state=self.state,
            error_code=self.error_code,
            # A job without a result and one whose result is null differ by their state.
            body=None if body == b"null" else body,
            erased=self.erased,
            reason=self.reason,
            first_id=None if self.job_id == self.job.id else self.job.id,
            # Only commands have one, and none of them is retried as another job.
            exit_code=self.job.exit_code,
            result_ptr=self.result_ptr,
            worker_id=self.worker_id,
            execution_ms=self.execution_ms,
        )
        return JobOutcome(job=self.job.record(), outcome=outcome)


class Rendered(Struct, frozen=True, kw_only=True):
    """A job or its history in the words of a dialect."""

    document: dict[str, Any]
    rev: int | None = None
    """The job's revision; None where it is not known."""


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a job is in its state, in sentences and as data."""

    text: str
    advice: str | None = None
    """What a person can do about it, with the command."""
    why: Why

    @classmethod
    def of(cls, why: Why) -> Explanation:
        return cls(text=why.text, advice=why.advice, why=why)


class ProgressView(Struct, frozen=True, kw_only=True):
    """The last progress that a handler reported; all null if there is no report."""

    value: Any = None
    at: Instant | None = None
    attempt: int | None = None
    rev: int | None = None


class Log(Struct, frozen=True, kw_only=True):
    """Lines of a job's log, oldest first; for more, pass `next` as `after`."""

    job_id: str
    internal_id: UUID
    lines: list[LogView]
    next: int = 0
    """Where to continue; if it is `after`, there is nothing more yet."""
    ended: bool = False
    """Whether the job had ended when its log was read."""
    truncated: bool | UnsetType = UNSET
    """Whether a command printed more than is kept: the first bytes are."""
    total_bytes: int | UnsetType = UNSET
    """The size of a command's log."""


class ArtifactList(Struct, frozen=True, kw_only=True):
    """What was kept of the files that a command left in /artifacts."""

    job_id: str
    internal_id: UUID
    artifacts: list[Artifact]
    total_bytes: int
    """The bytes of all of them."""
    truncated: bool
    """Whether a limit kept something out."""
    skipped: list[SkippedArtifact]
    """What was not kept because it is not a plain file; the first hundred."""
    skipped_counts: dict[SkipReason, int]
    """How many were not kept, by reason."""

    @classmethod
    def of(cls, job: Job, manifest: ArtifactManifest) -> ArtifactList:
        """Show the manifest of a job."""
        return cls(
            job_id=job.public_id,
            internal_id=job.id,
            artifacts=[
                Artifact(path=one.path, bytes=one.bytes, sha256=one.sha256)
                for one in manifest.files
            ],
            total_bytes=manifest.total_bytes,
            truncated=manifest.truncated,
            skipped=list(manifest.skipped),
            skipped_counts=manifest.skipped_counts,
        )


class Output(Struct, frozen=True, kw_only=True):
    """The last lines that a command printed, as one text."""

    job_id: str
    output: str
    lines: int
    """How many lines the text has."""
    truncated: bool
    """Whether the command printed more than is kept: the first bytes are."""
    total_bytes: int
    """The size of the whole log, with its times."""


class Counted(Struct, frozen=True, kw_only=True):
    """A number of letters."""

    letters: int


class ClockView(Struct, frozen=True, kw_only=True):
    """The store's clock."""

    now: int


class Depth(Struct, frozen=True, kw_only=True):
    """A queue with its number of jobs by state, and whether it is paused."""

    queue: str
    jobs: dict[State, int]
    paused_at: int | None = None
    paused_by: str | None = None
    reason: str | None = None


class Queues(Struct, frozen=True, kw_only=True):
    """Queues by name."""

    queues: list[Depth]


class Roll(Struct, frozen=True, kw_only=True):
    """Workers, the most recently seen first, as of `now` on the store's clock."""

    now: int
    workers: list[WorkerStatus]


class WorkerCounts(Struct, frozen=True, kw_only=True):
    """The numbers of workers that are live, silent, or ended normally within the last week."""

    live: int
    silent: int
    ended: int
    slots: int
    """How many jobs the live workers can run at once."""


class Stats(Struct, frozen=True, kw_only=True):
    """The numbers of jobs, queues and workers that the caller may see."""

    version: str
    now: Instant
    """The store's clock."""
    total: int
    jobs: dict[State, int]
    queues: int
    paused: list[str]
    """Queues that are paused."""
    workers: WorkerCounts


class FeedEvent(Struct, frozen=True, kw_only=True):
    """An event in the feed of all jobs: its job and what happened, without bodies."""

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
    """What else the event holds: the stage, evidence of a kill, the step, …"""


class FeedPage(Struct, frozen=True, kw_only=True):
    """Events of all jobs, oldest first; for the next page, pass `next` as `after`."""

    events: list[FeedEvent]
    next: str


_APART = (
    *("id", "internal_id", "needs", "policy", "approval"),
    *("signals", "signal_revs", "pending_signals"),
)
_TIMES = tuple(name for name in JobView.__struct_fields__ if name.endswith("_at"))
_SAME = tuple(name for name in JobView.__struct_fields__ if name not in (*_APART, *_TIMES))


_get_same, _get_times = attrgetter(*_SAME), attrgetter(*_TIMES)


def _date(time: int | None) -> Instant | None:
    return None if time is None else instant(time)


def _time(date: Instant | None) -> int | None:
    return None if date is None else micros(date)
