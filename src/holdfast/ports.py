"""The ports: what the flow needs from the outside world. Adapters implement them.

A store translates and guards; it never decides. Everything comes in batches and goes out in the
same order. Times are microseconds of the store's own clock, the only one that judges.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from holdfast.errors import JobBusy
from holdfast.lifecycle.clock import ClockStep
from holdfast.lifecycle.job import (
    PENDING_SIGNALS,
    Change,
    Created,
    Job,
    JobId,
    LoggedEvent,
    NewJob,
)
from holdfast.lifecycle.states import EventType, KeyKind, Letter, State
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import SECOND

WORKER_SILENCE = 30 * SECOND
"""A worker not seen for so long passes for dead; a live one announces itself far more often."""
WORKER_MEMORY = 7 * 24 * 3600 * SECOND
"""How long a worker is remembered after it was last seen."""
LOG_LINES = 1000
"""How many lines of a job's log are kept, the newest."""
LOG_TEXT = 4000
"""Characters of a line."""
HIGHEST_LEVEL = 1000
"""Of a line; Python's own end at 50."""


class Submitted(Struct, frozen=True, gc=False):
    """The job that a submit led to: its own, or the one that already held its key."""

    job: Job
    created: bool


class SubmitRefused(Struct, frozen=True, kw_only=True):
    """A submit that was not accepted; the others of its batch were."""

    code: str
    message: str
    holder: JobId | None = None


SubmitOutcome: TypeAlias = Submitted | SubmitRefused


class Limits(Struct, frozen=True, kw_only=True):
    """How many names the jobs of one tenant may have, and how many signals a job may keep.

    Of names, those of ended jobs that are kept count, too. A submit that brings one more is refused
    with `too_many_names`, a signal with `too_many_signals`. A limit that was lowered keeps what
    there is.
    """

    queues: int = 1000
    """Names of queues."""
    needs: int = 100
    """Sets of needs."""
    signals: int = PENDING_SIGNALS
    """Signals of one job that no wait has consumed."""


class Capacity(Struct, frozen=True):
    """What a worker has left for jobs that ask for it."""

    cpus: int
    memory_mb: int


class ClaimRequest(Struct, frozen=True, kw_only=True):
    """What a worker wants. The same `request_id` again returns the same claim while it is held."""

    request_id: str
    owner: str
    queues: tuple[str, ...]
    limit: int
    tasks: tuple[str, ...] | None = None
    """The tasks that it has, each as `name` or `name@version`: no other task's job is given to it,
    nor one of another version. None takes any, for who can run or hand on whatever comes."""
    tenant: str | None = None
    """None takes any tenant's."""
    capabilities: frozenset[str] = frozenset()
    capacity: Capacity | None = None
    """None takes any job; else only what fits, within a bounded look-ahead."""
    lookahead: int = 100


class Claimed(Struct, frozen=True, kw_only=True, gc=False):
    """A job under lease, with what its submitter asked for."""

    job: Job
    created: Created
    body: bytes | None
    correlation_id: str | None = None


class Committed(Struct, frozen=True, gc=False):
    """The write is in the ledger. `job` is the record as it was written.

    `repeated`: it had landed before, its reply was lost. `jobs` of its submits, if it had any.
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
    """Of how many jobs at most it is looked whether they fit, where no index tells; None: of all.
    Then a page may have less than its limit, or nothing, and go on."""


class Page(Struct, frozen=True):
    """Jobs in a stable order; `next` continues after them, None is the end."""

    jobs: list[Job]
    next: JobId | None
    unreadable: list[JobId] = []
    """Damaged jobs that belong here and were left out."""


class EventQuery(Struct, frozen=True, kw_only=True):
    """Events across jobs, oldest first, by one of B19's look-ups: type and time, or correlation."""

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
    """Of each event: from there on, it goes on right behind it."""
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
    """That a job's family has to be looked at. Each time it is said has a number of its own."""

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
    """What a worker says of itself. Its name is new at every start of its process."""

    name: str
    """The owner's name that its claims are written under."""
    queues: tuple[str, ...]
    capabilities: frozenset[str] = frozenset()
    tasks: tuple[str, ...] = ()
    """Each as `name` or `name@version`."""
    host: str
    pid: int
    concurrency: int


