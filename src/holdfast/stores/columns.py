"""Rows to records and back: the one list of columns, and how each is written.

Words are stored as codes, small lists as JSON text, policies and needs by their keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from holdfast.admission.book import Book
from holdfast.errors import BadPolicy
from holdfast.lifecycle.execution_policy import Policy, needs_key, policy_key, read_policy
from holdfast.lifecycle.record import (
    NO_FACTS,
    Created,
    Event,
    Facts,
    Job,
    JobId,
    LoggedEvent,
    Record,
    Signal,
)
from holdfast.lifecycle.seal import SEALED
from holdfast.lifecycle.states import (
    CancelMode,
    EventType,
    Kind,
    Letter,
    Link,
    Priority,
    Retention,
    State,
)
from holdfast.lifecycle.transitions import CLAIM_TARGET, SUBMIT_EVENT
from holdfast.ports.models import Claimed, ClaimGroup
from holdfast.stores.tenant_limits import KnownNames

JOB_COLUMNS = tuple(
    "pending_signals" if name == "signals" else name
    for name in Record.__struct_fields__
    if name != "unread_signals"
)
"""The fields of a record. Pending signals are rows of their own; the job row counts them."""
EVENT_COLUMNS = (*SEALED[:-1], "body", SEALED[-1], "seal")
"""What a seal covers, the body and the seal itself."""
POLICY, NEEDS = JOB_COLUMNS.index("policy"), JOB_COLUMNS.index("needs")
TYPE, DATA = EVENT_COLUMNS.index("type"), EVENT_COLUMNS.index("data")

T = TypeVar("T")
KNOWN_LIMIT = 10_000
"""Policies, and sets of needs, that a process knows at a time."""


class StoredCreated(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`Created` as the first event's data: words as text, policy and needs by key."""

    policy: int
    tenant: str = "default"
    job_id: str | None = None
    kind: str = Kind.FUNCTION.value
    task: str = ""
    task_version: str | None = None
    queue: str = "default"
    priority: str = Priority.INTERACTIVE.value
    needs: int = 0
    cpus: int | None = None
    memory_mb: int | None = None
    parent_id: Any = None
    link_kind: str | None = None
    workflow_id: str | None = None
    step_index: int | None = None
    key_kinds: int = 0
    client_job_id: str | None = None
    dedupe_key: str | None = None
    content: bytes | None = None
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    context_ptr: str | None = None
    adapter_id: str | None = None
    files_id: str | None = None
    trace_id: str | None = None
    resumes: Any = None
    lineage: Any = None
    stated: tuple[str, ...] | None = None
    holds: tuple[str, ...] = ()
    verdict: str | None = None
    rule: str | None = None
    rules: str | None = None
    asked: dict[str, int | float | str | None] | None = None
    decided_by: str | None = None


_BIRTH_FACTS = ("holds", "verdict", "rule", "rules", "asked", "decided_by")
"""The facts that a first event may have."""
_birth_facts = attrgetter(*_BIRTH_FACTS)
_CREATED_FIELDS = tuple(
    name for name in StoredCreated.__struct_fields__ if name not in _BIRTH_FACTS
)


class Known(dict[int, T]):
    """Policies or needs by key, the newest `KNOWN_LIMIT` of them: submitters choose them.

    What was just read outlives many others: a reader that learned it still finds it later.
    """

    def __setitem__(self, key: int, value: T) -> None:
        """Remember one, and forget the one that was learned first if they are too many."""
        super().__setitem__(key, value)
        while len(self) > KNOWN_LIMIT:
            # Other threads learn at the same time.
            with contextlib.suppress(RuntimeError, StopIteration):
                self.pop(next(iter(self)), None)

    def update(self, more: Any) -> None:
        """Remember several."""
        for key, value in dict(more).items():
            self[key] = value


