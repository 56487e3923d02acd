"""Redrive and discard: what a person does about dead letters, one by one or by the thousand.

A redrive makes a new job that is linked to the dead one, in the commit that notes it: so it
happens once, whoever repeats it, and the dead job stays what it is (resolution 7).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import NoSuchJob, Refused, RequestIdReused, StoreFull, StoreUnavailable
from holdfast.flow.letters import (
    LetterFilter,
    Past,
    lettered_jobs,
    no_letter,
    past_of,
    read_job,
)
from holdfast.flow.perform import perform
from holdfast.flow.succession import SUCCESSOR_RUNNING, succession
from holdfast.identity import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.job import Actor, Change, Created, Job, JobId, LoggedEvent, NewJob, Refusal
from holdfast.lifecycle.linked import linked
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.policy import Policy
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import LETTERED, EventType, Letter, Link, State
from holdfast.lifecycle.times import HORIZON, After
from holdfast.ports import Lost, Outcome, Rejected, Store

BATCH = 100
FAILURES_KEPT = 1000
"""How many failures of a bulk run are told one by one."""


class Wish(Struct, frozen=True, kw_only=True):
    """What shall be otherwise in the new job; None leaves it as it was."""

    queue: str | None = None
    retries: int | None = None
    delay: int = 0
    """Microseconds from now until it is due."""
    from_start: bool = False
    """Do all of it again, instead of continuing from what is recorded."""

    def queue_of(self, job: Job) -> str:
        """Name the queue of the new job."""
        return job.queue if self.queue is None else self.queue

    def policy_of(self, job: Job) -> Policy:
        """Say the terms of the new job."""
        if self.retries is None:
            return job.policy
        return replace(job.policy, max_attempts=self.retries + 1)


AS_IT_WAS = Wish()


class Settled(Struct, kw_only=True):
    """What a bulk run did."""

    seen: int = 0
    done: int = 0
    skipped: int = 0
    """Somebody else had settled the letter first, or the job is gone."""
    failures: int = 0
    failed: dict[JobId, str] = {}
    """Why, of the first failures; they kept nobody else from being done."""
    next: JobId | None = None
    """Where the next run goes on, if a limit ended this one; None is the end."""


Prepare: TypeAlias = Callable[[Job], Awaitable[c.Command]]


async def redrive(
    store: Store,
    id: JobId,
    actor: Actor,
    *,
    wish: Wish = AS_IT_WAS,
    again: bool = False,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Make a new job of one that failed or ended in the dead letters, once, and return it.

    It resumes: what the dead one and those before it have recorded of steps, waits and children is
    not done again (resolution 19). `wish.from_start` starts anew instead. Either way outside
    effects keep their keys (`ctx.effect_key`), unless a compensation has undone them.

    The new job has the dead one as its parent (`link_kind` redrive; of a compensation, compensation
    again) and is the same in task, body, queue, priority, needs, policy, labels and correlation. A
    deadline keeps its distance from the submit. Keys are not copied: `job_id`, `client_job_id`,
    `dedupe_key` and the submit's `request_id` stay with the dead job, and so does the place among
    another job's children.

    Repeated, at once or after a lost reply, it returns the job that the first one made. To make
    another on purpose, or to redrive a discarded letter, say `again`; where that may itself be
    repeated, give it a `request_id`. Refused while the job that the last one made has not ended:
    both would have the same effects.
    """
    job = await read_job(store, id)
    if job.state not in LETTERED:
        raise no_letter(job)
    past = await past_of(store, job)
    _check_not_retried(job, past)
    if (event := _done_before(job, past, actor, again, request_id)) is not None:
        return await _found(store, job, event, wish, request_id)
    try:
        new = await _successor(store, job, past.first, wish, actor)
    except Refused as error:
        if error.code != SUCCESSOR_RUNNING:
            raise
        # It may be the one that the same request has made meanwhile.
        job = await read_job(store, id)
        event = _done_before(job, await past_of(store, job), actor, again, request_id)
        if event is None:
            raise
        return await _found(store, job, event, wish, request_id)
    command = c.Redriven(
        actor=actor,
        link=new.record.id,
        submits=(new,),
        again=again,
        reason=reason,
        request_id=request_id,
    )
    after = await perform(store, id, command, expected_rev=expected_rev)
    redrives = _redrives(await past_of(store, after))
    mine = [one for one in redrives if one.facts.link == new.record.id]
    same = [one for one in redrives if request_id is not None and one.request_id == request_id]
    # Mine; else somebody came first: under the same request, or by any.
    return await _linked(store, job, (mine or same or redrives)[0])


