"""Recover: what a sweep makes of a job whose lease, deadline, timeout or wait has run out.

Level-triggered and idempotent: it reads what is due, decides, and commits like everyone else, so
that two sweeps, or one with a stale view, do no harm. Any number may run.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.flow.correlate import correlated
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.job import Actor, Change, Job, JobId, Refusal
from holdfast.lifecycle.retry import COMPENSATION_FAILED, exhausted, is_compensation, loss_costs
from holdfast.lifecycle.states import OWNED, EventType, State
from holdfast.ports import Committed, Due, Rejected, Store

WIDENINGS = 11
"""How often a sweep doubles its limit to see past jobs that it may not touch: past a million, which
one sweep can still hold. Few are ever in its way: those left to a live owner or a host for now."""


class Swept(Struct, kw_only=True):
    """What one sweep did."""

    found: int = 0
    now: int = 0
    """When it looked, by the store's clock."""
    moved: dict[tuple[str, str, EventType], int] = {}
    """What it wrote, by task, queue and event."""
    expired: int = 0
    """Of the jobs it wrote to, how many had an owner whose lease had run out."""
    lost: int = 0
    """Somebody else came first: nothing to do."""
    failed: dict[JobId, str] = {}
    """Jobs that could not be judged or written; the others were."""
    changes: list[Change] = []
    """What it wrote."""

    @property
    def written(self) -> dict[EventType, int]:
        """What it wrote, by event."""
        sums: dict[EventType, int] = {}
        for (_, _, kind), jobs in self.moved.items():
            sums[kind] = sums.get(kind, 0) + jobs
        return sums

    def count(self, change: Change) -> None:
        """Take note of a write that was accepted."""
        record = change.record
        key = record.task, record.queue, change.event.type
        self.moved[key] = self.moved.get(key, 0) + 1
        self.changes.append(change)
        lease = record.lease_expires_at
        self.expired += isinstance(lease, int) and lease <= self.now


async def sweep(
    store: Store, actor: Actor, *, jitter: Callable[[], float], limit: int = 500
) -> Swept:
    """Look once at what is due and do what the law says of each."""
    report, decided = await _look(store, actor, jitter, limit)
    changes = await correlated(store, decided)
    for change, outcome in zip(changes, await store.commit(changes), strict=True):
        if isinstance(outcome, Committed):
            report.count(change)
        elif isinstance(outcome, Rejected):
            report.failed[change.id] = outcome.message
        else:
            report.lost += 1
    return report


async def _look(
    store: Store, actor: Actor, jitter: Callable[[], float], limit: int
) -> tuple[Swept, list[Change]]:
    """Decide what is due; look further while those that must be left alone may hide others."""
    widest = limit << WIDENINGS
    wanted = limit
    while True:
        due = await store.due(limit=limit)
        report = Swept(found=len(due.jobs), now=due.now)
        decided = [_decided(job, due, actor, jitter, report) for job in due.jobs]
        changes = [change for change in decided if change is not None]
        if not due.more or len(changes) >= wanted or limit >= widest:
            return report, changes
        limit *= 2


def _decided(
    job: Job, due: Due, actor: Actor, jitter: Callable[[], float], report: Swept
) -> Change | None:
    """Decide one job; one that cannot be judged does not stop the others."""
    try:
        command = remedy(job, due, actor, jitter)
        decision = None if command is None else decide(job, command)
    except Exception as error:  # noqa: BLE001 - one poison row must not stop the sweep
        report.failed[job.id] = repr(error)
        return None
    if isinstance(decision, Refusal):
        report.failed[job.id] = decision.message
    return decision if isinstance(decision, Change) else None


def remedy(job: Job, due: Due, actor: Actor, jitter: Callable[[], float]) -> c.Command | None:
    """Name the command that a due job calls for; None while it is its owner's to act."""
    now = due.now
    if _past(job.deadline_at, now) and not _is_owners(job, due):
        return c.TimeOut(actor=actor, as_of=now, error_code="deadline", reason="deadline passed")
    if job.state is State.WAITING and _past(job.run_at, now):
        return c.Resume(actor=actor, as_of=now, reason="the wait ended by its time")
    if job.state not in OWNED:
        return None
    if _past(job.lease_expires_at, now) or (job.epoch or 1) < due.epoch:
        return _after_silence(job, due, actor, jitter)
    if job.state is State.CLAIMED and _past(job.timeout_at, now):
        return _after_no_start(job, due, actor, jitter)
    # A running job past its timeout is its owner's to kill, as long as the owner lives.
    return None


def _is_owners(job: Job, due: Due) -> bool:
    """Whether a passed deadline is for a live owner to act on: it kills, then it records.

    For two heartbeats: an owner that renews its lease and never looks at its deadline is ended
    all the same, and the record says that nobody saw it die.
    """
    lives = not _past(job.lease_expires_at, due.now) and (job.epoch or 1) >= due.epoch
    patience = (job.deadline_at or 0) + job.policy.running_lease
    return job.state is State.RUNNING and lives and not _past(patience, due.now)


def _after_silence(
    job: Job, due: Due, actor: Actor, jitter: Callable[[], float]
) -> c.Command | None:
    """Answer a lost lease (resolutions 6 and 7)."""
    match job.policy.on_silence:
        case "time_out":
            return c.TimeOut(
                actor=actor,
                as_of=due.now,
                epoch=due.epoch,
                killed=False,
                reason="no word from owner",
            )
        case "lose":
            if not _past((job.lease_expires_at or 0) + job.policy.host_recovery, due.now):
                return None
            code = "container_not_found_on_recovery"
            if job.state is State.RUNNING:
                code = "container_lost_on_recovery"
            return c.Lose(actor=actor, as_of=due.now, epoch=due.epoch, error_code=code)
        case _:
            return _after_loss(job, due, actor, jitter)


def _after_loss(job: Job, due: Due, actor: Actor, jitter: Callable[[], float]) -> c.Command:
    """Answer a lost lease where tries may be left."""
    if _is_over(job):
        started = job.state is State.RUNNING and not job.policy.idempotent
        code = "infrastructure_failure" if started else "exhausted_retries"
        code = COMPENSATION_FAILED if is_compensation(job) else code
        return c.DeadLetter(
            actor=actor,
            as_of=due.now,
            epoch=due.epoch,
            error_code=code,
            stage="exec",
            reason="lease ran out",
        )
    return c.Stall(
        actor=actor, as_of=due.now, epoch=due.epoch, jitter=jitter(), reason="lease ran out"
    )


def _after_no_start(job: Job, due: Due, actor: Actor, jitter: Callable[[], float]) -> c.Command:
    """Answer a claim that was not started in time: another try, or the end (resolution 7)."""
    if _is_over(job):
        return c.TimeOut(actor=actor, as_of=due.now, error_code="start_timeout", killed=False)
    return c.Stall(actor=actor, as_of=due.now, jitter=jitter(), reason="not started in time")


def _is_over(job: Job) -> bool:
    """Whether losing this attempt leaves no other."""
    if job.state is State.RUNNING and not job.policy.idempotent:
        return True
    return loss_costs(job) and exhausted(job)


def _past(time: int | None, now: int) -> bool:
    return time is not None and time <= now
