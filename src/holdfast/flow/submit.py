"""Submit: build every job, for every caller.

A call of a task, a request over HTTP, a child that a handler spawns and a webhook's message are all
built here: the task's terms, what the caller gave instead, and what the job inherits.
`lifecycle.submit` checks and decides what was built. Retries, redrives and compensations are copies
of the job that they follow: `lifecycle.linked`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import REFUSED_BY_STORE, BadData, HoldfastError, about
from holdfast.flow.options import list_adapter_needs
from holdfast.ids import mint_id, mint_ids
from holdfast.lifecycle.alike import AlikeJobs, decide_like, make_alike, may_be_alike
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.keys import has_keys
from holdfast.lifecycle.record import Actor, JobId, NewJob
from holdfast.lifecycle.reserved import check_not_reserved
from holdfast.lifecycle.states import Link, Priority, Role
from holdfast.lifecycle.submission import TRACEPARENT, Submission, content_digest
from holdfast.lifecycle.submit import submit as decide_submit
from holdfast.lifecycle.terms import TaskTerms, by_name
from holdfast.lifecycle.times import Time
from holdfast.ports.models import Claimed, SubmitRefused
from holdfast.telemetry.tracing import trace_id_of

PublishedTerms: TypeAlias = Callable[[str, str], TaskTerms | None]
"""Returns the terms of a task by tenant and name, as far as they are known."""
OWN_KEYS = ("job_id", "request_id", "client_job_id", "dedupe_key", "tenant")
"""What a child cannot be given: it is known by its parent and its number."""


class KnownTask(Protocol):
    """A task as a submit sees it: the terms that its jobs have unless the caller gives others."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def version(self) -> str | None:
        """The version of its code."""

    @property
    def queue(self) -> str:
        """The queue of its jobs."""

    @property
    def priority(self) -> Priority:
        """The priority of its jobs."""

    @property
    def needs(self) -> frozenset[str]:
        """The capabilities that its jobs need."""

    @property
    def policy(self) -> Policy:
        """The execution policy of its jobs."""

    @property
    def elsewhere(self) -> bool:
        """Whether it is known by its name alone: then the terms that workers published apply."""

    def bind(self, body: bytes | None) -> object:
        """Raise ValidationError if its function does not take these arguments."""


class NamedTask(Struct, frozen=True):
    """A task of which nothing but the name is known."""

    name: str
    version: str | None = None
    queue: str = "default"
    priority: Priority = Priority.INTERACTIVE
    needs: frozenset[str] = frozenset()
    policy: Policy = DEFAULT_POLICY
    elsewhere: bool = True

    def bind(self, body: bytes | None) -> object:
        """Accept any arguments: only the worker that runs it knows what it takes."""


class TaskCall(Protocol):
    """A call of a task: checked and encoded."""

    @property
    def task(self) -> KnownTask:
        """Which task."""

    @property
    def body(self) -> bytes:
        """The arguments."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of a submission that the caller gave."""

    @property
    def stated(self) -> tuple[str, ...] | None:
        """The fields of the policy that the caller gave; None where it knows the task's own."""

    @property
    def parent(self) -> Any:
        """Whose child the caller made it."""


class Inherited(Struct, frozen=True):
    """What a job takes over from the code that submits it (B23)."""

    correlation_id: str | None = None
    traceparent: str | None = None


NOTHING = Inherited()


def build_submission(
    task: KnownTask,
    body: bytes,
    given: Mapping[str, Any],
    *,
    tenant: str = "default",
    parent_id: JobId | None = None,
    inherited: Inherited = NOTHING,
) -> Submission:
    """Build a submission: the task's terms, except where the caller gave its own."""
    fields: dict[str, Any] = {
        "tenant": tenant,
        "task_version": task.version,
        "queue": task.queue,
        "priority": task.priority,
        "needs": task.needs,
        "policy": task.policy,
        **given,
    }
    if parent_id is not None:
        fields |= {"parent_id": parent_id, "link_kind": Link.CHILD}
    if inherited.correlation_id is not None:
        fields.setdefault("correlation_id", inherited.correlation_id)
    if (traceparent := inherited.traceparent) is not None:
        fields["env"] = {**fields.get("env", {}), TRACEPARENT: traceparent}
        fields["trace_id"] = trace_id_of(traceparent)
    return Submission(id=mint_id(), task=task.name, body=body, **fields)


