"""One command on one job: read, decide, commit; decide again when another writer came first.

This is the careful path of control commands and tools. A worker's path never reads before it
writes: it decides on the record that its last commit confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from holdfast.errors import (
    REFUSED_BY_STORE,
    HoldfastError,
    LawBroken,
    LeaseConflictError,
    NoSuchJob,
    Refused,
    RequestIdReused,
    StaleRevision,
    StoreUnavailable,
    about,
)
from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.decide import Decision, decide
from holdfast.lifecycle.linked import brings_compensation, with_correlation
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.rebase import REBASES, rebase, same_request
from holdfast.lifecycle.record import Change, Job, JobId, LoggedEvent, Refusal, Unchanged
from holdfast.lifecycle.transitions import REQUESTED
from holdfast.ports.models import Committed, Lost, Rejected
from holdfast.ports.store import Jobs

Choose: TypeAlias = Callable[[Job], Command | Refusal | Unchanged]
"""Returns the command to carry out on a job as it is now, or why none is needed or allowed."""
Needs: TypeAlias = Callable[[Job], bool]
"""Returns whether a job's pending signals have to be known to decide on it."""
IsRepeat: TypeAlias = Callable[[LoggedEvent, Job], bool]
"""Returns whether an event of a job under the command's request_id is the command itself."""


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
    is_repeat: IsRepeat | None = None,
    needs_signals: Needs = _always,
) -> Job:
    """Carry a command out, once, and return the record it led to.

    An `expected_rev` given by the caller is never rebased: it raises StaleRevision if the job has
    moved on. `follow` is carried out in the same commit, if the law allows it upon the first.
    `choose` returns what to carry out instead of `command` on the record as it is then, or a
    refusal. The record that is returned may lack pending signals where `needs_signals` returned
    False.

    Never refused because the job is merely busy: after `REBASES` lost compare-and-sets, or where
    another transaction keeps the job locked, it is decided and written under the job's lock.
    """
    intent = _Intent(command, follow, choose, is_repeat)
    job = await _read_job(store, id, needs_signals)
    if repeat := await _find_repeated(store, job, intent):
        return repeat
    check_revision(job, expected_rev)
    decision = intent.decide(job)
    for _ in range(REBASES + 1):
        change = _require_accepted(job, decision)
        if change is None:
            await store.await_durable()
            return job
        changes = await add_correlation_ids(store, [change, *intent.following(change)])
        outcome = (await store.commit(changes))[-1]
        if isinstance(outcome, Rejected) and outcome.busy:
            break
        if not isinstance(outcome, Lost):
            return _require_committed(job, outcome)
        job, decision = await _decide_again(store, change, outcome, intent, expected_rev)
    return await _perform_locked(store, job, intent, expected_rev)


class _Intent(Struct, frozen=True):
    """What is to be carried out on a job, whatever its record is at the time."""

    command: Command
    follow: Command | None
    choose: Choose | None
    is_repeat: IsRepeat | None

    @property
    def request_id(self) -> str | None:
        return self.command.request_id

    def is_carried_out_by(self, event: LoggedEvent, job: Job) -> bool:
        """Return whether an event written under its request_id is what it asks for."""
        if self.is_repeat is not None:
            return self.is_repeat(event, job)
        return event.actor == self.command.actor.label and any(
            isinstance(command, Command) and same_request(event, command)
            for command in (self.command, self._chosen(job))
        )

    def decide(self, job: Job) -> Decision:
        chosen = self._chosen(job)
        return rebase(job, chosen) if isinstance(chosen, Command) else chosen

    def _chosen(self, job: Job) -> Command | Refusal | Unchanged:
        return self.command if self.choose is None else self.choose(job)

    def following(self, change: Change) -> list[Change]:
        decision = None if self.follow is None else decide(change.next, self.follow)
        return [decision] if isinstance(decision, Change) else []


async def _perform_locked(store: Jobs, job: Job, intent: _Intent, expected_rev: int | None) -> Job:
    """Carry it out under the job's lock, where no other writer can come first."""
    [first] = await store.events(job.id, limit=1)
    while True:
        decision: Decision | None = None

        def decide_on(current: Job, events: Sequence[LoggedEvent]) -> list[Change]:
            nonlocal decision
            decision = None
            if intent.request_id in {event.request_id for event in events} - {None}:
                return []
            if expected_rev not in (None, current.rev):
                return []
            decision = intent.decide(current)
            if not isinstance(decision, Change):
                return []
            changes = [decision, *intent.following(decision)]
            return [with_correlation(change, first.correlation_id) for change in changes]

        outcome = await store.commit_locked(job.id, decide_on, after=job.rev)
        if not isinstance(outcome, Lost):
            return _require_committed(job, outcome)
        current = outcome.current
        if current is None:
            raise gone(job.public_id)
        if isinstance(decision, Change):
            raise lease_passed(current.public_id)
        if decision is not None:
            # Nothing to write; the store has waited until the record is durable.
            _require_accepted(current, decision)
            return current
        # This very request was written meanwhile, the caller knows another revision, or more events
        # came in between than were read.
        if repeat := await _find_repeated(store, current, intent):
            return repeat
        check_revision(current, expected_rev)
        job = current


