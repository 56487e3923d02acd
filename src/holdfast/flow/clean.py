"""Clean: what becomes of a job long after its end. Its bodies are erased, its record stays.

Level-triggered, like every sweep: the rows say what is to be done, and whoever dies between two
steps leaves the rest to the next. Any number may clean at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast.errors import BadData, JobUnreadable
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.job import Actor, Change, Job, JobId, Refusal
from holdfast.lifecycle.states import Kind, Letter, Retention, State
from holdfast.lifecycle.times import SECOND
from holdfast.ports import Committed, Rejected, Store
from holdfast.spans import Span, span_micros

DAY = 24 * 3600 * SECOND
FOREVER = "forever"


class Terms(Struct, frozen=True, kw_only=True):
    """How long things are kept, in microseconds; None is for ever."""

    succeeded: int | None = 7 * DAY
    """From the last event of a job that succeeded."""
    unsuccessful: int | None = 30 * DAY
    """The same for every other end."""
    open_letters: int | None = None
    """The same while nobody has settled its dead letter: erased, it could not be redriven."""
    beats: int | None = DAY
    """Heartbeats, from when they came."""

    def of(self, job: Job) -> int | None:
        """Tell how long a job is kept after its last event."""
        if job.letter is Letter.OPEN:
            return self.open_letters
        return self.succeeded if job.state is State.SUCCEEDED else self.unsuccessful

    @property
    def shortest(self) -> int | None:
        """The shortest term of any job; None if all are kept for ever."""
        terms = (self.succeeded, self.unsuccessful, self.open_letters)
        return min((term for term in terms if term is not None), default=None)


def read_term(span: Span, what: str = "a term") -> int | None:
    """Read a term as people write it: a span such as "30d", or "forever"."""
    if span == FOREVER:
        return None
    try:
        return span_micros(span, what)
    except ValueError as error:
        raise BadData(f"{error}, or {FOREVER!r}") from error


class Cleaned(Struct, kw_only=True):
    """What one look did."""

    cleaned: int = 0
    erased: int = 0
    """Bodies of events."""
    beats: int = 0
    lost: int = 0
    """Somebody else came first: it is looked at again."""
    failed: dict[JobId, str] = {}
    """Jobs that could not be judged or written; the others were."""
    next: JobId | None = None
    """Where the next look goes on; None is the beginning again."""

    @property
    def written(self) -> int:
        """How much it changed."""
        return self.cleaned + self.beats


async def clean(
    store: Store,
    actor: Actor,
    terms: Terms,
    *,
    after: JobId | None = None,
    look_at: int = 1000,
) -> Cleaned:
    """Look at the next jobs by id, and clean those whose term is over."""
    report = Cleaned()
    now = (await store.clock()).now
    if terms.shortest is not None:
        before = now - terms.shortest
        aged = await store.aged(ended_before=before, after=after, look_at=look_at)
        report.next = aged.next
        over = [job for job in aged.jobs if is_over(job, terms, now)]
        needed = await needed_by_others(store, over)
        await clean_jobs(store, actor, report, [job for job in over if job.id not in needed])
    if terms.beats is not None:
        report.beats = await store.drop_beats(before=now - terms.beats)
    return report


def is_over(job: Job, terms: Terms, now: int) -> bool:
    """Whether a job's term is over, or its cleaning has begun.

    Only functions: what a command or an agent leaves outside the store must be gone first.
    """
    if job.kind is not Kind.FUNCTION:
        return False
    if job.retention is Retention.CLEANING:
        return True
    term = terms.of(job)
    return term is not None and job.updated_at + term <= now


async def needed_by_others(store: Store, jobs: Sequence[Job]) -> set[JobId]:
    """Find those that a job which has not ended may still ask about.

    A job above it, which may ask for its result; or a retry or redrive, of it or of one above it,
    which continues from what they have recorded.
    """
    asked = {job.id for job in jobs}
    continued = await _continued(store, jobs)
    needed = set(continued)
    above = {job.id: job.parent_id for job in jobs if job.parent_id is not None}
    while above:
        parents = list(dict.fromkeys(above.values()))
        found = await read_above(store, parents)
        unasked = [job for job in found.values() if job is not None and job.id not in asked]
        asked |= {job.id for job in unasked}
        continued |= await _continued(store, unasked)
        needed |= {
            id_
            for id_, parent in above.items()
            # Of one that cannot be read nobody knows what it may still ask for.
            if parent not in found or _is_live(found[parent]) or parent in continued
        }
        above = {
            id_: up.parent_id
            for id_, parent in above.items()
            if id_ not in needed and (up := found[parent]) is not None and up.parent_id is not None
        }
    return needed


async def read_above(store: Store, ids: Sequence[JobId]) -> dict[JobId, Job | None]:
    """Read jobs by id; those that are damaged are left out."""
    try:
        return dict(zip(ids, await store.get(ids), strict=True))
    except JobUnreadable:
        if len(ids) == 1:
            return {}
    return {id_: job for one in ids for id_, job in (await read_above(store, [one])).items()}


async def _continued(store: Store, jobs: Sequence[Job]) -> set[JobId]:
    """Find the jobs that a retry, redrive or compensation may still read; all in one request."""
    # Nothing is made from a job that succeeded.
    may_be = [job.id for job in jobs if job.terminal and job.state is not State.SUCCEEDED]
    return await store.continued(may_be) if may_be else set()


def _is_live(job: Job | None) -> bool:
    return job is not None and not job.terminal


async def clean_jobs(store: Store, actor: Actor, report: Cleaned, jobs: Sequence[Job]) -> list[Job]:
    """Say that it begins, erase, say that it is done: the keys are free only when all is gone.

    Returns those that are cleaned now.
    """
    begun = [job for job in jobs if job.retention is Retention.CLEANING]
    fresh = [job for job in jobs if job.retention is not Retention.CLEANING]
    begun += await _commit(store, report, fresh, c.Clean(actor=actor))
    if begun:
        report.erased += await store.erase_bodies([job.id for job in begun])
        done = await _commit(store, report, begun, c.Cleaned(actor=actor))
        report.cleaned += len(done)
        return done
    return []


async def _commit(
    store: Store, report: Cleaned, jobs: Sequence[Job], command: c.Command
) -> list[Job]:
    """Do one thing to all; returns those to which it was done."""
    decided = [_decided(job, command, report) for job in jobs]
    changes = [change for change in decided if change is not None]
    done: list[Job] = []
    for change, outcome in zip(changes, await store.commit(changes), strict=True):
        if isinstance(outcome, Committed):
            done.append(outcome.job)
        elif isinstance(outcome, Rejected):
            report.failed[change.id] = outcome.message
        else:
            report.lost += 1
    return done


def _decided(job: Job, command: c.Command, report: Cleaned) -> Change | None:
    decision = decide(job, command)
    if isinstance(decision, Refusal):
        report.failed[job.id] = decision.message
    return decision if isinstance(decision, Change) else None
