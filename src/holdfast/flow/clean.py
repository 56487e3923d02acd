"""Clean: what becomes of a job long after its end. Its bodies and outputs are erased, its record
stays.

The rows show what is to be done, and a sweep that dies between two steps leaves the rest to the
next. Any number may clean at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Struct, field

from holdfast.durations import Span, span_micros
from holdfast.errors import BadData, JobUnreadable
from holdfast.flow.batch import Choose, CountedSweep, carry_out
from holdfast.flow.blobs_on_demand import reach_blobs
from holdfast.flow.erase_outputs import OutputSize, erase_outputs, has_outputs, measure_outputs
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import Letter, Retention
from holdfast.lifecycle.times import SECOND
from holdfast.ports.blobs import Blobs, GetBlobs
from holdfast.ports.store import Store

DAY = 24 * 3600 * SECOND
FOREVER = "forever"
MOST_OUTPUTS = 200
"""Jobs with outputs that one pass cleans: each takes several requests to the place of blobs."""


class OutcomeTerms(Struct, frozen=True, kw_only=True):
    """How long jobs are kept after their last event, by how they ended; None means for ever."""

    succeeded: int | None
    unsuccessful: int | None

    def term_of(self, job: Job) -> int | None:
        """Return how long a job is kept."""
        return self.succeeded if job.succeeded else self.unsuccessful


class RetentionTerms(Struct, frozen=True, kw_only=True):
    """How long things are kept, in microseconds; None means for ever."""

    succeeded: int | None = 7 * DAY
    """From the last event of a job that succeeded."""
    unsuccessful: int | None = 30 * DAY
    """The same for every other end."""
    open_letters: int | None = None
    """The same while its dead letter is open: erased, it could not be redriven."""
    beats: int | None = DAY
    """Heartbeats, from when they came."""
    commands: OutcomeTerms | None = None
    """Commands and agents, by how they ended; None: as all other jobs."""
    artifacts: int | None = None
    """The artifacts of a job, from its last event; None: as long as the job."""

    def term_of(self, job: Job) -> int | None:
        """Return how long a job is kept after its last event."""
        if job.letter is Letter.OPEN:
            return self.open_letters
        if self.commands is not None and has_outputs(job):
            return self.commands.term_of(job)
        return self.succeeded if job.succeeded else self.unsuccessful

    def is_artifacts_term_over(self, job: Job, now: int) -> bool:
        """Return whether an ended job has lost its artifacts, or is to lose them now."""
        if self.artifacts is None or job.letter is Letter.OPEN:
            return False
        return job.updated_at + self.artifacts <= now

    @property
    def shortest(self) -> int | None:
        """The shortest term of any job; None if all are kept for ever."""
        own = () if self.commands is None else (self.commands.succeeded, self.commands.unsuccessful)
        terms = (self.succeeded, self.unsuccessful, self.open_letters, *own)
        return min((term for term in terms if term is not None), default=None)


def read_term(span: Span, what: str = "a term") -> int | None:
    """Read a term as people write it: a span such as "30d", or "forever"."""
    if span == FOREVER:
        return None
    try:
        return span_micros(span, what)
    except ValueError as error:
        raise BadData(f"{error}, or {FOREVER!r}") from error


class CleanSweep(CountedSweep, kw_only=True):
    """What one pass over some jobs did."""

    cleaned: int = 0
    erased: int = 0
    """Bodies of events."""
    beats: int = 0
    """Heartbeats that were dropped."""
    outputs: OutputSize = field(default_factory=OutputSize)
    """Logs and artifacts."""
    waiting: int = 0
    """Jobs whose term is over, and which wait for the place of their logs and artifacts."""
    unreachable: str | None = None
    """Why that cannot be reached."""
    next: JobId | None = None
    """The job after which the next pass starts; None means from the first."""

    @property
    def written(self) -> int:
        """How much it changed."""
        return self.cleaned + self.beats

    def add(self, other: CleanSweep) -> None:
        """Add what another pass did."""
        self.cleaned += other.cleaned
        self.erased += other.erased
        self.beats += other.beats
        self.outputs.add(other.outputs)
        self.waiting += other.waiting
        self.unreachable = other.unreachable or self.unreachable
        self.lost += other.lost
        self.failed |= other.failed


async def clean(
    store: Store,
    actor: Actor,
    terms: RetentionTerms,
    *,
    blobs: GetBlobs | None = None,
    after: JobId | None = None,
    look_at: int = 1000,
    dry_run: bool = False,
) -> CleanSweep:
    """Read the next jobs by id, and clean those whose term is over.

    Without a place of blobs only functions are cleaned. A dry run counts, and writes nothing.
    """
    report = CleanSweep()
    now = (await store.clock()).now
    if terms.shortest is not None:
        before = now - terms.shortest
        aged = await store.aged(ended_before=before, after=after, look_at=look_at)
        over = [job for job in aged.jobs if is_over(job, terms, now)]
        needed = await find_needed_by_others(store, over)
        over = [job for job in over if job.id not in needed]
        over, report.next = _limit_outputs(over, aged.next)
        if dry_run:
            await _count_jobs(report, over, blobs)
            return report
        await clean_jobs(store, actor, report, over, blobs)
    if terms.beats is not None and not dry_run:
        report.beats = await store.drop_beats(before=now - terms.beats)
    return report


def is_over(job: Job, terms: RetentionTerms, now: int) -> bool:
    """Return whether a job's term is over, or its cleaning has started."""
    if job.retention is Retention.CLEANING:
        return True
    term = terms.term_of(job)
    return term is not None and job.updated_at + term <= now


