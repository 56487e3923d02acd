"""The operations on jobs, one struct each.

Handles, the app, the command line and the HTTP server carry them out on an open store (`local`,
which lists them all), a client through a server (`client.remote`). Routes and the OpenAPI document
are made from them.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct, field

from holdfast.auth.authorization import Scope
from holdfast.auth.tokens import MadeToken, TokenList, TokenView, WantedToken
from holdfast.durations import WrittenSpan
from holdfast.errors import HoldfastError
from holdfast.flow.hold import OPERATOR_HOLD
from holdfast.flow.redrive import Settled
from holdfast.flow.submit_command import WantedCommand
from holdfast.flow.submit_topic import WantedTopic
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import EventType, Letter, State
from holdfast.operations.policy_view import (
    JobPolicy,
    PolicyBookView,
    PolicyHistory,
    RequestedApprovals,
    WantedPolicy,
)
from holdfast.operations.request import InHeader, R_co, Request, StreamedBody, WholeBody
from holdfast.operations.upload_view import UploadList, UploadView
from holdfast.operations.views import (
    NOTHING,
    ArtifactList,
    ClockView,
    Counted,
    Explanation,
    FeedPage,
    JobList,
    JobOutcome,
    JobView,
    Log,
    Output,
    PolicyView,
    ProgressView,
    Queues,
    Receipt,
    Receipts,
    Rendered,
    Result,
    Roll,
    Stats,
)
from holdfast.ports.models import LOG_LINES, Page, QueueStatus, Submitted
from holdfast.queries.artifacts import ReadableArtifact
from holdfast.queries.dead_letters import DeadLetterView, LetterPage
from holdfast.queries.history import EventPage, ReadEvent
from holdfast.queries.lineage import Lineage
from holdfast.queries.log_records import OutputStream
from holdfast.queries.why.why import Why
from holdfast.webhooks.registry import MadeWebhook, WantedWebhook, WebhookList, WebhookView

BULK = 1000
"""The maximum of letters that one request settles."""
WAIT_LIMIT_SECONDS = 60.0
"""How long one request may wait for a job's end."""
MOST_TAIL = 1_000_000
"""How many lines before its end a log may be read from."""

Which: TypeAlias = JobId | str
"""A job by its internal id, or by any text that its tenant knows it by."""
RequestId: TypeAlias = Annotated[str | None, InHeader("Idempotency-Key")]
ExpectedRev: TypeAlias = Annotated[int | None, InHeader("If-Match")]
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)] | None
Label: TypeAlias = Annotated[str, Meta(pattern=r"^[^=]+=", max_length=1200)]
"""`name=text`; a job must have all that are given."""
Wait: TypeAlias = Annotated[float, Meta(ge=0, le=WAIT_LIMIT_SECONDS)]
Revision: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
Thousand: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]
STREAMED = ("application/json", "text/event-stream")
"""A page, or a stream of events."""
BYTES = "application/octet-stream"
DialectName: TypeAlias = Literal["A", "B", "C", "D", "E"]
LastEventId: TypeAlias = Annotated[
    Annotated[str, Meta(max_length=400)] | None, InHeader("last-event-id")
]
WEBHOOK_CURSOR = r"^[0-9a-zA-Z]{1,40}([.][0-9a-zA-Z_-]{1,1100})?$"
"""A webhook's id, and its tenant."""
Answer: TypeAlias = Submitted | HoldfastError
"""The outcome of one submit of several: the job, or the error."""


