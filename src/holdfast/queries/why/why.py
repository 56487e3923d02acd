"""Why: what a job is doing, why it is not running, and who caused that. Seven reads at most; for
a parent also those that find whom it waits for, for an agent one that finds its questions.

All reasons that apply are returned, the one to act on first: a hold or a pause comes before a time
that has not come, and a time before the workers.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import Struct

from holdfast.lifecycle.family import awaits_children
from holdfast.lifecycle.history import (
    FAILED_ATTEMPTS,
    STEP_ENDS,
    STEP_EVENTS,
    STEP_STARTS,
    History,
)
from holdfast.lifecycle.holds import PERSON_HOLD, UNADMITTED, awaited_upload, is_gate
from holdfast.lifecycle.lease import is_lost, is_older_claim, start_is_overdue, taken_from
from holdfast.lifecycle.linked import undone_by
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import (
    ELSEWHERE,
    MISMATCH,
    NO_FACTS,
    UNKILLABLE,
    Job,
    JobId,
    LoggedEvent,
)
from holdfast.lifecycle.signals import oldest_signal
from holdfast.lifecycle.states import CLAIMABLE, KNOWN, Kind, State
from holdfast.lifecycle.times import SECOND, is_past
from holdfast.ports.models import Clock, WorkerStatus
from holdfast.ports.store import Store
from holdfast.ports.uploads import Upload, UploadState, is_upload_id
from holdfast.queries.absence import missing_job_error
from holdfast.queries.family import list_awaited
from holdfast.queries.times_ahead import is_ahead
from holdfast.queries.why import reasons as r
from holdfast.queries.why.facts import Act, FailedAttempt, LiveChild, PlacedHold, SeenWorker
from holdfast.queries.why.policy import explain_policy
from holdfast.queries.why.workers import SHOWN, explain_ready, explain_unserved, show_worker

EVENTS = 200
"""How many of a job's newest events are read."""
WORKERS = 1000
"""How many workers are read, the most recently seen first."""
CHILDREN = 1000
"""How many children are counted."""
CLOCK_AHEAD = SECOND
"""How far the store's clock must be ahead of its machine's to be reported."""
ERROR_LIMIT = 500
"""Characters of an error that are shown here; `events` has it whole."""


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
    reason: r.Reason
    also: tuple[r.Reason, ...] = ()
    """What would keep it even if the reason went away, or what else is known."""
    last_failure: FailedAttempt | None = None

    @property
    def advice(self) -> str | None:
        """What a person can do about the reason, with the command; None: only wait."""
        return self.reason.advice(self.job_id)

    @property
    def text(self) -> str:
        """All reasons in sentences for a person."""
        return "; also: ".join(one.sentence(self.now) for one in (self.reason, *self.also))


class _Snapshot(Struct, frozen=True, kw_only=True):
    """What was read of a job before any reason is found."""

    job: Job
    clock: Clock
    history: History
    tenant: str | None = None
    """Whose jobs the caller may know of; None: all."""

    @property
    def now(self) -> int:
        return self.clock.now


async def why(store: Store, id: JobId, *, tenant: str | None = None) -> Why:
    """Return why a job is in its state; for a tenant, counting only its own jobs."""
    [job] = await store.get([id])
    if job is None:
        raise await missing_job_error(store, id, id=id, tenant=tenant)
    clock = await store.clock()
    # It may have moved on since: later events are not about this record.
    latest = await store.latest_events(id, History.TYPES, limit=EVENTS)
    history = History([event for event in latest if event.rev <= job.rev])
    read = _Snapshot(job=job, clock=clock, history=history, tenant=tenant)
    aside = await _explain_quarantined(store, id)
    reasons = await _collect_reasons(store, read)
    # A job that ended is not to be claimed: there its end comes first.
    found = reasons + aside if job.terminal else aside + reasons
    first, *also = found + _explain_clock(read)
    failed = history.failed_attempt if job.failures else None
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
        last_failure=None if failed is None else _read_failure(failed),
    )


