"""Hearing: what an owner elsewhere says of its jobs, many words at a time, in few commits.

Nothing is kept between two hearings: what is said is decided on the record as it is now, and the
fence is the owner's name and attempt. A repetition of what was written, because its reply was
lost, is success: the events of the attempt tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.errors import (
    HoldfastError,
    JobBusy,
    LawBroken,
    LeaseConflictError,
    NoSuchJob,
    Refused,
)
from holdfast.flow.correlate import correlated
from holdfast.flow.perform import refused
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide, is_owner
from holdfast.lifecycle.job import (
    Actor,
    Change,
    Draft,
    Job,
    JobId,
    LoggedEvent,
    Refusal,
    Unchanged,
)
from holdfast.lifecycle.linked import with_correlation
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import BEATS, EventType, Role, State
from holdfast.ports import Claimed, Committed, Lost, Outcome, Store
from holdfast.services.retelling import note_compensated, retold

STEPS = (EventType.STEP_COMPLETED, EventType.STEP_FAILED, EventType.STEP_STARTED)
ENDS = (
    EventType.SUCCEEDED,
    EventType.FAILED,
    EventType.RETRYING,
    EventType.DEAD_LETTERED,
    EventType.CANCELLED,
    EventType.TIMED_OUT,
    EventType.RELEASED,
    EventType.WAITING,
)
"""How an owner's attempt may end by its own word."""

LOOK_BACK = 100
"""How many of a job's newest events are looked at for what may have been said before, beside as
many as words are said: all of them may be a repetition."""


class Standing(Struct, frozen=True, kw_only=True):
    """How a job stands when something is said of it."""

    job: Job
    """As it was last confirmed."""
    draft: Draft
    """As it will be after what was said before in the same breath."""
    actor: Actor
    claimed: Claimed | None
    """With what it was asked to do, for a word that asks."""


class Word(Protocol):
    """One thing that an owner may say of its attempt."""

    @property
    def asks(self) -> bool:
        """Whether it has to know what the job was asked to do."""

    @property
    def adds(self) -> bool:
        """Whether the law would take it a second time, so that it must be looked for first."""

    @property
    def step(self) -> tuple[str, int] | None:
        """The name and the use under which it is recorded; None unless it adds a record."""

    @property
    def completes(self) -> bool:
        """Whether it says that all was done."""

    def command(self, standing: Standing) -> c.Command:
        """Say it in the words of the law."""

    def is_told_by(self, event: LoggedEvent) -> bool:
        """Whether an event of the same attempt is what this word had led to.

        Refused where the event says otherwise of the very same thing.
        """


class Report(Struct, frozen=True):
    """A word on one attempt of a job."""

    job: JobId
    attempt: int
    word: Word


class Heard(Struct, frozen=True, kw_only=True):
    """What became of a report: the record that it led to, or why it was refused."""

    job: Job | None = None
    error: HoldfastError | None = None
    repeated: bool = False
    """It had been written before."""
    consumed: int | None = None
    """The revision of the signal that it used up."""


async def hear(
    store: Store, owner: str, reports: Sequence[Report], jobs: Sequence[Job | None]
) -> list[Heard]:
    """Write what an owner says of its jobs; each report is answered for itself, in order.

    `jobs` are the records as they were just read, one for each report; None where there is none
    that the owner may know of. Once a report is refused, what follows it on the same job is too.
    """
    hearing = _Hearing(store, owner)
    for number, (report, job) in enumerate(zip(reports, jobs, strict=True)):
        hearing.take(number, report, job)
    await hearing.run()
    return [hearing.heard[number] for number in range(len(reports))]


class _Said(Struct, frozen=True, kw_only=True):
    """A word that was decided: a change, or nothing where it holds already."""

    number: int
    change: Change | None = None
    event: LoggedEvent | None = None
    """What had told it before."""

    def heard(self, job: Job) -> Heard:
        told = self.event if self.change is None else self.change.event
        return Heard(
            job=job,
            repeated=self.change is None,
            consumed=None if told is None else told.facts.consumed,
        )