class Growth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The delay before a retry: `first`, then `factor` times the last delay, up to `max`."""

    first: WrittenSpan = 0.5
    factor: float = 2.0
    max: WrittenSpan = 60.0


class WantedJob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job to submit: the name of its task, its arguments, and what `options(…)` takes."""

    task: str
    args: Annotated[Raw, Meta(extra_json_schema={"type": "object"})] = field(
        default_factory=lambda: Raw(b"{}")
    )
    """A JSON object of named arguments."""
    tenant: str | None = None
    """Only for a caller that acts for all tenants; by default the caller's own."""
    task_version: str | None = None
    """Only workers that have this version of the task may claim it; by default as declared."""
    queue: str | None = None
    priority: Literal["critical", "interactive", "batch"] | None = None
    needs: tuple[str, ...] | None = None
    delay: WrittenSpan | None = None
    run_at: datetime | None = None
    deadline: WrittenSpan | None = None
    deadline_at: datetime | None = None
    policy: PolicyView | None = None
    """All terms, as a job shows them; the other fields override single terms."""
    retries: int | None = None
    backoff: WrittenSpan | Growth | None = None
    """A single duration is a constant delay."""
    timeout: WrittenSpan | None = None
    start_timeout: WrittenSpan | None = None
    job_id: str | None = None
    request_id: str | None = None
    client_job_id: str | None = None
    dedupe_key: str | None = None
    unique: Literal["live"] | None = None
    parent: str | None = None
    workflow_id: str | None = None
    step_index: int | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    labels: dict[str, str] | None = None
    env: dict[str, str] | None = None
    context_ptr: str | None = None
    """A pointer for the worker, such as a URI: it is carried along and never read."""
    adapter_id: str | None = None
    """Only a worker that has this adapter may claim it."""


WithArguments: TypeAlias = WantedJob | WantedTopic
Wanted: TypeAlias = WantedJob | WantedCommand | WantedTopic
"""What a submit asks for: a call of a task; with a `type`, a command or an agent; with a `topic`,
a job for the pool of that topic."""


class SubmitJob(Request[Submitted], frozen=True, kw_only=True):
    """Submit one job; 200 and `created: false` if one of its keys belongs to an earlier job.

    The body names a `task` or a `topic`, or has a `type` and is a command or an agent.
    """

    method, path, scope, group = "POST", "/v1/jobs", Scope.SUBMIT, "jobs"
    reply, also = Receipt, ((201, Receipt),)
    job: Annotated[Wanted, WholeBody()]
    request_id: RequestId = None
    """Used if the job has no `request_id`."""


class SubmitJobs(Request[list[Answer]], frozen=True, kw_only=True):
    """Submit many jobs together; an invalid job does not affect the others.

    If the token does not cover the queue of one of them, all are refused.
    """

    method, path, scope, group = "POST", "/v1/jobs/batch", Scope.SUBMIT, "jobs"
    reply = Receipts
    body_name = "Many"
    jobs: Sequence[Wanted]
    request_id: RequestId = None
    """With the job's number added, the `request_id` of each job that has none."""


class ListJobs(Request[Page], frozen=True, kw_only=True):
    """List jobs, newest first.

    Where no index covers a filter, a page holds what a bounded scan found: it may be short, or
    empty, and still have a `next`.
    """

    path, scope, group = "/v1/jobs", Scope.READ, "jobs"
    reply = JobList
    state: tuple[State, ...] = ()
    queue: Text = None
    task: Text = None
    tenant: Text = None
    parent: Text = None
    workflow_id: Text = None
    correlation_id: Text = None
    error_code: Text = None
    letter: Letter | None = None
    label: tuple[Label, ...] = ()
    created_from: datetime | None = None
    created_until: datetime | None = None
    before: JobId | None = None
    limit: Thousand = 100


class ReadJob(Request[R_co], frozen=True, kw_only=True):
    """A read of one job."""

    scope, group = Scope.READ, "jobs"
    job: Which


class GetJob(ReadJob[Job], frozen=True, kw_only=True):
    """Read a job, after up to `wait` seconds if it has not ended."""

    path, reply = "/v1/jobs/{job}", JobView
    wait: Wait = 0.0


class GetJobInDialect(ReadJob[Rendered], frozen=True, kw_only=True):
    """Read a job in the words of one of the five seeds."""

    path, reply = "/v1/jobs/{job}", Rendered
    dialect: DialectName
    wait: Wait = 0.0


