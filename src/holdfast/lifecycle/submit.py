"""From a request to a new job: the first event, the record at revision 1, and its keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import replace

from holdfast.errors import BadData, about
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
from holdfast.lifecycle.policy import (
    DEFAULT_POLICY,
    Policy,
    policy_faults,
    policy_text,
    told_faults,
)
from holdfast.lifecycle.reserved import check_not_reserved, is_reserved
from holdfast.lifecycle.routes import check_task, check_version
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
    task_version: str | None = None
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
    resumes: JobId | None = None
    lineage: JobId | None = None
    stated: tuple[str, ...] | None = None
    """See `Created.stated`."""
    content: bytes | None = None
    """Digest of what was asked for, where the task's terms were filled in after that."""


def submit(submission: Submission, actor: Actor, *, internal: bool = False) -> NewJob:
    """Decide a submit. Bad data raises before anything is written.

    `internal` is for jobs of Holdfast's own services, and for nothing that a caller asked for:
    their tasks and queues are reserved (`lifecycle.reserved`).
    """
    if _is_plain(submission):
        return _submit_plain(submission, actor, internal)
    _check(submission, internal=internal)
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
        and type(submission.task_version) in (str, type(None))
        and type(submission.policy) is Policy
        and type(submission.priority) is Priority
    )


def _submit_plain(submission: Submission, actor: Actor, internal: bool) -> NewJob:
    """Decide a submit that says no more than what, where and under which terms.

    Most do, and thousands alike: what they share is checked and made once.
    """
    first = _plain(
        submission.task,
        submission.task_version,
        submission.queue,
        submission.tenant,
        submission.priority,
        submission.policy,
        actor,
        internal,
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
    task: str,
    task_version: str | None,
    queue: str,
    tenant: str,
    priority: Priority,
    policy: Policy,
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
    )
    _check(submission, internal=internal)
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
        task_version=submission.task_version,
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
        resumes=submission.resumes,
        lineage=submission.lineage,
        stated=submission.stated,
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


def _check(submission: Submission, *, internal: bool) -> None:
    for value, (name, default, check) in zip(_checked(submission), _CHECKS, strict=True):
        if value is not default:
            try:
                check(value, name)
            except BadData as error:
                error.field = name if error.field is None else f"{name}.{error.field}"
                raise
    _check_reserved(submission, internal=internal)


def _check_reserved(submission: Submission, *, internal: bool) -> None:
    """Raise ReservedName unless the submit is internal; internal jobs keep to internal queues."""
    names = {"task": submission.task, "queue": submission.queue}
    if internal and all(is_reserved(name) for name in names.values()):
        return
    for field, name in names.items():
        with about(field):
            check_not_reserved(name, field)
    if internal:
        raise BadData("an internal job must have a reserved task and a reserved queue")


def _check_name(value: Any, what: str) -> None:
    check_text(value, what, limit=200)


def _check_map(value: Any, what: str) -> None:
    # Not `if value`: an empty list is no mapping either.
    if value != {}:
        check_labels(value, what)


def _check_needs(needs: frozenset[str], what: str) -> None:
    if type(needs) is not frozenset:
        raise BadData(f"{what} must be a frozenset of text, not {type(needs).__name__}")
    if len(needs) > NEEDS_LIMIT:
        raise BadData(f"{what} has {len(needs):,} names; the limit is {NEEDS_LIMIT}")
    for need in needs:
        check_text(need, f"a capability in {what}", limit=200)


def _check_policy(policy: Policy, what: str) -> None:
    if type(policy) is not Policy:
        raise BadData(f"{what} must be a Policy, not {type(policy).__name__}")
    if faults := policy_faults(policy, bounded=False):
        raise BadData(told_faults(faults), field=faults[0].term)


def _check_word(value: Coded, what: str, *, words: type[Coded]) -> None:
    if type(value) is not words or not value.code:
        known = ", ".join(word for word in words if word.code)
        raise BadData(f"{what} must be a {words.__name__} ({known}), not {value!r}")


def _check_uuid(value: JobId, what: str) -> None:
    if not isinstance(value, UUID):
        raise BadData(f"{what} must be a UUID, not {value!r}")


def _check_flag(value: bool, what: str) -> None:
    if type(value) is not bool:
        raise BadData(f"{what} must be True or False")


_ALWAYS = object()
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
_CHECKS: tuple[tuple[str, Any, Callable[[Any, str], object]], ...] = (
    ("task", _ALWAYS, check_task),
    *((name, _ALWAYS, _check_name) for name in ("queue", "tenant")),
    *((name, None, check_text) for name in _TEXTS),
    ("task_version", None, check_version),
    ("needs", frozenset(), _check_needs),
    ("labels", _ALWAYS, _check_map),
    ("env", _ALWAYS, _check_map),
    ("policy", DEFAULT_POLICY, _check_policy),
    ("kind", Kind.FUNCTION, partial(_check_word, words=Kind)),
    ("priority", Priority.INTERACTIVE, partial(_check_word, words=Priority)),
    ("link_kind", None, partial(_check_word, words=Link)),
    ("id", _ALWAYS, _check_uuid),
    ("parent_id", None, _check_uuid),
    ("resumes", None, _check_uuid),
    ("lineage", None, _check_uuid),
    ("cpus", None, check_number),
    ("memory_mb", None, check_number),
    ("step_index", None, partial(check_number, low=0)),
    ("run_at", NOW, check_time),
    ("deadline_at", None, check_time),
    ("admitted", True, _check_flag),
    ("unique_live", False, _check_flag),
)
"""Each field with the one value that needs no look, and what looks at any other."""
_checked = attrgetter(*(name for name, _, _ in _CHECKS))


_COMMON = frozenset(
    {"id", "task", "task_version", "body", "queue", "tenant", "priority", "policy", "run_at"},
)
_RARE_FIELDS = tuple(
    field for field in msgspec.structs.fields(Submission) if field.name not in _COMMON
)
_rare = attrgetter(*(field.name for field in _RARE_FIELDS))
_RARE_DEFAULTS = tuple(
    field.default if field.default_factory is NODEFAULT else field.default_factory()
    for field in _RARE_FIELDS
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
    content = submission.content or content_digest(submission)
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


_NOT_ASKED = frozenset({"id", "request_id", "trace_id", "stated", "content"})
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