async def discard(
    store: Store,
    id: JobId,
    actor: Actor,
    *,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Put an open letter away; the job stays as it is. A redriven letter is settled already."""
    job = await read_job(store, id)
    if job.letter is None:
        raise no_letter(job)
    command = c.Discarded(actor=actor, reason=reason, request_id=request_id)
    return await perform(store, id, command, expected_rev=expected_rev)


async def redrive_all(
    store: Store,
    letters: LetterFilter,
    actor: Actor,
    *,
    wish: Wish = AS_IT_WAS,
    reason: str | None = None,
    before: JobId | None = None,
    limit: int | None = None,
) -> Settled:
    """Redrive every open letter that the filter finds, in batches.

    Stopped in between, it may be repeated: what was redriven is open no more.
    """

    async def prepare(job: Job) -> c.Command:
        [first] = await store.events(job.id, limit=1)
        new = await _successor(store, job, first, wish, actor)
        return c.Redriven(actor=actor, link=new.record.id, submits=(new,), reason=reason)

    return await _settle_all(store, letters, prepare, before, limit)


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

    async def prepare(job: Job) -> c.Command:
        return c.Discarded(actor=actor, reason=reason)

    return await _settle_all(store, letters, prepare, before, limit)


async def _successor(
    store: Store, job: Job, first: LoggedEvent, wish: Wish, actor: Actor
) -> NewJob:
    """Decide the submit of the new job."""
    made = first.created
    if first.body is None or made is None:
        text = f"what job {job.public_id} was asked to do is erased; submit it anew"
        raise Refused(text, code="body_erased", job_id=job.public_id)
    line = await succession(store, job, made, from_start=wish.from_start)
    return linked(
        job,
        # What undid a job and failed is to undo it again, not to do it: it stays what it is, and
        # goes on where the dead one stopped.
        Link.COMPENSATION if is_compensation(job) else Link.REDRIVE,
        actor,
        created=made,
        id=mint_id(),
        body=Body(first.body),
        queue=wish.queue_of(job),
        policy=wish.policy_of(job),
        run_at=After(wish.delay),
        deadline_at=_deadline(job),
        # What had to be admitted has to be admitted again.
        admitted=first.to_state is State.QUEUED,
        correlation_id=first.correlation_id,
        resumes=line.resumes,
        lineage=line.lineage,
    )


def _check_not_retried(job: Job, past: Past) -> None:
    """Refuse to redrive a job whose next try is a job of its own: it would be done twice."""
    if (link := past.ending.facts.link) is not None:
        raise Refused(
            f"job {job.public_id} was retried as job {link}; redrive the last retry instead",
            code="retried",
            job_id=job.public_id,
        )


def _deadline(job: Job) -> After | None:
    # As an instant it has mostly passed: the new job would end before anybody claims it.
    if job.deadline_at is None:
        return None
    return After(min(max(job.deadline_at - job.created_at, 0), HORIZON - 1))


def _redrives(past: Past) -> list[LoggedEvent]:
    return [event for event in past.settlements if event.type is EventType.REDRIVEN]


def _done_before(
    job: Job, past: Past, actor: Actor, again: bool, request_id: str | None
) -> LoggedEvent | None:
    """Find the redrive that this one repeats, if it does."""
    redrives = _redrives(past)
    if request_id is not None:
        for event in redrives:
            if event.request_id == request_id and event.actor == actor.label:
                return event
    return redrives[0] if redrives and job.letter is Letter.REDRIVEN and not again else None


async def _found(
    store: Store, job: Job, event: LoggedEvent, wish: Wish, request_id: str | None
) -> Job:
    """Answer a repeated redrive, once the standby has what the first one wrote."""
    made = await _repeated(store, job, event, wish, request_id)
    await store.await_durable()
    return made


async def _repeated(
    store: Store, job: Job, event: LoggedEvent, wish: Wish, request_id: str | None
) -> Job:
    new = await _linked(store, job, event)
    if request_id is None or event.request_id != request_id:
        return new
    [first] = await store.events(new.id, limit=1)
    delay = None if first.run_at is None else first.run_at - first.at
    asked = (wish.queue_of(job), wish.policy_of(job), wish.delay, wish.from_start)
    made = first.created or Created()
    # As it was submitted: a worker may have corrected its terms since.
    if (new.queue, made.policy, delay, made.resumes is None) != asked:
        text = f"request_id {request_id!r} already stands for another redrive of {job.public_id}"
        raise RequestIdReused(text, job_id=job.public_id)
    return new


async def _linked(store: Store, job: Job, event: LoggedEvent) -> Job:
    link = event.facts.link
    new = None if link is None else (await store.get([link]))[0]
    if new is None:
        text = f"job {job.public_id} was redriven as {link}, which is gone; redrive it with again"
        raise NoSuchJob(text, job_id=str(link))
    return new


async def _settle_all(
    store: Store,
    letters: LetterFilter,
    prepare: Prepare,
    before: JobId | None,
    limit: int | None,
) -> Settled:
    report = Settled()
    still_open = replace(letters, letter=Letter.OPEN)
    walk = lettered_jobs(store, still_open, batch=BATCH, before=before, limit=limit)
    async for jobs in walk:
        report.seen += len(jobs)
        report.next = jobs[-1].id if report.seen == limit else None
        await _settle_some(store, jobs, prepare, report)
    return report


async def _settle_some(
    store: Store, jobs: Sequence[Job], prepare: Prepare, report: Settled
) -> None:
    """Settle a batch; decide those anew that changed meanwhile and are open still."""
    for _ in range(REBASES + 1):
        decided = [await _decided(job, prepare, report) for job in jobs]
        changes = [change for change in decided if change is not None]
        outcomes = await store.commit(changes)
        jobs = [
            moved
            for change, outcome in zip(changes, outcomes, strict=True)
            if (moved := _noted(change, outcome, report)) is not None
        ]
        if not jobs:
            return
    for job in jobs:
        _fail(report, job.id, f"changed {REBASES} times meanwhile")


async def _decided(job: Job, prepare: Prepare, report: Settled) -> Change | None:
    try:
        decision = decide(job, await prepare(job))
    except (StoreUnavailable, StoreFull):
        raise
    except Exception as error:  # noqa: BLE001 - one poison row must not stop the others
        _fail(report, job.id, str(error) or repr(error))
        return None
    if isinstance(decision, Refusal):
        _fail(report, job.id, decision.message)
    return decision if isinstance(decision, Change) else None


def _noted(change: Change, outcome: Outcome, report: Settled) -> Job | None:
    """Count an outcome; give back a job that must be decided anew."""
    if isinstance(outcome, Rejected):
        _fail(report, change.id, outcome.message)
    elif not isinstance(outcome, Lost):
        report.done += 1
    elif outcome.current is not None and outcome.current.letter is Letter.OPEN:
        return outcome.current
    else:
        report.skipped += 1
    return None


def _fail(report: Settled, id: JobId, why: str) -> None:
    report.failures += 1
    if len(report.failed) < FAILURES_KEPT:
        report.failed[id] = why