class GetHistory(ReadJob[EventPage], frozen=True, kw_only=True):
    """Read a job's history after a revision, in pages of about 4 MiB; `next` continues."""

    path, reply = "/v1/jobs/{job}/history", EventPage
    after: Revision = 0
    limit: Thousand = 1000


class GetHistoryInDialect(ReadJob[Rendered], frozen=True, kw_only=True):
    """Read a job's whole history, without bodies, in the words of one of the five seeds."""

    path, reply = "/v1/jobs/{job}/history", Rendered
    dialect: DialectName


class AwaitEvents(ReadJob[list[ReadEvent]], frozen=True, kw_only=True):
    """Read some events of a job after a revision; if there are none, wait for one."""

    after: int = 0
    wait_seconds: float = 0.0


class GetProgress(ReadJob[ProgressView], frozen=True, kw_only=True):
    """Read the last progress that a job's handler reported."""

    path, reply = "/v1/jobs/{job}/progress", ProgressView


class GetLogs(ReadJob[Log], frozen=True, kw_only=True):
    """Read a job's log: what its handler wrote by `ctx.log`, or what its command printed.

    The newest thousand lines of a handler are kept, and the first 50 MB of a command. With
    `Accept: text/event-stream`, lines are sent as they come until the job has ended; the id of each
    is its position. 204 if the job has ended and `Last-Event-ID` names its last line.
    """

    path = "/v1/jobs/{job}/logs"
    reply, also = Log, ((204, None),)
    media = STREAMED
    after: Annotated[int, Meta(ge=0, le=2**62)] = 0
    limit: Annotated[int, Meta(ge=1, le=LOG_LINES)] = LOG_LINES
    tail: Annotated[int, Meta(ge=1, le=MOST_TAIL)] | None = None
    """Start this many lines before the end."""
    stream: OutputStream | None = None
    """Only what a command printed to it."""
    last_event_id: LastEventId = None


class GetOutput(ReadJob[Output], frozen=True, kw_only=True):
    """Read the last lines that a command printed as one text, of at most about 1 MB."""

    path, reply = "/v1/jobs/{job}/output", Output
    tail: Annotated[int, Meta(ge=1, le=MOST_TAIL)] = 100


class ListArtifacts(ReadJob[ArtifactList], frozen=True, kw_only=True):
    """List the files that a command left in /artifacts; 409 before its job has ended."""

    path, reply = "/v1/jobs/{job}/artifacts", ArtifactList


class GetArtifact(ReadJob[ReadableArtifact], frozen=True, kw_only=True):
    """Read one file that a command left in /artifacts. The slashes of `name` may be plain.

    Takes `Range` (one range; several are answered with the whole file), `If-Range` and
    `If-None-Match`; the `ETag` is the SHA-256 of the file.
    """

    path = "/v1/jobs/{job}/artifacts/{name}"
    reply, also, media = str, ((206, str), (304, None)), ("application/octet-stream",)
    name: str
    """Its path below /artifacts."""


class GetResult(ReadJob[JobOutcome | Job], frozen=True, kw_only=True):
    """Wait up to `wait` seconds for a job's outcome; 202 and the job if it has not ended.

    If a job was retried as a new job, this is the outcome of the last of them.
    """

    path = "/v1/jobs/{job}/result"
    reply, also = Result, ((202, JobView),)
    wait: Wait = 0.0


class ExplainJob(ReadJob[Why], frozen=True, kw_only=True):
    """Explain what a job is doing, why it is not running, and who caused that."""

    path, reply = "/v1/jobs/{job}/why", Explanation


class GetLineage(ReadJob[Lineage], frozen=True, kw_only=True):
    """Read a job's lineage: its parents, children, retries and redrives, as a tree."""

    path, reply = "/v1/jobs/{job}/lineage", Lineage


class GetJobEvents(ReadJob[EventPage], frozen=True, kw_only=True):
    """Read a job's events after a revision.

    With `Accept: text/event-stream`, events are sent as they happen until the job has ended; the id
    of each is its revision. 204 if the job has ended and `Last-Event-ID` names its last event.
    """

    path, group = "/v1/jobs/{job}/events", "events"
    reply, also = EventPage, ((204, None),)
    media = STREAMED
    after: Revision = 0
    limit: Thousand = 1000
    last_event_id: LastEventId = None