class _Line:
    """What is still to be said of one attempt."""

    def __init__(self, job: Job, actor: Actor) -> None:
        self.job = job
        self.actor = actor
        self.words: list[tuple[int, Word]] = []
        self.said: list[_Said] = []
        """Of these the first, decided, to go in one commit."""
        self.first: LoggedEvent | None = None
        """What it was asked to do, if that was read."""
        self.told: list[LoggedEvent] = []
        """What this owner had written in this attempt, newest first, as far as it was read."""
        self.looked_back = False
        self.misses = 0

    @property
    def changes(self) -> list[Change]:
        return [one.change for one in self.said if one.change is not None]

    def claimed(self) -> Claimed | None:
        first = self.first
        if first is None or first.created is None:
            return None
        return Claimed(
            job=self.job,
            created=first.created,
            body=first.body,
            correlation_id=first.correlation_id,
        )

    def find(self, word: Word) -> LoggedEvent | None:
        if not (word.adds or self.looked_back):
            return None
        return next((event for event in self.told if word.is_told_by(event)), None)


class _Hearing:
    """One batch of reports on its way into the ledger."""

    def __init__(self, store: Store, owner: str) -> None:
        self._store = store
        self._owner = owner
        self._lines: dict[tuple[JobId, int], _Line] = {}
        self._now = 0
        self.heard: dict[int, Heard] = {}

    def take(self, number: int, report: Report, job: Job | None) -> None:
        """Put a report into the line of its attempt."""
        if job is None:
            missing = NoSuchJob(f"no job {report.job}", job_id=str(report.job))
            self.heard[number] = Heard(error=missing)
            return
        actor = Actor(Role.OWNER, self._owner, report.attempt)
        line = self._lines.setdefault((job.id, report.attempt), _Line(job, actor))
        line.words.append((number, report.word))

    async def run(self) -> None:
        """Decide and commit until every report is answered."""
        lines = list(self._lines.values())
        if any(line.job.timeout_at is not None for line in lines):
            self._now = (await self._store.clock()).now
        for line in lines:
            await self._prepare(line)
        while waiting := [line for line in lines if line.words]:
            for line in waiting:
                await self._decide(line)
            await self._send([line for line in waiting if line.said])

    async def _prepare(self, line: _Line) -> None:
        """Read what the words of a line have to know."""
        words = [word for _, word in line.words]
        undone = is_compensation(line.job) and any(word.completes for word in words)
        if undone or any(word.asks for word in words):
            [line.first] = await self._store.events(line.job.id, limit=1)
        if any(word.adds for word in words):
            await self._read_told(line, STEPS)
        claimed = line.claimed()
        if undone and claimed is not None and is_owner(line.job, line.actor):
            # Before its own end, so that a death in between is healed by the next attempt.
            await note_compensated(self._store, await retold(self._store, claimed), self._owner)

    async def _read_told(self, line: _Line, types: Iterable[EventType]) -> None:
        limit = LOOK_BACK + len(line.words)
        events = await self._store.latest_events(line.job.id, tuple(types), limit=limit)
        if len(events) == limit and events[-1].attempt == line.actor.attempt:
            # The attempt has recorded more than that: what it says again may lie further back.
            steps = [step for _, word in line.words if (step := word.step) is not None]
            events += await self._store.step_events(line.job.id, list(dict.fromkeys(steps)))
        line.told = self._mine(line, events)

    def _mine(self, line: _Line, events: Iterable[LoggedEvent]) -> list[LoggedEvent]:
        mine = (self._owner, line.actor.attempt)
        return [event for event in events if (event.actor, event.attempt) == mine]

    async def _decide(self, line: _Line) -> None:
        """Decide what goes in the next commit; refuse the line where its first word cannot go."""
        error = self._fold(line)
        if error is None:
            return
        if error.code == "lease_lost" and not line.looked_back:
            # The attempt is over. It may be that it ended by these very words.
            line.looked_back = True
            await self._read_told(line, (EventType.STARTED, *STEPS, *ENDS))
        else:
            self._refuse(line, error)

    def _fold(self, line: _Line) -> HoldfastError | None:
        """Decide words, each upon the one before; tell why the first of them cannot be said."""
        line.said = []
        draft: Draft = line.job
        for number, word in line.words:
            try:
                said = self._say(line, draft, number, word)
            except HoldfastError as error:
                return None if line.said else error
            if said.change is not None and said.change.event.type in BEATS:
                # A heartbeat folds with nothing, and goes alone.
                line.said = line.said or [said]
                return None
            line.said.append(said)
            draft = draft if said.change is None else said.change.next
        return None

    def _say(self, line: _Line, draft: Draft, number: int, word: Word) -> _Said:
        if (event := line.find(word)) is not None:
            return _Said(number=number, event=event)
        standing = Standing(job=line.job, draft=draft, actor=line.actor, claimed=line.claimed())
        command = word.command(standing)
        self._check_time(line.job, command)
        decision = decide(draft, command)
        if isinstance(decision, Refusal):
            raise refused(decision.code, decision.message, line.job.public_id)
        if isinstance(decision, Unchanged) and not is_owner(draft, line.actor):
            # The law takes anybody's word for what holds already; whether it was this owner's,
            # its events tell.
            raise refused(
                "lease_lost",
                f"job {line.job.public_id} is not held by {self._owner}",
                line.job.public_id,
            )
        return _Said(number=number, change=decision if isinstance(decision, Change) else None)

    def _check_time(self, job: Job, command: c.Command) -> None:
        """Renew no lease of a run past its timeout: it is its owner's to end, or a sweep's."""
        late = job.timeout_at is not None and job.timeout_at <= self._now
        if late and job.state is State.RUNNING and isinstance(command, c.Heartbeat):
            raise Refused(
                f"job {job.public_id} is past its timeout; stop it, and say so by time_out",
                code="past_timeout",
                job_id=job.public_id,
            )

    async def _send(self, lines: Sequence[_Line]) -> None:
        for line in lines:
            if line.misses > REBASES and line.changes:
                await self._send_locked(line)
        lines = [line for line in lines if line.misses <= REBASES or not line.changes]
        changes = [change for line in lines for change in line.changes]
        changes = await correlated(self._store, changes)
        if any(not line.changes for line in lines):
            # These are answered by what was read.
            await self._store.await_durable()
        outcomes = await self._store.commit(changes) if changes else []
        at = -1
        for line in lines:
            # A job's changes are written all or none: the last outcome is that of each.
            at += len(line.changes)
            if line.changes:
                await self._settle(line, outcomes[at])
            else:
                self._answer(line, line.job)

    async def _send_locked(self, line: _Line) -> None:
        """Commit what lost its compare-and-set again and again, under the job's lock.

        While the job is its own an owner is never refused because others write to the job, too.
        """
        seen, told = line.job.rev, line.told
        [first] = await self._store.events(line.job.id, limit=1)

        def decide_on(current: Job, events: Sequence[LoggedEvent]) -> list[Change]:
            line.job = current
            # What came first may have been the same words, sent twice.
            fresh = (event for event in reversed(events) if event.type in STEPS)
            line.told = [*self._mine(line, fresh), *told]
            self._fold(line)
            return [with_correlation(change, first.correlation_id) for change in line.changes]

        outcome = await self._store.commit_locked(line.job.id, decide_on, after=seen)
        if isinstance(outcome, Lost) and outcome.current is not None and not line.changes:
            # It is refused, or was written before: decided again on this record, and answered.
            line.job = outcome.current
            await self._read_told(line, STEPS)
        else:
            await self._settle(line, outcome)

    async def _settle(self, line: _Line, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._answer(line, outcome.job)
        elif isinstance(outcome, Lost):
            await self._missed(line, outcome.current)
        elif outcome.busy:
            self._refuse(line, JobBusy(outcome.message, job_id=line.job.public_id))
        else:
            error = LawBroken(outcome.message, code=outcome.code, job_id=line.job.public_id)
            self._refuse(line, error)

    async def _missed(self, line: _Line, current: Job | None) -> None:
        """Decide anew after a lost compare-and-set, unless it was the lease that was lost."""
        line.misses += 1
        name = line.job.public_id
        if current is None:
            self._refuse(line, NoSuchJob(f"job {name} is gone", job_id=name))
        elif current.rev == line.job.rev:
            passed = LeaseConflictError(f"the lease on job {name} has passed", job_id=name)
            self._refuse(line, passed)
        else:
            line.job = current
            # What came first may have been the same words, sent twice.
            await self._read_told(line, STEPS)

    def _answer(self, line: _Line, job: Job) -> None:
        for said in line.said:
            self.heard[said.number] = said.heard(job)
        line.words = line.words[len(line.said) :]
        line.said = []
        line.job = job

    def _refuse(self, line: _Line, error: HoldfastError) -> None:
        for number, _ in line.words:
            self.heard[number] = Heard(job=line.job, error=error)
        line.words = []
        line.said = []
