"""The port to the ledger: jobs and their events. `Store` adds what lies beside it.

A store translates and guards; it never decides. Everything comes in batches and goes out in the
same order. Times are microseconds of the store's own clock, the only one that judges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from holdfast.lifecycle.alike import AlikeJobs
from holdfast.lifecycle.plan import PlannedEnd
from holdfast.lifecycle.record import Change, Job, JobId, LoggedEvent, NewJob
from holdfast.lifecycle.states import EventType, KeyKind, Kind
from holdfast.ports.directory import Directory
from holdfast.ports.maintenance import Maintenance
from holdfast.ports.models import (
    Claimed,
    ClaimRequest,
    Clock,
    Count,
    DecideLocked,
    Due,
    EventQuery,
    Mark,
    Outcome,
    Page,
    PlannedOutcome,
    Query,
    SubmitOutcome,
    Tail,
)
from holdfast.ports.uploads import Uploads

NO_CLAIMS: Mapping[str, int] = MappingProxyType({})


class Jobs(Protocol):
    """What a command on one job needs of the ledger."""

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
        event whose body reaches that many bytes. The bodies behind that one are not read.
        """

    async def latest_events(
        self, id: JobId, types: Collection[EventType], *, limit: int = 100
    ) -> list[LoggedEvent]:
        """Read one job's newest events of these types, newest first.

        Never heartbeats, and progress only where it carries facts: a handler's reports of how far
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


class Ledger(Jobs, Protocol):
    """Jobs and their events: the path of a job, the sweeps beside it, and reads for people."""

    async def open(self) -> None:
        """Connect and check that the schema is the one this version needs."""

    async def close(self) -> None:
        """Finish what was started and let go of the database."""

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
        A key that an open transaction of another client holds is waited for up to the deadline
        where the job is the only one; else, or without `await_keys`, its job is refused soon
        (`key_busy`), and holds up none of the others.
        """

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        """Insert decided jobs that differ in id and body alone: all of them, or none.

        Return the time of their birth; afterwards the ledger is as if `submit` had inserted
        `jobs.expand()` at that time. Or return None, where nothing is known to be inserted: one of
        them is bad, was there before, or each has to be looked at, by the policy or for a limit of
        names. `submit` of the same jobs then answers for each, also if they were written after all.
        """

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        """Write the start and the success of each of these jobs, all or none of one job.

        What is written is exactly what `commit` would write of the changes that are decided for
        that job alone. A job that something stands in the way of (another revision, a lease that
        has passed, a row that is locked or refused) is missed, without a reason: decide its
        commands, and `commit` them. A store may miss any job.
        """

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Give up to `limit` due jobs to `owner` under lease, each to nobody else.

        Ordered by class with ageing, then due time. Paused queues and held jobs are left out, and
        so is what the worker cannot serve: other tasks and versions, other needs, other tenants.
        However many of those are due, they are not read. A repeated request returns what it holds
        of its first answer, or raises LeaseConflictError; an empty answer is not remembered.
        """

    async def wake_up(self, queues: Sequence[str], *, limit_seconds: float) -> bool:
        """Wait until work may have come, or the limit. A hint: polling alone is also correct."""

    async def due(self, *, limit: int = 500) -> Due:
        """List jobs whose lease, deadline, time to start or wait is over, oldest first.

        A run past its timeout is not listed while its lease lives: its owner kills it.
        """

    async def owned(
        self, owner: str, *, ended: Mapping[str, int] = NO_CLAIMS, older_than: int = 0
    ) -> list[Job]:
        """List what an owner holds, so that it can give back what it does not know of.

        Not what is set aside: giving it back would be refused again and again. `ended` are claims,
        by their request, with the number of jobs whose end the owner has written. Where these are
        all jobs of a claim, it is not looked at again; a repeated claim may have returned fewer.
        Nor are claims that are not older than some microseconds, this time.
        """

    async def owned_on(
        self, host: str, *, but: str, kinds: Collection[Kind] | None = None, limit: int = 1000
    ) -> list[Job]:
        """List what the workers of a host hold, except the worker `but`, by id.

        A worker belongs to the host whose name and a colon are the prefix of its own. Like
        `owned`, this leaves out what is set aside.
        """

    async def held(self, hold: str, *, after: JobId | None = None, limit: int = 500) -> list[Job]:
        """List jobs that a named hold keeps from being claimed, by id after one.

        Not what is set aside. However many other jobs there are, they are not read.
        """

    async def hold_names(
        self, prefix: str, *, after: str | None = None, limit: int = 100
    ) -> list[str]:
        """List the names of holds that start with a prefix and that jobs have, after a name.

        However many jobs have them, those are not read.
        """

    async def pending(self, *, after: JobId | None = None, limit: int = 500) -> list[Job]:
        """List jobs that are not admitted to their queue yet, by id after one, like `held`."""

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

        Retries, redrives and compensations do not count as children.
        """

    async def families(self, *, after: JobId | None = None, limit: int = 500) -> list[JobId]:
        """List, by id, jobs that have live children or wait for children, marked or not."""

    async def look_up(self, tenant: str, kind: KeyKind, key: str) -> JobId | None:
        """Find who holds a key. For `JOB_ID` also the text of an internal id."""

    async def find(self, query: Query) -> Page:
        """List jobs by the projection."""

    async def counts(self, tenant: str | None = None) -> list[Count]:
        """Return how many jobs are in which state, from the summaries."""

    async def last_progress(self, id: JobId) -> LoggedEvent | None:
        """Read the newest report of how far one job is; None if it has made none."""

    async def histories(self, ids: Sequence[JobId], *, last: int) -> list[list[LoggedEvent]]:
        """Read the events of several jobs up to a revision: as `events` does each one's."""

    async def step_events(self, id: JobId, steps: Sequence[tuple[str, int]]) -> list[LoggedEvent]:
        """Read what one job recorded of some steps, each by name and use, newest first.

        However long ago: this reads all events of the job, so it is for what `latest_events`
        does not reach.
        """

    async def find_events(self, query: EventQuery) -> list[LoggedEvent]:
        """Look events up across jobs (B19), heartbeats left out."""

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        """Read all events after a cursor without ever missing one; None starts at the oldest.

        Raises BadData where the text is not a cursor of this store.
        """

    async def tail_end(self) -> str:
        """Return the cursor behind which comes all that is not committed yet."""


class Store(Ledger, Directory, Uploads, Maintenance, Protocol):
    """The ledger, what lies beside it, and its care: what an engine implements.

    All methods may be called concurrently from one event loop.

    A damaged job never fails strangers: what lists jobs or events leaves it out, `claim`, `due`,
    `owned` and `aged` also set it aside, `commit` rejects the changes of that job alone. What was
    asked of that job alone, or of its family, raises `JobUnreadable`.

    A method raises `StoreUnavailable` when the database could not be reached within the deadline,
    `StoreFull` or `StoreBroken` when the disk gave out; what was acknowledged stays. A method that
    writes also acknowledges what it found written already, and only once that is as durable as its
    own write would be; a method that only reads does not wait for that (`await_durable` does).
    """
