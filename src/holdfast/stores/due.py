"""In which order a sweep is shown what is due. Pure; both stores ask it."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.lifecycle.job import Job
from holdfast.lifecycle.states import State


def oldest_first(jobs: Iterable[Job], limit: int) -> list[Job]:
    """Put jobs that are due for whatever reason in one order, so that none hides another."""
    return sorted(jobs, key=due_since)[:limit]


def due_since(job: Job) -> int:
    """Tell when the first of a job's limits ran, or will run, out."""
    limits = (job.deadline_at, job.lease_expires_at, _wait_until(job))
    return min((limit for limit in limits if limit is not None), default=0)


def look_again_at(job: Job, now: int) -> int:
    """Return when a held job may next have to be swept.

    A start grants its own, shorter lease. One that is left to its host first is not in the way of
    others meanwhile.
    """
    lease = job.lease_expires_at or 0
    if job.state is State.CLAIMED:
        lease = min(lease, now + job.policy.running_lease)
    if lease <= now and job.policy.on_silence == "lose":
        return lease + job.policy.host_recovery
    return lease


def _wait_until(job: Job) -> int | None:
    if job.state is State.CLAIMED:
        return job.timeout_at
    return job.run_at if job.state is State.WAITING else None