class ChangeJob(Request[Job], frozen=True, kw_only=True):
    """A change of one job."""

    method, scope, group = "POST", Scope.CONTROL, "jobs"
    reply = JobView
    job: Which
    request_id: RequestId = None
    expected_rev: ExpectedRev = None


class CancelJob(ChangeJob, frozen=True, kw_only=True):
    """Cancel a job: at once if no worker owns it, otherwise its worker is asked to stop it."""

    path, body_name = "/v1/jobs/{job}/cancel", "Cancelling"
    hard: bool = False
    """Kill it: its worker gets no grace."""
    reason: str | None = None


class KillJob(ChangeJob, frozen=True, kw_only=True):
    """Cancel a job, as `POST …/cancel` does; 409 if it has ended otherwise than by a cancel."""

    method, path = "DELETE", "/v1/jobs/{job}"


class SendSignal(ChangeJob, frozen=True, kw_only=True):
    """Send a signal to a job. If the job does not wait for it yet, it is kept."""

    path, body_name = "/v1/jobs/{job}/signal", "Signalling"
    operation_name = "signal_job"
    name: str
    payload: Raw = field(default_factory=lambda: NOTHING)
    """Any JSON."""


class ResolveStep(ChangeJob, frozen=True, kw_only=True):
    """Record whether an interrupted step took effect, so that the job can continue."""

    path, body_name = "/v1/jobs/{job}/resolve", "Resolving"
    step: str
    happened: bool
    result: Any = None
    force: bool = False
    """Also if the job does not wait for it."""


class HoldJob(ChangeJob, frozen=True, kw_only=True):
    """Keep a job from being claimed until the hold is lifted."""

    path, body_name = "/v1/jobs/{job}/hold", "Holding"
    hold: str = OPERATOR_HOLD
    reason: str | None = None


class UnholdJob(ChangeJob, frozen=True, kw_only=True):
    """Lift a hold; other holds of the job stay."""

    path, body_name = "/v1/jobs/{job}/unhold", "Holding"
    hold: str = OPERATOR_HOLD
    reason: str | None = None


class RescheduleJob(ChangeJob, frozen=True, kw_only=True):
    """Make a job that has no owner due after `delay`, or at `run_at`."""

    path, body_name = "/v1/jobs/{job}/reschedule", "Rescheduling"
    delay: WrittenSpan | None = None
    run_at: datetime | None = None
    reason: str | None = None


class ListApprovals(Request[RequestedApprovals], frozen=True, kw_only=True):
    """List jobs that await the approval of people, by rule, the oldest first.

    A page looks at a bounded number of jobs: it may be short, or empty, and still have a `next`.
    """

    path, scope, group = "/v1/approvals", Scope.READ, "approvals"
    reply = RequestedApprovals
    after: Annotated[str, Meta(min_length=1, max_length=400)] | None = None
    limit: Thousand = 100


class ApproveJob(ChangeJob, frozen=True, kw_only=True):
    """Approve a job that awaits it; the last approval admits it.

    Refused for who submitted it, or a job that it descends from, and for who has approved it.
    """

    path, body_name = "/v1/jobs/{job}/approve", "Approving"
    scope, group = Scope.APPROVE, "approvals"
    reason: str | None = None


class DenyJob(ChangeJob, frozen=True, kw_only=True):
    """Deny a job that awaits an approval: it ends, and does not run."""

    path, body_name = "/v1/jobs/{job}/deny", "Denying"
    scope, group = Scope.APPROVE, "approvals"
    reason: str | None = None


class ExplainPolicy(ReadJob[JobPolicy], frozen=True, kw_only=True):
    """Read what was decided on a job, and how each rule of the policy sees it."""

    path, group = "/v1/jobs/{job}/policy", "policy"
    reply = JobPolicy


