"""Admit: let pending jobs into their queues once every gate has let them through (A13, D3).

The gates are the upload that a job names, the rules, and people: each is a hold of the job. A job
whose upload is gone ends, and so does one that a rule denied, or that nobody approved in time. The
records show what is to be done, so any number may do it, and whatever one leaves undone the next
finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from holdfast.admission.book import Book
from holdfast.errors import JobDenied, UploadExpired
from holdfast.flow.batch import Choose, CountedSweep, carry_out
from holdfast.flow.decide_admission import KernelState, find_answer, follow_decision
from holdfast.flow.deny import choose_denial
from holdfast.flow.finish import error_body
from holdfast.flow.policy_book import current_book, find_approval, find_decision
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.command_spec import KINDS
from holdfast.lifecycle.holds import (
    APPROVAL_HOLD,
    DENIED_HOLD,
    POLICY_HOLD,
    UNADMITTED,
    UPLOAD_HOLD,
    awaited_upload,
    gates,
    is_expired,
    next_approval,
    read_approval,
    upload_hold,
)
from holdfast.lifecycle.record import NO_FACTS, Actor, Change, Job, JobId
from holdfast.lifecycle.retry import UPLOAD_EXPIRED
from holdfast.lifecycle.states import Role
from holdfast.ports.kernel import ExternalKernel
from holdfast.ports.store import Store
from holdfast.ports.uploads import OVER, READABLE, Upload, is_upload_id

BATCH = 500
NAMES = 1000
"""Names of holds that are read at once."""
ASKS = 10
"""Jobs that an external kernel is asked about at once, and in one pass."""


class AdmitSweep(CountedSweep, kw_only=True):
    """What one pass over some pending jobs did."""

    admitted: int = 0
    ended: int = 0
    """Jobs whose upload is gone, that were denied, or that nobody approved in time."""
    moved: int = 0
    """Jobs that wait at another gate now."""
    next: JobId | None = None
    """The job after which the next pass starts; None means from the first."""

    @property
    def written(self) -> int:
        """How many jobs it moved."""
        return self.admitted + self.ended + self.moved

    def on_written(self, change: Change) -> None:
        """Count a job by what became of it."""
        if c.written_by(change.event, c.Admit):
            self.admitted += 1
        elif change.next.terminal:
            self.ended += 1
        else:
            self.moved += 1


async def admit_pending(
    store: Store, name: str, *, after: JobId | None = None, limit: int = BATCH
) -> AdmitSweep:
    """Look at the next pending jobs by id, and move those whose gates allow or demand it."""
    sweep = AdmitSweep()
    jobs = await store.pending(after=after, limit=limit)
    if len(jobs) == limit:
        sweep.next = jobs[-1].id
    await _move(store, name, jobs, sweep)
    return sweep


async def admit_held(store: Store, upload: str, name: str) -> AdmitSweep:
    """Move all jobs that wait for one upload."""
    sweep = AdmitSweep()
    after: JobId | None = None
    while jobs := await store.held(upload_hold(upload), after=after, limit=BATCH):
        after = jobs[-1].id
        await _move(store, name, [job for job in jobs if job.state in UNADMITTED], sweep)
    return sweep


async def deny_held(store: Store, name: str) -> AdmitSweep:
    """End jobs that a rule denied at their birth, and that nobody has ended yet."""
    sweep = AdmitSweep()
    for hold in await _list_names(store, DENIED_HOLD):
        after: JobId | None = None
        while jobs := await store.held(hold, after=after, limit=BATCH):
            if await carry_out(store, jobs, choose_denial(store, name), sweep):
                break
            # None of these could be ended: they must not keep the others from it.
            after = jobs[-1].id
    return sweep


async def _list_names(store: Store, prefix: str) -> list[str]:
    """Return the names of all holds that start so: as many as there are rules that place them."""
    names: list[str] = []
    after: str | None = None
    while True:
        page = await store.hold_names(prefix, after=after, limit=NAMES)
        names += page
        if len(page) < NAMES:
            break
        after = page[-1]
    return names


async def expire_approvals(store: Store, name: str) -> AdmitSweep:
    """End jobs that nobody approved in time.

    The oldest jobs under each name of a hold are read, up to the first that has time left: the
    others are not read, however many there are.
    """
    sweep = AdmitSweep()
    names = await _list_names(store, APPROVAL_HOLD)
    limited = [one for one in names if (read := read_approval(one)) and read.seconds]
    if not limited:
        return sweep
    now = (await store.clock()).now
    for hold in limited:
        await _expire(store, hold, now, name, sweep)
    return sweep


async def _expire(store: Store, hold: str, now: int, name: str, sweep: AdmitSweep) -> None:
    after: JobId | None = None
    size = 1
    while True:
        jobs = await store.held(hold, after=after, limit=size)
        over = [job for job in jobs if _is_over(job, hold, now)]
        await carry_out(store, over, _choose_expiry(store, name), sweep)
        if not jobs or len(over) < len(jobs):
            return
        after, size = jobs[-1].id, BATCH


def _is_over(job: Job, hold: str, now: int) -> bool:
    approval = read_approval(hold)
    return approval is not None and job.state in UNADMITTED and is_expired(job, approval, now)


def _choose_expiry(store: Store, name: str) -> Choose:
    async def choose(job: Job) -> Sequence[c.Command]:
        awaited = next_approval(job)
        if awaited is None:
            return ()
        decision = await find_decision(store, job.id)
        rules = None if decision is None else decision.facts.rules
        approval = await find_approval(store, decision, awaited[1].rule)
        text = (
            f"nobody approved it within {awaited[1].seconds:,} s, as rule {awaited[1].rule!r} asks"
        )
        if approval.on_expiry == "cancel":
            return (c.Cancel(actor=Actor(Role.CONTROL, name), reason=text),)
        return (
            c.Deny(
                actor=Actor(Role.SCHEDULER, name),
                rule=awaited[1].rule,
                rules=rules,
                error_code=c.APPROVAL_EXPIRED,
                reason=text,
                body=error_body(JobDenied(text, code=c.APPROVAL_EXPIRED)),
            ),
        )

    return choose


async def decide_held(
    store: Store,
    name: str,
    kernel: ExternalKernel | None,
    *,
    after: JobId | None = None,
    limit: int = BATCH,
) -> AdmitSweep:
    """Decide on jobs that the rules left open at their birth, some of them in each pass.

    A kernel is asked about `ASKS` of them; those that the clock decides on do not wait for it.
    """
    sweep = AdmitSweep()
    found = await store.held(POLICY_HOLD, after=after, limit=limit)
    if len(found) == limit:
        sweep.next = found[-1].id
    # At the other gates first: a decision is written with the admission.
    jobs = [job for job in found if gates(job) == (POLICY_HOLD,)]
    if not jobs:
        return sweep
    book = await current_book(store)
    now = (await store.clock()).now
    state = KernelState(store, now)
    actor = Actor(Role.SCHEDULER, name)

    async def look(job: Job) -> tuple[JobId, Sequence[c.Command]]:
        with sweep.spare_others(job.id):
            [first] = await store.events(job.id, limit=1)
            if book is None:
                return job.id, (c.Admit(actor=actor, lifts=POLICY_HOLD, reason="no policy"),)
            answer = await find_answer(book, first, now, kernel, state)
            if answer is not None:
                return job.id, follow_decision(job, first, answer, actor, now)
        return job.id, ()

    commands: dict[JobId, Sequence[c.Command]] = {}
    for start in range(0, len(jobs), ASKS):
        some = jobs[start : start + ASKS]
        commands |= dict(await asyncio.gather(*map(look, some)))
        if state.was_asked and len(jobs) > start + ASKS:
            jobs, sweep.next = jobs[: start + ASKS], some[-1].id
            break

    async def choose(job: Job) -> Sequence[c.Command]:
        return commands[job.id]

    await carry_out(store, jobs, choose, sweep)
    if book is not None and book.kernel is not None:
        await state.write(book.kernel.url)
    return sweep


async def _move(store: Store, name: str, jobs: Sequence[Job], sweep: AdmitSweep) -> None:
    """Move those of some pending jobs that no person and no denial holds."""
    jobs = [job for job in jobs if not any(map(_is_held_back, gates(job)))]
    if not jobs:
        return
    named = await _find_named(store, jobs, sweep)
    uploads = await _look_up(store, named.values())
    choose = _Gates(store, name, named, uploads, await current_book(store)).choose
    await carry_out(store, jobs, choose, sweep)


def _is_held_back(hold: str) -> bool:
    return hold != POLICY_HOLD and not hold.startswith(UPLOAD_HOLD)


async def _find_named(store: Store, jobs: Sequence[Job], sweep: AdmitSweep) -> dict[JobId, str]:
    """Return the uploads that jobs name: by their hold, else by their first event.

    A person may have lifted the hold; the files are missing all the same.
    """
    named: dict[JobId, str] = {}
    for job in jobs:
        upload = awaited_upload(job)
        if upload is None and job.kind in KINDS.values():
            with sweep.spare_others(job.id):
                [first] = await store.events(job.id, limit=1)
                upload = None if first.created is None else first.created.files_id
        if upload is not None:
            named[job.id] = upload
    return named


async def _look_up(store: Store, ids: Iterable[str]) -> dict[str, Upload]:
    wanted = sorted(set(filter(is_upload_id, ids)))
    found = await store.look_up_uploads(wanted) if wanted else []
    return {one.id: one for one in found if one is not None}


class _Gates:
    """What the gates make of pending jobs: the upload first, then the rules."""

    def __init__(
        self,
        store: Store,
        name: str,
        named: dict[JobId, str],
        uploads: dict[str, Upload],
        book: Book | None,
    ) -> None:
        self._store = store
        self._actor = Actor(Role.SCHEDULER, name)
        self._named = named
        self._uploads = uploads
        self._book = book

    async def choose(self, job: Job) -> Sequence[c.Command]:
        """Return what a job calls for that no person and no open decision holds."""
        lifted: str | None = None
        if (id_ := self._named.get(job.id)) is not None:
            upload = self._uploads.get(id_)
            if upload is None or upload.tenant != job.tenant or upload.state in OVER:
                return (_end(id_, upload, self._actor),)
            if upload.state not in READABLE:
                return ()
            lifted = upload_hold(id_)
        if POLICY_HOLD in job.held_by:
            return _lift(self._actor, job, lifted)
        decision = await find_decision(self._store, job.id)
        if decision is None and self._book is not None:
            return await self._judge(job, lifted)
        if decision is None and lifted is None:
            # Its submitter left it pending, and admits it.
            return ()
        facts = NO_FACTS if decision is None else decision.facts
        return (c.Admit(actor=self._actor, lifts=lifted, rules=facts.rules, policy=facts.terms),)

    async def _judge(self, job: Job, lifted: str | None) -> Sequence[c.Command]:
        """Judge a job that was pending before there were rules, or that no book has seen."""
        assert self._book is not None
        [first] = await self._store.events(job.id, limit=1)
        now = (await self._store.clock()).now
        answer = await find_answer(self._book, first, now, None, KernelState(self._store, now))
        if answer is None:
            return (c.Hold(actor=self._actor, hold=POLICY_HOLD),)
        commands = follow_decision(job, first, answer, self._actor, now)
        if isinstance(commands[0], c.Admit):
            return (*_lift(self._actor, job, lifted), *commands)
        return commands


def _lift(actor: Actor, job: Job, hold: str | None) -> Sequence[c.Unhold]:
    return () if hold is None or hold not in job.held_by else (c.Unhold(actor=actor, hold=hold),)


def _end(id_: str, upload: Upload | None, actor: Actor) -> c.DeadLetter:
    """Return the end of a job whose upload will never be finalized."""
    state = "is not there" if upload is None else f"is {upload.state}"
    error = UploadExpired(f"upload {id_} {state}; upload the files again, and submit a new job")
    return c.DeadLetter(
        actor=actor, stage="fetch", error_code=UPLOAD_EXPIRED, body=error_body(error)
    )