class Dictionary:
    """Policies, needs and first events that this process has seen, by key or text.

    They are content-addressed, so nothing here is ever stale.
    """

    def __init__(self) -> None:
        self.policies: dict[int, Policy] = Known()
        self.needs: dict[int, frozenset[str]] = Known({0: frozenset()})
        self.created: dict[str, tuple[Created, Job]] = {}
        self.names = KnownNames()
        self.books: dict[str, Book | BadPolicy] = {}
        """Applied rules by digest, compiled, or why this process cannot."""

    def find_unknown(self, named: Iterable[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """Return the keys of policies and of needs that were not seen yet."""
        policies, needs = self.policies, self.needs
        missing = {pair for pair in named if pair[0] not in policies or pair[1] not in needs}
        if not missing:
            return [], []
        return (
            [policy for policy in {pair[0] for pair in missing} if policy not in policies],
            [need for need in {pair[1] for pair in missing} if need not in needs],
        )

    def learn_policies(self, rows: Iterable[Sequence[Any]]) -> None:
        """Remember policies as they are stored: key and text."""
        for key, body in rows:
            self.policies[key] = read_policy(body)

    def learn_needs(self, rows: Iterable[Sequence[Any]]) -> None:
        """Remember sets of needs as they are stored: key and text."""
        for key, body in rows:
            self.needs[key] = frozenset(msgspec.json.decode(body))


_encode = msgspec.json.Encoder(enc_hook=str).encode
_read_created = msgspec.json.Decoder(StoredCreated).decode
_read_facts = msgspec.json.Decoder(Facts).decode


class _Written(msgspec.Struct, frozen=True):
    """The first event's data that was written last."""

    made: Created | None = None
    facts: Facts = NO_FACTS
    text: str = ""


_last = _Written()


def created_text(event: Event[Any]) -> str:
    """Write the data of a first event."""
    global _last  # noqa: PLW0603  the jobs of a batch mostly ask for the same, and need one text
    made, facts = event.created, event.facts
    assert made is not None
    last = _last
    if last.made != made or (last.facts is not facts and last.facts != facts):
        _last = last = _Written(made, facts, _created_text(made, facts))
    return last.text


def _created_text(made: Created, facts: Facts) -> str:
    stored = StoredCreated(
        policy=policy_key(made.policy),
        tenant=made.tenant,
        job_id=made.job_id,
        kind=made.kind.value,
        task=made.task,
        task_version=made.task_version,
        queue=made.queue,
        priority=made.priority.value,
        needs=needs_key(made.needs),
        cpus=made.cpus,
        memory_mb=made.memory_mb,
        parent_id=made.parent_id,
        link_kind=made.link_kind and made.link_kind.value,
        workflow_id=made.workflow_id,
        step_index=made.step_index,
        key_kinds=made.key_kinds,
        client_job_id=made.client_job_id,
        dedupe_key=made.dedupe_key,
        content=made.content,
        labels=made.labels,
        env=made.env,
        context_ptr=made.context_ptr,
        adapter_id=made.adapter_id,
        files_id=made.files_id,
        trace_id=made.trace_id,
        resumes=made.resumes,
        lineage=made.lineage,
        stated=made.stated,
        **dict(zip(_BIRTH_FACTS, _birth_facts(facts), strict=True)),
    )
    return _encode(stored).decode()


def facts_text(facts: Facts) -> str | None:
    """Write the facts of an event; none is NULL."""
    return None if facts is NO_FACTS else _encode(facts).decode()


def tuple_text(values: Sequence[Any]) -> str | None:
    """Write a small list as JSON text; an empty one is NULL."""
    return _encode(values).decode() if values else None


def read_facts(text: str) -> Facts:
    """Read an event's facts. Words of a newer version are passed over (B27)."""
    try:
        return _read_facts(text)
    except msgspec.ValidationError:
        return _read_facts_leniently(msgspec.json.decode(text))


def _read_facts_leniently(data: dict[str, Any]) -> Facts:
    kept = {}
    for name, value in data.items():
        try:
            msgspec.convert({name: value}, Facts)
        except msgspec.ValidationError:
            continue
        kept[name] = value
    return msgspec.convert(kept, Facts)


def word(words: Callable[[int], Any], code: int | None) -> Any:
    """Read an optional code."""
    return None if code is None else words(code)


def read_job(row: Sequence[Any], seen: Dictionary) -> Job:
    """Make a record out of a row in the order of `JOB_COLUMNS`."""
    values = dict(zip(JOB_COLUMNS, row, strict=True))
    values["kind"] = Kind.of(values["kind"])
    values["priority"] = Priority.of(values["priority"])
    values["policy"] = seen.policies[values["policy"]]
    values["needs"] = seen.needs[values["needs"]]
    values["state"] = State.of(values["state"])
    values["retention"] = Retention.of(values["retention"])
    values["held_by"] = _read_tuple(values["held_by"])
    values["late_results"] = _read_tuple(values["late_results"])
    pending = values.pop("pending_signals")
    if pending is not None:
        values["signals"], values["unread_signals"] = _read_pending(pending)
    for name, words in _OPTIONAL_WORDS:
        if values[name] is not None:
            values[name] = words(values[name])
    return Record(**values)


_OPTIONAL_WORDS = (
    ("link_kind", Link.of),
    ("cancel_requested", CancelMode.of),
    ("letter", Letter.of),
)


def _read_tuple(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(msgspec.json.decode(text))


def read_event(row: Sequence[Any], seen: Dictionary) -> LoggedEvent:
    """Make an event out of a row in the order of `EVENT_COLUMNS`."""
    values = dict(zip(EVENT_COLUMNS, row, strict=True))
    data = values.pop("data")
    kind = values["type"] = EventType.of(values["type"])
    values["from_state"] = word(State.of, values["from_state"])
    values["to_state"] = State.of(values["to_state"])
    if values["body"] is not None:
        values["body"] = values["body"].encode()
    if kind is SUBMIT_EVENT:
        values["created"], values["facts"] = _build_created(_read_created(data), seen)
    elif data is not None:
        values["facts"] = read_facts(data)
    return Event(**values)


def _build_created(stored: StoredCreated, seen: Dictionary) -> tuple[Created, Facts]:
    values = {name: getattr(stored, name) for name in _CREATED_FIELDS}
    values["policy"] = seen.policies[stored.policy]
    values["needs"] = seen.needs[stored.needs]
    values["kind"] = Kind.named(stored.kind)
    values["priority"] = Priority.named(stored.priority)
    if stored.link_kind is not None:
        values["link_kind"] = Link.named(stored.link_kind)
    for name in ("parent_id", "resumes", "lineage"):
        if values[name] is not None:
            values[name] = UUID(values[name])
    facts = Facts(**dict(zip(_BIRTH_FACTS, _birth_facts(stored), strict=True)))
    return Created(**values), NO_FACTS if facts == NO_FACTS else facts


_CREATED_LIMIT = 4096
"""Different first events that a process keeps read: jobs of one kind share their text."""


def created_keys(text: str) -> tuple[int, int]:
    """Return which policy and needs a first event names."""
    stored = _read_created(text)
    return stored.policy, stored.needs


def read_created_text(text: str, seen: Dictionary) -> Created:
    """Read a first event's data, once per text."""
    return _read_claimable(text, seen)[0]


def _read_claimable(text: str, seen: Dictionary) -> tuple[Created, Job]:
    """Read a first event's data, and what a record of such a job has in any case."""
    known = seen.created.get(text)
    if known is None:
        if len(seen.created) >= _CREATED_LIMIT:
            seen.created.clear()
        made = _build_created(_read_created(text), seen)[0]
        known = seen.created[text] = made, _make_record_like(made)
    return known


def _make_record_like(made: Created) -> Job:
    return Record(
        id=JobId(UUID(int=0)),
        tenant=made.tenant,
        job_id=made.job_id,
        kind=made.kind,
        task=made.task,
        task_version=made.task_version,
        queue=made.queue,
        priority=made.priority,
        needs=made.needs,
        policy=made.policy,
        cpus=made.cpus,
        memory_mb=made.memory_mb,
        parent_id=made.parent_id,
        link_kind=made.link_kind,
        workflow_id=made.workflow_id,
        step_index=made.step_index,
        key_kinds=made.key_kinds,
        created_at=0,
        updated_at=0,
        state=CLAIM_TARGET,
        rev=0,
    )


def read_claimed_jobs(rows: Iterable[Sequence[Any]], owner: str, seen: Dictionary) -> list[Claimed]:
    """Make claimed jobs out of rows that the claim statement returns; raises if one is damaged.

    Jobs that differ in nothing but their ids, bodies and times form a group. All else follows from
    the law: a job that has just been claimed has no result, hold or wait.
    """
    groups: dict[tuple[Any, ...], ClaimGroup] = {}
    claimed = []
    for (id_, data, body, correlation_id, rev, attempt, failures, releases, epoch, run_at, deadline,
         created_at, updated_at, pending, policy) in rows:  # fmt: skip
        key = (data, rev, attempt, failures, releases, epoch, pending, policy)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _make_claim_group(key, owner, seen)
        else:
            group.jobs += 1
        text = None if body is None else body.encode()
        claimed.append(
            Claimed(group, id_, text, correlation_id, created_at, updated_at, run_at, deadline)
        )
    return claimed


def _make_claim_group(key: tuple[Any, ...], owner: str, seen: Dictionary) -> ClaimGroup:
    data, rev, attempt, failures, releases, epoch, pending, policy = key
    made, like = _read_claimable(data, seen)
    terms = made.policy
    if policy_key(terms) != policy:
        # Corrected since it was submitted.
        terms = seen.policies[policy]
    signals, unread = ((), 0) if pending is None else _read_pending(pending)
    return ClaimGroup(
        made,
        msgspec.structs.replace(
            like,
            rev=rev,
            attempt=attempt,
            failures=failures,
            releases=releases,
            epoch=epoch,
            owner=owner,
            # PostgreSQL reads them after the claim, when others may have come.
            signals=tuple(signal for signal in signals if signal.rev <= rev),
            unread_signals=unread,
            policy=terms,
        ),
    )


def _read_pending(value: str | int) -> tuple[tuple[Signal, ...], int]:
    """Read pending signals, given as their number and names; or as their number, unread."""
    if isinstance(value, int):
        return (), value
    count, signals = _decode_pending(value)
    if len(signals) != count:
        raise ValueError(f"it counts {count} pending signals, and has {len(signals)}")
    return signals, 0


_decode_pending = msgspec.json.Decoder(tuple[int, tuple[Signal, ...]]).decode


def write_job(job: Job) -> tuple[Any, ...]:
    """Write a record as a row in the order of `JOB_COLUMNS`."""
    return tuple(write_column(name, getattr(job, name)) for name in JOB_COLUMNS)


def write_column(name: str, value: Any) -> Any:
    """Write one value of a record."""
    return WRITE[name](value) if name in WRITE else value


def _code(value: Any) -> Any:
    return None if value is None else value.code


WRITE: dict[str, Callable[[Any], Any]] = {
    "kind": _code,
    "priority": _code,
    "link_kind": _code,
    "state": _code,
    "cancel_requested": _code,
    "letter": _code,
    "retention": _code,
    "needs": needs_key,
    "policy": policy_key,
    "held_by": tuple_text,
    "pending_signals": lambda number: number or None,
    "late_results": tuple_text,
}
"""How columns are written, where not as they are."""