class GetPolicy(Request[PolicyBookView], frozen=True, kw_only=True):
    """Read the policy that is applied, or the one with a digest."""

    path, scope, group = "/v1/policy", Scope.POLICY, "policy"
    reply, for_tenant = PolicyBookView, False
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{1,64}$")] | None = None


class ListPolicies(Request[PolicyHistory], frozen=True, kw_only=True):
    """List which policy was applied or removed when, newest first."""

    path, scope, group = "/v1/policy/history", Scope.POLICY, "policy"
    reply, for_tenant = PolicyHistory, False
    limit: Thousand = 100


class ApplyPolicy(Request[PolicyBookView], frozen=True, kw_only=True):
    """Apply a policy: from then on every new job is judged by it. `text: null` removes it.

    Applying the same again changes nothing.
    """

    method, path, scope, group = "POST", "/v1/policy", Scope.APPLY, "policy"
    reply, for_tenant = PolicyBookView, False
    policy: Annotated[WantedPolicy, WholeBody()]


class FilterLetters(Request[R_co], frozen=True, kw_only=True):
    """A read of the dead letters that match a filter."""

    scope, group = Scope.READ, "dead letters"
    letter: Letter = Letter.OPEN
    queue: Text = None
    task: Text = None
    tenant: Text = None
    error_code: Text = None
    created_from: datetime | None = None
    created_until: datetime | None = None


class ListLetters(FilterLetters[LetterPage], frozen=True, kw_only=True):
    """List dead letters, newest job first."""

    path, reply = "/v1/dead-letters", LetterPage
    before: JobId | None = None
    limit: Thousand = 50


class CountLetters(FilterLetters[Counted], frozen=True, kw_only=True):
    """Count dead letters."""

    path, reply = "/v1/dead-letter-count", Counted


class GetLetter(ReadJob[DeadLetterView], frozen=True, kw_only=True):
    """Read a dead letter: why and where the job failed, its attempts, and how it was settled."""

    path, group = "/v1/dead-letters/{job}", "dead letters"
    reply = DeadLetterView


class RedriveLetter(ChangeJob, frozen=True, kw_only=True):
    """Submit a failed or dead-lettered job again, as a new job that resumes from its records.

    A repeated redrive returns the same job.
    """

    path, body_name = "/v1/dead-letters/{job}/redrive", "Redriving"
    group = "dead letters"
    queue: str | None = None
    retries: int | None = None
    delay_seconds: float = 0.0
    from_start: bool = False
    """Start over, instead of resuming from the recorded steps."""
    again: bool = False
    """Also if it was redriven or discarded before."""
    reason: str | None = None


class DiscardLetter(ChangeJob, frozen=True, kw_only=True):
    """Discard an open letter; the job stays as it is."""

    path, body_name = "/v1/dead-letters/{job}/discard", "Discarding"
    group = "dead letters"
    reason: str | None = None


class SettleLetters(Request[Settled], frozen=True, kw_only=True):
    """Settle the open letters that match a filter, newest job first; `next` continues."""

    method, scope, group = "POST", Scope.CONTROL, "dead letters"
    reply = Settled
    tenant: str | None = None
    queue: str | None = None
    task: str | None = None
    error_code: str | None = None
    created_from: datetime | None = None
    created_until: datetime | None = None
    before: JobId | None = None
    """Continue after this job: the `next` of the previous answer."""
    limit: int = BULK
    """The maximum of letters, up to 1,000 in one request."""


class RedriveLetters(SettleLetters, frozen=True, kw_only=True):
    """Redrive the open letters that match a filter, up to a limit; `next` continues."""

    path, body_name = "/v1/dead-letters/redrive", "RedrivingAll"
    to_queue: str | None = None
    retries: int | None = None
    delay_seconds: float = 0.0
    from_start: bool = False
    """Start over, instead of resuming from the recorded steps."""
    reason: str | None = None


class DiscardLetters(SettleLetters, frozen=True, kw_only=True):
    """Discard the open letters that match a filter, up to a limit; `next` continues."""

    path, body_name = "/v1/dead-letters/discard", "DiscardingAll"
    reason: str | None = None


