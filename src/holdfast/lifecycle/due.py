"""What is due: which jobs come first, when to look again, and which command each calls for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.lease import (
    is_lost,
    owner_ends_it,
    start_is_overdue,
    taken_from,
)
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.retry import (
    COMPENSATION_FAILED,
    exhausted,
    is_compensation,
    loss_costs,
    runs_once,
)
from holdfast.lifecycle.states import Kind
from holdfast.lifecycle.times import is_past


def oldest_first(jobs: Iterable[Job], limit: int) -> list[Job]:
    """Put jobs that are due for any reason in one order, so that none hides another."""
    return sorted(jobs, key=due_since)[:limit]


def due_since(job: Job) -> int:
    """Return when the first of a job's limits ran, or will run, out."""
    limits = (job.deadline_at, job.lease_expires_at, _wait_until(job))
    return min((limit for limit in limits if limit is not None), default=0)


def _wait_until(job: Job) -> int | None:
    if job.claimed:
        return job.timeout_at
    return job.run_at if job.waiting else None


def look_again_at(job: Job, now: int) -> int:
    """Return when an owned job may next have to be swept.

    A start grants its own, shorter lease. One that is left to its host or bus first is not in the
    way of others meanwhile.
    """
    lease = job.lease_expires_at or 0
    if job.claimed:
        lease = min(lease, now + job.policy.running_lease)
    return taken_from(job) if lease <= now else lease


def remedy(
    job: Job, actor: Actor, *, now: int, epoch: int, jitter: Callable[[], float]
) -> c.Command | None:
    """Return the command that a due job calls for; None while it is its owner's to act."""
    if is_past(job.deadline_at, now) and not owner_ends_it(job, now, epoch):
        return c.TimeOut(actor=actor, as_of=now, error_code="deadline", reason="deadline passed")
    if job.waiting and is_past(job.run_at, now):
        return c.Resume(actor=actor, as_of=now, reason="the wait ended by its time")
    if is_lost(job, now, epoch):
        return _answer_lost_lease(job, actor, now, epoch, jitter)
    # While a bus holds its lease, a bridge judges that: the result may wait on the bus.
    if start_is_overdue(job, now) and job.kind is not Kind.BUS:
        return answer_missing_start(job, actor, now, jitter)
    # A running job past its timeout is its owner's to kill, as long as the owner lives.
    return None


def _answer_lost_lease(
    job: Job, actor: Actor, now: int, epoch: int, jitter: Callable[[], float]
) -> c.Command | None:
    """Answer a lost lease (resolutions 6 and 7)."""
    match job.policy.on_silence:
        case "time_out" | "lose" if not is_past(taken_from(job), now):
            return None
        case "time_out":
            return c.TimeOut(
                actor=actor, as_of=now, epoch=epoch, killed=False, reason="no word from owner"
            )
        case "lose":
            code = "container_not_found_on_recovery"
            if job.running:
                code = "container_lost_on_recovery"
            return c.Lose(actor=actor, as_of=now, epoch=epoch, error_code=code)
        case _ if _is_over(job):
            return c.DeadLetter(
                actor=actor,
                as_of=now,
                epoch=epoch,
                error_code=_loss_code(job),
                stage="exec",
                reason="lease expired",
            )
        case _:
            return c.Stall(
                actor=actor, as_of=now, epoch=epoch, jitter=jitter(), reason="lease expired"
            )


def _loss_code(job: Job) -> str:
    """Return the dead-letter reason of a job whose last attempt was lost."""
    if is_compensation(job):
        return COMPENSATION_FAILED
    return "infrastructure_failure" if runs_once(job) else "exhausted_retries"


def answer_missing_start(
    job: Job, actor: Actor, now: int, jitter: Callable[[], float]
) -> c.Command:
    """Answer a claim that was not started in time: another try, or the end (resolution 7)."""
    if _is_over(job):
        return c.TimeOut(actor=actor, as_of=now, error_code="start_timeout", killed=False)
    return c.Stall(actor=actor, as_of=now, jitter=jitter(), reason="not started in time")


def _is_over(job: Job) -> bool:
    """Return whether losing this attempt leaves no other."""
    return runs_once(job) or (loss_costs(job) and exhausted(job))
