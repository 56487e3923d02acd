"""One command on one job: read, decide, commit; decide anew when somebody else came first.

This is the careful path of control commands and tools. A worker's path never reads before it
writes: it decides on the record that its last commit confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from holdfast.errors import (
    HoldfastError,
    JobPurged,
    JobUnreadable,
    KeyBusy,
    KeyConflict,
    LawBroken,
    LeaseConflictError,
    NoSuchJob,
    Refused,
    RequestIdReused,
    StaleRevision,
    TooManyNames,
)
from holdfast.flow.correlate import correlated
from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.decide import Decision, decide
from holdfast.lifecycle.job import Change, Job, JobId, LoggedEvent, Refusal, Unchanged
from holdfast.lifecycle.linked import with_correlation
from holdfast.lifecycle.rebase import REBASES, rebase, same_request
from holdfast.lifecycle.states import EventType
from holdfast.lifecycle.transitions import REQUESTED, TABLE
from holdfast.ports import Committed, Jobs, Lost, Rejected

Choose: TypeAlias = Callable[[Job], Command | Refusal]
"""Returns the command to carry out on a job as it is now, or why none is."""
Needs: TypeAlias = Callable[[Job], bool]
"""Returns whether a job's pending signals have to be known to decide on it."""


def _always(job: Job) -> bool:
    return True


async def perform(
    store: Jobs,
    id: JobId,
    command: Command,
    *,
    expected_rev: int | None = None,
    follow: Command | None = None,
    choose: Choose | None = None,
    needs_signals: Needs = _always,
) -> Job:
    """Carry a command out, once, and return the record it led to.

    An `expected_rev` given by the caller is never rebased: if the job has moved on, it is told so.
    `follow` is carried out in the same commit, if the law allows it upon the first. `choose`
    returns what to carry out instead of `command` on the record as it is then, or a refusal. The
    record that is returned may lack pending signals where `needs_signals` returned False.

    Never refused because the job is merely busy: after `REBASES` lost compare-and-sets, or where
    another transaction keeps the job locked, it is decided and written under the job's lock.
    """
    wish = _Wish(command, follow, choose)
    job = await _read(store, id, needs_signals)
    if repeat := await _repeated(store, job, wish):
        return repeat
    check_revision(job, expected_rev)
    decision = wish.decide(job)
    for _ in range(REBASES + 1):
        change = _accepted(job, decision)
        if change is None:
            await store.await_durable()
            return job
        changes = await correlated(store, [change, *wish.following(change)])
        outcome = (await store.commit(changes))[-1]
        if isinstance(outcome, Rejected) and outcome.busy:
            break
        if not isinstance(outcome, Lost):
            return _written(job, outcome)
        job, decision = await _decide_anew(store, change, outcome, wish, expected_rev)
    return await _perform_locked(store, job, wish, expected_rev)


class _Wish:
    """What is to be carried out on a job, decided on whatever its record is at the time."""

    def __init__(self, command: Command, follow: Command | None, choose: Choose | None) -> None:
        self._command = command
        self._follow = follow
        self._choose = choose

    @property
    def request_id(self) -> str | None:
        return self._command.request_id

    @property
    def events(self) -> frozenset[EventType]:
        """The types of event that its operation leads to."""
        operation = self._command.operation
        return frozenset(type for row in TABLE if row.operation is operation for type in row.events)

    def is_told_by(self, event: LoggedEvent, job: Job) -> bool:
        """Whether an event written under its request_id is what it asks for."""
        chosen = self._command if self._choose is None else self._choose(job)
        commands = [one for one in (self._command, chosen) if not isinstance(one, Refusal)]
        return event.actor == self._command.actor.label and any(
            same_request(event, command) for command in commands
        )

    def decide(self, job: Job) -> Decision:
        chosen = self._command if self._choose is None else self._choose(job)
        return chosen if isinstance(chosen, Refusal) else rebase(job, chosen)

    def following(self, change: Change) -> list[Change]:
        decision = None if self._follow is None else decide(change.next, self._follow)
        return [decision] if isinstance(decision, Change) else []


