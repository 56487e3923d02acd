"""Why: what a job is doing, why it is not running, and who did that. Seven reads at most,
and for a parent those that tell whom it waits for.

What nobody can act on comes last: a hold or a pause is told before a time that has not come, a
time before the workers. All reasons that apply are told, the first is the one to look at.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import Struct

from holdfast.flow.children import awaited
from holdfast.flow.missing import missing
from holdfast.flow.reasons import (
    AwaitsAdmission,
    Backoff,
    CancelRequested,
    Child,
    ChildElsewhere,
    Claimed,
    ClockSetBack,
    Ended,
    Failure,
    Held,
    Hold,
    NewerVersion,
    NoCapableWorker,
    NotDue,
    NoWorker,
    Overdue,
    Quarantined,
    QueuePaused,
    Ready,
    Reason,
    Running,
    Said,
    Seen,
    StepsDiffer,
    TaskUnknown,
    TimesAhead,
    Unkillable,
    Waiting,
    WaitsForChildren,
)
from holdfast.flow.repair_times import is_ahead
from holdfast.lifecycle.family import awaits_children
from holdfast.lifecycle.job import (
    ELSEWHERE,
    MISMATCH,
    NO_FACTS,
    UNKILLABLE,
    Job,
    JobId,
    LoggedEvent,
)
from holdfast.lifecycle.linked import undone_by
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.routes import is_offered
from holdfast.lifecycle.signals import oldest_signal
from holdfast.lifecycle.states import CLAIMABLE, OWNED, EventType, Kind, State
from holdfast.lifecycle.times import SECOND
from holdfast.ports import Clock, Store, WorkerStatus

EVENTS = 200
"""How many of a job's newest telling events are read."""
WORKERS = 1000
"""How many workers are asked, the most recently seen first."""
SHOWN = 5
"""How many workers or children a reason names."""
CHILDREN = 1000
"""How many children are counted."""
CLOCK_AHEAD = SECOND
"""From when on it is told that the store's clock is ahead of its machine's."""
ERROR_LIMIT = 500
"""Characters of an error that are told here; `events` has it whole."""

_E = EventType
ENDS = (_E.SUCCEEDED, _E.FAILED, _E.CANCELLED, _E.TIMED_OUT, _E.DENIED, _E.DEAD_LETTERED)
SETTLED = (_E.REDRIVEN, _E.DISCARDED)
FAILURES = (_E.RETRYING, _E.STALLED)
DUE = (*FAILURES, _E.CREATED, _E.RESCHEDULED, _E.REQUEUED, _E.RELEASED, _E.WAIT_COMPLETED)
"""Events that may say when a job is due."""
OWNING = (_E.CLAIMED, _E.ADOPTED)
TELLING = (
    *ENDS,
    *SETTLED,
    _E.COMPENSATED,
    *DUE,
    *OWNING,
    _E.HELD,
    _E.WAITING,
    _E.CANCEL_REQUESTED,
    _E.PROGRESSED,
)


class Why(Struct, frozen=True, kw_only=True):
    """The answer, as of `now` on the store's clock."""

    id: JobId
    job_id: str
    tenant: str
    task: str
    queue: str
    state: State
    attempt: int
    now: int
    reason: Reason
    also: tuple[Reason, ...] = ()
    """What would keep it even if the reason went away, or what else is known."""
    last_failure: Failure | None = None

    @property
    def advice(self) -> str | None:
        """What a person can do about the reason, with the command; None: nothing but wait."""
        return self.reason.advise(self.job_id)

    @property
    def text(self) -> str:
        """All reasons in sentences for a person."""
        return "; also: ".join(one.say(self.now) for one in (self.reason, *self.also))


class Look(Struct, frozen=True, kw_only=True):
    """What was read of a job before any reason was found."""

    job: Job
    clock: Clock
    events: list[LoggedEvent]
    """The telling ones, newest first."""
    tenant: str | None = None
    """Who asks; None may know of all."""

    @property
    def now(self) -> int:
        """The store's clock."""
        return self.clock.now

    def last(self, *types: EventType) -> LoggedEvent | None:
        """The newest event of these types."""
        return next((event for event in self.events if event.type in types), None)


