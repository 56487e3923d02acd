"""Everything that can be done with jobs from outside, wherever they are kept.

An app, the command line and the HTTP server say these words to a store at hand (`local`), a client
says them to a server (`client`). Whoever holds an `Operations` acts as one actor for one tenant,
or for all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from msgspec import Meta, Raw, Struct, field
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.flow.history import ReadEvent
from holdfast.flow.intervene import OPERATOR_HOLD
from holdfast.flow.letters import DeadLetter, LetterFilter, LetterPage
from holdfast.flow.lineage import Lineage
from holdfast.flow.outcomes import Outcome
from holdfast.flow.redrive import AS_IT_WAS, Settled, Wish
from holdfast.flow.why import Why
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.states import State
from holdfast.ports import LogLine, Page, Query, QueueStatus, Submitted, WorkerStatus
from holdfast.spans import Span
from holdfast.views import PolicyView
from holdfast.webhooks import MadeWebhook, WantedWebhook, WebhookList, WebhookView

BULK = 1000
"""How many letters one call settles at most."""

Spoken: TypeAlias = str | float
"""A span as text ("5m") or in seconds."""
Which: TypeAlias = JobId | str
"""A job by its internal id, or by any text that its tenant knows it by."""


class Growth(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to wait before the next try: `first`, then `factor` times as long, up to `max`."""

    first: Spoken = 0.5
    factor: float = 2.0
    max: Spoken = 60.0


class Wanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job as it is asked for from outside: a task by its name, and what `options(…)` takes."""

    task: str
    args: Annotated[Raw, Meta(extra_json_schema={"type": "object"})] = field(
        default_factory=lambda: Raw(b"{}")
    )
    """A JSON object of named arguments."""
    tenant: str | None = None
    """Only for whoever acts for all tenants; else it is the asker's own."""
    task_version: str | None = None
    """Only workers that have the task in this version may claim it. None: as the task says."""
    queue: str | None = None
    priority: Literal["critical", "interactive", "batch"] | None = None
    needs: tuple[str, ...] | None = None
    delay: Spoken | None = None
    run_at: datetime | None = None
    deadline: Spoken | None = None
    deadline_at: datetime | None = None
    policy: PolicyView | None = None
    """All terms at once, as a job tells them: what else is said changes them."""
    retries: int | None = None
    backoff: Spoken | Growth | None = None
    """A span alone does not grow."""
    timeout: Spoken | None = None
    start_timeout: Spoken | None = None
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


class Depth(Struct, frozen=True, kw_only=True):
    """A queue: how many jobs are in which state, and whether it is paused."""

    queue: str
    jobs: dict[State, int]
    paused_at: int | None = None
    paused_by: str | None = None
    reason: str | None = None


class Roll(Struct, frozen=True, kw_only=True):
    """Workers, the most recently seen first, as of `now` on the store's clock."""

    now: int
    workers: list[WorkerStatus]


class Ending(Struct, frozen=True, kw_only=True):
    """A job that has ended, and what came of it: of one that was tried again, by its last try."""

    job: Job
    outcome: Outcome


Answer: TypeAlias = Submitted | HoldfastError
"""What became of one of many: the job it led to, or why not."""


class Progress(Struct, frozen=True, kw_only=True):
    """How far a job is, as its handler last reported it."""

    value: Any
    at: int
    """When that was, by the store's clock."""
    attempt: int
    rev: int


