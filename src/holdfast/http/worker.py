"""Routes for workers elsewhere: a session, claims, reports; in any language, without a database.

The server keeps nothing of a session but its name in the ledger: it begins with the id of the token
that it was minted for, and no other token speaks for it. So a worker outlives its server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from logging import getLevelNamesMapping
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.responses import Response

from holdfast.errors import BadData, Forbidden, LeaseConflictError, NoSuchJob, TooLarge, about
from holdfast.flow.reports import writable
from holdfast.http.asking import Ask, asking
from holdfast.http.assignments import Assignment, Recorded, assign, recorded
from holdfast.http.bodies import answer, unfit
from holdfast.http.documents import documented
from holdfast.http.problems import problem_of
from holdfast.http.scopes import Scope
from holdfast.http.words import LONGEST_SECONDS, AnyWord
from holdfast.identity import mint_request
from holdfast.lifecycle.decide import is_owner
from holdfast.lifecycle.job import Actor, Job, JobId
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.policy import ATTEMPTS_LIMIT, DEFAULT_POLICY, Policy
from holdfast.lifecycle.reserved import check_not_reserved, is_reserved
from holdfast.lifecycle.states import Cancel, Role, State
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import seconds
from holdfast.messages import Problem
from holdfast.ports import LOG_TEXT, Announcement, ClaimRequest, LogEntry
from holdfast.services.hearing import Heard, Report, hear
from holdfast.services.leaving import give_back_all

LINES_LIMIT = 1000
"""How many lines of logs one request may bring."""
REPORTS_LIMIT = 1000
"""How many reports one request may bring."""
CLAIM_LIMIT = 100
"""How many jobs one request may claim."""
WAIT_LIMIT_SECONDS = 25.0
"""How long a claim waits at most: less than after what a worker passes for dead."""
NAMES_LIMIT = 100
TASKS_LIMIT = 1000

router = APIRouter(prefix="/v1/worker", tags=["worker protocol"])

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Names = Annotated[tuple[Name, ...], Meta(max_length=NAMES_LIMIT)]
TaskNames = Annotated[tuple[Name, ...], Meta(max_length=TASKS_LIMIT)]


class DeclaredTerms(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms of a task: no job of it runs under weaker ones, whoever submitted it."""

    idempotent: bool = True
    """False: it must not run again once it has started."""
    retries: Annotated[int, Meta(ge=0, lt=ATTEMPTS_LIMIT)] | None = None
    """None: 3, or none at all if it is not idempotent."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)] | None = None
    queue: Name = "default"

    def of(self, task: str) -> TaskTerms:
        """Give them as they are published."""
        check_not_reserved(self.queue, "queue")
        retries = self.retries
        if retries is None:
            retries = DEFAULT_POLICY.max_attempts - 1 if self.idempotent else 0
        timeout = self.timeout_seconds
        policy = Policy(
            idempotent=self.idempotent,
            max_attempts=retries + 1,
            timeout=None if timeout is None else max(1, seconds(timeout)),
        )
        return TaskTerms(task=task, policy=policy, queue=self.queue)


class Hiring(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker says of itself, for those who ask who serves what."""

    queues: Names | None = None
    """None: those that its token is for, else `default`."""
    tasks: TaskNames = ()
    """Each as `name` or `name@version`; what `claim` is given where it names none."""
    terms: Annotated[dict[Name, DeclaredTerms], Meta(max_length=NAMES_LIMIT)] = {}
    """The terms of its tasks, for those who submit them by name. They hold in all queues, so this
    takes a token that is for all of them."""
    capabilities: Names = ()
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 1
    host: Annotated[str, Meta(max_length=255)] = ""
    pid: Annotated[int, Meta(ge=0, le=2**31)] = 0


class WorkerSession(Struct, frozen=True, kw_only=True):
    """Under what name a worker claims and reports, until it ends."""

    session: str
    queues: tuple[str, ...]