async def _read_job(store: Jobs, id: JobId, needs_signals: Needs = _always) -> Job:
    """Read a job; its pending signals, which may be many, only if they are needed."""
    job = (await store.get([id], signals=needs_signals is _always))[0]
    if job is not None and job.unread_signals and needs_signals(job):
        job = (await store.get([id]))[0]
    if job is None:
        raise NoSuchJob(f"no job {id}", job_id=str(id))
    return job


async def _find_repeated(store: Jobs, job: Job, intent: _Intent) -> Job | None:
    """Return the record if this request was carried out before; refuse another under its id.

    The record was read first: what lands after this look makes the compare-and-set miss.
    """
    event = await _find_event(store, job, intent)
    if event is None:
        return None
    if not intent.is_carried_out_by(event, job):
        raise RequestIdReused(
            f"request_id {intent.request_id!r} was already used for {event.type} at revision "
            f"{event.rev} of job {job.public_id}; use a new one",
            job_id=job.public_id,
        )
    current = await _read_job(store, job.id)
    await store.await_durable()
    return current


async def _find_event(store: Jobs, job: Job, intent: _Intent) -> LoggedEvent | None:
    """Find the event that was written under the request_id.

    The index knows requests from outside. An owner or a scheduler repeats itself soon, so that its
    event is among the newest of its types.
    """
    if intent.request_id is None:
        return None
    event = await store.request_event(job.id, intent.request_id)
    types = intent.command.events()
    if event is not None or types <= REQUESTED:
        return event
    newest = await store.latest_events(job.id, sorted(types))
    return next((one for one in newest if one.request_id == intent.request_id), None)


def check_revision(job: Job, expected_rev: int | None) -> None:
    """Refuse if the caller knows another revision than the job's (C3)."""
    if expected_rev is not None and job.rev != expected_rev:
        raise StaleRevision(
            f"job {job.public_id} is at revision {job.rev}, not {expected_rev}; read it again",
            job_id=job.public_id,
        )


def _require_accepted(job: Job, decision: Decision) -> Change | None:
    match decision:
        case Refusal(code=code, message=message):
            raise refused(code, message, job.public_id)
        case Unchanged():
            return None
        case Change():
            return decision


def refused(code: str, message: str, job_id: str) -> HoldfastError:
    """Return the law's refusal as the error that callers catch."""
    kind = LeaseConflictError if code == "lease_lost" else Refused
    return kind(message, code=code, job_id=job_id)


def _require_committed(job: Job, outcome: Committed | Rejected) -> Job:
    if isinstance(outcome, Rejected):
        kind = REFUSED_BY_STORE.get(outcome.code, LawBroken)
        raise kind(outcome.message, code=outcome.code, job_id=job.public_id)
    return outcome.job


async def _decide_again(
    store: Jobs, change: Change, outcome: Lost, intent: _Intent, expected_rev: int | None
) -> tuple[Job, Decision]:
    current = outcome.current
    if current is None:
        raise gone(str(change.id))
    check_revision(current, expected_rev)
    if current.rev == change.record.rev:
        # The record is unchanged, so it was the lease that had passed by the store's clock.
        raise lease_passed(current.public_id)
    if repeat := await _find_repeated(store, current, intent):
        return repeat, Unchanged(repeat)
    return current, intent.decide(current)


def gone(job_id: str) -> NoSuchJob:
    return NoSuchJob(f"job {job_id} is gone", job_id=job_id)


def lease_passed(job_id: str) -> LeaseConflictError:
    return LeaseConflictError(f"the lease on job {job_id} has passed", job_id=job_id)


async def add_correlation_ids(store: Jobs, changes: Sequence[Change]) -> list[Change]:
    """Return changes whose compensations have the correlation ids of the jobs that they undo."""
    return [
        await _add_correlation_id(store, change)
        if change.submits and brings_compensation(change)
        else change
        for change in changes
    ]


async def _add_correlation_id(store: Jobs, change: Change) -> Change:
    try:
        [first] = await store.events(change.id, limit=1)
    except StoreUnavailable:
        raise
    except Exception:  # noqa: BLE001 - a first event that cannot be read must not keep a job alive
        return change
    return with_correlation(change, first.correlation_id)


def check_reason(reason: str | None) -> str | None:
    """Return a reason that a caller gave, if it can be kept."""
    if reason is None:
        return None
    with about("reason"):
        return check_text(reason, "reason", empty=True)
