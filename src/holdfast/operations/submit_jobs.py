"""Handlers of submits: one job, or many together."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import asdict, replace

from holdfast.errors import BadData, HoldfastError, ValidationError, about
from holdfast.flow.options import (
    Backoff,
    check_fields,
    read_deadline,
    read_job_options,
    stated_terms,
)
from holdfast.flow.submit import Inherited, KnownTask, NamedTask, submit_error
from holdfast.flow.submit_command import WantedCommand, decide_command, limits_note
from holdfast.flow.submit_topic import WantedTopic, decide_topic
from holdfast.flow.upload import is_readable, name_upload
from holdfast.lifecycle.execution_policy import Policy, faults_text, policy_faults
from holdfast.lifecycle.payload import Body, check_body
from holdfast.lifecycle.record import JobId, NewJob
from holdfast.operations.requests import Answer, Growth, SubmitJob, SubmitJobs, Wanted, WantedJob
from holdfast.operations.scope import DEFAULT_TENANT, CallerScope
from holdfast.ports.models import SubmitRefused, Submitted

_NOT_OPTIONS = frozenset(
    {"task", "args", "task_version", "tenant", "parent", "traceparent", "deadline_at", "policy"}
)
_OPTIONS = tuple(name for name in WantedJob.__struct_fields__ if name not in _NOT_OPTIONS)
_get_options = attrgetter(*_OPTIONS)


async def submit_job(scope: CallerScope, request: SubmitJob) -> Submitted:
    """Submit one job; raise the error if it is refused."""
    [answer] = await _submit_all(scope, [_with_id(request.job, request.request_id)])
    if isinstance(answer, HoldfastError):
        raise answer
    return answer


async def submit_jobs(scope: CallerScope, request: SubmitJobs) -> list[Answer]:
    """Submit jobs together; each is answered for itself, in order."""
    key, jobs = request.request_id, request.jobs
    if key is not None:
        jobs = [_with_id(job, f"{key}/{number}") for number, job in enumerate(jobs)]
    return await _submit_all(scope, jobs)


def _with_id(job: Wanted, request_id: str | None) -> Wanted:
    if request_id is None or job.request_id is not None:
        return job
    return replace(job, request_id=request_id)


async def _submit_all(scope: CallerScope, jobs: Sequence[Wanted]) -> list[Answer]:
    """Submit jobs; one for a queue that the caller may not use refuses all of them."""
    answers: dict[int, Answer] = {}
    decided: dict[int, NewJob] = {}
    await scope.session.terms.learn(
        (scope.tenant or job.tenant or DEFAULT_TENANT, name)
        for job in jobs
        if (name := _name_of_task(job)) is not None and name not in scope.tasks
    )
    for number, job in enumerate(jobs):
        try:
            decided[number] = await _decide(scope, job)
        except HoldfastError as error:
            answers[number] = error
    for new in decided.values():
        scope.check_queue(new.record.queue)
    outcomes = await scope.session.batched.submit(list(decided.values()))
    for number, written in zip(decided, outcomes, strict=True):
        answers[number] = submit_error(written) if isinstance(written, SubmitRefused) else written
        if isinstance(job := jobs[number], WantedCommand):
            answers[number] = _with_note(answers[number], job)
    return [answers[number] for number in range(len(jobs))]


def _name_of_task(job: Wanted) -> str | None:
    """Return the task whose terms a job has, where it is known by name."""
    match job:
        case WantedJob():
            return job.task
        case WantedTopic():
            return job.topic
        case _:
            return None


def _with_note(answer: Answer, job: WantedCommand) -> Answer:
    """Add to a new job's answer what was limited of what it asked for (D2)."""
    if isinstance(answer, HoldfastError) or not answer.created:
        return answer
    return replace(answer, note=limits_note(job))


async def _decide_command(scope: CallerScope, job: WantedCommand) -> NewJob:
    parent_id = None if job.parent is None else await _find_parent(scope, job.parent)
    tenant = scope.tenant_of(job.tenant)
    if (files := job.files_id) is None:
        return decide_command(scope.builder, job, tenant=tenant, parent_id=parent_id)
    waits = not await is_readable(scope.store, files, tenant=tenant)
    new = decide_command(scope.builder, job, tenant=tenant, parent_id=parent_id, waits=waits)
    with about("files_id"):
        await name_upload(scope.store, new, files)
    return new


async def _decide_topic(scope: CallerScope, job: WantedTopic) -> NewJob:
    parent_id = None if job.parent is None else await _find_parent(scope, job.parent)
    return decide_topic(
        scope.builder,
        job,
        scope.topics,
        tenant=scope.tenant_of(job.tenant),
        task=scope.tasks.get(job.topic),
        parent_id=parent_id,
        terms=scope.session.terms.get,
    )


async def _decide(scope: CallerScope, job: Wanted) -> NewJob:
    if isinstance(job, WantedCommand):
        return await _decide_command(scope, job)
    if isinstance(job, WantedTopic):
        return await _decide_topic(scope, job)
    task = scope.tasks.get(job.task) or NamedTask(job.task)
    options = _read_options(job)
    policy = _choose_policy(job, task)
    fields = read_job_options(options, policy) | read_deadline(job.deadline, job.deadline_at)
    check_fields(fields)
    fields.setdefault("policy", policy)
    if job.task_version is not None:
        fields["task_version"] = job.task_version
    parent_id = None if job.parent is None else await _find_parent(scope, job.parent)
    fields["tenant"] = scope.tenant_of(job.tenant)
    return scope.builder.decide(
        task,
        _check_arguments(job, task),
        fields,
        parent_id=parent_id,
        inherited=Inherited(traceparent=job.traceparent),
        stated=stated_terms(options) if job.policy is None else None,
        terms=scope.session.terms.get,
    )


async def _find_parent(scope: CallerScope, parent: str) -> JobId:
    with about("parent"):
        return (await scope.get(parent)).id


def _read_options(job: WantedJob) -> Any:
    options = {
        name: value
        for name, value in zip(_OPTIONS, _get_options(job), strict=True)
        if value is not None
    }
    if isinstance(job.backoff, Growth):
        options["backoff"] = Backoff(**asdict(job.backoff))
    return options


def _choose_policy(job: WantedJob, task: KnownTask) -> Policy:
    """Return the policy that the options change: the one given, else the task's."""
    if job.policy is None:
        return task.policy
    policy = job.policy.policy()
    if faults := policy_faults(policy):
        raise BadData(f"policy: {faults_text(faults)}", field=f"policy.{faults[0].term}")
    return policy


def _check_arguments(job: WantedJob, task: KnownTask) -> Body:
    with about("args"):
        body = check_body(bytes(job.args), "args")
        # As it is kept, without white space.
        if not body.startswith(b"{"):
            raise ValidationError("args must be an object of named arguments")
        task.bind(body)
        return body