async def _explain_quarantined(store: Store, id: JobId) -> list[r.Reason]:
    page = await store.quarantined(after=JobId(UUID(int=id.int - 1)), limit=1)
    return [
        r.SetAside(internal_id=id, since=one.since, damage=one.reason)
        for one in page.jobs
        if one.id == id
    ]


def _explain_clock(read: _Snapshot) -> list[r.Reason]:
    job, clock, step = read.job, read.clock, read.clock.step
    found: list[r.Reason] = []
    if is_ahead(job, clock.now):
        found.append(r.TimesAhead(by=job.updated_at - clock.now))
    if step is not None and clock.ahead >= CLOCK_AHEAD and job.finished_at is None:
        found.append(r.ClockSetBack(at=step.at, by=step.by, ahead=clock.ahead))
    return found


async def _collect_reasons(store: Store, read: _Snapshot) -> list[r.Reason]:
    """Collect all that apply, the one to act on first."""
    job = read.job
    if job.terminal:
        return [_explain_end(read, await _find_undoing(store, read))]
    if job.state not in KNOWN:
        return [r.NewerVersion()]
    overdue = _deadline(read)
    if job.owned:
        asked = await _explain_questions(store, job)
        return overdue + asked + _explain_owned(read, await store.workers(limit=WORKERS))
    if job.waiting:
        return overdue + await _explain_waiting(store, read)
    kept = await _explain_held(store, read) + await _explain_paused(store, read)
    if job.state in CLAIMABLE:
        workers = await store.workers(limit=WORKERS)
        kept += _explain_not_due(read) + explain_unserved(job, workers, read.now)
        return overdue + kept or [await explain_ready(store, job, workers, read.now, read.tenant)]
    waits = await _explain_awaited_upload(store, job)
    admission: list[r.Reason] = [*await explain_policy(store, job), *([waits] if waits else [])]
    if not admission:
        admission = [r.AwaitsAdmission(since=job.created_at)]
    return [*overdue, *admission, *kept, *_explain_not_due(read)]


async def _find_undoing(store: Store, read: _Snapshot) -> dict[str, Any]:
    """Return who undoes a job that ended without success, and whether that is done."""
    if (id_ := undone_by(read.job)) is None:
        return {}
    if (done := read.history.compensation) is not None:
        return {"undone_by": str(done.facts.link), "undone": _act(done)}
    [job] = await store.get([id_])
    return {"undone_by": str(id_), "undoing": None if job is None else job.state}


def _explain_end(read: _Snapshot, undoing: dict[str, Any]) -> r.Ended:
    job, history = read.job, read.history
    end, redrives = history.end, history.redrives
    facts = NO_FACTS if end is None else end.facts
    link = redrives[0].facts.link if redrives else None
    return r.Ended(
        state=job.state,
        at=job.finished_at or job.updated_at,
        ended=_act(end),
        cancelled=_act(history.cancel_request) if job.cancel_requested else None,
        rule=facts.rule,
        error_code=job.error_code,
        error=None if end is None or job.error_code is None else _read_error_text(end),
        attempts=job.attempt,
        stage=facts.stage,
        kill=facts.kill,
        last_owner=facts.last_owner,
        letter=job.letter,
        settled=_act(history.settlement),
        redriven_as=None if link is None else str(link),
        retried_as=None if facts.link is None else str(facts.link),
        **undoing,
    )


def _deadline(read: _Snapshot) -> list[r.Reason]:
    deadline = read.job.deadline_at
    return [_overdue("deadline", deadline)] if is_past(deadline, read.now) else []


def _overdue(what: str, since: int | None, **facts: Any) -> r.Overdue:
    given: dict[str, Any] = {"not_before": None, "worker": None, "seen": None}
    return r.Overdue(what=what, since=since, **given | facts)