class ListQueues(Request[Queues], frozen=True, kw_only=True):
    """List queues with their number of jobs by state, and whether they are paused."""

    path, scope, group = "/v1/queues", Scope.READ, "queues"
    reply = Queues


class ChangeQueue(Request[QueueStatus], frozen=True, kw_only=True):
    """A change of one queue, for all tenants."""

    method, scope, group = "POST", Scope.QUEUES, "queues"
    reply, body_name = QueueStatus, "Pausing"
    queue: str
    reason: str | None = None
    request_id: RequestId = None


class PauseQueue(ChangeQueue, frozen=True, kw_only=True):
    """Stop claims from a queue; running jobs continue."""

    path = "/v1/queues/{queue}/pause"


class ResumeQueue(ChangeQueue, frozen=True, kw_only=True):
    """Allow claims from a queue again."""

    path = "/v1/queues/{queue}/resume"


class ListWorkers(Request[Roll], frozen=True, kw_only=True):
    """List live, silent and ended workers, the most recently seen first."""

    path, scope, group = "/v1/workers", Scope.READ, "queues"
    reply = Roll
    seen_since: datetime | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100


class GetClock(Request[ClockView], frozen=True, kw_only=True):
    """Read the store's clock, which decides when leases and deadlines expire."""

    path, scope, group = "/v1/clock", Scope.READ, "queues"
    reply, operation_name = ClockView, "tell_clock"


class GetStats(Request[Stats], frozen=True, kw_only=True):
    """Count jobs by state, queues and workers."""

    path, scope, group = "/v1/stats", Scope.READ, "stats"
    reply = Stats


class GetEvents(Request[FeedPage], frozen=True, kw_only=True):
    """Read events of all jobs of a tenant, without heartbeats and bodies.

    `after` is a cursor from an earlier answer, or `start`; the default is now. With
    `Accept: text/event-stream`, events are sent as they happen.
    """

    path, scope, group = "/v1/events", Scope.READ, "events"
    reply = FeedPage
    media = STREAMED
    tenant: Text = None
    queue: Text = None
    task: Text = None
    type: tuple[EventType, ...] = ()
    after: Annotated[str, Meta(min_length=1, max_length=400)] | None = None
    limit: Thousand = 1000
    last_event_id: LastEventId = None


class AddWebhook(Request[MadeWebhook], frozen=True, kw_only=True):
    """Create a webhook, which is notified when jobs end. Its secret is only in this answer.

    200, `created: false` and no secret if it already exists; for a new secret, remove it first.
    """

    method, path, scope, group = "POST", "/v1/webhooks", Scope.WEBHOOKS, "webhooks"
    reply, also = MadeWebhook, ((201, MadeWebhook),)
    webhook: Annotated[WantedWebhook, WholeBody()]


class ListWebhooks(Request[WebhookList], frozen=True, kw_only=True):
    """List webhooks, newest first."""

    path, scope, group = "/v1/webhooks", Scope.WEBHOOKS, "webhooks"
    reply = WebhookList
    before: Annotated[str, Meta(pattern=WEBHOOK_CURSOR)] | None = None
    limit: Thousand = 100


class GetWebhook(Request[WebhookView], frozen=True, kw_only=True):
    """Read a webhook, also one that was removed."""

    path, scope, group = "/v1/webhooks/{webhook}", Scope.WEBHOOKS, "webhooks"
    reply = WebhookView
    webhook: str


class RemoveWebhook(Request[WebhookView], frozen=True, kw_only=True):
    """Remove a webhook; messages that are not delivered yet are dropped."""

    method, path, scope = "DELETE", "/v1/webhooks/{webhook}", Scope.WEBHOOKS
    reply, group = WebhookView, "webhooks"
    webhook: str


