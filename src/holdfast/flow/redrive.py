"""Redrive and discard: what a person does about dead letters, one by one or by the thousand.

A redrive makes a new job that is linked to the dead one, in the commit that notes it: so it happens
once, however often it is repeated, and the dead job stays what it is (resolution 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.errors import (
    BadData,
    NoSuchJob,
    Refused,
    RequestIdReused,
    StoreFull,
    StoreUnavailable,
)
from holdfast.flow.batch import Choose, Sweep, carry_out
from holdfast.flow.command import perform
from holdfast.flow.upload import name_upload_again
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.command_spec import KINDS
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.history import REDRIVES
from holdfast.lifecycle.holds import upload_hold
from holdfast.lifecycle.linked import linked
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.record import (
    Actor,
    Change,
    Created,
    Job,
    JobId,
    LoggedEvent,
    NewJob,
)
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import LETTERED, Letter, Link
from holdfast.lifecycle.submit import was_admitted
from holdfast.lifecycle.times import HORIZON, After
from holdfast.ports.store import Store
from holdfast.queries.dead_letters import (
    LetterFilter,
    Past,
    no_letter_error,
    read_job,
    read_past,
    walk_lettered_jobs,
)
from holdfast.queries.succession import SUCCESSOR_RUNNING, decide_succession

BATCH = 100
FAILURES_KEPT = 1000
"""How many failures of a bulk run are listed."""


class RedriveTerms(Struct, frozen=True, kw_only=True):
    """What differs in the new job; None leaves it as it was."""

    queue: str | None = None
    retries: int | None = None
    delay: int = 0
    """Microseconds from now until it is due."""
    from_start: bool = False
    """Do everything again, instead of continuing from what is recorded."""

    def queue_of(self, job: Job) -> str:
        """Return the queue of the new job."""
        return job.queue if self.queue is None else self.queue

    def policy_of(self, job: Job) -> Policy:
        """Return the execution policy of the new job."""
        if self.retries is None:
            return job.policy
        if job.kind in KINDS.values():
            # However it is submitted, a command is tried once (D9).
            raise BadData("a command has no retries: it is tried once", field="retries")
        return replace(job.policy, max_attempts=self.retries + 1)


SAME_TERMS = RedriveTerms()


class Settled(Sweep, kw_only=True):
    """What a bulk run did."""

    # A letter that the database refuses for its own sake is one failure of many.
    fatal = (StoreUnavailable, StoreFull)
    seen: int = 0
    done: int = 0
    skipped: int = 0
    """Letters that another caller had settled first, or whose job is gone."""
    failures: int = 0
    failed: dict[JobId, str] = field(default_factory=dict)
    """The first failures, and why; the other letters were settled."""
    next: JobId | None = None
    """The job after which the next call starts if a limit ended this one; None at the end."""

    def on_written(self, change: Change) -> None:
        """Count a letter that was settled."""
        self.done += 1

    def fail(self, id: JobId, why: str) -> None:
        """Note a letter that could not be settled."""
        self.failures += 1
        if len(self.failed) < FAILURES_KEPT:
            self.failed[id] = why

    def on_missed(self, change: Change, current: Job | None) -> bool:
        """Decide a letter again that changed and is still open."""
        is_open = current is not None and current.letter is Letter.OPEN
        self.skipped += not is_open
        return is_open


async def redrive(
    store: Store,
    id: JobId,
    actor: Actor,
    *,
    terms: RedriveTerms = SAME_TERMS,
    again: bool = False,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Make a new job of one that failed or ended in the dead letters, once, and return it.

    The new job is linked to the dead one and like it in task, body, queue, priority, needs, policy,
    labels and correlation; a deadline keeps its distance from the submit. Keys and the place among
    another job's children stay with the dead job. It continues from what is recorded (resolution
    19), unless `terms.from_start`; outside effects keep their keys (`ctx.effect_key`) either way,
    unless a compensation has undone them.

    Repeated, it returns the job that the first redrive made. `again` makes another, also of a
    discarded letter; where that may itself be repeated, give a `request_id`. Refused while the job
    that the last redrive made has not ended: both would have the same effects.
    """
    job = await read_job(store, id)
    if job.state not in LETTERED:
        raise no_letter_error(job)
    past = await read_past(store, job)
    _check_not_retried(job, past)
    if (event := _find_repeated(job, past, actor, again, request_id)) is not None:
        return await _read_repeated_durably(store, job, event, terms, request_id)
    try:
        new = await _decide_successor(store, job, past.first, terms, actor)
    except Refused as error:
        if error.code != SUCCESSOR_RUNNING:
            raise
        # It may be the one that the same request has made meanwhile.
        job = await read_job(store, id)
        event = _find_repeated(job, await read_past(store, job), actor, again, request_id)
        if event is None:
            raise
        return await _read_repeated_durably(store, job, event, terms, request_id)
    command = c.Redriven(
        actor=actor,
        link=new.record.id,
        submits=(new,),
        again=again,
        reason=reason,
        request_id=request_id,
    )
    after = await perform(store, id, command, expected_rev=expected_rev)
    redrives = _redrives(await read_past(store, after))
    mine = [one for one in redrives if one.facts.link == new.record.id]
    same = [one for one in redrives if request_id is not None and one.request_id == request_id]
    # Mine; else another redrive came first: under the same request, or any.
    return await _read_linked(store, job, (mine or same or redrives)[0])