async def why(store: Store, id: JobId, *, tenant: str | None = None) -> Why:
    """Say why a job stands where it stands; to a tenant, counting none but its own jobs."""
    [job] = await store.get([id])
    if job is None:
        raise await missing(store, id, id=id, tenant=tenant)
    clock = await store.clock()
    # It may have moved on since: what came later is not this record's story.
    latest = await store.latest_events(id, TELLING, limit=EVENTS)
    events = [event for event in latest if event.rev <= job.rev]
    look = Look(job=job, clock=clock, events=events, tenant=tenant)
    aside = await _quarantined(store, id)
    reasons = await _reasons(store, look)
    # What ended is not to be claimed: there its end comes first.
    found = reasons + aside if job.terminal else aside + reasons
    first, *also = found + _about_clock(look)
    failed = look.last(*FAILURES) if job.failures else None
    return Why(
        id=job.id,
        job_id=job.public_id,
        tenant=job.tenant,
        task=job.task,
        queue=job.queue,
        state=job.state,
        attempt=job.attempt,
        now=clock.now,
        reason=first,
        also=tuple(also),
        last_failure=None if failed is None else _failure(failed),
    )


async def _quarantined(store: Store, id: JobId) -> list[Reason]:
    page = await store.quarantined(after=JobId(UUID(int=id.int - 1)), limit=1)
    return [
        Quarantined(internal_id=id, since=one.since, damage=one.reason)
        for one in page.jobs
        if one.id == id
    ]


def _about_clock(look: Look) -> list[Reason]:
    job, clock, step = look.job, look.clock, look.clock.step
    found: list[Reason] = []
    if is_ahead(job, clock.now):
        found.append(TimesAhead(by=job.updated_at - clock.now))
    if step is not None and clock.ahead >= CLOCK_AHEAD and job.finished_at is None:
        found.append(ClockSetBack(at=step.at, by=step.by, ahead=clock.ahead))
    return found


async def _reasons(store: Store, look: Look) -> list[Reason]:
    """Collect all that applies, what to look at first in front."""
    job = look.job
    if job.terminal:
        return [_ended(look, await _undoing(store, look))]
    if job.state is State.UNKNOWN:
        return [NewerVersion()]
    overdue = _deadline(look)
    if job.state in OWNED:
        return overdue + _owned(look, await store.workers(limit=WORKERS))
    if job.state is State.WAITING:
        return overdue + await _parked(store, look)
    kept = await _held(store, look) + await _paused(store, look)
    if job.state in CLAIMABLE:
        workers = await store.workers(limit=WORKERS)
        kept += _not_due(look) + _unserved(look, workers)
        return overdue + kept or [await _ready(store, look, workers)]
    return [*overdue, AwaitsAdmission(since=job.created_at), *kept, *_not_due(look)]


async def _undoing(store: Store, look: Look) -> dict[str, Any]:
    """Tell who undoes a job that ended without success, and whether that is done."""
    if (id_ := undone_by(look.job)) is None:
        return {}
    if (done := look.last(_E.COMPENSATED)) is not None:
        return {"undone_by": str(done.facts.link), "undone": _said(done)}
    [job] = await store.get([id_])
    return {"undone_by": str(id_), "undoing": None if job is None else job.state}


def _ended(look: Look, undoing: dict[str, Any]) -> Ended:
    job, end, settled = look.job, look.last(*ENDS), look.last(*SETTLED)
    facts = NO_FACTS if end is None else end.facts
    redriven = look.last(_E.REDRIVEN)
    link = None if redriven is None else redriven.facts.link
    return Ended(
        state=job.state,
        at=job.finished_at or job.updated_at,
        ended=_said(end),
        cancelled=_said(look.last(_E.CANCEL_REQUESTED)) if job.cancel_requested else None,
        rule=facts.rule,
        error_code=job.error_code,
        error=None if end is None or job.error_code is None else _error(end),
        attempts=job.attempt,
        stage=facts.stage,
        kill=facts.kill,
        last_owner=facts.last_owner,
        letter=job.letter,
        settled=_said(settled),
        redriven_as=None if link is None else str(link),
        retried_as=None if facts.link is None else str(facts.link),
        **undoing,
    )


def _deadline(look: Look) -> list[Reason]:
    return [_overdue("deadline", look.job.deadline_at)] if _past(look.job.deadline_at, look) else []


def _overdue(what: str, since: int | None, **facts: Any) -> Overdue:
    given: dict[str, Any] = {"not_before": None, "worker": None, "seen": None}
    return Overdue(what=what, since=since, **given | facts)