class WorkerStatus(Announcement, frozen=True, kw_only=True):
    """A worker as it was last seen, by the store's clock."""

    started_at: int
    seen_at: int
    stopped_at: int | None = None
    """When it ended in order; one that was killed only falls silent."""

    def is_live(self, now: int) -> bool:
        """Whether it has neither ended nor fallen silent."""
        return self.stopped_at is None and now - self.seen_at < WORKER_SILENCE


class LogEntry(Struct, frozen=True, kw_only=True):
    """What a handler said by `ctx.log`, at a time of its worker's clock."""

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


class NewWebhook(Struct, frozen=True, kw_only=True):
    """A webhook to be kept: whom to tell of the ends of which jobs."""

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

    def tells(self, job: Job) -> bool:
        """Whether it is told of a job's end."""
        return (
            self.removed_at is None
            and job.tenant == self.tenant
            and (self.states is None or job.state in self.states)
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
    unclaimed: bool = False
    """It is held, and no claim of its owner names it: no sweep would notice a passed lease."""
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


class Jobs(Protocol):
    """Of the ledger, what a command on one job needs."""

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write each change where its revision still holds (and, if fenced, its lease is live).

        Consecutive changes of one job fold into one row update with an event each: all or none.
        A change's submits are inserted if and only if it was accepted, and so are the marks that
        `lifecycle.family` asks for: a family is never left without the look that a change needs.
        A job that a foreign transaction keeps locked is `Rejected` with `job_busy` after about a
        second, and holds up no other job of the batch for longer than that; `commit_locked` waits.
        """

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        """Lock one job, decide on its current record, and commit, in one transaction.

        For a job that changes so often that compare-and-sets keep missing: nobody else writes to
        the job between the decision and the commit, and writers that wait get their turn in order.
        `decide` also receives the events after revision `after`; where there are more than
        `LOCKED_EVENTS` it is not called. It must be pure, must not block, and may be called more
        than once, from any thread. Its changes must all be of this job and follow each other.
        The lock is waited for up to the deadline.

        `Lost` with the current record where nothing was decided, or where a change is fenced and
        its lease has passed; `Lost(None)` where there is no such job.
        """

    async def get(self, ids: Sequence[JobId], *, signals: bool = True) -> list[Job | None]:
        """Read jobs by internal id. Raises JobUnreadable if one of them is damaged.

        Without `signals`, pending signals are counted (`unread_signals`) and not read: at the same
        cost however many there are. Such a record is enough to decide on a signal, not on a wait.
        """

    async def events(
        self, id: JobId, *, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[LoggedEvent]:
        """Read one job's events after a revision, heartbeats included, in order.

        Fewer than `limit` are all there are; unless `max_bytes` is given, which ends them with the
        event whose body reaches so many bytes. The bodies behind that one are not read.
        """

    async def latest_events(
        self, id: JobId, types: Sequence[EventType], *, limit: int = 100
    ) -> list[LoggedEvent]:
        """Read one job's newest events of these types, newest first.

        Never heartbeats, and of progress only what carries facts: a handler's reports of how far
        it is may be thousands, and bury the rest.
        """

    async def request_event(self, id: JobId, request_id: str) -> LoggedEvent | None:
        """Read the first event that a submit or a request from outside led to, and no other.

        By its request_id, and at the same cost however long the job's history is. Those events are
        `lifecycle.transitions.REQUESTED`; an owner's own requests are not looked up.
        """

    async def await_durable(self) -> None:
        """Wait until everything that could be read before survives what an acknowledged write does.

        Call it before acknowledging a request on the strength of rows that were only read: on
        PostgreSQL a row can be visible before its synchronous standby has it.
        """


class Store(Jobs, Protocol):
    """The ledger. All methods may be called concurrently from one event loop.

    A damaged job never fails strangers: what lists jobs or events leaves it out, `claim`, `due`,
    `owned` and `aged` also set it aside, `commit` rejects the changes of that job alone. What was
    asked of that job alone, or of its family, raises `JobUnreadable`.

    A method raises `StoreUnavailable` when the database could not be reached within the deadline,
    `StoreFull` or `StoreBroken` when the disk gave out; what was acknowledged stays. A method that
    writes also acknowledges what it found written already, and only once that is as durable as its
    own write would be; a method that only reads does not wait for that (`await_durable` does).
    """

    async def open(self) -> None:
        """Connect and check that the schema is the one this version needs."""

    async def close(self) -> None:
        """Finish what was begun and let go of the database."""

    async def clock(self) -> Clock:
        """Read the store's clock and epoch.

        It never goes back, over restarts and for all processes, also where its machine's clock is
        set back, provided that sweeps (`due`) come every second: they move the mark on from which
        it continues. Only a step of less than five seconds may go unnoticed, and is repeated.
        """

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        """Insert decided jobs, each with its first event and its keys, or not at all.

        Afterwards a key has exactly one holder, also when two callers came at once or the first
        reply was lost. One bad job never fails another. A child's birth marks its parent.
        A key that a transaction of somebody else's holds which has not ended is waited for up to
        the deadline where the job is the only one; else, or without `await_keys`, its job is
        refused soon (`key_busy`), and holds up none of the others.
        """

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Give up to `limit` due jobs to `owner` under lease, each to nobody else.

        Ordered by class with ageing, then due time. Paused queues and held jobs are left out, and
        so is what the worker cannot serve: other tasks and versions, other needs, other tenants.
        However many of those are due, they are not read. A repeated request returns what it holds
        of its first answer, or raises LeaseConflictError; an empty answer is not remembered.
        """

    async def look_up(self, tenant: str, kind: KeyKind, key: str) -> JobId | None:
        """Find who holds a key. For `JOB_ID` also the text of an internal id."""

    async def find(self, query: Query) -> Page:
        """List jobs by the projection."""

    async def last_progress(self, id: JobId) -> LoggedEvent | None:
        """Read the newest report of how far one job is; None if it has made none."""

    async def step_events(self, id: JobId, steps: Sequence[tuple[str, int]]) -> list[LoggedEvent]:
        """Read what one job recorded of some steps, each by name and use, newest first.

        However long ago: of a long job this reads all events, so it is for what `latest_events`
        does not reach.
        """

    async def find_events(self, query: EventQuery) -> list[LoggedEvent]:
        """Look events up across jobs (B19), heartbeats left out."""

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        """Read all events after a cursor without ever missing one; None starts at the oldest.

        BadData where the text is no cursor.
        """

    async def tail_end(self) -> str:
        """Tell the cursor behind which comes all that is not committed yet."""

    async def due(self, *, limit: int = 500) -> Due:
        """List jobs whose lease, deadline, time to start or wait has run out, oldest first.

        A run past its timeout is not among them while its lease lives: it is its owner's to kill.
        """

    async def owned(self, owner: str) -> list[Job]:
        """List what an owner holds, so that it can give back what it does not know of.

        Not what is set aside: giving it back would be refused again and again.
        """

    async def marked(self, *, limit: int = 500) -> list[Mark]:
        """List marks, the oldest first; several of one parent are several."""

    async def unmark(self, marks: Sequence[Mark]) -> None:
        """Remove these marks, and none that has come since, also not of the same parent."""

    async def children(
        self,
        parents: Sequence[JobId],
        *,
        live_only: bool = False,
        after: JobId | None = None,
        limit: int = 100,
    ) -> list[Job]:
        """List what these jobs spawned, up to `limit` of each after an id: by parent, oldest first.

        Retries, redrives and compensations are no children.
        """

    async def families(self, *, after: JobId | None = None, limit: int = 500) -> list[JobId]:
        """List, by id, jobs that have live children or wait for children, marked or not."""

    async def quarantine(self, ids: Sequence[JobId], *, reason: str) -> None:
        """Keep jobs out of claims and sweeps. Their owners may still finish them.

        No part of the ledger: rows, events and revisions stay as they are. Repeating keeps the
        first reason; an unknown id changes nothing.
        """

    async def quarantined(self, *, after: JobId | None = None, limit: int = 100) -> Quarantine:
        """List jobs that are set aside, by id."""

    async def release_quarantined(self, ids: Sequence[JobId]) -> int:
        """Let jobs be claimed and swept again; returns how many were set aside.

        Whether they can be read again is the caller's to check: a damaged one is set aside again
        when somebody meets it.
        """

    async def counts(self, tenant: str | None = None) -> list[Count]:
        """Tell how many jobs are in which state, from the summaries."""

    async def fold_counts(self) -> None:
        """Fold the summaries' deltas; any number of sweeps may do so at once."""

    async def limits(self) -> Limits:
        """Read how many names a tenant's jobs may have, and how many signals a job may keep."""

    async def set_limits(self, limits: Limits) -> None:
        """Set it, for all processes; another one may take a second to notice."""

    async def forget_unused(self) -> int:
        """Forget sets of needs that no job has any more; return how many.

        Not one that was named within the last hour: its job may be on its way.
        """

    async def pause(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let no job of a queue be claimed; entered in the queues' ledger. Repeating is success."""

    async def resume(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let a queue's jobs be claimed again; entered in the queues' ledger."""

    async def queues(self) -> list[QueueStatus]:
        """List queues that are, or were, paused."""

    async def queue_events(self, queue: str | None = None) -> list[QueueEvent]:
        """Read the queues' ledger, oldest first."""

    async def announce(self, worker: Announcement) -> None:
        """Note that a worker lives, and what it serves. Nothing that decides depends on it.

        One that ended or was forgotten begins anew. Workers not seen for a week are forgotten.
        SchemaMismatch where the schema was migrated to one that this version must not work on.
        """

    async def publish_terms(self, terms: Sequence[TaskTerms], *, tenant: str | None = None) -> None:
        """Keep the terms of tasks for those who submit by name; the last publisher's hold.

        Of one tenant, or for all of them. Nothing that decides depends on it, and per tenant only
        the 10,000 tasks published last are kept.
        """

    async def task_terms(self, tenant: str, tasks: Sequence[str]) -> list[TaskTerms | None]:
        """Read the terms of tasks: the tenant's own, else those for all; None if there are none."""

    async def seen(self, name: str) -> None:
        """Note that a worker still lives; of one that ended, or is unknown, nothing changes."""

    async def retire(self, name: str) -> None:
        """Note that a worker ended in order; repeating, or an unknown name, changes nothing."""

    async def workers(
        self, *, seen_since: int | None = None, limit: int = 1000
    ) -> list[WorkerStatus]:
        """List workers, live, silent and ended ones, the most recently seen first."""

    async def worker(self, name: str) -> WorkerStatus | None:
        """Read one worker; None if it never was announced, or is forgotten."""

    async def keep_logs(self, entries: Sequence[LogEntry]) -> None:
        """Keep what handlers said, of each job the newest `LOG_LINES`; no part of the ledger.

        Whether the job is there, or the attempt still holds it, is not asked. After an error they
        may be there or not: said again, they may be there twice.
        """

    async def logs(self, id: JobId, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Read one job's log after a position, oldest line first."""

    async def add_token(self, token: NewToken) -> Token:
        """Keep a token. One whose id is there already changes nothing, and that one is returned."""

    async def look_up_tokens(self, ids: Sequence[str]) -> list[Token | None]:
        """Read tokens by id, revoked and expired ones too."""

    async def tokens(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Token]:
        """List tokens, newest first, after an id: of one tenant, or of all and of none."""

    async def revoke_token(self, id: str, *, actor: str) -> Token | None:
        """End a token for ever; the first who did stays its revoker. None if there is none."""

    async def add_webhook(self, hook: NewWebhook) -> Webhook:
        """Keep a webhook. One whose id its tenant has already stays as it is, and is returned."""

    async def look_up_webhooks(self, id: str, *, tenant: str | None = None) -> list[Webhook]:
        """Read webhooks by id, removed ones too: a tenant's, or each tenant's."""

    async def webhooks(
        self,
        *,
        tenant: str | None = None,
        before: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> list[Webhook]:
        """List webhooks that are not removed, newest first, after a key: a tenant's, or all."""

    async def remove_webhook(self, id: str, *, tenant: str, actor: str) -> Webhook | None:
        """End a webhook and forget its secret; the first who did stays its remover."""

    async def cursor(self, name: str) -> str | None:
        """Read how far somebody who follows the tail has come; None if nowhere yet."""

    async def move_cursor(self, name: str, *, before: str | None, to: str) -> bool:
        """Move it on, if it still is where it was; else somebody else moved it."""

    async def wake_up(self, queues: Sequence[str], *, limit_seconds: float) -> bool:
        """Wait until work may have come, or the limit. A hint: polling alone is also correct."""

    async def aged(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Aged:
        """List those of the next `look_at` jobs by id that ended before a time, not yet cleaned.

        Not those to which a job is linked that has not ended: it may read what they were asked for
        and what they did.
        """

    async def continued(self, ids: Sequence[JobId]) -> set[JobId]:
        """Return those of these jobs whose records another job may still read.

        That is a retry, redrive or compensation of the job, or one made from such a job, which has
        not ended or whose dead letter is open. Children do not count.
        """

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        """Erase the bodies of cleaned jobs' events, and their logs; digests stay.

        Returns how many bodies it were.
        """

    async def purgeable(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Purgeable:
        """List those of the next `look_at` jobs by id that ended before a time."""

    async def purge(
        self, ids: Sequence[JobId], *, actor: str, reason: str | None = None
    ) -> list[JobId]:
        """Remove cleaned jobs whole, in one transaction; returns those that were removed.

        Not removed is what is not cleaned, is set aside, or has a job linked to it; a store may
        keep the job of its newest event. Rows, events, heartbeats and logs go, and the summaries
        no longer count them. The keys `job_id` and `request_id` stay: a submit that gives one
        again is refused with `job_purged`. An entry in the ledger of purges names how many and who;
        each id is kept with its tenant.
        """

    async def purged(self, ids: Sequence[JobId]) -> list[PurgedJob | None]:
        """Read what is left of jobs that were purged; None for each that was not."""

    async def purges(self, *, before: int | None = None, limit: int = 100) -> list[PurgeEntry]:
        """Read the ledger of purges, newest first, before an entry's number."""

    async def give_back_space(self) -> int:
        """Return some free space to the file system, bounded; returns how many bytes it were.

        0 where there is none, or where the database does so by itself or not at all.
        """

    async def drop_beats(self, *, before: int, limit: int = 10_000) -> int:
        """Drop heartbeats older than a time, except those a present lease rests on."""

    async def bump_epoch(self) -> int:
        """Raise the epoch after a restore: claims of an older one are fenced."""

    async def set_sealing(self, on: bool) -> None:
        """Turn the hash chain over new events on or off."""

    async def secret(self, name: str) -> bytes:
        """Read a random value of this database: made when first asked for, then always the same."""

    def ledger(
        self, *, after: JobId | None = None, batch: int = 500
    ) -> AsyncIterator[list[LedgerEntry]]:
        """Read every job and all its events by id, in batches of one short snapshot each.

        Also ids of which there are but events, or keys: that is damage.
        """

    async def dictionary_problems(self) -> list[str]:
        """Say which policies and needs are not what their key stands for."""

    async def side_problems(self) -> list[str]:
        """Name what is wrong beside the ledger: queues, marks, tokens, webhooks, cursors."""

    async def size(self) -> int:
        """Estimate how many jobs there are, for a progress bar."""

    async def free_stray_keys(self) -> int:
        """Free the keys of ids of which nothing else is left, and tell how many it were.

        Pending signals of such ids are removed, too. Offline maintenance, like `rebuild`.
        """

    async def rebuild(
        self, jobs: Sequence[Job], *, keys: Sequence[tuple[JobId, KeyRow]]
    ) -> list[JobId]:
        """Replace the projection of these jobs: rows, keys, what sweeps find leases by.

        Compare-and-set: a job whose last event is not the one of this revision has moved on since
        it was read, and is left as it is. Returns those.
        """

    async def recount(self) -> None:
        """Count the summaries anew. Offline maintenance, like `rebuild`."""
