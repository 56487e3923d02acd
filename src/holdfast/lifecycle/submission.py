"""What a submitter asks for: its fields, their checks, and the digest that compares two of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from hashlib import blake2b
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo

from holdfast.errors import BadData, about
from holdfast.lifecycle.execution_policy import (
    DEFAULT_POLICY,
    Policy,
    faults_text,
    policy_faults,
    policy_text,
)
from holdfast.lifecycle.payload import (
    DIGEST_SIZE,
    check_labels,
    check_number,
    check_text,
    check_time,
)
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.reserved import check_not_reserved, is_reserved
from holdfast.lifecycle.routes import check_task, check_version
from holdfast.lifecycle.states import Coded, Kind, Link, Priority
from holdfast.lifecycle.times import NOW, Time

NEEDS_LIMIT = 100
"""How many capabilities a job may ask for: every claim compares them with the worker's."""
HOLDS_LIMIT = 100
"""How many holds a job may be born under."""


class Submission(Struct, frozen=True, kw_only=True):
    """What a submitter asks for. The caller generates `id`; `body` is checked JSON text."""

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
    holds: tuple[str, ...] = ()
    """What keeps it from being claimed until each is lifted."""
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
    adapter_id: str | None = None
    files_id: str | None = None
    reason: str | None = None
    resumes: JobId | None = None
    lineage: JobId | None = None
    stated: tuple[str, ...] | None = None
    """See `Created.stated`."""
    content: bytes | None = None
    """Digest of what was asked for, where the task's terms were filled in after that."""


def check_submission(submission: Submission, *, internal: bool) -> None:
    """Raise BadData, or ReservedName, for a submission that may not be kept; name the field."""
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
    # Not `if value`: an empty list is not a mapping either.
    if value != {}:
        check_labels(value, what)


def _check_needs(needs: frozenset[str], what: str) -> None:
    if type(needs) is not frozenset:
        raise BadData(f"{what} must be a frozenset of text, not {type(needs).__name__}")
    if len(needs) > NEEDS_LIMIT:
        raise BadData(f"{what} has {len(needs):,} names; the limit is {NEEDS_LIMIT}")
    for need in needs:
        check_text(need, f"a capability in {what}", limit=200)


def _check_holds(holds: tuple[str, ...], what: str) -> None:
    if type(holds) is not tuple:
        raise BadData(f"{what} must be a tuple of text, not {type(holds).__name__}")
    if len(holds) > HOLDS_LIMIT:
        raise BadData(f"{what} has {len(holds):,} names; the limit is {HOLDS_LIMIT}")
    for hold in holds:
        check_text(hold, f"a name in {what}")


def _check_policy(policy: Policy, what: str) -> None:
    if type(policy) is not Policy:
        raise BadData(f"{what} must be a Policy, not {type(policy).__name__}")
    if faults := policy_faults(policy, bounded=False):
        raise BadData(faults_text(faults), field=faults[0].term)


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
    "job_id",
    "request_id",
    "client_job_id",
    "dedupe_key",
    "workflow_id",
    "correlation_id",
    "trace_id",
    "context_ptr",
    "adapter_id",
    "files_id",
    "reason",
)
_CHECKS: tuple[tuple[str, Any, Callable[[Any, str], object]], ...] = (
    ("task", _ALWAYS, check_task),
    *((name, _ALWAYS, _check_name) for name in ("queue", "tenant")),
    *((name, None, check_text) for name in _TEXTS),
    ("task_version", None, check_version),
    ("needs", frozenset(), _check_needs),
    ("holds", (), _check_holds),
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
"""Each field with the one value that needs no check, and what checks any other."""
_checked = attrgetter(*(name for name, _, _ in _CHECKS))


def content_digest(submission: Submission) -> bytes:
    """Return the digest of what was asked for: two submits with one key and this digest are equal.

    The request_id is left out: each call may bring its own, and a known job_id with the same body
    is the same job all the same (resolution 13). So are the id and the trace, and whatever has its
    default: a field that a later version adds must not make an old request another one.
    """
    asked = {
        name: value
        for name, default in _asked_defaults(type(submission))
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
"""The key under which `env` carries the W3C trace context of the submitter."""


def default_of(field: FieldInfo) -> Any:
    """Return the default of a field."""
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


@cache
def _asked_defaults(kind: type[Submission]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (field.name, default_of(field))
        for field in msgspec.structs.fields(kind)
        if field.name not in _NOT_ASKED
    )
