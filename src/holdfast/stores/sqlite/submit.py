"""Submit: insert decided jobs with their first events and keys.

differs from postgres: the one writer sees every key that is held, so none has to be waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from holdfast.admission.book import Book
from holdfast.errors import BadPolicy, JobUnreadable, LawBroken, PolicyChanged
from holdfast.lifecycle.alike import AlikeJobs, gather_alike
from holdfast.lifecycle.holds import UNADMITTED, listed_holds
from holdfast.lifecycle.keys import Existing, KeyHolder, KeyName, KeyPlan, KeyRefusal
from holdfast.lifecycle.record import Job, JobId, NewJob
from holdfast.lifecycle.stamp import stamp
from holdfast.lifecycle.states import Link
from holdfast.ports.models import SubmitOutcome, SubmitRefused, Submitted
from holdfast.stores.door import judge_births
from holdfast.stores.outcomes import (
    refused_as_purged,
    refused_as_unreadable,
    refused_by_key,
    settle_known,
)
from holdfast.stores.sqlite.connections import DATA_ERRORS, translate_error
from holdfast.stores.sqlite.rows import alike_event, alike_row, make_event_row, sealed, submit_row
from holdfast.stores.sqlite.turn import Turn
from holdfast.stores.tenant_limits import LIMIT_KEYS


def submit(turn: Turn, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
    """Insert a batch; where one of it is bad, or was there before, go through them one by one."""
    # Where the rules cannot be read, the trigger refuses what they would have to judge.
    if jobs and isinstance(turn.book, Book):
        jobs = judge_births(jobs, turn.book)
    try:
        with turn.in_savepoint():
            return _submit_batch(turn, jobs)
    except DATA_ERRORS:
        return [_submit_apart(turn, job) for job in jobs]


def submit_alike(turn: Turn, jobs: AlikeJobs) -> int | None:
    """Insert jobs that differ in id and body alone; None where `submit` has to settle each."""
    first = jobs.first
    # The rules may read the arguments, and a seal is of one event: each job is looked at.
    if turn.book is not None or turn.sealing or _find_over_limits(turn, [first]):
        return None
    try:
        with turn.in_savepoint():
            _insert_alike(turn, jobs)
    except DATA_ERRORS:
        return None
    return turn.now


def _find_over_limits(turn: Turn, jobs: Sequence[NewJob]) -> dict[JobId, SubmitRefused]:
    """Return which new jobs give their tenants more queues or needs than they may have."""
    known = turn.seen.names
    if not (new := known.find_new(jobs)):
        return {}
    for tenant in known.list_stale_tenants(new):
        known.learn(tenant, turn.rows("tenant_names", tenant, LIMIT_KEYS))
    return known.find_refused(jobs)


def _submit_batch(turn: Turn, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
    """Insert a batch of which none is bad or was there before."""
    if not any(job.keys for job in jobs) and not _find_over_limits(turn, jobs):
        return [Submitted(job, created=True) for job in _insert(turn, jobs)]
    outcomes: dict[JobId, SubmitOutcome] = {}
    waiting = jobs
    while waiting:
        plan = KeyPlan(waiting)
        _point_to_ids(turn, plan)
        _take_keys(turn, plan)
        # Only now it is known which jobs are new: a repeat brings no name.
        refused = _find_over_limits(turn, plan.winners())
        if given_back := plan.withdraw(refused):
            turn.rows("remove_keys", given_back)
        made = {job.id: job for job in _insert(turn, plan.winners())}
        outcomes |= refused
        outcomes |= {job.record.id: _find_outcome(turn, plan, job, made) for job in plan.jobs}
        waiting = plan.later
    return [outcomes[job.record.id] for job in jobs]


def _submit_apart(turn: Turn, job: NewJob) -> SubmitOutcome:
    """Insert one job of a batch that failed as a whole, or return why that job is refused."""
    try:
        known = turn.get(job.record.id)
        if known is not None:
            first = turn.events(turn.rows("event_at", job.record.id, 1))
            return settle_known(job, known, first[0] if first else None)
        with turn.in_savepoint():
            return _submit_batch(turn, [job])[0]
    except JobUnreadable as error:
        return _unreadable(turn, job.record.id, error)
    except DATA_ERRORS as error:
        refused = translate_error(error)
        if isinstance(refused, PolicyChanged) and isinstance(turn.book, BadPolicy):
            refused = turn.book
        return SubmitRefused(code=getattr(refused, "code", "bad_data"), message=str(refused))


def _unreadable(turn: Turn, id: JobId, error: JobUnreadable) -> SubmitRefused:
    turn.set_aside({id: error.damage})
    return refused_as_unreadable(id, error.damage)


def _insert(turn: Turn, jobs: Sequence[NewJob]) -> list[Job]:
    now = turn.now
    made = [stamp(job.record, now, now) for job in jobs]
    alike = None if turn.sealing or not jobs else gather_alike(jobs)
    if alike is not None:
        _insert_alike(turn, alike)
        return made
    ids = [job.id.bytes for job in made]
    events = [make_event_row(job.event, id_, now, now) for job, id_ in zip(jobs, ids, strict=True)]
    turn.remember(made)
    turn.write("submit", list(map(submit_row, made, ids)))
    turn.write("event", [sealed(row, None) for row in events] if turn.sealing else events)
    for job, id_ in zip(made, ids, strict=True):
        if job.held_by or job.state in UNADMITTED:
            turn.write("add_holds", [(hold, id_) for hold in listed_holds(job)])
    parents = {job.parent_id for job in made if job.link_kind is Link.CHILD and job.parent_id}
    turn.write("mark", [(parent.bytes,) for parent in parents])
    counted = Counter((job.tenant, job.queue, job.state) for job in made)
    for (tenant, queue, state), number in counted.items():
        turn.count(tenant, queue, state.code, number)
    for job in made:
        if job.queue not in turn.woken:
            turn.wake(job)
    return made


def _insert_alike(turn: Turn, jobs: AlikeJobs) -> None:
    made = stamp(jobs.first.record, turn.now, turn.now)
    texts = map(bytes.decode, jobs.bodies)
    turn.remember([made])
    turn.write("submit_alike", [(id_,) for id_ in jobs.ids], alike_row(made))
    turn.write(
        "alike_event",
        list(zip(jobs.ids, texts, jobs.digests, strict=True)),
        alike_event(jobs.first.event, turn.now),
    )
    turn.count(made.tenant, made.queue, made.state.code, len(jobs))
    turn.wake(made)


def _point_to_ids(turn: Turn, plan: KeyPlan) -> None:
    """Let a job_id that is the text of an internal id refer to that job (A1)."""
    for job, id_ in plan.as_ids():
        for _, digest, is_purged in turn.rows("look_up_id", id_, job.record.tenant):
            # The body of a purged job is not known: this one's is refused, whatever it is.
            plan.refers(job, id_, job.event.digest if is_purged else digest)


def _take_keys(turn: Turn, plan: KeyPlan) -> None:
    """Take the keys that nobody holds, and note in the plan who holds the others."""
    taken: set[tuple[int, UUID]] = set()
    holders: dict[KeyName, KeyHolder] = {}
    for tenant, key, id_ in plan.wanted():
        asked = (tenant, key.kind, key.key)
        row = turn.row("held_keys", *asked)
        if row is not None:
            holders[asked] = KeyHolder(UUID(bytes=row[0]), row[1])
        else:
            turn.write("submit_keys", [(*asked, id_.bytes, key.digest)])
            taken.add((key.kind, id_))
    plan.took(taken)
    plan.held(holders)
    losers = plan.losers()
    if losers:
        turn.rows("remove_keys", losers)


def _find_outcome(turn: Turn, plan: KeyPlan, job: NewJob, made: dict[JobId, Job]) -> SubmitOutcome:
    match plan.verdict(job):
        case None:
            return Submitted(made[job.record.id], created=True)
        case Existing(id=id_):
            try:
                holder = made.get(id_) or turn.get(id_)
            except JobUnreadable as error:
                return _unreadable(turn, id_, error)
            if holder is None and turn.rows("purged", [id_]):
                return refused_as_purged(id_)
            if holder is None:
                raise LawBroken(f"a key of tenant {job.record.tenant!r} belongs to no job: {id_}")
            return Submitted(holder, created=False)
        case KeyRefusal() as refusal:
            return refused_by_key(refusal)
