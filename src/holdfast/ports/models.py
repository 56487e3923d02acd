"""What goes into a store and comes out of it: requests, rows and outcomes as plain values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TypeAlias

from msgspec import Struct, structs

from holdfast.errors import JobBusy
from holdfast.lifecycle.clock import ClockStep
from holdfast.lifecycle.holds import UNADMITTED
from holdfast.lifecycle.plan import Plan, plan_success
from holdfast.lifecycle.record import (
    PENDING_SIGNALS,
    Change,
    Created,
    Job,
    JobId,
    LoggedEvent,
)
from holdfast.lifecycle.states import KeyKind, Letter, State
from holdfast.lifecycle.times import SECOND

WORKER_SILENCE = 30 * SECOND
"""After this long unseen a worker counts as dead; a live one announces itself far more often."""
WORKER_MEMORY = 7 * 24 * 3600 * SECOND
"""How long a worker is remembered after it was last seen."""
LOG_LINES = 1000
"""Lines of a job's log that are kept: the newest."""
LOG_TEXT = 4000
"""Maximum characters of a line."""
HIGHEST_LEVEL = 1000
"""Maximum level of a line; Python's own levels end at 50."""


class Submitted(Struct, frozen=True, gc=False):
    """The job that a submit led to: its own, or the one that already held its key."""

    job: Job
    created: bool
    note: str | None = None
    """What the submitter of a new job should know: what was limited of what it asked for."""


class SubmitRefused(Struct, frozen=True, kw_only=True):
    """A submit that was not accepted; the others of its batch were."""

    code: str
    message: str
    holder: JobId | None = None


SubmitOutcome: TypeAlias = Submitted | SubmitRefused


class Limits(Struct, frozen=True, kw_only=True):
    """How many names a tenant's jobs may have, signals a job may keep, and bytes uploads may have.

    Names of ended jobs count while those jobs are kept. A submit that brings one name too many is
    refused with `too_many_names`, a signal with `too_many_signals`. A lowered limit keeps what
    there is.
    """

    queues: int = 1000
    """Names of queues."""
    needs: int = 100
    """Sets of needs."""
    signals: int = PENDING_SIGNALS
    """Signals of one job that no wait has consumed."""
    upload_bytes: int = 2 * 1000**3
    """Bytes of one upload."""
    tenant_upload_bytes: int = 10 * 1000**3
    """Bytes of all uploads of a tenant whose files are not removed."""


class Capacity(Struct, frozen=True):
    """What a worker's host has left for jobs that ask for it, and in all."""

    cpus: int
    memory_mb: int
    total_cpus: int | None = None
    total_memory_mb: int | None = None
    """None where the host's size is unknown: then it is never drained for a large job."""
    patience: int = 60 * SECOND
    """How long a job that fits the empty host is passed over for smaller ones, in microseconds."""


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """What a worker wants. The same `request_id` again returns the same claim while it is held."""

    request_id: str
    owner: str
    queues: tuple[str, ...]
    limit: int
    tasks: tuple[str, ...] | None = None
    """The tasks that it has, each as `name` or `name@version`: it gets no job of another task or
    version. None takes any, for a worker that can run or hand on every job."""
    tenant: str | None = None
    """None takes any tenant's."""
    capabilities: frozenset[str] = frozenset()
    capacity: Capacity | None = None
    """None takes any job; otherwise only jobs that fit, within a bounded look-ahead. One that has
    lost its patience ends the look: nothing behind it is claimed until there is room for it."""
    lookahead: int = 100


class ClaimGroup(Struct, eq=False, dict=True):
    """What jobs that were claimed alike have in common, made once for all of them."""

    created: Created
    """What their submitter asked for."""
    like: Job
    """The record of any of them, but for its id and its times."""
    jobs: int = 1
    """How many they are."""
    run_terms: object = None
    """What the worker that claimed them has worked out for all of them."""

    @cached_property
    def plan(self) -> Plan | None:
        """What the law makes of their plain start and success; None where theirs is not plain.

        One job alone has none: it is decided as quickly by itself.
        """
        return plan_success(self.like) if self.jobs > 1 else None


