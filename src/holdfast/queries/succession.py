"""Succession: what a new job continues from, when it takes the place of one that ended.

A job that resumes names the job before it (`resumes` in its first event). What is recorded of
steps, waits and children stays where it was written, and is read along that line.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import PermanentError, Refused
from holdfast.lifecycle.family import may_go_on
from holdfast.lifecycle.history import RECORDS, REDRIVES
from holdfast.lifecycle.linked import first_job, undone_by
from holdfast.lifecycle.record import Created, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import Letter
from holdfast.ports.store import Store
from holdfast.queries.history import read_all_events
from holdfast.queries.outcomes import find_linked_retry, last_event

LONGEST = 1000
"""How many jobs a line may have: damage might make it a circle."""


SUCCESSOR_RUNNING = "successor_running"
"""The code of a refusal: what was made of the job has not ended."""


class Succession(Struct, frozen=True, kw_only=True):
    """What the first event of a successor has about the line that it is in."""

    resumes: JobId | None = None
    lineage: JobId | None = None


async def find_newest(store: Store, job: Job) -> Job:
    """Follow the retries and redrives of a job to the last of them; itself if it has none."""
    for _ in range(LONGEST):
        following = await find_successor(store, job)
        if following is None:
            return job
        job = following
    raise Refused(f"job {job.public_id} has more than {LONGEST:,} successors", job_id=job.public_id)


async def find_successor(store: Store, job: Job) -> Job | None:
    """Find the job that took the place of one that ended: its linked retry, or its last redrive."""
    if may_go_on(job):
        again = await find_linked_retry(store, await last_event(store, job.id))
        if again is not None:
            return again
    if job.letter is not Letter.REDRIVEN:
        return None
    redrives = await store.latest_events(job.id, REDRIVES, limit=1)
    link = redrives[0].facts.link if redrives else None
    return None if link is None else (await store.get([link]))[0]


async def decide_succession(
    store: Store, job: Job, created: Created, *, from_start: bool = False
) -> Succession:
    """Decide what the successor of an ended job continues from.

    What was compensated is undone: nothing of it can be resumed, and done again it is another
    effect, under keys of its own. That takes an explicit `from_start`.
    """
    last = await find_newest(store, job)
    if last.id != job.id:
        if not last.terminal:
            # Both would continue from the same records, and repeat the same effects under the same
            # keys.
            raise Refused(
                f"job {job.public_id} continues as job {last.public_id}, which has not ended; "
                "cancel that job first, or wait until it ends",
                code=SUCCESSOR_RUNNING,
                job_id=job.public_id,
            )
        [first] = await store.events(last.id, limit=1)
        created = first.created or created
    if (id_ := undone_by(last)) is not None:
        await _check_undone(store, last, id_, from_start=from_start)
        return Succession()
    resumes = None if from_start else last.id
    return Succession(resumes=resumes, lineage=first_job(last, created))


async def _check_undone(store: Store, job: Job, id_: JobId, *, from_start: bool) -> None:
    name = job.public_id
    undoing = (await store.get([id_]))[0]
    if undoing is not None and not (await find_newest(store, undoing)).terminal:
        raise Refused(
            f"job {name} is being compensated by job {id_}; redrive it once that has ended",
            code="compensation_running",
            job_id=name,
        )
    if not from_start:
        raise Refused(
            f"job {name} was compensated by job {id_}, so there is nothing to resume; "
            "redrive it from the start (--from-start) to do all of it again",
            code="compensated",
            job_id=name,
        )


async def read_recorded_line(
    store: Store, job: JobId, created: Created, history: list[LoggedEvent] | None = None
) -> list[list[LoggedEvent]]:
    """Read the events of a job and of all that it continues from, job by job, oldest first.

    `history` are the events of the job itself, where they were read before. Raises PermanentError
    where a part of the others is gone: what cannot be read is not done again.
    """
    line = [await read_all_events(store, job) if history is None else history]
    tenant, seen = created.tenant, {job}
    before = created.resumes
    while before is not None:
        events = await read_all_events(store, before)
        made = events[0].created if events else None
        if made is None or made.tenant != tenant or before in seen or len(seen) > LONGEST:
            raise PermanentError(
                f"job {job} continues from job {before}, which is gone; "
                "find out what that one did, then submit the work again",
                code="records_gone",
            )
        seen.add(before)
        _check_readable(events)
        line.append(events)
        before = made.resumes
    return line[::-1]


def _check_readable(events: list[LoggedEvent]) -> None:
    for event in events:
        if event.type in RECORDS and event.body is None and event.digest is not None:
            raise PermanentError(
                f"what job {event.id} recorded was erased by retention, and another continues "
                "from it; find out what it did, then submit the work again",
                code="records_gone",
            )