def _explain_owned(read: _Snapshot, workers: list[WorkerStatus]) -> list[r.Reason]:
    """Return the reasons of a job that has an owner, what went wrong first."""
    job = read.job
    owner = job.owner or ""
    seen = next((show_worker(one, read.now) for one in workers if one.name == owner), None)
    found: list[r.Reason] = (
        _explain_lost(read, owner, seen)
        + _explain_unkillable(read, owner)
        + _explain_cancel(read, owner)
    )
    took = read.history.take
    if job.claimed:
        held = r.NotStarted(
            worker=owner,
            since=None if took is None else took.at,
            until=job.lease_expires_at or 0,
            start_by=job.timeout_at,
            seen=seen,
        )
        return [*found, held]
    running = r.Running(
        worker=owner,
        since=job.started_at or 0,
        lease_until=job.lease_expires_at or 0,
        time_out_at=job.timeout_at,
        seen=seen,
        network=None if read.history.start is None else read.history.start.facts.network,
    )
    return [*found, running]


async def _explain_questions(store: Store, job: Job) -> list[r.Reason]:
    """Return the questions of a running agent that are not answered, the oldest first."""
    if job.kind is not Kind.AGENT or not job.running:
        return []
    steps = await store.latest_events(job.id, STEP_EVENTS, limit=EVENTS)
    of_run = [one for one in steps if one.attempt == job.attempt]
    answered = {one.facts.step for one in of_run if one.type in STEP_ENDS}
    return [
        _read_question(one)
        for one in reversed(of_run)
        if one.type in STEP_STARTS and one.facts.step not in answered
    ]


def _read_question(event: LoggedEvent) -> r.AsksQuestion:
    asked = decode_body(event.body) or {}
    return r.AsksQuestion(
        signal=event.facts.step or "",
        question=str(asked.get("question", "(erased)")),
        choices=tuple(map(str, asked.get("choices", ()))),
        since=event.at,
    )


def _explain_lost(read: _Snapshot, owner: str, seen: SeenWorker | None) -> list[r.Reason]:
    job, lease = read.job, read.job.lease_expires_at or 0
    whose = {"worker": owner, "seen": seen}
    if is_older_claim(job, read.clock.epoch):
        return [_overdue("epoch", None, **whose)]
    if is_lost(job, read.now, read.clock.epoch):
        taken = taken_from(job)
        return [_overdue("lease", lease, not_before=taken if taken > lease else None, **whose)]
    if start_is_overdue(job, read.now):
        return [_overdue("start_timeout", job.timeout_at, **whose)]
    return []


def _explain_unkillable(read: _Snapshot, owner: str) -> list[r.Reason]:
    report = read.history.progress
    if report is None or report.facts.kill != UNKILLABLE:
        return []
    # From an earlier attempt, or from an owner that died: that run is over.
    if (report.actor, report.attempt) != (owner, read.job.attempt):
        return []
    return [r.Unkillable(said=Act(by=report.actor, at=report.at, cause=report.reason))]


def _explain_cancel(read: _Snapshot, owner: str) -> list[r.Reason]:
    mode = read.job.cancel_requested
    if mode is None:
        return []
    asked = _act(read.history.cancel_request)
    return [r.CancelRequested(mode=mode, asked=asked, worker=owner)]


async def _explain_waiting(store: Store, read: _Snapshot) -> list[r.Reason]:
    job, wait_event = read.job, read.history.wait
    if not awaits_children(job.wait_for):
        return _explain_wait_for_signal(read)
    live = await list_awaited(store, job, limit=CHILDREN + 1)
    if not live:
        return [_overdue("children", None)]
    shown = [
        LiveChild(id=one.id, job_id=one.public_id, task=one.task, state=one.state)
        for one in live[:SHOWN]
    ]
    return [
        r.WaitsForChildren(
            live=min(len(live), CHILDREN),
            more=len(live) > CHILDREN,
            children=tuple(shown),
            since=None if wait_event is None else wait_event.at,
        )
    ]


