"""What carries out each request of a worker elsewhere.

The server keeps nothing of a session but its name in the ledger. The name starts with the id of
the token that it was made for, and no other token may use it. So a worker outlives its server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from logging import getLevelNamesMapping
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from holdfast.auth.authorization import Caller
from holdfast.errors import (
    BadData,
    Forbidden,
    LeaseConflictError,
    NoSuchJob,
    TooLarge,
    ValidationError,
    about,
)
from holdfast.ids import mint_request
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.lease import is_owner
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.reserved import check_not_reserved, is_reserved
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import seconds
from holdfast.operations.problems import problem_of
from holdfast.operations.request import R, Request
from holdfast.operations.session import StoreSession
from holdfast.ports.models import LOG_TEXT, Announcement, ClaimRequest, LogEntry
from holdfast.queries.error_reports import writable
from holdfast.worker_protocol import requests as q
from holdfast.worker_protocol.apply_reports import ReportOutcome, apply_reports
from holdfast.worker_protocol.assignments import assign, read_records
from holdfast.worker_protocol.long_poll import LongPoll, Watched
from holdfast.worker_protocol.presence import Presence
from holdfast.worker_protocol.sessions import release_or_end_all

LINES_LIMIT = 1000
"""How many lines of logs one request may bring."""
REPORTS_LIMIT = 1000
"""How many reports one request may bring."""


class RemoteWorkers:
    """What one server keeps for all workers elsewhere, over one open session."""

    def __init__(self, session: StoreSession) -> None:
        self.store = session.store
        self.terms = session.terms
        self.long_poll = LongPoll(session.store)
        self.presence = Presence(session.store)


class WorkerProtocol(Struct, frozen=True, kw_only=True):
    """Carries out the requests of one caller's workers."""

    workers: RemoteWorkers
    caller: Caller
    tenant: Callable[[], str | None]
    """Returns whose jobs it works on, None: those of all; Forbidden if the token's are others."""
    request_id: str
    """What problems name the request by."""
    watched: Watched

    async def do(self, request: Request[R]) -> R:
        """Carry out a request, and return its result."""
        result: R = await HANDLERS[type(request)](self, request)
        return result

    def check_session(self, session: str) -> str:
        """Refuse a session that was not made for the caller's token."""
        with about("session"):
            check_text(session, "session", limit=200)
        if not session.startswith(f"{self.caller.token}."):
            raise _bad_session("this session was not made for this token")
        return session

    def check_queues(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the queues to claim from; Forbidden where the token does not cover one."""
        if not wanted:
            own = ("default",) if self.caller.queues is None else sorted(self.caller.queues)
            open_to_workers = tuple(queue for queue in own if not is_reserved(queue))
            if not open_to_workers:
                raise Forbidden("this token covers no queue that a worker may serve")
            return open_to_workers
        for queue in wanted:
            with about("queues"):
                check_not_reserved(check_text(queue, "queue", limit=200), "queue")
            self.caller.demand_queue(queue)
        return wanted

    async def known_jobs(self, ids: Sequence[JobId]) -> list[Job | None]:
        """Read the jobs that the caller may know of."""
        distinct = list(dict.fromkeys(ids))
        found = await self.workers.store.get(distinct) if distinct else []
        seen = {job.id: job for job in found if job is not None and self._may_know(job)}
        return [seen.get(id_) for id_ in ids]

    def _may_know(self, job: Job) -> bool:
        caller = self.caller
        tenant_fits = caller.tenant in (None, job.tenant)
        return tenant_fits and (caller.queues is None or job.queue in caller.queues)


async def _open_session(on: WorkerProtocol, request: q.OpenSession) -> q.WorkerSession:
    queues = on.check_queues(request.queues)
    name = f"{on.caller.token}.{mint_request()}"
    store = on.workers.store
    if request.terms:
        await _publish_terms(on, request)
    await store.announce(
        Announcement(
            name=name,
            queues=queues,
            capabilities=frozenset(request.capabilities),
            tasks=request.tasks,
            host=request.host or "elsewhere",
            pid=request.pid,
            concurrency=request.concurrency,
        )
    )
    on.workers.presence.remember_tasks(name, request.tasks)
    return q.WorkerSession(session=name, queues=queues)


async def _publish_terms(on: WorkerProtocol, request: q.OpenSession) -> None:
    if on.caller.queues is not None:
        text = "terms of tasks hold in all queues; publish them with a token for all queues"
        raise Forbidden(text)
    with about("terms"):
        named = {task.partition("@")[0] for task in request.tasks}
        terms = [_build_task_terms(task, one, named) for task, one in request.terms.items()]
        await on.workers.store.publish_terms(terms, tenant=on.tenant())


def _build_task_terms(task: str, declared: q.DeclaredTerms, named: set[str]) -> TaskTerms:
    if task not in named:
        raise BadData(f"`terms` has task {task!r}, which `tasks` does not name: name it there, too")
    check_not_reserved(task, "task")
    check_not_reserved(declared.queue, "queue")
    retries, timeout = declared.retries, declared.timeout_seconds
    if retries is None:
        retries = DEFAULT_POLICY.max_attempts - 1 if declared.idempotent else 0
    policy = Policy(
        idempotent=declared.idempotent,
        max_attempts=retries + 1,
        timeout=None if timeout is None else max(1, seconds(timeout)),
    )
    return TaskTerms(task=task, policy=policy, queue=declared.queue)


async def _end_session(on: WorkerProtocol, request: q.EndSession) -> q.Farewell:
    store = on.workers.store
    given_back = await release_or_end_all(store, on.check_session(request.session))
    await store.retire(request.session)
    return q.Farewell(given_back=given_back)


async def _claim_jobs(on: WorkerProtocol, request: q.ClaimJobs) -> q.Assignments:
    workers = on.workers
    with about("request_id"):
        check_text(request.request_id, "request_id")
    for name, texts in (("tasks", request.tasks or ()), ("capabilities", request.capabilities)):
        with about(name):
            for text in texts:
                check_text(text, name)
    claim = ClaimRequest(
        # Another session may use the same id.
        request_id=f"{request.session}.{request.request_id}",
        owner=on.check_session(request.session),
        queues=on.check_queues(request.queues),
        limit=request.limit,
        tasks=await _tasks_of(on, request),
        tenant=on.tenant(),
        capabilities=frozenset(request.capabilities),
    )
    if await workers.presence.record_seen(claim.owner):
        # It may have published terms since they were last read here.
        workers.terms.forget(claim.tenant)
    claimed = await workers.long_poll.claim(claim, request.wait_seconds, on.watched)
    # Without its task's terms no job is handed out: the same request again returns the same claim.
    await workers.terms.learn(((one.job.tenant, one.job.task) for one in claimed), required=True)
    jobs = [
        await assign(workers.store, one, workers.terms.get(one.job.tenant, one.job.task))
        for one in claimed
    ]
    return q.Assignments(jobs=[job for job in jobs if job is not None])


async def _tasks_of(on: WorkerProtocol, request: q.ClaimJobs) -> tuple[str, ...] | None:
    if request.tasks is not None:
        return request.tasks
    tasks = await on.workers.presence.tasks(request.session)
    if tasks is None:
        # A claim for any task would take jobs that the worker cannot run.
        raise _bad_session("this session is unknown or has ended")
    return tasks or None


def _bad_session(what: str) -> ValidationError:
    return ValidationError(f"{what}; open one: POST /v1/worker/sessions", field="$.session")


async def _keep_log_lines(on: WorkerProtocol, request: q.KeepLines) -> q.Logged:
    if len(request.lines) > LINES_LIMIT:
        raise TooLarge(f"{len(request.lines):,} lines; the limit is {LINES_LIMIT:,}")
    owner, store = on.check_session(request.session), on.workers.store
    jobs = await on.known_jobs([JobId(line.internal_id) for line in request.lines])
    now = (await store.clock()).now
    kept = [
        _build_log_entry(line, now)
        for line, job in zip(request.lines, jobs, strict=True)
        if job is not None and is_owner(job, Actor(Role.OWNER, owner, line.attempt))
    ]
    if kept:
        await store.keep_logs(kept)
    return q.Logged(kept=len(kept))


def _build_log_entry(line: q.Line, now: int) -> LogEntry:
    return LogEntry(
        id=JobId(line.internal_id),
        attempt=line.attempt,
        at=now,
        level=getLevelNamesMapping()[line.level.upper()],
        message=writable(line.message, LOG_TEXT),
    )


async def _recall_steps(on: WorkerProtocol, request: q.RecallSteps) -> q.Records:
    actor = Actor(Role.OWNER, on.check_session(request.session), request.attempt)
    [job] = await on.known_jobs([JobId(request.internal_id)])
    if job is None or not is_owner(job, actor):
        raise NoSuchJob(f"no job {request.internal_id}", job_id=str(request.internal_id))
    return q.Records(steps=await read_records(on.workers.store, job.id))


async def _report_jobs(on: WorkerProtocol, request: q.ReportJobs) -> q.Answers:
    reports = request.reports
    if len(reports) > REPORTS_LIMIT:
        raise TooLarge(f"{len(reports):,} reports; the limit is {REPORTS_LIMIT:,}")
    owner = on.check_session(request.session)
    await on.workers.presence.record_seen(owner)
    jobs = await on.known_jobs([JobId(report.internal_id) for report in reports])
    outcomes = await apply_reports(on.workers.store, owner, reports, jobs)
    answered = [
        await _build_answer(
            on, JobId(report.internal_id), Actor(Role.OWNER, owner, report.attempt), outcome
        )
        for report, outcome in zip(reports, outcomes, strict=True)
    ]
    return q.Answers(reports=answered)


async def _build_answer(
    on: WorkerProtocol, id_: JobId, actor: Actor, outcome: ReportOutcome
) -> q.Answered:
    job, error = outcome.job, outcome.error
    owns = job is not None and is_owner(job, actor)
    held = owns and not isinstance(error, LeaseConflictError)
    if isinstance(error, LeaseConflictError) and not owns:
        # A worker may not read jobs: it learns that this one is not its own, not whose it is.
        text = f"job {id_} is not held by this session as attempt {actor.attempt}"
        error = LeaseConflictError(text, job_id=str(id_))
    return q.Answered(
        internal_id=id_,
        attempt=actor.attempt or 0,
        accepted=error is None,
        held=held,
        state=None if job is None else job.state,
        cancel=job.cancel_requested if job is not None and held else None,
        repeated=outcome.repeated,
        payload=await _read_signal_payload(on, id_, outcome),
        problem=None if error is None else problem_of(error, on.request_id),
    )


async def _read_signal_payload(
    on: WorkerProtocol, id_: JobId, outcome: ReportOutcome
) -> Raw | UnsetType:
    """Read the payload of the signal that a wait consumed."""
    if outcome.consumed is None:
        return UNSET
    [event] = await on.workers.store.events(id_, after=outcome.consumed - 1, limit=1)
    return Raw(event.body or b"null")


HANDLERS: dict[type[Request[Any]], Callable[[WorkerProtocol, Any], Awaitable[Any]]] = {
    q.OpenSession: _open_session,
    q.EndSession: _end_session,
    q.ClaimJobs: _claim_jobs,
    q.KeepLines: _keep_log_lines,
    q.RecallSteps: _recall_steps,
    q.ReportJobs: _report_jobs,
}
WORKER_OPERATIONS = tuple(HANDLERS)
"""All that a worker elsewhere can do."""
