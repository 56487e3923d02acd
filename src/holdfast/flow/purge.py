"""Purge: old jobs removed whole, with their events, once the term of their record is over.

What is left is an entry in the ledger of purges and each job's id: a read of it raises JobPurged,
and its `job_id` is never given again. Families go from the last job to the first: a job stays while
another is linked to it, or while one above it is kept. Any number may purge at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from holdfast.flow.clean import (
    DAY,
    CleanSweep,
    clean_jobs,
    find_kept_from_above,
    find_needed_by_others,
)
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import Letter, Retention, State
from holdfast.ports.blobs import GetBlobs
from holdfast.ports.models import Purgeable
from holdfast.ports.store import Store

BATCH = 500
"""Jobs that one transaction removes."""
BATCH_EVENTS = 10_000
"""Events that one transaction removes, unless a single job has more."""


class PurgeTerms(Struct, frozen=True, kw_only=True):
    """How long the records of ended jobs are kept, from their end, in microseconds; None: for ever.

    An open dead letter is kept, whatever the terms: it could not be redriven.
    """

    succeeded: int | None = 90 * DAY
    unsuccessful: int | None = 365 * DAY

    def term_of(self, job: Job) -> int | None:
        """Return how long the record of a job is kept after its end."""
        if job.letter is Letter.OPEN:
            return None
        return self.succeeded if job.succeeded else self.unsuccessful

    @property
    def shortest(self) -> int | None:
        """The shortest term; None if all are kept for ever."""
        terms = (self.succeeded, self.unsuccessful)
        return min((term for term in terms if term is not None), default=None)

    def is_over(self, job: Job, now: int) -> bool:
        """Return whether a record may go."""
        term = self.term_of(job)
        ended_at = job.finished_at
        return term is not None and ended_at is not None and ended_at + term <= now


class Purged(Struct, kw_only=True):
    """What one pass did, or would do."""

    looked: int = 0
    """Jobs that were read; of the last stretch only those that had ended are counted."""
    purged: dict[State, int] = {}
    """Jobs that were removed, by how they had ended."""
    kept: int = 0
    """Jobs whose term is over and which stay for now: another job is linked to them, or one above
    them stays, or the store keeps the job of its newest event, or what they left in the place of
    blobs cannot be erased first."""
    bytes: int = 0
    """What was given back to the file system."""
    failed: dict[JobId, str] = {}
    """Jobs that could not be cleaned, and so not removed."""
    next: JobId | None = None
    """The job after which the next pass starts; None means from the first."""

    @property
    def jobs(self) -> int:
        """How many jobs were removed."""
        return sum(self.purged.values())

    def add(self, other: Purged) -> None:
        """Add what another pass did."""
        self.looked += other.looked
        for state, jobs in other.purged.items():
            self.purged[state] = self.purged.get(state, 0) + jobs
        self.kept += other.kept
        self.bytes += other.bytes
        self.failed |= other.failed


async def purge(
    store: Store,
    actor: Actor,
    terms: PurgeTerms,
    *,
    blobs: GetBlobs | None = None,
    after: JobId | None = None,
    look_at: int = 1000,
    dry_run: bool = False,
) -> Purged:
    """Read the next jobs by id, and remove those whose record's term is over."""
    report = Purged()
    if terms.shortest is None:
        return report
    now = (await store.clock()).now
    found = await store.purgeable(ended_before=now - terms.shortest, after=after, look_at=look_at)
    report.next = found.next
    report.looked = len(found.jobs) if found.next is None else look_at
    over = [job for job in found.jobs if terms.is_over(job, now)]
    ready = await _find_removable(store, found, over, terms, now)
    report.kept = len(over) - len(ready)
    if dry_run:
        _count(report, ready)
        return report
    for batch in _split_into_batches(ready):
        await _remove(store, actor, report, batch, blobs)
    if report.purged or report.next is None:
        report.bytes += await store.give_back_space()
    return report


async def purge_all(
    store: Store,
    actor: Actor,
    terms: PurgeTerms,
    *,
    blobs: GetBlobs | None = None,
    dry_run: bool = False,
    on_look: Callable[[Purged], None] | None = None,
) -> Purged:
    """Read all jobs, again while that frees others of their families; return the sum."""
    total = Purged()
    while True:
        before, total.kept, total.looked = total.jobs, 0, 0
        after: JobId | None = None
        while True:
            report = await purge(store, actor, terms, blobs=blobs, after=after, dry_run=dry_run)
            total.add(report)
            if on_look is not None:
                on_look(total)
            after = report.next
            if after is None:
                break
        if dry_run or not total.kept or total.jobs == before:
            break
    while not dry_run and (freed := await store.give_back_space()):
        total.bytes += freed
    return total


def _split_into_batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Split jobs so that no transaction removes very many of them, or of their events."""
    batch: list[Job] = []
    events = 0
    for job in jobs:
        if batch and (len(batch) == BATCH or events + job.rev > BATCH_EVENTS):
            yield batch
            batch, events = [], 0
        batch.append(job)
        events += job.rev
    if batch:
        yield batch


async def _find_removable(
    store: Store, found: Purgeable, over: Sequence[Job], terms: PurgeTerms, now: int
) -> list[Job]:
    """Return those to which nothing is linked, and above which everything may go, too."""
    free = [job for job in over if job.id not in found.linked]
    # A redrive of a job above may still ask for what its children came to.
    kept = await find_needed_by_others(store, [job for job in free if job.parent_id is not None])

    async def staying(above: Mapping[JobId, Job | None]) -> set[JobId]:
        return {job.id for job in above.values() if job is not None and not terms.is_over(job, now)}

    kept = await find_kept_from_above(store, free, staying, kept=kept)
    return [job for job in free if job.id not in kept]


async def _remove(
    store: Store, actor: Actor, report: Purged, jobs: Sequence[Job], blobs: GetBlobs | None
) -> None:
    """Erase what is not erased yet, then remove the jobs whole.

    One whose outputs cannot be erased stays: without its record they would be found only by
    chance.
    """
    cleaned = [job for job in jobs if job.retention is Retention.CLEANED]
    rest = [job for job in jobs if job.retention is not Retention.CLEANED]
    if rest:
        done = CleanSweep()
        cleaned += await clean_jobs(store, actor, done, rest, blobs)
        report.failed |= done.failed
        report.kept += done.waiting
    gone = set(await store.purge([job.id for job in cleaned], actor=actor.name, reason=REASON))
    _count(report, [job for job in cleaned if job.id in gone])
    report.kept += len(cleaned) - len(gone)


REASON = "the term of their records is over"


def _count(report: Purged, jobs: Sequence[Job]) -> None:
    for job in jobs:
        report.purged[job.state] = report.purged.get(job.state, 0) + 1
