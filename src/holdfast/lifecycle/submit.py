"""From a request to a new job: the first event, the record at revision 1, and its keys."""

from __future__ import annotations

from functools import cache, lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle.derive import born
from holdfast.lifecycle.job import (
    NO_FACTS,
    Actor,
    Created,
    Draft,
    DraftEvent,
    Event,
    Facts,
    Job,
    JobId,
    Key,
    LoggedEvent,
    NewJob,
)
from holdfast.lifecycle.payload import (
    DIGEST_SIZE,
    check_labels,
    check_number,
    check_text,
    check_time,
    digest,
    sound_body,
)
from holdfast.lifecycle.policy import DEFAULT_POLICY, Policy, policy_problems, policy_text
from holdfast.lifecycle.states import (
    Coded,
    EventType,
    KeyKind,
    Kind,
    Link,
    Priority,
    Retention,
    State,
)
from holdfast.lifecycle.times import NOW, Time

NEEDS_LIMIT = 100
"""How many capabilities a job may ask for: every claim compares them with the worker's."""


class Submission(Struct, frozen=True, kw_only=True):
    """What a submitter asks for. `id` is minted by the caller; `body` is checked JSON text."""

    id: JobId
    task: str
    body: bytes = b"null"
    tenant: str = "default"
    kind: Kind = Kind.FUNCTION
    queue: str = "default"
    priority: Priority = Priority.INTERACTIVE
    needs: frozenset[str] = frozenset()
    policy: Policy = DEFAULT_POLICY
    cpus: int | None = None
    memory_mb: int | None = None
    run_at: Time = NOW
    deadline_at: Time | None = None
    admitted: bool = True
    held_by: str | None = None
    job_id: str | None = None
    request_id: str | None = None
    client_job_id: str | None = None
    dedupe_key: str | None = None
    unique_live: bool = False
    """`dedupe_key` holds until the job ends instead of until it is cleaned."""
    parent_id: JobId | None = None
    link_kind: Link | None = None
    workflow_id: str | None = None
    step_index: int | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    context_ptr: str | None = None
    reason: str | None = None


def submit(submission: Submission, actor: Actor) -> NewJob:
    """Decide a submit. Bad data raises before anything is written."""
    if _is_plain(submission):
        return _submit_plain(submission, actor)
    _check(submission)
    check_text(actor.name, "the actor's name")
    return _submit(submission, actor)


def submit_alike(first: NewJob, id: JobId, body: bytes) -> NewJob:
    """Decide a submit that asks for the same as a decided one without keys, but for its body."""
    body = sound_body(body, "body")
    return NewJob(
        record=replace(first.record, id=id),
        event=replace(first.event, id=id, body=body, digest=digest(body)),
    )


def _is_plain(submission: Submission) -> bool:
    """Whether all but the common fields have their defaults, and not what merely equals them."""
    return (
        _rare(submission) == _RARE_DEFAULTS
        and type(submission.kind) is Kind
        and type(submission.needs) is frozenset
        and submission.admitted is True
        and submission.unique_live is False
        # Else it cannot be looked up, and the checks say what is wrong with it.
        and type(submission.task) is type(submission.queue) is type(submission.tenant) is str
        and type(submission.policy) is Policy
        and type(submission.priority) is Priority
    )


def _submit_plain(submission: Submission, actor: Actor) -> NewJob:
    """Decide a submit that says no more than what, where and under which terms.

    Most do, and thousands alike: what they share is checked and made once.
    """
    first = _plain(
        submission.task,
        submission.queue,
        submission.tenant,
        submission.priority,
        submission.policy,
        actor,
    )
    if not isinstance(submission.id, UUID):
        raise BadData(f"id must be a UUID, not {submission.id!r}")
    run_at = submission.run_at
    if run_at is NOW:
        return submit_alike(first, submission.id, submission.body)
    body = sound_body(submission.body, "body")
    check_time(run_at, "run_at")
    return NewJob(
        record=replace(first.record, id=submission.id, run_at=run_at),
        event=replace(first.event, id=submission.id, run_at=run_at, body=body, digest=digest(body)),
    )


@lru_cache(maxsize=1024, typed=True)
def _plain(  # noqa: PLR0917  what it is looked up by
    task: str, queue: str, tenant: str, priority: Priority, policy: Policy, actor: Actor
) -> NewJob:
    submission = Submission(
        id=JobId(UUID(int=0)),
        task=task,
        queue=queue,
        tenant=tenant,
        priority=priority,
        policy=policy,
    )
    _check(submission)
    check_text(actor.name, "the actor's name")
    return _submit(submission, actor)


