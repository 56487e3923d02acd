"""Apply a batch of reports from a remote worker, in few commits.

Nothing is kept between two batches: a report is decided on the record as it is now, and the fence
is the owner's name and attempt. A repetition of what was written, because its reply was lost, is
success: the events of the attempt show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from holdfast.errors import (
    HoldfastError,
    JobBusy,
    LawBroken,
    NoSuchJob,
    Refused,
)
from holdfast.flow.command import add_correlation_ids, gone, lease_passed, refused
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.history import STARTS
from holdfast.lifecycle.lease import is_owner, run_is_overdue
from holdfast.lifecycle.linked import with_correlation
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.record import (
    Actor,
    Change,
    Draft,
    Job,
    JobId,
    LoggedEvent,
    Refusal,
    Unchanged,
)
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import BEATS, EventType, Role
from holdfast.lifecycle.transitions import OWNER_LEAVES
from holdfast.ports.models import Claimed, Committed, Lost, Outcome, claimed_as
from holdfast.ports.store import Store
from holdfast.worker.compensation import add_story, note_compensated
from holdfast.worker_protocol.report_commands import (
    ADDS_RECORD,
    Report,
    Situation,
    command_of,
    is_written_by,
    needs_request,
    record_key,
)
from holdfast.worker_protocol.reports import CompleteReport, OwnReport

STEPS = c.Step.events()

LOOK_BACK = 100
"""How many of a job's newest events are searched for repetitions, plus one for each report: all of
them may be one."""


class ReportOutcome(Struct, frozen=True, kw_only=True):
    """What became of a report: the record that it led to, or why it was refused."""

    job: Job | None = None
    error: HoldfastError | None = None
    repeated: bool = False
    """It had been written before."""
    consumed: int | None = None
    """The revision of the signal that it consumed."""


async def apply_reports(
    store: Store, owner: str, reports: Sequence[Report], jobs: Sequence[Job | None]
) -> list[ReportOutcome]:
    """Write an owner's reports on its jobs; each has an outcome of its own, in order.

    `jobs` are the records as they were just read, one for each report; None where there is none
    that the owner may know of. Once a report is refused, those after it on the same job are too.
    """
    batch = _Batch(store, owner)
    for number, (report, job) in enumerate(zip(reports, jobs, strict=True)):
        batch.add(number, report, job)
    await batch.run()
    return [batch.outcomes[number] for number in range(len(reports))]


class _Decided(Struct, frozen=True, kw_only=True):
    """A report that was decided: a change, or nothing where it holds already."""

    number: int
    change: Change | None = None
    event: LoggedEvent | None = None
    """What had recorded it before."""

    def make_outcome(self, job: Job) -> ReportOutcome:
        event = self.event if self.change is None else self.change.event
        return ReportOutcome(
            job=job,
            repeated=self.change is None,
            consumed=None if event is None else event.facts.consumed,
        )


class _AttemptReports:
    """The reports on one attempt that have no outcome yet."""

    def __init__(self, job: Job, actor: Actor) -> None:
        self.job = job
        self.actor = actor
        self.reports: list[tuple[int, Report]] = []
        self.decided: list[_Decided] = []
        """The first of the reports, decided, to go in one commit."""
        self.first: LoggedEvent | None = None
        """What the job was asked to do, if that was read."""
        self.written: list[LoggedEvent] = []
        """What this owner had written in this attempt, newest first, as far as it was read."""
        self.looked_back = False
        self.misses = 0

    @property
    def changes(self) -> list[Change]:
        return [one.change for one in self.decided if one.change is not None]

    @property
    def needs_clock(self) -> bool:
        return self.job.timeout_at is not None or self.has((OwnReport,))

    def has(self, kinds: tuple[type[Report], ...]) -> bool:
        return any(isinstance(report, kinds) for _, report in self.reports)

    def make_claimed(self) -> Claimed | None:
        first = self.first
        if first is None or first.created is None:
            return None
        return claimed_as(self.job, first.created, first.body, first.correlation_id)

    def find_written(self, report: Report) -> LoggedEvent | None:
        if not (self.looked_back or isinstance(report, ADDS_RECORD)):
            return None
        return next((event for event in self.written if is_written_by(report, event)), None)


class _Batch:
    """One batch of reports on its way into the ledger."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._attempts: dict[tuple[JobId, int], _AttemptReports] = {}
        self._now = 0
        self.outcomes: dict[int, ReportOutcome] = {}

    def add(self, number: int, report: Report, job: Job | None) -> None:
        """Add a report to those of its attempt."""
        if job is None:
            id_ = str(report.internal_id)
            self.outcomes[number] = ReportOutcome(error=NoSuchJob(f"no job {id_}", job_id=id_))
            return
        actor = Actor(Role.OWNER, self._owner, report.attempt)
        key = (job.id, report.attempt)
        attempt = self._attempts.setdefault(key, _AttemptReports(job, actor))
        attempt.reports.append((number, report))

    async def run(self) -> None:
        """Decide and commit until every report has an outcome."""
        attempts = list(self._attempts.values())
        if any(one.needs_clock for one in attempts):
            self._now = (await self._store.clock()).now
        for one in attempts:
            await self._read_what_reports_need(one)
        while waiting := [one for one in attempts if one.reports]:
            for one in waiting:
                await self._decide_next_commit(one)
            await self._commit([one for one in waiting if one.decided])

    async def _read_what_reports_need(self, attempt: _AttemptReports) -> None:
        """Read what the reports on an attempt depend on."""
        undone = is_compensation(attempt.job) and attempt.has((CompleteReport,))
        if undone or any(needs_request(report) for _, report in attempt.reports):
            [attempt.first] = await self._store.events(attempt.job.id, limit=1)
        if attempt.has(ADDS_RECORD):
            await self._read_written_events(attempt, STEPS)
        claimed = attempt.make_claimed()
        if undone and claimed is not None and is_owner(attempt.job, attempt.actor):
            # Before its own end, so that a death in between is healed by the next attempt.
            await note_compensated(self._store, await add_story(self._store, claimed), self._owner)

    async def _read_written_events(
        self, attempt: _AttemptReports, types: Iterable[EventType]
    ) -> None:
        limit = LOOK_BACK + len(attempt.reports)
        events = await self._store.latest_events(attempt.job.id, tuple(types), limit=limit)
        if len(events) == limit and events[-1].attempt == attempt.actor.attempt:
            # The attempt has recorded more than that: a repetition may lie further back.
            steps = [
                key for _, report in attempt.reports if (key := record_key(report)) is not None
            ]
            events += await self._store.step_events(attempt.job.id, list(dict.fromkeys(steps)))
        attempt.written = self._mine(attempt, events)

    def _mine(self, attempt: _AttemptReports, events: Iterable[LoggedEvent]) -> list[LoggedEvent]:
        mine = (self._owner, attempt.actor.attempt)
        return [event for event in events if (event.actor, event.attempt) == mine]

    async def _decide_next_commit(self, attempt: _AttemptReports) -> None:
        """Decide what goes in the next commit; refuse all where the first report cannot go."""
        error = self._decide_in_order(attempt)
        if error is None:
            return
        if error.code == "lease_lost" and not attempt.looked_back:
            # The attempt is over. It may have ended by these very reports.
            attempt.looked_back = True
            await self._read_written_events(attempt, STARTS | STEPS | OWNER_LEAVES)
        else:
            self._refuse(attempt, error)

    def _decide_in_order(self, attempt: _AttemptReports) -> HoldfastError | None:
        """Decide reports, each upon the one before; return why the first of them is refused."""
        attempt.decided = []
        draft: Draft = attempt.job
        for number, report in attempt.reports:
            try:
                decided = self._decide_one(attempt, draft, number, report)
            except HoldfastError as error:
                return None if attempt.decided else error
            if decided.change is not None and decided.change.event.type in BEATS:
                # A heartbeat folds with nothing, and goes alone.
                attempt.decided = attempt.decided or [decided]
                return None
            attempt.decided.append(decided)
            draft = draft if decided.change is None else decided.change.next
        return None

    def _decide_one(
        self, attempt: _AttemptReports, draft: Draft, number: int, report: Report
    ) -> _Decided:
        if (event := attempt.find_written(report)) is not None:
            return _Decided(number=number, event=event)
        situation = Situation(
            job=attempt.job,
            draft=draft,
            actor=attempt.actor,
            claimed=attempt.make_claimed(),
            now=self._now,
        )
        command = command_of(report, situation)
        self._check_not_timed_out(attempt.job, command)
        decision = decide(draft, command)
        if isinstance(decision, Refusal):
            raise refused(decision.code, decision.message, attempt.job.public_id)
        if isinstance(decision, Unchanged) and not is_owner(draft, attempt.actor):
            # The law accepts from any actor what holds already; the events show whether this owner
            # caused it.
            raise refused(
                "lease_lost",
                f"job {attempt.job.public_id} is not held by {self._owner}",
                attempt.job.public_id,
            )
        return _Decided(number=number, change=decision if isinstance(decision, Change) else None)

    def _check_not_timed_out(self, job: Job, command: c.Command) -> None:
        """Renew no lease of a run past its timeout: it is its owner's to end, or a sweep's."""
        if run_is_overdue(job, self._now) and isinstance(command, c.Heartbeat):
            raise Refused(
                f"job {job.public_id} is past its timeout; stop it, and report `time_out`",
                code="past_timeout",
                job_id=job.public_id,
            )

    async def _commit(self, attempts: Sequence[_AttemptReports]) -> None:
        for attempt in attempts:
            if attempt.misses > REBASES and attempt.changes:
                await self._commit_locked(attempt)
        attempts = [
            attempt for attempt in attempts if attempt.misses <= REBASES or not attempt.changes
        ]
        changes = [change for attempt in attempts for change in attempt.changes]
        changes = await add_correlation_ids(self._store, changes)
        if any(not attempt.changes for attempt in attempts):
            # Their outcome is what was read.
            await self._store.await_durable()
        outcomes = await self._store.commit(changes) if changes else []
        at = -1
        for attempt in attempts:
            # A job's changes are written all or none: the last outcome is that of each.
            at += len(attempt.changes)
            if attempt.changes:
                await self._apply_outcome(attempt, outcomes[at])
            else:
                self._accept(attempt, attempt.job)

    async def _commit_locked(self, attempt: _AttemptReports) -> None:
        """Commit what lost its compare-and-set again and again, under the job's lock.

        While the job is its own an owner is never refused because others write to the job, too.
        """
        seen, written = attempt.job.rev, attempt.written
        [first] = await self._store.events(attempt.job.id, limit=1)

        def decide_on(current: Job, events: Sequence[LoggedEvent]) -> list[Change]:
            attempt.job = current
            # What came first may have been the same reports, sent twice.
            fresh = (event for event in reversed(events) if event.type in STEPS)
            attempt.written = [*self._mine(attempt, fresh), *written]
            self._decide_in_order(attempt)
            return [with_correlation(change, first.correlation_id) for change in attempt.changes]

        outcome = await self._store.commit_locked(attempt.job.id, decide_on, after=seen)
        if isinstance(outcome, Lost) and outcome.current is not None and not attempt.changes:
            # It is refused, or was written before: decide again on this record.
            attempt.job = outcome.current
            await self._read_written_events(attempt, STEPS)
        else:
            await self._apply_outcome(attempt, outcome)

    async def _apply_outcome(self, attempt: _AttemptReports, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._accept(attempt, outcome.job)
        elif isinstance(outcome, Lost):
            await self._decide_again_or_refuse(attempt, outcome.current)
        elif outcome.busy:
            self._refuse(attempt, JobBusy(outcome.message, job_id=attempt.job.public_id))
        else:
            error = LawBroken(outcome.message, code=outcome.code, job_id=attempt.job.public_id)
            self._refuse(attempt, error)

    async def _decide_again_or_refuse(self, attempt: _AttemptReports, current: Job | None) -> None:
        """Decide again after a lost compare-and-set, unless it was the lease that was lost."""
        attempt.misses += 1
        name = attempt.job.public_id
        if current is None:
            self._refuse(attempt, gone(name))
        elif current.rev == attempt.job.rev:
            self._refuse(attempt, lease_passed(name))
        else:
            attempt.job = current
            # What came first may have been the same reports, sent twice.
            await self._read_written_events(attempt, STEPS)

    def _accept(self, attempt: _AttemptReports, job: Job) -> None:
        for decided in attempt.decided:
            self.outcomes[decided.number] = decided.make_outcome(job)
        attempt.reports = attempt.reports[len(attempt.decided) :]
        attempt.decided = []
        attempt.job = job

    def _refuse(self, attempt: _AttemptReports, error: HoldfastError) -> None:
        for number, _ in attempt.reports:
            self.outcomes[number] = ReportOutcome(job=attempt.job, error=error)
        attempt.reports = []
        attempt.decided = []