def _explain_wait_for_signal(read: _Snapshot) -> list[r.Reason]:
    job, wait_event = read.job, read.history.wait
    signal = job.wait_for or ""
    since = None if wait_event is None else wait_event.at
    wait: r.Reason = r.Waiting(signal=signal, since=since, until=job.run_at)
    if signal == MISMATCH:
        wait = r.StepsDiffer(parked=_act(wait_event), until=job.run_at)
    elif signal == ELSEWHERE:
        wait = r.ChildElsewhere(since=since, until=job.run_at)
    if oldest_signal(job, signal) is not None:
        return [_overdue("signal", None), wait]
    return [_overdue("timer", job.run_at), wait] if is_past(job.run_at, read.now) else [wait]


async def _explain_held(store: Store, read: _Snapshot) -> list[r.Reason]:
    """Return who placed each hold; the first one may have come with the submit."""
    job = read.job
    holds = [hold for hold in job.held_by if not is_gate(hold) or hold.startswith(PERSON_HOLD)]
    if job.state not in UNADMITTED:
        holds = list(job.held_by)
    if not holds:
        return []
    events = [*read.history.events, *await store.events(job.id, limit=1)]
    return [r.HeldJob(holds=tuple(_find_hold(name, events) for name in holds))]


async def _explain_awaited_upload(store: Store, job: Job) -> r.WaitsForUpload | None:
    """Return which upload keeps a job from being admitted; None if none does."""
    id_ = awaited_upload(job)
    if id_ is None:
        return None
    found: Upload | None = None
    if is_upload_id(id_):
        [found] = await store.look_up_uploads([id_], tenant=job.tenant)
    is_open = found is not None and found.state is UploadState.UPLOADING
    return r.WaitsForUpload(
        upload=id_,
        state=None if found is None else found.state.value,
        since=job.created_at,
        until=found.expires_at if found is not None and is_open else None,
    )


def _find_hold(name: str, events: list[LoggedEvent]) -> PlacedHold:
    for event in events:
        if event.facts.held == name or name in event.facts.holds:
            return PlacedHold(name=name, put=_act(event))
    return PlacedHold(name=name)


async def _explain_paused(store: Store, read: _Snapshot) -> list[r.Reason]:
    for one in await store.queues():
        if one.name == read.job.queue and one.paused_at is not None:
            paused = Act(by=one.paused_by or "", at=one.paused_at, cause=one.reason)
            return [r.QueuePaused(queue=one.name, paused=paused)]
    return []


def _explain_not_due(read: _Snapshot) -> list[r.Reason]:
    """Return a time that has not come: who set it, or after which failure."""
    job = read.job
    if job.run_at is None or is_past(job.run_at, read.now):
        return []
    event = read.history.due_by
    if event is not None and event.type in FAILED_ATTEMPTS:
        return [
            r.BacksOff(
                until=job.run_at,
                failure=_read_failure(event),
                failures=job.failures,
                max_attempts=job.policy.max_attempts,
            )
        ]
    return [r.NotDue(until=job.run_at, set=_act(event))]


def _act(event: LoggedEvent | None) -> Act | None:
    return None if event is None else Act(by=event.actor, at=event.at, cause=event.reason)


def _read_failure(event: LoggedEvent) -> FailedAttempt:
    return FailedAttempt(
        error_code=event.facts.error_code,
        error=_read_error_text(event),
        cause=event.reason,
        attempt=event.attempt,
        at=event.at,
        by=event.facts.last_owner or event.actor,
    )


def _read_error_text(event: LoggedEvent) -> str | None:
    """Return an error's type and message, whatever form it was written in."""
    error = decode_body(event.body)
    if isinstance(error, dict) and "message" in error:
        error = f"{error['type']}: {error['message']}" if error.get("type") else error["message"]
    if error is None:
        return None
    text = str(error)
    return text if len(text) <= ERROR_LIMIT else text[: ERROR_LIMIT - 1] + "…"