def _submit(submission: Submission, actor: Actor) -> NewJob:
    body = sound_body(submission.body, "body")
    keys = _keys(submission)
    made = Created(
        tenant=submission.tenant,
        job_id=submission.job_id,
        kind=submission.kind,
        task=submission.task,
        queue=submission.queue,
        priority=submission.priority,
        needs=submission.needs,
        policy=submission.policy,
        cpus=submission.cpus,
        memory_mb=submission.memory_mb,
        parent_id=submission.parent_id,
        link_kind=submission.link_kind,
        workflow_id=submission.workflow_id,
        step_index=submission.step_index,
        key_kinds=_kinds(submission),
        client_job_id=submission.client_job_id and submission.client_job_id.lower(),
        dedupe_key=submission.dedupe_key,
        content=keys[0].digest if keys else None,
        labels=submission.labels,
        env=submission.env,
        context_ptr=submission.context_ptr,
        trace_id=submission.trace_id,
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
        facts=Facts(held=submission.held_by) if submission.held_by else NO_FACTS,
        body=body,
        digest=digest(body),
    )
    return NewJob(record=born(event), event=event, keys=keys)


def _check(submission: Submission) -> None:
    check_text(submission.task, "task", limit=200)
    check_text(submission.queue, "queue", limit=200)
    check_text(submission.tenant, "tenant", limit=200)
    for name in _TEXTS:
        if (value := getattr(submission, name)) is not None:
            check_text(value, name)
    _check_needs(submission.needs)
    # Not `if labels`: an empty list is no mapping either.
    if submission.labels != {}:
        check_labels(submission.labels)
    if submission.env != {}:
        check_labels(submission.env, "env")
    if submission.policy is not DEFAULT_POLICY:
        _check_policy(submission.policy)
    _check_words(submission)
    _check_numbers(submission)
    _check_times(submission)
    _check_flags(submission)


def _check_needs(needs: frozenset[str]) -> None:
    if type(needs) is not frozenset:
        raise BadData(f"needs must be a frozenset of text, not {type(needs).__name__}")
    if len(needs) > NEEDS_LIMIT:
        raise BadData(f"needs has {len(needs):,} names; the limit is {NEEDS_LIMIT}")
    for need in needs:
        check_text(need, "a capability in needs", limit=200)


def _check_policy(policy: Policy) -> None:
    if type(policy) is not Policy:
        raise BadData(f"policy must be a Policy, not {type(policy).__name__}")
    if problems := policy_problems(policy, bounded=False):
        raise BadData("; ".join(problems))


def _check_words(submission: Submission) -> None:
    _check_word(submission.kind, Kind, "kind")
    _check_word(submission.priority, Priority, "priority")
    if submission.link_kind is not None:
        _check_word(submission.link_kind, Link, "link_kind")
    if not isinstance(submission.id, UUID):
        raise BadData(f"id must be a UUID, not {submission.id!r}")
    if submission.parent_id is not None and not isinstance(submission.parent_id, UUID):
        raise BadData(f"parent_id must be a UUID, not {submission.parent_id!r}")


def _check_word(value: Coded, words: type[Coded], what: str) -> None:
    if type(value) is not words or not value.code:
        known = ", ".join(word for word in words if word.code)
        raise BadData(f"{what} must be a {words.__name__} ({known}), not {value!r}")


def _check_numbers(submission: Submission) -> None:
    if submission.cpus is not None:
        check_number(submission.cpus, "cpus")
    if submission.memory_mb is not None:
        check_number(submission.memory_mb, "memory_mb")
    if submission.step_index is not None:
        check_number(submission.step_index, "step_index", low=0)


def _check_times(submission: Submission) -> None:
    if submission.run_at is not NOW:
        check_time(submission.run_at, "run_at")
    if submission.deadline_at is not None:
        check_time(submission.deadline_at, "deadline_at")


def _check_flags(submission: Submission) -> None:
    for what in ("admitted", "unique_live"):
        if type(getattr(submission, what)) is not bool:
            raise BadData(f"{what} must be True or False")


