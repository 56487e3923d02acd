"""Purge: old jobs removed whole, with their events, once the term of their record is over.

What is left is an entry in the ledger of purges and each job's id: whoever asks for it is told, and
its `job_id` is never given again. Families go from the last job to the first: a job stays while
another is linked to it, or while one above it is kept. Level-triggered, in bounded batches; any
number may purge at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from holdfast.flow.clean import DAY, Cleaned, clean_jobs, needed_by_others, read_above
from holdfast.lifecycle.job import Actor, Job, JobId
from holdfast.lifecycle.states import Kind, Letter, Retention, State
from holdfast.ports import Purgeable, Store

BATCH = 500
BATCH_EVENTS = 10_000
"""Events that one transaction removes, unless a single job has more."""
"""Jobs that one transaction removes."""


class PurgeTerms(Struct, frozen=True, kw_only=True):
    """How long the records of ended jobs are kept, from their end, in microseconds; None: for ever.

    A dead letter that nobody has settled is kept, whatever the terms: it could not be redriven.
    """

    succeeded: int | None = 90 * DAY
    unsuccessful: int | None = 365 * DAY

    def of(self, job: Job) -> int | None:
        """Return how long the record of a job is kept after its end."""
        if job.letter is Letter.OPEN:
            return None
        return self.succeeded if job.state is State.SUCCEEDED else self.unsuccessful

    @property
    def shortest(self) -> int | None:
        """The shortest term; None if all are kept for ever."""
        terms = (self.succeeded, self.unsuccessful)
        return min((term for term in terms if term is not None), default=None)

    def is_over(self, job: Job, now: int) -> bool:
        """Whether a job's record may go. Only functions: others leave things outside the store."""
        term = self.of(job)
        return (
            job.kind is Kind.FUNCTION
            and term is not None
            and job.finished_at is not None
            and job.finished_at + term <= now
        )


class Purged(Struct, kw_only=True):
    """What one look did, or would do."""

    looked: int = 0
    """Jobs that were gone through; of the last stretch only those that had ended are counted."""
    purged: dict[State, int] = {}
    """Jobs that were removed, by how they had ended."""
    kept: int = 0
    """Jobs whose term is over and which stay for now: another job is linked to them, or one above
    them stays, or the store keeps the job of its newest event."""
    bytes: int = 0
    """What was given back to the file system."""
    failed: dict[JobId, str] = {}
    """Jobs that could not be cleaned, and so not removed."""
    next: JobId | None = None
    """Where the next look goes on; None is the beginning again."""

    @property
    def jobs(self) -> int:
        """How many jobs were removed."""
        return sum(self.purged.values())

    def add(self, other: Purged) -> None:
        """Add what another look did."""
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
    after: JobId | None = None,
    look_at: int = 1000,
    dry_run: bool = False,
) -> Purged:
    """Look at the next jobs by id, and remove those whose record's term is over."""
    report = Purged()
    if terms.shortest is None:
        return report
    now = (await store.clock()).now
    found = await store.purgeable(ended_before=now - terms.shortest, after=after, look_at=look_at)
    report.next = found.next
    report.looked = len(found.jobs) if found.next is None else look_at
    over = [job for job in found.jobs if terms.is_over(job, now)]
    ready = await _ready(store, found, over, terms, now)
    report.kept = len(over) - len(ready)
    if dry_run:
        _count(report, ready)
        return report
    for batch in _batches(ready):
        await _remove(store, actor, report, batch)
    if report.purged or report.next is None:
        report.bytes += await store.give_back_space()
    return report


async def purge_all(
    store: Store,
    actor: Actor,
    terms: PurgeTerms,
    *,
    dry_run: bool = False,
    on_look: Callable[[Purged], None] | None = None,
) -> Purged:
    """Look at all jobs, again while that frees others of their families; returns the sum."""
    total = Purged()
    while True:
        before, total.kept, total.looked = total.jobs, 0, 0
        after: JobId | None = None
        while True:
            report = await purge(store, actor, terms, after=after, dry_run=dry_run)
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


def _batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
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


async def _ready(
    store: Store, found: Purgeable, over: Sequence[Job], terms: PurgeTerms, now: int
) -> list[Job]:
    """Return those to which nothing is linked, and above which everything may go, too."""
    free = [job for job in over if job.id not in found.linked]
    # A redrive of a job above may still ask for what its children came to.
    kept = await needed_by_others(store, [job for job in free if job.parent_id is not None])
    above = {job.id: job.parent_id for job in free if job.parent_id is not None}
    while above:
        parents = list(dict.fromkeys(above.values()))
        read = await read_above(store, parents)
        kept |= {id_ for id_, up in above.items() if up not in read or _stays(read[up], terms, now)}
        above = {
            id_: parent.parent_id
            for id_, up in above.items()
            if id_ not in kept and (parent := read[up]) is not None and parent.parent_id is not None
        }
    return [job for job in free if job.id not in kept]


def _stays(job: Job | None, terms: PurgeTerms, now: int) -> bool:
    return job is not None and not terms.is_over(job, now)


async def _remove(store: Store, actor: Actor, report: Purged, jobs: Sequence[Job]) -> None:
    """Erase what is not erased yet, then remove the jobs whole."""
    cleaned = [job for job in jobs if job.retention is Retention.CLEANED]
    rest = [job for job in jobs if job.retention is not Retention.CLEANED]
    if rest:
        done = Cleaned()
        cleaned += await clean_jobs(store, actor, done, rest)
        report.failed |= done.failed
    gone = set(await store.purge([job.id for job in cleaned], actor=actor.name, reason=REASON))
    _count(report, [job for job in cleaned if job.id in gone])
    report.kept += len(cleaned) - len(gone)


REASON = "the term of their records is over"


def _count(report: Purged, jobs: Sequence[Job]) -> None:
    for job in jobs:
        report.purged[job.state] = report.purged.get(job.state, 0) + 1