async def discard(
    store: Store,
    id: JobId,
    actor: Actor,
    *,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Discard an open letter; the job stays as it is. A redriven letter is settled already."""
    job = await read_job(store, id)
    if job.letter is None:
        raise no_letter_error(job)
    command = c.Discarded(actor=actor, reason=reason, request_id=request_id)
    return await perform(store, id, command, expected_rev=expected_rev)


async def redrive_all(
    store: Store,
    letters: LetterFilter,
    actor: Actor,
    *,
    terms: RedriveTerms = SAME_TERMS,
    reason: str | None = None,
    before: JobId | None = None,
    limit: int | None = None,
) -> Settled:
    """Redrive every open letter that the filter finds, in batches.

    Stopped in between, it may be repeated: what was redriven is open no more.
    """

    async def choose(job: Job) -> Sequence[c.Command]:
        [first] = await store.events(job.id, limit=1)
        new = await _decide_successor(store, job, first, terms, actor)
        return (c.Redriven(actor=actor, link=new.record.id, submits=(new,), reason=reason),)

    return await _settle_all(store, letters, choose, before, limit)


async def discard_all(
    store: Store,
    letters: LetterFilter,
    actor: Actor,
    *,
    reason: str | None = None,
    before: JobId | None = None,
    limit: int | None = None,
) -> Settled:
    """Discard every open letter that the filter finds, in batches."""

    async def choose(_: Job) -> Sequence[c.Command]:
        return (c.Discarded(actor=actor, reason=reason),)

    return await _settle_all(store, letters, choose, before, limit)


async def _decide_successor(
    store: Store, job: Job, first: LoggedEvent, terms: RedriveTerms, actor: Actor
) -> NewJob:
    """Return the decided submit of the new job."""
    made = first.created
    if first.body is None or made is None:
        text = f"the request of job {job.public_id} is erased; submit a new job"
        raise Refused(text, code="body_erased", job_id=job.public_id)
    line = await decide_succession(store, job, made, from_start=terms.from_start)
    waiting: dict[str, Any] = {"admitted": was_admitted(first)}
    if made.files_id is not None:
        waiting = {"admitted": False, "holds": (upload_hold(made.files_id),)}
    new = linked(
        job,
        # A compensation that failed is to undo the job, not to do it: it stays a compensation,
        # and continues where the dead one stopped.
        Link.COMPENSATION if is_compensation(job) else Link.REDRIVE,
        actor,
        created=made,
        id=mint_id(),
        body=Body(first.body),
        queue=terms.queue_of(job),
        policy=terms.policy_of(job),
        run_at=After(terms.delay),
        deadline_at=_deadline_of_successor(job),
        correlation_id=first.correlation_id,
        resumes=line.resumes,
        lineage=line.lineage,
        # What had to be admitted has to be admitted again.
        **waiting,
    )
    if made.files_id is not None:
        await name_upload_again(store, new, made.files_id)
    return new


def _check_not_retried(job: Job, past: Past) -> None:
    """Refuse to redrive a job whose next try is a job of its own: the work would be done twice."""
    if (link := past.ending.facts.link) is not None:
        raise Refused(
            f"job {job.public_id} was retried as job {link}; redrive the last retry instead",
            code="retried",
            job_id=job.public_id,
        )


def _deadline_of_successor(job: Job) -> After | None:
    # As an instant it has mostly passed: the new job would end before it is claimed.
    if job.deadline_at is None:
        return None
    return After(min(max(job.deadline_at - job.created_at, 0), HORIZON - 1))


def _redrives(past: Past) -> list[LoggedEvent]:
    return [event for event in past.settlements if event.type in REDRIVES]


def _find_repeated(
    job: Job, past: Past, actor: Actor, again: bool, request_id: str | None
) -> LoggedEvent | None:
    """Find the redrive that this one repeats, if it does."""
    redrives = _redrives(past)
    if request_id is not None:
        for event in redrives:
            if event.request_id == request_id and event.actor == actor.label:
                return event
    return redrives[0] if redrives and job.letter is Letter.REDRIVEN and not again else None


async def _read_repeated_durably(
    store: Store, job: Job, event: LoggedEvent, terms: RedriveTerms, request_id: str | None
) -> Job:
    """Return what a redrive made that is repeated, once the standby has it, too."""
    made = await _read_repeated(store, job, event, terms, request_id)
    await store.await_durable()
    return made


async def _read_repeated(
    store: Store, job: Job, event: LoggedEvent, terms: RedriveTerms, request_id: str | None
) -> Job:
    new = await _read_linked(store, job, event)
    if request_id is None or event.request_id != request_id:
        return new
    [first] = await store.events(new.id, limit=1)
    delay = None if first.run_at is None else first.run_at - first.at
    asked = (terms.queue_of(job), terms.policy_of(job), terms.delay, terms.from_start)
    made = first.created or Created()
    # As it was submitted: a worker may have corrected its terms since.
    if (new.queue, made.policy, delay, made.resumes is None) != asked:
        text = f"request_id {request_id!r} was already used for another redrive of {job.public_id}"
        raise RequestIdReused(text, job_id=job.public_id)
    return new


async def _read_linked(store: Store, job: Job, event: LoggedEvent) -> Job:
    link = event.facts.link
    new = None if link is None else (await store.get([link]))[0]
    if new is None:
        text = f"job {job.public_id} was redriven as {link}, which is gone; redrive it with again"
        raise NoSuchJob(text, job_id=str(link))
    return new


async def _settle_all(
    store: Store,
    letters: LetterFilter,
    choose: Choose,
    before: JobId | None,
    limit: int | None,
) -> Settled:
    report = Settled()
    still_open = replace(letters, letter=Letter.OPEN)
    walk = walk_lettered_jobs(store, still_open, batch=BATCH, before=before, limit=limit)
    async for jobs in walk:
        report.seen += len(jobs)
        report.next = jobs[-1].id if report.seen == limit else None
        await carry_out(store, jobs, choose, report, tries=REBASES + 1)
    return report