_COMMON = frozenset(
    {"id", "task", "body", "queue", "tenant", "priority", "policy", "run_at"},
)
_RARE_FIELDS = tuple(
    field for field in msgspec.structs.fields(Submission) if field.name not in _COMMON
)
_rare = attrgetter(*(field.name for field in _RARE_FIELDS))
_RARE_DEFAULTS = tuple(
    field.default if field.default_factory is NODEFAULT else field.default_factory()
    for field in _RARE_FIELDS
)
_TEXTS = (
    "held_by",
    "job_id",
    "request_id",
    "client_job_id",
    "dedupe_key",
    "workflow_id",
    "correlation_id",
    "trace_id",
    "context_ptr",
    "reason",
)


def _given(submission: Submission) -> tuple[tuple[KeyKind, str | None], ...]:
    client = submission.client_job_id
    return (
        (KeyKind.JOB_ID, submission.job_id),
        (KeyKind.REQUEST_ID, submission.request_id),
        (KeyKind.CLIENT_JOB_ID, client and client.lower()),
        (KeyKind.DEDUPE, submission.dedupe_key),
    )


def _keys(submission: Submission) -> tuple[Key, ...]:
    given = [(kind, key) for kind, key in _given(submission) if key is not None]
    if not given:
        return ()
    content = content_digest(submission)
    return tuple(Key(kind.code, key, content) for kind, key in given)


def _kinds(submission: Submission) -> int:
    kinds = sum(kind.code for kind, key in _given(submission) if key is not None)
    if submission.dedupe_key is not None and submission.unique_live:
        kinds |= KeyKind.DEDUPE_LIVE.code
    return kinds


def freed_keys(before: Draft, after: Draft) -> int:
    """Tell which kinds of keys a change frees: those whose term ends with it (resolution 13)."""
    kinds = after.key_kinds
    if not kinds:
        return 0
    freed = 0
    if after.retention is Retention.CLEANED and before.retention is not Retention.CLEANED:
        freed = kinds & (KeyKind.CLIENT_JOB_ID.code | KeyKind.DEDUPE.code)
    if kinds & KeyKind.DEDUPE_LIVE.code and after.terminal and not before.terminal:
        freed |= KeyKind.DEDUPE.code
    return freed


def derived_keys(record: Job, first: LoggedEvent) -> tuple[Key, ...]:
    """Tell which keys a job holds now, from its first event and its record."""
    made = first.created
    if made is None or made.content is None:
        return ()
    held = record.key_kinds & ~_ended_kinds(record)
    given = (
        (KeyKind.JOB_ID, made.job_id),
        (KeyKind.REQUEST_ID, first.request_id),
        (KeyKind.CLIENT_JOB_ID, made.client_job_id),
        (KeyKind.DEDUPE, made.dedupe_key),
    )
    return tuple(
        Key(kind.code, key, made.content)
        for kind, key in given
        if key is not None and held & kind.code
    )


def _ended_kinds(record: Job) -> int:
    ended = 0
    if record.retention is Retention.CLEANED:
        ended = KeyKind.CLIENT_JOB_ID.code | KeyKind.DEDUPE.code
    if record.key_kinds & KeyKind.DEDUPE_LIVE.code and record.terminal:
        ended |= KeyKind.DEDUPE.code
    return ended


def content_digest(submission: Submission) -> bytes:
    """Digest of what was asked for: two submits with one key and this digest are the same.

    The request_id is left out: each call may bring its own, and a known job_id with the same body
    is the same job all the same (resolution 13). So are the minted id and the trace, and whatever
    has its default: a field that a later version adds must not make an old request another one.
    """
    asked = {
        name: value
        for name, default in _defaults(type(submission))
        if (value := getattr(submission, name)) != default
    }
    if "body" in asked:
        asked["body"] = bytes(submission.body)
    if TRACEPARENT in asked.get("env", ()):
        env = {name: text for name, text in asked.pop("env").items() if name != TRACEPARENT}
        asked |= {"env": env} if env else {}
    if "policy" in asked:
        asked["policy"] = msgspec.Raw(policy_text(submission.policy))
    if submission.client_job_id is not None:
        asked["client_job_id"] = submission.client_job_id.lower()
    text = msgspec.json.encode(asked, enc_hook=str, order="deterministic")
    return blake2b(text, digest_size=DIGEST_SIZE).digest()


_NOT_ASKED = frozenset({"id", "request_id", "trace_id"})
TRACEPARENT = "traceparent"
"""The key under which `env` carries the W3C trace context of whoever submits."""


@cache
def _defaults(kind: type[Submission]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (
            field.name,
            field.default if field.default_factory is NODEFAULT else field.default_factory(),
        )
        for field in msgspec.structs.fields(kind)
        if field.name not in _NOT_ASKED
    )
