"""Submit: insert decided jobs with their first events and keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from holdfast.errors import JobUnreadable, LawBroken
from holdfast.lifecycle.job import Job, JobId, NewJob
from holdfast.lifecycle.states import Link
from holdfast.ports import SubmitOutcome, SubmitRefused, Submitted
from holdfast.stores.batch import stamp
from holdfast.stores.columns import EVENT_COLUMNS
from holdfast.stores.purging import refused_as_purged
from holdfast.stores.quarantine import refused_as_unreadable
from holdfast.stores.sqlite.connections import DATA_ERRORS, translate
from holdfast.stores.sqlite.rows import event_row, sealed, submit_row
from holdfast.stores.sqlite.turn import Turn
from holdfast.stores.submitting import Asked, Existing, Holder, Plan, settle_known

_DIGEST = EVENT_COLUMNS.index("digest")


def submit(turn: Turn, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
    """Insert a batch; where one of it is bad, or was there before, go through them one by one."""
    try:
        with turn.alone():
            return submit_batch(turn, jobs)
    except DATA_ERRORS:
        return [_submit_one(turn, job) for job in jobs]


def _over_limits(turn: Turn, jobs: Sequence[NewJob]) -> dict[JobId, SubmitRefused]:
    """Return which new jobs give their tenants more queues or sets of needs than they may have."""
    known = turn.seen.names
    if not (new := known.new(jobs)):
        return {}
    for tenant in known.stale(new):
        queues = {queue for (queue,) in turn.rows("tenant_queues", (tenant,))}
        needs = {key for (key,) in turn.rows("tenant_needs", (tenant,))}
        known.learn(tenant, queues, needs, turn.limits())
    return known.refused(jobs)


def submit_batch(turn: Turn, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
    """Insert a batch of which none is bad or was there before."""
    if not any(job.keys for job in jobs) and not _over_limits(turn, jobs):
        return [Submitted(job, created=True) for job in _insert(turn, jobs)]
    outcomes: dict[JobId, SubmitOutcome] = {}
    waiting = jobs
    while waiting:
        plan = Plan(waiting)
        _point_to_ids(turn, plan)
        taken = _take_keys(turn, plan)
        # Only now it is known which jobs are new: a repeat brings no name.
        refused = plan.refuse(_over_limits(turn, plan.winners()))
        turn.write("drop_keys", [asked for id_ in refused for asked in taken.get(id_, ())])
        made = {job.id: job for job in _insert(turn, plan.winners())}
        outcomes |= {job.record.id: _outcome(turn, plan, job, made) for job in plan.jobs}
        waiting = plan.later
    return [outcomes[job.record.id] for job in jobs]


def _submit_one(turn: Turn, job: NewJob) -> SubmitOutcome:
    try:
        known = turn.get(job.record.id.bytes)
        if known is not None:
            return _settle(turn, job, known)
        with turn.alone():
            return submit_batch(turn, [job])[0]
    except JobUnreadable as error:
        return _unreadable(turn, job.record.id, error)
    except DATA_ERRORS as error:
        told = translate(error)
        return SubmitRefused(code=getattr(told, "code", "bad_data"), message=str(told))


def _unreadable(turn: Turn, id: JobId, error: JobUnreadable) -> SubmitRefused:
    turn.set_aside({id: error.damage})
    return refused_as_unreadable(id, error.damage)


def _settle(turn: Turn, job: NewJob, known: Job) -> SubmitOutcome:
    first = turn.events("first_event", (job.record.id.bytes,))
    return settle_known(job, known, first[0] if first else None)


def _insert(turn: Turn, jobs: Sequence[NewJob]) -> list[Job]:
    now = turn.now
    made = [stamp(job.record, now, now) for job in jobs]
    ids = [job.id.bytes for job in made]
    events = [event_row(job.event, id_, now, now) for job, id_ in zip(jobs, ids, strict=True)]
    turn.remember(made)
    turn.write("submit", list(map(submit_row, made, ids)))
    turn.write("event", [sealed(row, None) for row in events] if turn.sealing else events)
    parents = {job.parent_id for job in made if job.link_kind is Link.CHILD and job.parent_id}
    turn.write("mark", [(parent.bytes,) for parent in parents])
    counted = Counter((job.tenant, job.queue, job.state) for job in made)
    for (tenant, queue, state), number in counted.items():
        turn.count(tenant, queue, state.code, number)
    for job in made:
        if job.queue not in turn.woken:
            turn.wake(job)
    return made


def _point_to_ids(turn: Turn, plan: Plan) -> None:
    """Let a job_id that is the text of an internal id refer to that job (A1)."""
    for job, id_ in plan.as_ids():
        if turn.row("look_up_id", (id_.bytes, job.record.tenant)) is not None:
            first = turn.row("first_event", (id_.bytes,))
            # Of a purged job the body is not known: whatever this one's is, it is refused.
            is_purged = turn.row("purged", (id_.bytes,)) is not None
            known = None if first is None else first[_DIGEST]
            plan.refers(job, id_, job.event.digest if is_purged else known)


def _take_keys(turn: Turn, plan: Plan) -> dict[UUID, list[Asked]]:
    """Take the keys that nobody holds, and note in the plan who holds the others.

    Return the keys that were taken for each job; those of jobs that lost one are free again.
    """
    taken: dict[UUID, list[Asked]] = {}
    holders: dict[Asked, Holder] = {}
    for tenant, key, id_ in plan.wanted():
        asked = (tenant, key.kind, key.key)
        row = turn.row("held_keys", asked)
        if row is not None:
            holders[asked] = Holder(UUID(bytes=row[0]), row[1])
        else:
            turn.write("submit_keys", [(*asked, id_.bytes, key.digest)])
            taken.setdefault(id_, []).append(asked)
    plan.took({(asked[1], id_) for id_, keys in taken.items() for asked in keys})
    plan.held(holders)
    turn.write("drop_keys", [asked for id_ in plan.losers() for asked in taken.pop(id_, ())])
    return taken


def _outcome(turn: Turn, plan: Plan, job: NewJob, made: dict[JobId, Job]) -> SubmitOutcome:
    match plan.verdict(job):
        case None:
            return Submitted(made[job.record.id], created=True)
        case Existing(id=id_):
            try:
                holder = made.get(id_) or turn.get(id_.bytes)
            except JobUnreadable as error:
                return _unreadable(turn, id_, error)
            if holder is None and turn.row("purged", (id_.bytes,)) is not None:
                return refused_as_purged(id_)
            if holder is None:
                raise LawBroken(f"a key of tenant {job.record.tenant!r} belongs to no job: {id_}")
            return Submitted(holder, created=False)
        case refused:
            return refused