def _owned(look: Look, workers: list[WorkerStatus]) -> list[Reason]:
    """Tell of a job that somebody holds: what went wrong with it first."""
    job = look.job
    owner = job.owner or ""
    seen = next((_seen(one, look.now) for one in workers if one.name == owner), None)
    found: list[Reason] = _lost(look, owner, seen) + _unkillable(look, owner) + _cancel(look, owner)
    took = look.last(*OWNING)
    if job.state is State.CLAIMED:
        held = Claimed(
            worker=owner,
            since=None if took is None else took.at,
            until=job.lease_expires_at or 0,
            start_by=job.timeout_at,
            seen=seen,
        )
        return [*found, held]
    running = Running(
        worker=owner,
        since=job.started_at or 0,
        lease_until=job.lease_expires_at or 0,
        time_out_at=job.timeout_at,
        seen=seen,
    )
    return [*found, running]


def _lost(look: Look, owner: str, seen: Seen | None) -> list[Reason]:
    job, lease = look.job, look.job.lease_expires_at or 0
    whose = {"worker": owner, "seen": seen}
    if (job.epoch or 1) < look.clock.epoch:
        return [_overdue("epoch", None, **whose)]
    if lease <= look.now:
        waits = job.policy.on_silence == "lose"
        return [
            _overdue(
                "lease",
                lease,
                not_before=lease + job.policy.host_recovery if waits else None,
                **whose,
            )
        ]
    if job.state is State.CLAIMED and _past(job.timeout_at, look):
        return [_overdue("start_timeout", job.timeout_at, **whose)]
    return []


def _unkillable(look: Look, owner: str) -> list[Reason]:
    said = look.last(_E.PROGRESSED)
    if said is None or said.facts.kill != UNKILLABLE:
        return []
    # Of an earlier attempt, or of an owner that died: that run is over.
    if (said.actor, said.attempt) != (owner, look.job.attempt):
        return []
    return [Unkillable(said=Said(by=said.actor, at=said.at, cause=said.reason))]


def _cancel(look: Look, owner: str) -> list[Reason]:
    mode = look.job.cancel_requested
    if mode is None:
        return []
    asked = _said(look.last(_E.CANCEL_REQUESTED))
    return [CancelRequested(mode=mode, asked=asked, worker=owner)]


async def _parked(store: Store, look: Look) -> list[Reason]:
    job, parked = look.job, look.last(_E.WAITING)
    if not awaits_children(job.wait_for):
        return _waiting(look)
    live = await awaited(store, job, limit=CHILDREN + 1)
    if not live:
        return [_overdue("children", None)]
    shown = [
        Child(id=one.id, job_id=one.public_id, task=one.task, state=one.state)
        for one in live[:SHOWN]
    ]
    return [
        WaitsForChildren(
            live=min(len(live), CHILDREN),
            more=len(live) > CHILDREN,
            children=tuple(shown),
            since=None if parked is None else parked.at,
        )
    ]


def _waiting(look: Look) -> list[Reason]:
    job, parked = look.job, look.last(_E.WAITING)
    signal = job.wait_for or ""
    since = None if parked is None else parked.at
    wait: Reason = Waiting(signal=signal, since=since, until=job.run_at)
    if signal == MISMATCH:
        wait = StepsDiffer(parked=_said(parked), until=job.run_at)
    elif signal == ELSEWHERE:
        wait = ChildElsewhere(since=since, until=job.run_at)
    if oldest_signal(job, signal) is not None:
        return [_overdue("signal", None), wait]
    return [_overdue("timer", job.run_at), wait] if _past(job.run_at, look) else [wait]


async def _held(store: Store, look: Look) -> list[Reason]:
    """Tell who put each hold there; the first one may have come with the submit."""
    if not look.job.held_by:
        return []
    events = [*look.events, *await store.events(look.job.id, limit=1)]
    return [Held(holds=tuple(_hold(name, events) for name in look.job.held_by))]


def _hold(name: str, events: list[LoggedEvent]) -> Hold:
    for event in events:
        if event.facts.held == name:
            return Hold(name=name, put=_said(event))
    return Hold(name=name)


async def _paused(store: Store, look: Look) -> list[Reason]:
    for one in await store.queues():
        if one.name == look.job.queue and one.paused_at is not None:
            paused = Said(by=one.paused_by or "", at=one.paused_at, cause=one.reason)
            return [QueuePaused(queue=one.name, paused=paused)]
    return []