class CreateUpload(Request[UploadView], frozen=True, kw_only=True):
    """Create an upload: files for jobs, which name it as their `files_id`.

    Write to it, then finalize it. It expires 30 minutes after the last byte unless it is finalized.
    """

    method, path, scope, group = "POST", "/v1/uploads", Scope.SUBMIT, "uploads"
    reply, status, body_name = UploadView, 201, "CreatingUpload"
    tenant: Text = None
    """Only for a caller that acts for all tenants; by default the caller's own."""


class ListUploads(Request[UploadList], frozen=True, kw_only=True):
    """List uploads, newest first."""

    path, scope, group = "/v1/uploads", Scope.READ, "uploads"
    reply = UploadList
    before: Annotated[str, Meta(pattern="^[0-9a-zA-Z]{1,40}$")] | None = None
    limit: Thousand = 100


class GetUpload(Request[UploadView], frozen=True, kw_only=True):
    """Read an upload, for a day also one whose files are gone."""

    path, scope, group = "/v1/uploads/{upload}", Scope.READ, "uploads"
    reply = UploadView
    upload: str


class FinalizeUpload(Request[UploadView], frozen=True, kw_only=True):
    """Read and accept what was uploaded; it does not change any more, and jobs may start with it.

    A repetition with the same Idempotency-Key returns the same answer, any other is refused.
    """

    method, path, scope = "POST", "/v1/uploads/{upload}/finalize", Scope.SUBMIT
    reply, group, body_name = UploadView, "uploads", "Finalizing"
    upload: str
    request_id: RequestId = None


class DeleteUpload(Request[UploadView], frozen=True, kw_only=True):
    """Delete an upload and its files; jobs that wait for it end.

    Refused while a job that has not ended may need its files.
    """

    method, path, scope = "DELETE", "/v1/uploads/{upload}", Scope.SUBMIT
    reply, group = UploadView, "uploads"
    upload: str


class WritePart(Request[UploadView], frozen=True, kw_only=True):
    """Write a part of an upload; one that is there is replaced, as a whole or not at all."""

    method, scope, group = "PUT", Scope.SUBMIT, "uploads"
    reply = UploadView
    upload: str
    announced: Annotated[int | None, InHeader("Content-Length")] = None
    """How many bytes there are, where that is known: too many are refused before they are read."""
    digest: Annotated[str | None, InHeader("Content-Digest")] = None
    """Their SHA-256 in hexadecimal, where that is known: other ones are refused."""


class WriteUpload(WritePart, frozen=True, kw_only=True):
    """Write all files of an upload as one tar archive, not compressed.

    What is in it is checked when the upload is finalized.
    """

    path = "/v1/uploads/{upload}/content"
    data: Annotated[AsyncIterable[bytes], StreamedBody((BYTES, "application/x-tar"))]


class WriteUploadFile(WritePart, frozen=True, kw_only=True):
    """Write one file of an upload, under a relative path. The slashes of `name` may be plain."""

    path = "/v1/uploads/{upload}/files/{name}"
    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    """Where the file is to be in /work, such as `src/main.py`."""
    data: Annotated[AsyncIterable[bytes], StreamedBody((BYTES,))]


class CreateToken(Request[MadeToken], frozen=True, kw_only=True):
    """Create a token. Its secret is only in this answer; if that is lost, revoke the token."""

    method, path, scope, group = "POST", "/v1/tokens", Scope.TOKENS, "tokens"
    reply, status, for_tenant = MadeToken, 201, False
    token: Annotated[WantedToken, WholeBody()]


class ListTokens(Request[TokenList], frozen=True, kw_only=True):
    """List tokens, newest first, including revoked and expired ones."""

    path, scope, group = "/v1/tokens", Scope.TOKENS, "tokens"
    reply, for_tenant = TokenList, False
    before: Annotated[str, Meta(pattern="^[0-9a-f]{1,40}$")] | None = None
    limit: Thousand = 100


class RevokeToken(Request[TokenView], frozen=True, kw_only=True):
    """Revoke a token permanently; servers notice within two seconds."""

    method, path, scope = "DELETE", "/v1/tokens/{token}", Scope.TOKENS
    reply, for_tenant, group = TokenView, False, "tokens"
    token: str