class JobBuilder(Struct, frozen=True, kw_only=True):
    """Builds and decides jobs in the name of one submitter."""

    actor: Actor
    tenant: str = "default"

    def decide(
        self,
        task: KnownTask,
        body: bytes,
        given: Mapping[str, Any],
        *,
        parent_id: JobId | None = None,
        inherited: Inherited = NOTHING,
        stated: tuple[str, ...] | None = None,
        terms: PublishedTerms | None = None,
        adapter_required: bool = True,
    ) -> NewJob:
        """Decide one job; bad data raises before anything is written.

        `terms` returns the published terms of a task that is known by name alone, and `stated` are
        the fields of its policy that the caller gave itself; None: all of them.
        """
        submission = build_submission(
            task, body, given, tenant=self.tenant, parent_id=parent_id, inherited=inherited
        )
        if task.elsewhere:
            known = None if terms is None else terms(submission.tenant, task.name)
            submission = by_name(submission, known, given=given, stated=stated)
        if adapter_required:
            submission = _need_adapter(submission)
        return decide_submit(submission, self.actor)

    def decide_all(
        self,
        calls: Sequence[TaskCall],
        parents: Sequence[JobId | None],
        inherited: Inherited = NOTHING,
        terms: PublishedTerms | None = None,
    ) -> list[NewJob]:
        """Decide calls that are submitted together; of many, the error names the bad one."""
        jobs: list[NewJob] = []
        firsts: dict[KnownTask, NewJob] = {}
        for call, parent_id in zip(calls, parents, strict=True):
            # Without terms of their own, calls of one task differ in nothing but their arguments.
            is_plain = not call.fields and parent_id is None
            first = firsts.get(call.task) if is_plain else None
            try:
                if first is not None:
                    jobs.append(decide_like(first, mint_id(), call.body))
                    continue
                job = self._decide_call(call, parent_id, inherited, terms)
            except BadData as error:
                if len(calls) == 1:
                    raise
                raise numbered(len(jobs), error) from error
            jobs.append(job)
            if is_plain:
                firsts[call.task] = job
        return jobs

    def decide_alike(
        self,
        call: TaskCall,
        bodies: Sequence[bytes],
        inherited: Inherited = NOTHING,
        terms: PublishedTerms | None = None,
    ) -> AlikeJobs | None:
        """Decide calls that differ from one in their arguments alone.

        None where each has to be decided by itself: it has keys, a parent or a hold.
        """
        if call.parent is not None:
            return None
        try:
            first = self._decide_call(call, None, inherited, terms)
        except BadData as error:
            raise numbered(0, error) from error
        return make_alike(first, mint_ids(len(bodies)), bodies) if may_be_alike(first) else None

    def _decide_call(
        self,
        call: TaskCall,
        parent_id: JobId | None,
        inherited: Inherited,
        terms: PublishedTerms | None,
    ) -> NewJob:
        return self.decide(
            call.task,
            call.body,
            call.fields,
            parent_id=parent_id,
            inherited=_with_own_trace(call, inherited),
            stated=call.stated,
            terms=terms,
        )

    def list_tasks_by_name(self, calls: Sequence[TaskCall]) -> set[tuple[str, str]]:
        """Return tenant and name of the tasks that calls know by name alone."""
        return {
            (call.fields.get("tenant", self.tenant), call.task.name)
            for call in calls
            if call.task.elsewhere
        }


def build_child(call: TaskCall, traceparent: str | None) -> Submission:
    """Build a child as its parent's handler asks for it; see `decide_child`."""
    if call.parent is not None or (keys := [name for name in OWN_KEYS if name in call.fields]):
        what = "parent" if call.parent is not None else keys[0]
        raise BadData(f"a child cannot have a {what}: its parent and its number identify it")
    with about("task"):
        check_not_reserved(call.task.name, "task")
    inherited = _with_own_trace(call, Inherited(traceparent=traceparent))
    given = {**call.fields, "stated": call.stated}
    child = build_submission(call.task, bytes(call.body), given, inherited=inherited)
    with about("queue"):
        check_not_reserved(child.queue, "queue")
    return child


def decide_child(
    child: Submission,
    parent: Claimed,
    worker: str,
    *,
    deadline_at: Time | None,
    given: Sequence[str] | None = None,
    terms: PublishedTerms | None = None,
) -> NewJob:
    """Decide a child that its parent's handler has built, in the name of the parent's worker.

    `given` are the fields that the handler gave where it knows the task by name alone.
    """
    job = parent.job
    child = replace(
        child,
        tenant=job.tenant,
        parent_id=job.id,
        link_kind=Link.CHILD,
        workflow_id=child.workflow_id or job.workflow_id,
        correlation_id=child.correlation_id or parent.correlation_id,
        deadline_at=deadline_at,
    )
    if given is not None:
        known = None if terms is None else terms(child.tenant, child.task)
        child = by_name(child, known, given=given, stated=child.stated)
    return decide_submit(_need_adapter(child), Actor(Role.OWNER, worker))


def _need_adapter(submission: Submission) -> Submission:
    """Let only workers claim a job that have the adapter it names (A5, resolution 20).

    A repetition is compared with what was asked for, of which the need is not a part.
    """
    if submission.adapter_id is None:
        return submission
    content = submission.content
    if content is None and has_keys(submission):
        content = content_digest(submission)
    needs = submission.needs | list_adapter_needs([submission.adapter_id])
    return replace(submission, needs=needs, content=content)


def _with_own_trace(call: TaskCall, inherited: Inherited) -> Inherited:
    """Prefer the trace that the caller put into `env` itself."""
    own = call.fields["env"].get(TRACEPARENT) if "env" in call.fields else None
    return inherited if own is None else Inherited(inherited.correlation_id, own)


def numbered(number: int, error: BadData) -> BadData:
    """Name the one of many calls that an error is about."""
    return type(error)(f"call {number}: {error}", code=error.code, field=error.field)


def submit_error(refusal: SubmitRefused) -> HoldfastError:
    """Return a store's refusal of a submit as the error that callers catch."""
    kind = REFUSED_BY_STORE.get(refusal.code)
    if kind is None:
        return BadData(refusal.message, code=refusal.code)
    holder = None if refusal.holder is None else str(refusal.holder)
    return kind(refusal.message, job_id=holder)