class Claimed(Struct, gc=False):
    """A job under lease, with what its submitter asked for.

    A claim brings many: each keeps what is its own, and its record is made when it is asked for.
    """

    group: ClaimGroup
    id: JobId
    body: bytes | None
    correlation_id: str | None
    created_at: int
    updated_at: int
    run_at: int | None
    deadline_at: int | None
    _job: Job | None = None

    @property
    def created(self) -> Created:
        """What its submitter asked for."""
        return self.group.created

    @property
    def job(self) -> Job:
        """The record as it was claimed."""
        job = self._job
        if job is None:
            like = self.group.like
            policy, at = like.policy, self.updated_at
            job = self._job = structs.replace(
                like,
                id=self.id,
                created_at=self.created_at,
                updated_at=at,
                run_at=self.run_at,
                deadline_at=self.deadline_at,
                lease_expires_at=at + policy.lease,
                timeout_at=None if policy.start_timeout is None else at + policy.start_timeout,
            )
        return job

    def with_record(self, job: Job) -> Claimed:
        """Return the same job with another record."""
        return claimed_as(job, self.created, self.body, self.correlation_id)


def claimed_as(
    job: Job, created: Created, body: bytes | None, correlation_id: str | None = None
) -> Claimed:
    """Return a claimed job whose record is at hand: it has nothing in common with another."""
    return Claimed(
        ClaimGroup(created, job),
        job.id,
        body,
        correlation_id,
        job.created_at,
        job.updated_at,
        job.run_at,
        job.deadline_at,
        job,
    )


class Committed(Struct, frozen=True, gc=False):
    """The write is in the ledger. `job` is the record as it was written.

    `repeated`: it had landed before, and its reply was lost.
    """

    job: Job
    repeated: bool = False


class Lost(Struct, frozen=True, gc=False):
    """The compare-and-set missed. Nothing was written.

    `current` has the revision that was expected if it was the lease that had passed.
    """

    current: Job | None


class Rejected(Struct, frozen=True, kw_only=True):
    """The database refused this one row; the others of its batch were written."""

    code: str
    message: str

    @property
    def busy(self) -> bool:
        """Whether the same change may be accepted later: its row was merely locked."""
        return self.code == JobBusy.code


Outcome: TypeAlias = Committed | Lost | Rejected


class PlannedOutcome(Struct, frozen=True):
    """What became of planned ends."""

    now: int
    """When those that were written were, by the store's clock."""
    missed: Collection[JobId] = ()
    """Those that were not written."""


DecideLocked: TypeAlias = Callable[[Job, Sequence[LoggedEvent]], Sequence[Change]]
"""Returns the changes to commit, given a job's current record and the events that led to it."""
LOCKED_EVENTS = 1000
"""Maximum number of events that a locked commit reads."""


class Query(Struct, frozen=True, kw_only=True):
    """Which jobs to list, newest first. `before` is the cursor: the last id of the page before."""

    tenant: str | None = None
    states: tuple[State, ...] = ()
    queue: str | None = None
    task: str | None = None
    parent_id: JobId | None = None
    workflow_id: str | None = None
    correlation_id: str | None = None
    error_code: str | None = None
    letter: Letter | None = None
    labels: tuple[tuple[str, str], ...] = ()
    """Names with their values; a job must have all of them. No index knows them."""
    created_from: int | None = None
    created_until: int | None = None
    before: JobId | None = None
    limit: int = 100
    look: int | None = None
    """Maximum jobs to scan where no index covers the filter; None means no limit. A page may then
    hold fewer jobs than its limit, or none, and still have a next one."""


class Page(Struct, frozen=True):
    """Jobs in a stable order; `next` continues after them, None is the end."""

    jobs: list[Job]
    next: JobId | None
    unreadable: list[JobId] = []
    """Damaged jobs that belong here and were left out."""


class EventQuery(Struct, frozen=True, kw_only=True):
    """Events across jobs, oldest first, found by type and time or by correlation id (B19)."""

    type: int | None = None
    correlation_id: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 1000