async def _perform_locked(store: Jobs, job: Job, wish: _Wish, expected_rev: int | None) -> Job:
    """Carry it out under the job's lock, where nobody else can come first."""
    [first] = await store.events(job.id, limit=1)
    while True:
        decision: Decision | None = None

        def decide_on(current: Job, events: Sequence[LoggedEvent]) -> list[Change]:
            nonlocal decision
            decision = None
            if wish.request_id in {event.request_id for event in events} - {None}:
                return []
            if expected_rev not in (None, current.rev):
                return []
            decision = wish.decide(current)
            if not isinstance(decision, Change):
                return []
            changes = [decision, *wish.following(decision)]
            return [with_correlation(change, first.correlation_id) for change in changes]

        outcome = await store.commit_locked(job.id, decide_on, after=job.rev)
        if not isinstance(outcome, Lost):
            return _written(job, outcome)
        current = outcome.current
        if current is None:
            raise NoSuchJob(f"job {job.public_id} is gone", job_id=job.public_id)
        if isinstance(decision, Change):
            raise _lease_passed(current)
        if decision is not None:
            # Nothing to write; the store has waited until the record is durable.
            _accepted(current, decision)
            return current
        # This very request was written meanwhile, the caller knows another revision, or more came
        # between than was looked at.
        if repeat := await _repeated(store, current, wish):
            return repeat
        check_revision(current, expected_rev)
        job = current


async def _read(store: Jobs, id: JobId, needs_signals: Needs = _always) -> Job:
    """Read a job; its pending signals, which may be many, only if they are needed."""
    job = (await store.get([id], signals=needs_signals is _always))[0]
    if job is not None and job.unread_signals and needs_signals(job):
        job = (await store.get([id]))[0]
    if job is None:
        raise NoSuchJob(f"no job {id}", job_id=str(id))
    return job


async def _repeated(store: Jobs, job: Job, wish: _Wish) -> Job | None:
    """Answer a request_id that this job has seen: success if it is the same, else refused.

    The record was read first: what lands after this look makes the compare-and-set miss.
    """
    if wish.request_id is None:
        return None
    event = await _event_of(store, job, wish)
    if event is None:
        return None
    if not wish.is_told_by(event, job):
        raise RequestIdReused(
            f"request_id {wish.request_id!r} already stands for {event.type} at revision "
            f"{event.rev} of job {job.public_id}; use a new one",
            job_id=job.public_id,
        )
    current = await _read(store, job.id)
    await store.await_durable()
    return current


async def _event_of(store: Jobs, job: Job, wish: _Wish) -> LoggedEvent | None:
    """Find the event that was written under the wish's request_id.

    The index knows requests from outside. An owner or a scheduler repeats itself soon, so that its
    event is among the newest of its types.
    """
    event = await store.request_event(job.id, wish.request_id or "")
    if event is not None or wish.events <= REQUESTED:
        return event
    newest = await store.latest_events(job.id, sorted(wish.events))
    return next((one for one in newest if one.request_id == wish.request_id), None)


def check_revision(job: Job, expected_rev: int | None) -> None:
    """Refuse if the caller knows another revision than the job's (C3)."""
    if expected_rev is not None and job.rev != expected_rev:
        raise StaleRevision(
            f"job {job.public_id} is at revision {job.rev}, not {expected_rev}; read it again",
            job_id=job.public_id,
        )


def _accepted(job: Job, decision: Decision) -> Change | None:
    match decision:
        case Refusal(code=code, message=message):
            raise refused(code, message, job.public_id)
        case Unchanged():
            return None
        case Change():
            return decision


def refused(code: str, message: str, job_id: str) -> HoldfastError:
    """Turn the law's refusal into the error that callers catch."""
    kind = LeaseConflictError if code == "lease_lost" else Refused
    return kind(message, code=code, job_id=job_id)


def _written(job: Job, outcome: Committed | Rejected) -> Job:
    if isinstance(outcome, Rejected):
        kind = _REJECTED.get(outcome.code, LawBroken)
        raise kind(outcome.message, code=outcome.code, job_id=job.public_id)
    return outcome.job


_REJECTED: dict[str, type[HoldfastError]] = {
    kind.code: kind
    for kind in (JobPurged, JobUnreadable, KeyBusy, KeyConflict, RequestIdReused, TooManyNames)
}
"""Why a store rejects a change that is not against the law: a job that hangs on it was refused, or
the job itself is damaged."""


async def _decide_anew(
    store: Jobs, change: Change, outcome: Lost, wish: _Wish, expected_rev: int | None
) -> tuple[Job, Decision]:
    current = outcome.current
    if current is None:
        raise NoSuchJob(f"job {change.id} is gone", job_id=str(change.id))
    check_revision(current, expected_rev)
    if current.rev == change.record.rev:
        # The record is unchanged, so it was the lease that had passed by the store's clock.
        raise _lease_passed(current)
    if repeat := await _repeated(store, current, wish):
        return repeat, Unchanged(repeat)
    return current, wish.decide(current)


def _lease_passed(job: Job) -> LeaseConflictError:
    return LeaseConflictError(f"the lease on job {job.public_id} has passed", job_id=job.public_id)
