"""Jobs that follow from another one: its linked retry, its redrive, its compensation.

Each is decided like any submit, and travels as a submit of the change that it follows from: so it
exists exactly if that change does.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.record import Actor, Change, Created, Draft, Job, JobId, NewJob
from holdfast.lifecycle.reserved import is_reserved
from holdfast.lifecycle.retry import backoff, is_compensation, terms_left
from holdfast.lifecycle.states import TERMINAL, UNSUCCESSFUL, Link, Role, State
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import After

_COMPENSATED = UNSUCCESSFUL - {State.DENIED}
_TAIL = (1 << 62) - 1
"""The bits of an id that are neither its time nor its version."""


def linked(
    record: Draft,
    kind: Link,
    actor: Actor,
    *,
    created: Created | None = None,
    **changes: Any,
) -> NewJob:
    """Decide the submit of a job like another one, but for `changes`.

    Keys are never copied: they stay with the first. `created` is what the first event holds beside
    the record; without it, what it holds is left out.
    """
    same: dict[str, Any] = {
        "task": record.task,
        "task_version": record.task_version,
        "tenant": record.tenant,
        "kind": record.kind,
        "queue": record.queue,
        "priority": record.priority,
        "needs": record.needs,
        "policy": record.policy,
        "cpus": record.cpus,
        "memory_mb": record.memory_mb,
        "parent_id": record.id,
        "link_kind": kind,
        "workflow_id": record.workflow_id,
        "step_index": record.step_index,
    }
    if created is not None:
        same |= {
            "trace_id": created.trace_id,
            "labels": created.labels,
            "env": created.env,
            "context_ptr": created.context_ptr,
            "adapter_id": created.adapter_id,
            "files_id": created.files_id,
        }
    # A delivery that is redriven is as much Holdfast's own as the first one was.
    internal = is_reserved(record.task)
    return submit(Submission(**same | changes), Actor(Role.GATEWAY, actor.name), internal=internal)


def linked_retry(
    job: Job,
    created: Created,
    actor: Actor,
    *,
    id: JobId,
    body: bytes | None,
    correlation_id: str | None,
    jitter: float,
    retry_in: int | None = None,
) -> NewJob:
    """Decide the next try of a job that must not run again under its own id (A16).

    It has the tries that are left and the same deadline, and continues from what is recorded;
    except where a compensation undoes that at the same time: then it starts from nothing.
    """
    failures = job.failures + 1
    delay = backoff(job.policy, failures, jitter) if retry_in is None else retry_in
    undone = job.policy.compensates
    return linked(
        job,
        Link.RETRY,
        actor,
        created=created,
        id=id,
        body=b"null" if body is None else body,
        correlation_id=correlation_id,
        policy=terms_left(job.policy, failures),
        run_at=After(delay),
        deadline_at=job.deadline_at,
        resumes=None if undone else job.id,
        lineage=None if undone else first_job(job, created),
    )


def first_job(job: Draft, created: Created) -> JobId:
    """Return the first job of a line of retries and redrives: outside effects are keyed by it."""
    return created.lineage or job.id


def compensation(before: Draft, after: State, actor: Actor) -> tuple[NewJob, ...]:
    """Decide the job that undoes another, if it ends here without success (B28).

    The law adds it to every such change. Only the worker that will run it reads what the job was
    asked for and did, so it carries nothing but the link, and the correlation id that the writer
    of the change adds by `with_correlation`.
    """
    if before.state in TERMINAL or not _is_undone(before, after):
        return ()
    policy = _undoing_terms(before.policy)
    id_ = compensation_id(before.id)
    return (linked(before, Link.COMPENSATION, actor, id=id_, policy=policy, step_index=None),)


def brings_compensation(change: Change) -> bool:
    """Return whether a change brings a job that undoes the one it ends."""
    return any(new.record.link_kind is Link.COMPENSATION for new in change.submits)


def with_correlation(change: Change, correlation_id: str | None) -> Change:
    """Return a change whose compensation has the correlation id of the job that it undoes."""
    if correlation_id is None or not brings_compensation(change):
        return change
    submits = tuple(
        replace(new, event=replace(new.event, correlation_id=correlation_id))
        if new.record.link_kind is Link.COMPENSATION
        else new
        for new in change.submits
    )
    return replace(change, submits=submits)


def undone_by(job: Job) -> JobId | None:
    """Return the job that came with this one's end to undo it; None if none did."""
    return compensation_id(job.id) if _is_undone(job, job.state) else None


def _is_undone(record: Draft, end: State) -> bool:
    # What was never claimed has done nothing.
    is_undoable = record.policy.compensates and record.attempt > 0
    return is_undoable and end in _COMPENSATED and not is_compensation(record)


def compensation_id(id: JobId) -> JobId:
    """Return the id of a job's compensation: always the same, so that there is at most one.

    The time in the id stays, so that the two are stored side by side.
    """
    mixed = blake2b(id.bytes, digest_size=8, person=b"compensation").digest()
    tail = int.from_bytes(mixed, "big") & _TAIL
    return JobId(UUID(int=id.int & ~_TAIL | tail))


def _undoing_terms(policy: Policy) -> Policy:
    """Return the terms of a compensation: retried until it is done, whatever the job's own are.

    The tries of a handler that is not idempotent are linked retries and may be used up by now.
    """
    tries = policy.max_attempts
    return replace(
        policy,
        max_attempts=tries if policy.idempotent else max(tries, DEFAULT_POLICY.max_attempts),
        idempotent=True,
        compensates=False,
        # If its owner is lost, it ends as a dead letter, and never by a time-out.
        start_timeout=None,
        on_exhausted=DEFAULT_POLICY.on_exhausted,
        on_silence=DEFAULT_POLICY.on_silence,
    )