class Tail(Struct, frozen=True, kw_only=True):
    """A stretch of all events in an order that never gains an event behind the cursor.

    Cursors are compared as texts: what comes later is greater.
    """

    events: list[LoggedEvent]
    cursors: list[str]
    """For each event the cursor that continues right behind it."""
    cursor: str
    held_back_by: int | None = None
    """The process id of the transaction that keeps newer events from showing."""


class Due(Struct, frozen=True, kw_only=True):
    """What is due, as of the store's clock `now` and epoch."""

    now: int
    epoch: int
    jobs: list[Job]
    more: bool = False
    """The limit was reached: there may be more than what is listed."""


class Aged(Struct, frozen=True):
    """Ended jobs that a janitor may look at; `next` continues behind all that was looked at."""

    jobs: list[Job]
    next: JobId | None
    """None is the end."""


class Purgeable(Struct, frozen=True):
    """Ended jobs that may be purged; `next` continues behind all that was looked at."""

    jobs: list[Job]
    linked: frozenset[JobId]
    """Those of them to which another job is linked: they stay until that one is purged."""
    next: JobId | None
    """None is the end."""


class PurgedJob(Struct, frozen=True, kw_only=True):
    """What is left of a job that was purged."""

    id: JobId
    tenant: str
    at: int
    actor: str


class PurgeEntry(Struct, frozen=True, kw_only=True):
    """One entry of the ledger of purges: a batch of jobs that were removed whole."""

    number: int
    at: int
    actor: str
    reason: str | None
    jobs: int
    events: int


class Mark(Struct, frozen=True):
    """A note that a job's family has to be looked at. Each note has a number of its own."""

    number: int
    id: JobId
    """The parent."""


class Quarantined(Struct, frozen=True, kw_only=True):
    """A job that was set aside because its row or events are damaged."""

    id: JobId
    since: int
    reason: str


class Quarantine(Struct, frozen=True):
    """Jobs that are set aside, by id, and how many there are in all."""

    jobs: list[Quarantined]
    total: int


class Count(Struct, frozen=True):
    """How many jobs of a tenant and queue stand in a state."""

    tenant: str
    queue: str
    state: State
    jobs: int


class QueueStatus(Struct, frozen=True, kw_only=True):
    """A queue that was ever paused, and who paused it."""

    name: str
    paused_at: int | None = None
    paused_by: str | None = None
    reason: str | None = None


class QueueEvent(Struct, frozen=True, kw_only=True):
    """One entry of the queues' own ledger."""

    queue: str
    type: str
    at: int
    actor: str
    reason: str | None = None
    request_id: str | None = None


class Announcement(Struct, frozen=True, kw_only=True):
    """What a worker reports about itself. Its name is new at every start of its process."""

    name: str
    """The owner's name that its claims are written under."""
    queues: tuple[str, ...]
    capabilities: frozenset[str] = frozenset()
    tasks: tuple[str, ...] = ()
    """Each as `name` or `name@version`."""
    host: str
    pid: int
    concurrency: int
    cpus: int | None = None
    memory_mb: int | None = None
    """What its host has for commands in all; None for a worker that runs none."""
    free_cpus: int | None = None
    free_memory_mb: int | None = None
    """What of that no job uses, as of this announcement."""


class WorkerStatus(Announcement, frozen=True, kw_only=True):
    """A worker as it was last seen, by the store's clock."""

    started_at: int
    seen_at: int
    stopped_at: int | None = None
    """When it ended in order; one that was killed only falls silent."""

    def is_live(self, now: int) -> bool:
        """Return whether it has neither ended nor fallen silent."""
        return self.stopped_at is None and now - self.seen_at < WORKER_SILENCE


class LogEntry(Struct, frozen=True, kw_only=True):
    """What a handler logged by `ctx.log`, at a time of its worker's clock."""

    id: JobId
    attempt: int
    at: int
    level: int
    """As Python's logging counts: 20 is INFO, 40 is ERROR."""
    message: str


class LogLine(LogEntry, frozen=True, kw_only=True):
    """A line of a job's log. `position` rises from line to line, and continues a reading."""

    position: int


