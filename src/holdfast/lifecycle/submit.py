"""From a request to a new job: the first event, the record at revision 1, and its keys."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from uuid import UUID

from msgspec.structs import fields, replace

from holdfast.errors import BadData
from holdfast.lifecycle.alike import decide_like
from holdfast.lifecycle.derive import born
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.holds import is_policy_hold
from holdfast.lifecycle.keys import key_kinds, keys_of
from holdfast.lifecycle.payload import check_text, check_time, digest, sound_body
from holdfast.lifecycle.record import (
    NO_FACTS,
    Actor,
    Created,
    DraftEvent,
    Event,
    Facts,
    JobId,
    LoggedEvent,
    NewJob,
)
from holdfast.lifecycle.states import EventType, Kind, Priority, State
from holdfast.lifecycle.submission import Submission, check_submission, default_of
from holdfast.lifecycle.times import NOW


def submit(submission: Submission, actor: Actor, *, internal: bool = False) -> NewJob:
    """Decide a submit. Bad data raises before anything is written.

    `internal` is for jobs of Holdfast's own services, never for what a caller asks for: their tasks
    and queues are reserved (`lifecycle.reserved`).
    """
    if _is_plain(submission):
        return _submit_plain(submission, actor, internal)
    check_submission(submission, internal=internal)
    check_text(actor.name, "the actor's name")
    return _submit_any(submission, actor)


def was_admitted(first: LoggedEvent) -> bool:
    """Return whether a job was submitted to go into its queue at once.

    One that only the rules kept from it was: they judge its successor, too.
    """
    judged = first.facts.verdict is not None and first.facts.holds != ()
    return first.to_state is State.QUEUED or (
        judged and all(map(is_policy_hold, first.facts.holds))
    )


def born_with(job: NewJob, facts: Facts, *, admitted: bool | None = None) -> NewJob:
    """Return a new job with other facts, in its queue or not; None: as it was submitted."""
    event = replace(job.event, facts=facts)
    if admitted is not None:
        event = replace(event, to_state=State.QUEUED if admitted else State.PENDING)
    return replace(job, event=event, record=born(event))


def _is_plain(submission: Submission) -> bool:
    """Return whether all rare fields have their defaults, and not what merely equals them."""
    return (
        _rare(submission) == _RARE_DEFAULTS
        and type(submission.kind) is Kind
        and type(submission.needs) is frozenset
        and submission.admitted is True
        and submission.unique_live is False
        # Else it cannot be looked up, and the checks report what is wrong with it.
        and type(submission.task) is type(submission.queue) is type(submission.tenant) is str
        and type(submission.task_version) in (str, type(None))
        and type(submission.stated) in (tuple, type(None))
        and type(submission.policy) is Policy
        and type(submission.priority) is Priority
    )


def _submit_plain(submission: Submission, actor: Actor, internal: bool) -> NewJob:
    """Decide a submit of no more than a task, a queue, a tenant, and terms with their source.

    Most are such, and thousands are alike: what they share is checked and made once.
    """
    first = _build_plain_job(
        submission.task,
        submission.task_version,
        submission.queue,
        submission.tenant,
        submission.priority,
        submission.policy,
        submission.stated,
        actor,
        internal,
    )
    if not isinstance(submission.id, UUID):
        raise BadData(f"id must be a UUID, not {submission.id!r}")
    run_at = submission.run_at
    if run_at is NOW:
        return decide_like(first, submission.id, submission.body)
    body = sound_body(submission.body, "body")
    check_time(run_at, "run_at")
    return NewJob(
        record=replace(first.record, id=submission.id, run_at=run_at),
        event=replace(first.event, id=submission.id, run_at=run_at, body=body, digest=digest(body)),
    )


@lru_cache(maxsize=1024, typed=True)
def _build_plain_job(  # noqa: PLR0917  what it is looked up by
    task: str,
    task_version: str | None,
    queue: str,
    tenant: str,
    priority: Priority,
    policy: Policy,
    stated: tuple[str, ...] | None,
    actor: Actor,
    internal: bool,
) -> NewJob:
    submission = Submission(
        id=JobId(UUID(int=0)),
        task=task,
        task_version=task_version,
        queue=queue,
        tenant=tenant,
        priority=priority,
        policy=policy,
        stated=stated,
    )
    check_submission(submission, internal=internal)
    check_text(actor.name, "the actor's name")
    return _submit_any(submission, actor)


def _submit_any(submission: Submission, actor: Actor) -> NewJob:
    body = sound_body(submission.body, "body")
    keys = keys_of(submission)
    holds = tuple(sorted(set(submission.holds)))
    made = Created(
        **dict(zip(_FIXED, _fixed(submission), strict=True)),
        key_kinds=key_kinds(submission),
        client_job_id=submission.client_job_id and submission.client_job_id.lower(),
        content=keys[0].digest if keys else None,
    )
    event: DraftEvent = Event(
        id=submission.id,
        rev=1,
        type=EventType.CREATED,
        from_state=None,
        to_state=State.QUEUED if submission.admitted else State.PENDING,
        at=NOW,
        actor=actor.label,
        request_id=submission.request_id,
        reason=submission.reason,
        run_at=submission.run_at,
        deadline_at=submission.deadline_at,
        correlation_id=submission.correlation_id,
        created=made,
        facts=Facts(holds=holds) if holds else NO_FACTS,
        body=body,
        digest=digest(body),
    )
    return NewJob(record=born(event), event=event, keys=keys)


_COMMON = frozenset(
    {
        *("id", "task", "task_version", "body", "queue", "tenant"),
        *("priority", "policy", "stated", "run_at"),
    },
)
_RARE = tuple(field for field in fields(Submission) if field.name not in _COMMON)
_rare = attrgetter(*(field.name for field in _RARE))
_RARE_DEFAULTS = tuple(map(default_of, _RARE))
_FIXED = tuple(
    name
    for name in Created.__struct_fields__
    if name in Submission.__struct_fields__ and name not in {"client_job_id", "content"}
)
"""What the first event keeps as it was submitted."""
_fixed = attrgetter(*_FIXED)