class Farewell(Struct, frozen=True, kw_only=True):
    """What was given back of what an ended session still held."""

    given_back: list[UUID]


class Claiming(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker wants. The same `request_id` again gives the same jobs, while they are held."""

    session: str
    request_id: Name
    queues: Names | None = None
    """None: those that its token is for, else `default`."""
    tasks: TaskNames | None = None
    """The tasks that it has, each as `name` or `name@version`: it gets no other job. None: those
    that the session was opened with; if it named none, jobs of any task."""
    capabilities: Names = ()
    limit: Annotated[int, Meta(ge=1, le=CLAIM_LIMIT)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_LIMIT_SECONDS)] = 0.0
    """How long to wait for a job if none is due."""


class Assignments(Struct, frozen=True, kw_only=True):
    """Jobs that the session now holds; none if none came in time."""

    jobs: list[Assignment]


class Recalling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which attempt wants to know what earlier ones did."""

    session: str
    internal_id: UUID
    """The job's."""
    attempt: Annotated[int, Meta(ge=1)]


class Records(Struct, frozen=True, kw_only=True):
    """What earlier attempts recorded, in order."""

    steps: list[Recorded]


class Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of an attempt's log. What is too long is cut."""

    internal_id: UUID
    """The job's."""
    attempt: Annotated[int, Meta(ge=1)]
    message: str
    level: Literal["debug", "info", "warning", "error", "critical"] = "info"

    def entry(self, now: int) -> LogEntry:
        """Give it as it is kept."""
        return LogEntry(
            id=JobId(self.internal_id),
            attempt=self.attempt,
            at=now,
            level=getLevelNamesMapping()[self.level.upper()],
            message=writable(self.message, LOG_TEXT),
        )


class Logging(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker's jobs have said, in order."""

    session: str
    lines: list[Line]


class Logged(Struct, frozen=True, kw_only=True):
    """How many lines were kept."""

    kept: int


class Reporting(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker has to say of its jobs: in order for each of them, in one go for all."""

    session: str
    reports: list[AnyWord]


class Answered(Struct, frozen=True, kw_only=True):
    """What became of one report."""

    internal_id: UUID
    """The job's."""
    attempt: int
    accepted: bool
    held: bool
    """Whether the attempt goes on; if not, stop at once and say nothing more of it."""
    state: State | None = None
    """The job's, after it."""
    cancel: Cancel | None = None
    """While it is held: that it was asked to end. Stop the work, then say `cancel`."""
    repeated: bool = False
    """It had been written before, and its reply was lost."""
    payload: Raw | UnsetType = UNSET
    """What the signal brought that a `wait` found."""
    problem: Problem | None = None


class Answers(Struct, frozen=True, kw_only=True):
    """What became of each report, in order."""

    reports: list[Answered]


@router.post("/sessions", status_code=201, **documented(takes=Hiring, reads=(), _201=WorkerSession))
async def open_session(ask: Annotated[Ask, asking(Scope.WORK)]) -> Response:
    """Begin to work: mint a name that no other worker has, now or later."""
    said = await ask.body(Hiring)
    queues = _queues(ask, said.queues)
    name = f"{ask.caller.token}.{mint_request()}"
    store = ask.house.session.store
    if said.terms:
        if ask.caller.queues is not None:
            text = "terms of tasks hold in all queues; publish them with a token for all queues"
            raise Forbidden(text)
        with about("terms"):
            named = {task.partition("@")[0] for task in said.tasks}
            terms = [one.of(_own_task(task, named)) for task, one in said.terms.items()]
            await store.publish_terms(terms, tenant=ask.tenant)
    await store.announce(
        Announcement(
            name=name,
            queues=queues,
            capabilities=frozenset(said.capabilities),
            tasks=said.tasks,
            host=said.host or "elsewhere",
            pid=said.pid,
            concurrency=said.concurrency,
        )
    )
    ask.house.session.attendance.opened(name, said.tasks)
    return answer(WorkerSession(session=name, queues=queues), 201)


@router.delete("/sessions/{session}", **documented(reads=(), _200=Farewell))
async def end_session(ask: Annotated[Ask, asking(Scope.WORK)], session: str) -> Response:
    """End a session: what it still holds is given back, at no cost to the jobs."""
    store = ask.house.session.store
    given_back = await give_back_all(store, _own(ask, session))
    await store.retire(session)
    return answer(Farewell(given_back=given_back))


@router.post("/claim", **documented(takes=Claiming, _200=Assignments))
async def claim_jobs(ask: Annotated[Ask, asking(Scope.WORK)]) -> Response:
    """Claim jobs under lease; if none is due, wait for one."""
    wanted = await ask.body(Claiming)
    house = ask.house.session
    with about("request_id"):
        check_text(wanted.request_id, "request_id")
    for field, names in (("tasks", wanted.tasks or ()), ("capabilities", wanted.capabilities)):
        with about(field):
            for name in names:
                check_text(name, field)
    request = ClaimRequest(
        # Others may have had the same thought.
        request_id=f"{wanted.session}.{wanted.request_id}",
        owner=_own(ask, wanted.session),
        queues=_queues(ask, wanted.queues),
        limit=wanted.limit,
        tasks=await _tasks(ask, wanted),
        tenant=ask.tenant,
        capabilities=frozenset(wanted.capabilities),
    )
    if await house.attendance.note(request.owner):
        # It may have published terms since they were last read here.
        house.terms.forget(ask.tenant)
    watched = partial(ask.house.ending.watched, ask.request.receive)
    claimed = await house.waiting_room.claim(request, wanted.wait_seconds, watched)
    # Without its task's terms no job is handed out: the same request again returns the same claim.
    await house.terms.learn(((one.job.tenant, one.job.task) for one in claimed), required=True)
    jobs = [
        await assign(house.store, one, house.terms.get(one.job.tenant, one.job.task))
        for one in claimed
    ]
    return answer(Assignments(jobs=[job for job in jobs if job is not None]))


@router.post("/log", **documented(takes=Logging, reads=(), _200=Logged))
async def keep_lines(ask: Annotated[Ask, asking(Scope.WORK)]) -> Response:
    """Keep lines of the logs of jobs that the session holds; others are passed over."""
    said = await ask.body(Logging)
    if len(said.lines) > LINES_LIMIT:
        raise TooLarge(f"{len(said.lines):,} lines; the limit is {LINES_LIMIT:,}")
    owner, store = _own(ask, said.session), ask.house.session.store
    jobs = await _known(ask, [JobId(line.internal_id) for line in said.lines])
    now = (await store.clock()).now
    kept = [
        line.entry(now)
        for line, job in zip(said.lines, jobs, strict=True)
        if job is not None and is_owner(job, Actor(Role.OWNER, owner, line.attempt))
    ]
    if kept:
        await store.keep_logs(kept)
    return answer(Logged(kept=len(kept)))


@router.post("/recall", **documented(takes=Recalling, reads=(), _200=Records))
async def recall_steps(ask: Annotated[Ask, asking(Scope.WORK)]) -> Response:
    """Read what earlier attempts of a job recorded: steps not to be done again, ended waits."""
    wanted = await ask.body(Recalling)
    actor = Actor(Role.OWNER, _own(ask, wanted.session), wanted.attempt)
    [job] = await _known(ask, [JobId(wanted.internal_id)])
    if job is None or not is_owner(job, actor):
        raise NoSuchJob(f"no job {wanted.internal_id}", job_id=str(wanted.internal_id))
    return answer(Records(steps=await recorded(ask.house.session.store, job.id)))


@router.post("/report", **documented(takes=Reporting, reads=(), _200=Answers))
async def report_jobs(ask: Annotated[Ask, asking(Scope.WORK)]) -> Response:
    """Say what became of jobs: many at a time, each answered for itself."""
    said = await ask.body(Reporting)
    if len(said.reports) > REPORTS_LIMIT:
        raise TooLarge(f"{len(said.reports):,} reports; the limit is {REPORTS_LIMIT:,}")
    owner, house = _own(ask, said.session), ask.house.session
    await house.attendance.note(owner)
    reports = [Report(JobId(word.internal_id), word.attempt, word) for word in said.reports]
    jobs = await _known(ask, [report.job for report in reports])
    heard = await hear(house.store, owner, reports, jobs)
    told = [
        await _answered(ask, Actor(Role.OWNER, owner, report.attempt), report.job, one)
        for report, one in zip(reports, heard, strict=True)
    ]
    return answer(Answers(reports=told))


def _own(ask: Ask, session: str) -> str:
    """Insist on a session that was minted for the caller's token."""
    with about("session"):
        check_text(session, "session", limit=200)
    if not session.startswith(f"{ask.caller.token}."):
        text = "this session was not minted for this token; open one: POST /v1/worker/sessions"
        raise unfit(text, "$.session")
    return session


def _queues(ask: Ask, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    if not wanted:
        own = ("default",) if ask.caller.queues is None else sorted(ask.caller.queues)
        open_to_workers = tuple(queue for queue in own if not is_reserved(queue))
        if not open_to_workers:
            raise Forbidden("this token covers no queue that a worker may serve")
        return open_to_workers
    for queue in wanted:
        with about("queues"):
            check_not_reserved(check_text(queue, "queue", limit=200), "queue")
        ask.caller.demand_queue(queue)
    return wanted


def _own_task(task: str, named: set[str]) -> str:
    if task not in named:
        raise BadData(f"terms of task {task!r}, which `tasks` does not name: name it there, too")
    return check_not_reserved(task, "task")


async def _tasks(ask: Ask, wanted: Claiming) -> tuple[str, ...] | None:
    if wanted.tasks is not None:
        return wanted.tasks
    tasks = await ask.house.session.attendance.tasks(wanted.session)
    if tasks is None:
        # A claim for any task would take jobs that the worker cannot run.
        text = "this session is not known (any more); open one: POST /v1/worker/sessions"
        raise unfit(text, "$.session")
    return tasks or None


async def _known(ask: Ask, ids: Sequence[JobId]) -> list[Job | None]:
    """Read the jobs that the caller may know of."""
    distinct = list(dict.fromkeys(ids))
    found = await ask.house.session.store.get(distinct) if distinct else []
    seen = {job.id: job for job in found if job is not None and _may_know(ask, job)}
    return [seen.get(id_) for id_ in ids]


def _may_know(ask: Ask, job: Job) -> bool:
    caller = ask.caller
    tenant_fits = caller.tenant in (None, job.tenant)
    return tenant_fits and (caller.queues is None or job.queue in caller.queues)


async def _answered(ask: Ask, actor: Actor, id_: JobId, heard: Heard) -> Answered:
    job, error = heard.job, heard.error
    owns = job is not None and is_owner(job, actor)
    held = owns and not isinstance(error, LeaseConflictError)
    if isinstance(error, LeaseConflictError) and not owns:
        # A worker may not read jobs: it learns that this one is not its own, not whose it is.
        text = f"job {id_} is not held by this session as attempt {actor.attempt}"
        error = LeaseConflictError(text, job_id=str(id_))
    return Answered(
        internal_id=id_,
        attempt=actor.attempt or 0,
        accepted=error is None,
        held=held,
        state=None if job is None else job.state,
        cancel=job.cancel_requested if job is not None and held else None,
        repeated=heard.repeated,
        payload=await _payload(ask, id_, heard),
        problem=None if error is None else problem_of(error, ask.request_id),
    )


async def _payload(ask: Ask, id_: JobId, heard: Heard) -> Raw | UnsetType:
    """Read what the signal brought that a wait used up."""
    if heard.consumed is None:
        return UNSET
    after = heard.consumed - 1
    [event] = await ask.house.session.store.events(id_, after=after, limit=1)
    return Raw(event.body or b"null")