class NewToken(Struct, frozen=True, kw_only=True):
    """A token to be kept: what it is for, and the SHA-256 of its secret."""

    id: str
    """Later tokens have higher ids."""
    name: str
    digest: bytes
    role: str
    tenant: str | None = None
    """None: for all of them."""
    queues: tuple[str, ...] | None = None
    """None: for all of them."""
    created_by: str
    lifetime: int | None = None
    """Microseconds until it expires; None: never."""


class Token(Struct, frozen=True, kw_only=True):
    """A token as it is kept, its times by the store's clock."""

    id: str
    name: str
    digest: bytes
    role: str
    tenant: str | None
    queues: tuple[str, ...] | None
    created_at: int
    created_by: str
    expires_at: int | None
    revoked_at: int | None
    revoked_by: str | None


class AppliedPolicy(Struct, frozen=True, kw_only=True):
    """Rules that are, or were, applied: their text, and when and by whom that was last done."""

    digest: str
    body: str
    applied_at: int
    applied_by: str
    reason: str | None


class PolicyEvent(Struct, frozen=True, kw_only=True):
    """An entry in the ledger of policies: `applied` or `removed`."""

    type: str
    digest: str | None
    at: int
    actor: str
    reason: str | None


class NewWebhook(Struct, frozen=True, kw_only=True):
    """A webhook to be kept: where to report the ends of which jobs."""

    id: str
    """Later webhooks have higher ids. Another tenant may have the same."""
    tenant: str
    url: str
    secret: str
    """What its messages are signed with."""
    states: frozenset[State] | None = None
    """None: every end."""
    queue: str | None = None
    """None: of all queues."""
    task: str | None = None
    """None: of all tasks."""
    created_by: str


class Webhook(Struct, frozen=True, kw_only=True):
    """A webhook as it is kept, its times by the store's clock."""

    id: str
    tenant: str
    url: str
    secret: str | None
    """None once it is removed."""
    states: frozenset[State] | None
    queue: str | None
    task: str | None
    created_at: int
    created_by: str
    removed_at: int | None
    removed_by: str | None

    @property
    def key(self) -> tuple[str, str]:
        """Which one it is: an id is a tenant's own."""
        return self.id, self.tenant

    def reports(self, job: Job) -> bool:
        """Return whether it is called when this job ends."""
        return self._is_about(job) and (self.states is None or job.state in self.states)

    def reports_request(self, job: Job) -> bool:
        """Return whether it is called when an approval of this job is requested."""
        return self._is_about(job) and self.receives_requests

    @property
    def receives_requests(self) -> bool:
        """Whether it is called when approvals are requested: by the state that jobs are in then."""
        return self.states is not None and self.states >= UNADMITTED

    def _is_about(self, job: Job) -> bool:
        return (
            self.removed_at is None
            and job.tenant == self.tenant
            and self.queue in (None, job.queue)
            and self.task in (None, job.task)
        )


class KeyRow(Struct, frozen=True, kw_only=True):
    """A key as it is stored."""

    tenant: str
    kind: KeyKind
    key: str
    digest: bytes


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """A job row and all its events, read in one snapshot. Either may be missing: that is damage."""

    id: JobId
    row: Job | None
    unreadable: str | None = None
    """Why the row or an event could not be read at all."""
    events: list[LoggedEvent]
    keys: list[KeyRow]
    holds: frozenset[str] = frozenset()
    """The holds that it is listed under: see `lifecycle.holds`."""
    unclaimed: bool = False
    """It has an owner, and no claim of that owner names it: no sweep would notice a lost lease."""
    quarantined: str | None = None
    """Why it is set aside, if it is."""
    purged: bool = False
    """It was purged: nothing but its `job_id` and `request_id` may be left."""


class Clock(Struct, frozen=True):
    """The store's clock and epoch."""

    now: int
    epoch: int
    ahead: int = 0
    """How far it is ahead of its machine's clock, which was set back."""
    step: ClockStep | None = None
    """When that was last noticed, and by how much."""