def _not_due(look: Look) -> list[Reason]:
    """Tell a time that has not come: by whose word, or after which failure."""
    job = look.job
    if job.run_at is None or _past(job.run_at, look):
        return []
    said = look.last(*DUE)
    if said is not None and said.type in FAILURES:
        return [
            Backoff(
                until=job.run_at,
                failure=_failure(said),
                failures=job.failures,
                max_attempts=job.policy.max_attempts,
            )
        ]
    return [NotDue(until=job.run_at, set=_said(said))]


def _unserved(look: Look, workers: list[WorkerStatus]) -> list[Reason]:
    """Tell why no worker would claim it and run it, if that is so."""
    job = look.job
    serving = [one for one in workers if job.queue in one.queues]
    live = [one for one in serving if one.is_live(look.now)]
    if not live:
        last = tuple(_seen(one, look.now) for one in serving[:SHOWN])
        return [NoWorker(queue=job.queue, last_seen=last)]
    capable = [one for one in live if job.needs <= one.capabilities]
    if not capable:
        return [_incapable(job, live)]
    if any(_has_task(one, job) for one in capable):
        return []
    names = tuple(one.name for one in capable[:SHOWN])
    versions = {
        version
        for one in capable
        for task, _, version in (offered.rpartition("@") for offered in one.tasks)
        if task == job.task
    }
    return [
        TaskUnknown(
            queue=job.queue,
            task=job.task,
            version=job.task_version,
            versions=tuple(sorted(versions))[:SHOWN],
            workers=names,
        )
    ]


def _has_task(worker: WorkerStatus, job: Job) -> bool:
    """Return whether a worker would claim jobs of this task: one that names no tasks claims any."""
    if job.kind is not Kind.FUNCTION or not worker.tasks:
        return True
    return is_offered(worker.tasks, job.task, job.task_version)


def _incapable(job: Job, live: list[WorkerStatus]) -> NoCapableWorker:
    closest = min(live, key=lambda one: len(job.needs - one.capabilities))
    return NoCapableWorker(
        queue=job.queue,
        needs=tuple(sorted(job.needs)),
        missing=tuple(sorted(job.needs - closest.capabilities)),
        closest=closest.name,
        workers=len(live),
    )


async def _ready(store: Store, look: Look, workers: list[WorkerStatus]) -> Ready:
    """Tell that nothing keeps it but the work before it: how much that is, from the summaries."""
    job = look.job
    able = [
        one
        for one in workers
        if one.is_live(look.now)
        and job.queue in one.queues
        and job.needs <= one.capabilities
        and _has_task(one, job)
    ]
    counts = [one for one in await store.counts(look.tenant) if one.queue == job.queue]
    return Ready(
        since=job.run_at,
        workers=tuple(one.name for one in able),
        slots=sum(one.concurrency for one in able),
        under_way=sum(one.jobs for one in counts if one.state in OWNED),
        others=max(0, sum(one.jobs for one in counts if one.state in CLAIMABLE) - 1),
        cpus=job.cpus,
        memory_mb=job.memory_mb,
        of_tenant=look.tenant is not None,
    )


def _said(event: LoggedEvent | None) -> Said | None:
    return None if event is None else Said(by=event.actor, at=event.at, cause=event.reason)


def _failure(event: LoggedEvent) -> Failure:
    return Failure(
        error_code=event.facts.error_code,
        error=_error(event),
        cause=event.reason,
        attempt=event.attempt,
        at=event.at,
        by=event.facts.last_owner or event.actor,
    )


def _error(event: LoggedEvent) -> str | None:
    """Tell an error's type and message, whatever form it was written in."""
    told = decode_body(event.body)
    if isinstance(told, dict) and "message" in told:
        told = f"{told['type']}: {told['message']}" if told.get("type") else told["message"]
    if told is None:
        return None
    text = str(told)
    return text if len(text) <= ERROR_LIMIT else text[: ERROR_LIMIT - 1] + "…"


def _seen(worker: WorkerStatus, now: int) -> Seen:
    return Seen(
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        seen_at=worker.seen_at,
        stopped_at=worker.stopped_at,
        live=worker.is_live(now),
    )


def _past(instant: int | None, look: Look) -> bool:
    return instant is not None and instant <= look.now