def _limit_outputs(jobs: list[Job], next: JobId | None) -> tuple[list[Job], JobId | None]:
    """Return as many of the jobs as one pass can do, and after which job the next one starts."""
    heavy = [number for number, job in enumerate(jobs) if has_outputs(job)]
    if len(heavy) <= MOST_OUTPUTS:
        return jobs, next
    last = heavy[MOST_OUTPUTS - 1]
    return jobs[: last + 1], jobs[last].id


async def _count_jobs(report: CleanSweep, jobs: Sequence[Job], get_blobs: GetBlobs | None) -> None:
    """Count what a pass would clean."""
    jobs, place = await _leave_unreachable(report, jobs, get_blobs)
    report.cleaned = len(jobs)
    for job in jobs:
        if place is not None and has_outputs(job):
            report.outputs.add(await measure_outputs(place, job.id))


async def find_needed_by_others(store: Store, jobs: Sequence[Job]) -> set[JobId]:
    """Find those that a job which has not ended may still ask about.

    A job above it, which may ask for its result; or a retry or redrive, of it or of one above it,
    which continues from what they have recorded.
    """
    asked = {job.id for job in jobs}
    continued = await _find_continued(store, jobs)

    async def keeping(found: Mapping[JobId, Job | None]) -> set[JobId]:
        nonlocal asked, continued
        read = [job for job in found.values() if job is not None]
        continued |= await _find_continued(store, [job for job in read if job.id not in asked])
        asked |= {job.id for job in read}
        return continued | {job.id for job in read if not job.terminal}

    return await find_kept_from_above(store, jobs, keeping, kept=continued)


async def find_kept_from_above(
    store: Store,
    jobs: Sequence[Job],
    keeping: Callable[[Mapping[JobId, Job | None]], Awaitable[set[JobId]]],
    *,
    kept: Iterable[JobId] = (),
) -> set[JobId]:
    """Climb from jobs to their ancestors; return those that an ancestor keeps.

    `keeping` returns which of some ancestors keep what is below them; one that cannot be read does,
    because what it may still ask for is unknown. The ancestors of `kept` jobs are not read.
    """
    found = set(kept)
    above = {job.id: job.parent_id for job in jobs if job.parent_id is not None}
    while above:
        read = await read_undamaged(store, list(dict.fromkeys(above.values())))
        keepers = await keeping(read)
        found |= {id_ for id_, up in above.items() if up not in read or up in keepers}
        above = {
            id_: job.parent_id
            for id_, up in above.items()
            if id_ not in found and (job := read[up]) is not None and job.parent_id is not None
        }
    return found


async def read_undamaged(store: Store, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
    """Read jobs by id; those that are damaged are left out."""
    try:
        return dict(zip(ids, await store.get(ids), strict=True))
    except JobUnreadable:
        if len(ids) == 1:
            return {}
    return {id_: job for one in ids for id_, job in (await read_undamaged(store, [one])).items()}


async def _find_continued(store: Store, jobs: Sequence[Job]) -> set[JobId]:
    """Find the jobs that a retry, redrive or compensation may still read; all in one request."""
    # Nothing is made from a job that succeeded.
    may_be = [job.id for job in jobs if job.terminal and not job.succeeded]
    return await store.continued(may_be) if may_be else set()


async def clean_jobs(
    store: Store,
    actor: Actor,
    report: CleanSweep,
    jobs: Sequence[Job],
    get_blobs: GetBlobs | None,
) -> list[Job]:
    """Mark the jobs, erase their outputs and bodies, then free their keys: only when all is gone.

    Returns those that are cleaned now.
    """
    jobs, place = await _leave_unreachable(report, jobs, get_blobs)
    marked = [job for job in jobs if job.retention is Retention.CLEANING]
    fresh = [job for job in jobs if job.retention is not Retention.CLEANING]
    marked += await carry_out(store, fresh, _choose_always(c.Clean(actor=actor)), report)
    if place is not None:
        heavy = [job for job in marked if has_outputs(job)]
        report.outputs.add(await erase_outputs(place, heavy, report))
        marked = [job for job in marked if job.id not in report.failed]
    if not marked:
        return []
    report.erased += await store.erase_bodies([job.id for job in marked])
    done = await carry_out(store, marked, _choose_always(c.Cleaned(actor=actor)), report)
    report.cleaned += len(done)
    return done


async def _leave_unreachable(
    report: CleanSweep, jobs: Sequence[Job], get_blobs: GetBlobs | None
) -> tuple[Sequence[Job], Blobs | None]:
    """Return the jobs that can be cleaned, and the place of blobs if one of them needs it.

    It is opened only then: where there are functions alone, there is none.
    """
    if not any(map(has_outputs, jobs)):
        return jobs, None
    place = await reach_blobs(get_blobs)
    if not isinstance(place, str):
        return jobs, place
    light = [job for job in jobs if not has_outputs(job)]
    report.unreachable = place
    report.waiting += len(jobs) - len(light)
    return light, None


def _choose_always(command: c.Command) -> Choose:
    async def choose(_: Job) -> Sequence[c.Command]:
        return (command,)

    return choose
