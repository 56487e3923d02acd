"""What workers elsewhere send, one struct per operation: a session, claims, reports.

In any language, without a database: see docs/worker-protocol.md.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from holdfast.auth.authorization import Scope
from holdfast.lifecycle.execution_policy import ATTEMPTS_LIMIT
from holdfast.lifecycle.states import CancelMode, State
from holdfast.operations.problems import ProblemDocument
from holdfast.operations.request import R_co, Request
from holdfast.worker_protocol.assignments import Assignment, Recorded
from holdfast.worker_protocol.reports import LONGEST_SECONDS, AnyReport

CLAIM_LIMIT = 100
"""How many jobs one request may claim."""
WAIT_LIMIT_SECONDS = 25.0
"""How long a claim waits at most: less than the silence after which a worker counts as dead."""
NAMES_LIMIT = 100
TASKS_LIMIT = 1000

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=NAMES_LIMIT)]
TaskNames: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=TASKS_LIMIT)]


class DeclaredTerms(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms of a task: no job of it runs under weaker ones."""

    idempotent: bool = True
    """False: it must not run again once it has started."""
    retries: Annotated[int, Meta(ge=0, lt=ATTEMPTS_LIMIT)] | None = None
    """None: 3, or none at all if it is not idempotent."""
    timeout_seconds: Annotated[float, Meta(gt=0, le=LONGEST_SECONDS)] | None = None
    queue: Name = "default"


class WorkerSession(Struct, frozen=True, kw_only=True):
    """Under what name a worker claims and reports, until it ends."""

    session: str
    queues: tuple[str, ...]


class Farewell(Struct, frozen=True, kw_only=True):
    """What was given back of what an ended session still held."""

    given_back: list[UUID]


class Assignments(Struct, frozen=True, kw_only=True):
    """Jobs that the session now holds; none if none came in time."""

    jobs: list[Assignment]


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


class Logged(Struct, frozen=True, kw_only=True):
    """How many lines were kept."""

    kept: int


class Answered(Struct, frozen=True, kw_only=True):
    """What became of one report."""

    internal_id: UUID
    """The job's."""
    attempt: int
    accepted: bool
    held: bool
    """Whether the attempt continues; if not, stop at once and report nothing more of it."""
    state: State | None = None
    """The job's, after it."""
    cancel: CancelMode | None = None
    """While it is held: that it was asked to end. Stop the work, then report `cancel`."""
    repeated: bool = False
    """It had been written before, and its reply was lost."""
    payload: Raw | UnsetType = UNSET
    """The payload of the signal that a `wait` found."""
    problem: ProblemDocument | None = None


class Answers(Struct, frozen=True, kw_only=True):
    """What became of each report, in order."""

    reports: list[Answered]


class WorkerRequest(Request[R_co], frozen=True, kw_only=True):
    """Comes from a worker elsewhere."""

    method, scope, group = "POST", Scope.WORK, "worker protocol"
    for_tenant = False


class OpenSession(WorkerRequest[WorkerSession], frozen=True, kw_only=True):
    """Start to work: make a name that no other worker has, now or later."""

    path, body_name = "/v1/worker/sessions", "Hiring"
    reply, status = WorkerSession, 201
    queues: Names | None = None
    """None: those that its token covers, else `default`."""
    tasks: TaskNames = ()
    """Each as `name` or `name@version`; what `claim` is given where it names none."""
    terms: Annotated[dict[Name, DeclaredTerms], Meta(max_length=NAMES_LIMIT)] = field(
        default_factory=dict
    )
    """The terms of its tasks, for clients that submit them by name. They hold in all queues, so
    this takes a token that covers all of them."""
    capabilities: Names = ()
    concurrency: Annotated[int, Meta(ge=1, le=100_000)] = 1
    host: Annotated[str, Meta(max_length=255)] = ""
    pid: Annotated[int, Meta(ge=0, le=2**31)] = 0


class EndSession(WorkerRequest[Farewell], frozen=True, kw_only=True):
    """End a session: what it still holds is given back, at no cost to the jobs."""

    method, path, reply = "DELETE", "/v1/worker/sessions/{session}", Farewell
    session: str


class ClaimJobs(WorkerRequest[Assignments], frozen=True, kw_only=True):
    """Claim jobs under lease; if none is due, wait for one.

    The same `request_id` again returns the same jobs, while they are held.
    """

    path, body_name = "/v1/worker/claim", "Claiming"
    reply, for_tenant = Assignments, True
    session: str
    request_id: Name
    queues: Names | None = None
    """None: those that its token covers, else `default`."""
    tasks: TaskNames | None = None
    """The tasks that it has, each as `name` or `name@version`: it gets no other job. None: those
    that the session was opened with; if it named none, jobs of any task."""
    capabilities: Names = ()
    limit: Annotated[int, Meta(ge=1, le=CLAIM_LIMIT)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_LIMIT_SECONDS)] = 0.0
    """How long to wait for a job if none is due."""


class KeepLines(WorkerRequest[Logged], frozen=True, kw_only=True):
    """Keep lines of the logs of jobs that the session holds; others are passed over."""

    path, body_name, reply = "/v1/worker/log", "Logging", Logged
    session: str
    lines: list[Line]


class RecallSteps(WorkerRequest[Records], frozen=True, kw_only=True):
    """Read what earlier attempts of a job recorded: steps not to be done again, ended waits."""

    path, body_name, reply = "/v1/worker/recall", "Recalling", Records
    session: str
    internal_id: UUID
    """The job's."""
    attempt: Annotated[int, Meta(ge=1)]


class ReportJobs(WorkerRequest[Answers], frozen=True, kw_only=True):
    """Report on jobs: in order for each of them, many at a time, each answered for itself."""

    path, body_name, reply = "/v1/worker/report", "Reporting", Answers
    session: str
    reports: list[AnyReport]