class Operations(Protocol):
    """What can be done with jobs. NoSuchJob also where a job is another tenant's.

    A `request_id` makes a repetition harmless; an `expected_rev` that is not the job's revision is
    refused with StaleRevision (C3).
    """

    async def now(self) -> int:
        """Tell the store's clock."""

    async def submit(self, wanted: Sequence[Wanted]) -> list[Answer]:
        """Submit jobs together; each is answered for itself, in order."""

    async def get(self, job: Which) -> Job:
        """Read a job."""

    async def find(self, query: Query) -> Page:
        """List jobs, newest first."""

    async def history(self, job: Which) -> list[ReadEvent]:
        """Read a job's whole history, each event complete in itself."""

    async def events_after(
        self, job: Which, *, after: int = 0, wait_seconds: float = 0.0
    ) -> list[ReadEvent]:
        """Read some events of a job after a revision; if there are none, wait so long for one."""

    async def progress(self, job: Which) -> Progress | None:
        """Read how far a job is, by the last report of its handler; None if it made none."""

    async def logs(self, job: Which, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Read what a job's handler said by `ctx.log`, after a position."""

    async def ended(self, job: Which, timeout: Span | None = None) -> Job:
        """Wait until a job has ended; ResultTimeout if that takes longer."""

    async def outcome(self, job: Which, timeout: Span | None = None) -> Ending:
        """Wait until a job has come to something, by its last try; ResultTimeout as `ended`."""

    async def cancel(
        self,
        job: Which,
        *,
        hard: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Cancel a job: at once where nobody holds it, else by asking its owner."""

    async def signal(
        self,
        job: Which,
        name: str,
        body: bytes = b"null",
        *,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Send a job a signal."""

    async def resolve(
        self,
        job: Which,
        step: str,
        *,
        happened: bool,
        result: Any = None,
        force: bool = False,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Say whether a step had its effect that a job asks about."""

    async def hold(
        self,
        job: Which,
        name: str = OPERATOR_HOLD,
        *,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Keep a job from being claimed until the hold of this name is lifted."""

    async def unhold(
        self,
        job: Which,
        name: str = OPERATOR_HOLD,
        *,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Lift the hold of this name; other holds of the job stay."""

    async def reschedule(
        self,
        job: Which,
        *,
        delay: Span | None = None,
        run_at: datetime | None = None,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Make a job that has no owner due after `delay`, or at `run_at`."""

    async def why(self, job: Which) -> Why:
        """Tell why a job stands where it stands."""

    async def lineage(self, job: Which) -> Lineage:
        """Read the tree that a job stands in."""

    async def letters(
        self, letters: LetterFilter, *, before: JobId | None = None, limit: int = 50
    ) -> LetterPage:
        """List dead letters, newest job first."""

    async def letter(self, job: Which) -> DeadLetter:
        """Read one dead letter."""

    async def redrive(
        self,
        job: Which,
        *,
        wish: Wish = AS_IT_WAS,
        again: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Make a new job of a dead letter, once, and return it."""

    async def discard(
        self,
        job: Which,
        *,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Put an open letter away."""

    async def count_letters(self, letters: LetterFilter) -> int:
        """Count dead letters."""

    async def redrive_all(
        self,
        letters: LetterFilter,
        *,
        wish: Wish = AS_IT_WAS,
        reason: str | None = None,
        before: JobId | None = None,
        limit: int = BULK,
    ) -> Settled:
        """Redrive open letters, newest job first; `next` of what comes back goes on."""

    async def discard_all(
        self,
        letters: LetterFilter,
        *,
        reason: str | None = None,
        before: JobId | None = None,
        limit: int = BULK,
    ) -> Settled:
        """Put open letters away, newest job first; `next` of what comes back goes on."""

    async def queues(self) -> list[Depth]:
        """List queues by name: their depth, and whether they are paused."""

    async def pause(
        self, queue: str, *, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let no job of a queue be claimed; only for whoever acts for all tenants."""

    async def resume(
        self, queue: str, *, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let a queue's jobs be claimed again; only for whoever acts for all tenants."""

    async def workers(self, *, seen_since: int | None = None, limit: int = 1000) -> Roll:
        """List workers, live, silent and ended ones."""

    async def add_webhook(self, wanted: WantedWebhook) -> MadeWebhook:
        """Make a webhook: from now on it is told of the ends of jobs."""

    async def webhooks(self, *, before: str | None = None, limit: int = 100) -> WebhookList:
        """List webhooks, newest first."""

    async def remove_webhook(self, id: str) -> WebhookView:
        """End a webhook; what was not delivered yet is not."""


PAGE = 100


async def found(operations: Operations, query: Query, limit: int | None) -> AsyncIterator[Job]:
    """Go through jobs, newest first, page by page."""
    left = limit
    while left is None or left > 0:
        size = PAGE if left is None else min(left, PAGE)
        page = await operations.find(replace(query, limit=size))
        for job in page.jobs:
            yield job
        left = None if left is None else left - len(page.jobs)
        if page.next is None:
            return
        query = replace(query, before=page.next)
