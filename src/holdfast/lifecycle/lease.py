"""Leases: who owns a job, until when, and what is known of a run whose owner was lost.

`now` and `epoch` are the store's. `now` may be None, for a sender that never read the store's
clock: then no time has passed for it.
"""

from __future__ import annotations

from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import CONFIRMED, UNCONFIRMED, Actor, Draft, Job
from holdfast.lifecycle.states import BOXED, OWNED, Kind, Role, State
from holdfast.lifecycle.times import SECOND, is_past

# Named once: reading a member off an enum's class costs as much as a call (Python 3.11).
_CLAIMED, _RUNNING = State.CLAIMED, State.RUNNING


def is_owner(record: Draft, actor: Actor) -> bool:
    """Return whether the actor owns this very attempt."""
    return record.owner == actor.name and record.attempt == actor.attempt


def is_lost(record: Draft, now: int | None, epoch: int) -> bool:
    """Return whether a job has an owner that may no longer act for it.

    A claim of an older epoch is fenced whatever its lease: the database was restored.
    """
    if record.state not in OWNED:
        return False
    return has_expired(record, now) or is_older_claim(record, epoch)


def has_expired(record: Draft, now: int | None) -> bool:
    """Return whether the lease of a job's owner has expired."""
    return is_past(record.lease_expires_at, now)


def is_older_claim(record: Draft, epoch: int) -> bool:
    """Return whether an owner claimed a job before the epoch was raised."""
    return (record.epoch or 1) < epoch


def is_live(record: Draft, now: int, epoch: int) -> bool:
    """Return whether a job has an owner that may act for it."""
    return record.state in OWNED and not is_lost(record, now, epoch)


def start_is_overdue(record: Draft, now: int | None) -> bool:
    """Return whether a claimed job was not started in time (resolution 7)."""
    return record.state is _CLAIMED and is_past(record.timeout_at, now)


def run_is_overdue(record: Draft, now: int | None) -> bool:
    """Return whether a run is past its timeout: its owner kills it, or a sweep takes the job."""
    return record.state is _RUNNING and is_past(record.timeout_at, now)


def is_over_time(record: Draft, now: int | None) -> bool:
    """Return whether a job is past its deadline, or past the time limit of its present phase."""
    return is_past(record.deadline_at, now) or is_past(record.timeout_at, now)


def is_timed_out(record: Draft, now: int | None, epoch: int) -> bool:
    """Return whether a job may end as timed out: past a limit, or silent where silence is one."""
    if is_over_time(record, now):
        return True
    return record.policy.on_silence == "time_out" and is_lost(record, now, epoch)


KEEP_LIMIT = 660 * SECOND
"""For this long the outputs of a box may be kept after its end, with some time to write that."""


def owner_ends_it(job: Job, now: int, epoch: int) -> bool:
    """Return whether a passed deadline is for a live owner to act on: it kills, then it records.

    For two heartbeats: an owner that renews its lease and never looks at its deadline is ended
    all the same, and the record shows that no one saw it die. A box may have ended in time, and
    its outputs are being kept: they must not be lost to a deadline that passes meanwhile.
    """
    patience = (job.deadline_at or 0) + job.policy.running_lease
    if job.kind in BOXED:
        patience += KEEP_LIMIT
    return job.state is _RUNNING and not is_lost(job, now, epoch) and not is_past(patience, now)


def renewal(record: Draft) -> int:
    """Return for how long a renewal grants the lease now, in microseconds."""
    policy = record.policy
    return policy.lease if record.state is _CLAIMED else policy.running_lease


def shortest_grant(policy: Policy) -> int:
    """Return the shorter of the two leases: a start may shorten that of a claim at any time."""
    return min(policy.lease, policy.running_lease)


def longest_grant(policy: Policy) -> int:
    """Return the longer of the two leases."""
    return max(policy.lease, policy.running_lease)


_RECOVERED = frozenset({"lose", "time_out"})
"""Answers to silence that end a job: before that, its host or its bus may return for it."""


def taken_from(job: Job) -> int:
    """Return from when a sweep may take a job from a lost owner.

    A job that would end first waits for its host or its bus to recover it (resolution 6).
    """
    policy = job.policy
    wait = policy.host_recovery if policy.on_silence in _RECOVERED else 0
    return (job.lease_expires_at or 0) + wait


def kill_evidence(record: Draft, role: Role, *, gone: bool = False) -> str | None:
    """Return what is known of the run of a job that `role` ends: None if nothing was running.

    A host's word that nothing of it is left (`gone`) is as good as that of the owner. A bus owns
    what it cannot kill: only its worker's word that the run has ended is proof (resolution 20).
    """
    if record.state not in OWNED:
        return UNCONFIRMED if record.lost_owner is not None else None
    seen = gone if role is Role.HOST or record.kind is Kind.BUS else role is Role.OWNER
    return CONFIRMED if seen else UNCONFIRMED


def last_owner(record: Draft, actor: Actor) -> str | None:
    """Return who owned a job before `actor` ends that; None if it is the actor itself."""
    # By the label: a sweep may run in the owner's process and bear its name.
    return None if record.owner == actor.label else record.owner or record.lost_owner
