"""Claims that are due: what they still hold, and when to look at each again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.lifecycle.due import look_again_at, oldest_first
from holdfast.lifecycle.lease import is_lost
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Due

CLAIM_MEMORY = 600 * SECOND
"""How long a claim of which nothing is held any more is still known when it is asked for again."""


class DueClaim(Struct, frozen=True):
    """A claim of which a lease may have passed."""

    request_id: str
    ids: Sequence[JobId]
    at: int


class Tidied(Struct, frozen=True):
    """What becomes of claims that were looked at."""

    pushed: list[tuple[str, int, bool]]
    """Look at these again, at that time; False: nothing of the claim is held."""
    gone: list[str]
    """Forget these."""


def tidy(claims: Sequence[DueClaim], owned: Mapping[JobId, Job], now: int) -> Tidied:
    """Look at each again when a lease may pass; close, later forget it if nothing is held."""
    tidied = Tidied([], [])
    for claim in claims:
        leases = [look_again_at(owned[id_], now) for id_ in claim.ids if id_ in owned]
        if leases or claim.at + CLAIM_MEMORY > now:
            look_at = min(leases, default=claim.at + CLAIM_MEMORY)
            tidied.pushed.append((claim.request_id, look_at, bool(leases)))
        else:
            tidied.gone.append(claim.request_id)
    return tidied


def due_jobs(
    wakes: Sequence[Job],
    owned: Mapping[JobId, Job],
    now: int,
    epoch: int,
    limit: int,
    *,
    more: bool,
) -> Due:
    """List what is due: waits and deadlines that are over, and owners that were lost."""
    found = {job.id: job for job in wakes}
    found |= {id_: job for id_, job in owned.items() if is_lost(job, now, epoch)}
    jobs = oldest_first(found.values(), limit)
    return Due(now=now, epoch=epoch, jobs=jobs, more=more or len(found) > limit)
