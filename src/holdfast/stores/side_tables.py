"""The tables beside the ledger: their columns, what may be kept in them, and what is wrong there.

A row is read back by the fields of its record, in their order. Writing it checks each value: what a
database would refuse, or a reader could not use, is refused here with the name of the field. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.errors import BadData, HoldfastError, RequestIdReused, about
from holdfast.lifecycle.execution_policy import faults_text, policy_faults
from holdfast.lifecycle.holds import UNADMITTED
from holdfast.lifecycle.payload import check_number, check_text
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import TERMINAL, State
from holdfast.lifecycle.submission import NEEDS_LIMIT
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import (
    HIGHEST_LEVEL,
    LOG_TEXT,
    Announcement,
    AppliedPolicy,
    LogEntry,
    NewToken,
    NewWebhook,
    PolicyEvent,
    PurgeEntry,
    QueueEvent,
    QueueStatus,
    Token,
    Webhook,
    WorkerStatus,
)
from holdfast.ports.uploads import Finalization, NewUpload, Reservation, Upload, UploadState
from holdfast.stores.quarantine import UNREADABLE

R = TypeVar("R", bound=msgspec.Struct)
Row = Sequence[Any]
NAME_LIMIT = 200
TOKEN_QUEUES_LIMIT = 50
"""Queues that a token may be for."""
LIFETIME_LIMIT = 100 * 365 * 24 * 3600 * SECOND
"""A token that has to last longer must not expire."""
URL_LIMIT = 2000
BYTES_LIMIT = 2**50
"""Bytes that an upload may be allowed to have, by whatever limit."""
WORKER_NAMES_LIMIT = 256 * 1024
"""Characters of all queues, capabilities and tasks of a worker: each announcement sends them."""
FORGET_BATCH = 100
"""Old workers that one announcement forgets at most."""
TERMS_LIMIT = 10_000
"""Tasks per tenant whose terms are kept; those published longest ago are forgotten first."""
ALL_TENANTS = ""
"""The tenant under which terms are kept that hold for all of them."""
LOG_TIME_LIMIT = 2**62
NEWEST_TOKEN, NEWEST_WEBHOOK = "~", ("~", "")
NEWEST_UPLOAD = NEWEST_TOKEN
"""Higher than any id, and than any key."""
APART = 60 * SECOND
"""Maximum time between a pause and its entry: PostgreSQL reads the clock for each."""


class SideTable(Generic[R]):
    """How rows of a table are read as records: columns are fields, lists are JSON."""

    def __init__(self, record: type[R], **lists: Callable[[list[Any]], Any]) -> None:
        """Name the record, and how the columns that hold JSON lists are read."""
        self.columns = record.__struct_fields__
        self._record = record
        self._lists = lists

    def read(self, row: Row) -> R:
        """Make a record out of a row in the order of `columns`."""
        values = dict(zip(self.columns, row, strict=True))
        for name, read in self._lists.items():
            if values[name] is not None:
                values[name] = read(msgspec.json.decode(values[name]))
        return self._record(**values)


QUEUES = SideTable(QueueStatus)
QUEUE_EVENTS = SideTable(QueueEvent)
WORKERS = SideTable(WorkerStatus, queues=tuple, capabilities=frozenset, tasks=tuple)
TOKENS = SideTable(Token, queues=tuple)
WEBHOOKS = SideTable(Webhook, states=lambda codes: frozenset(map(State.of, codes)))
PURGES = SideTable(PurgeEntry)
UPLOADS = SideTable(Upload)
POLICY_BOOKS = SideTable(AppliedPolicy)
POLICY_EVENTS = SideTable(PolicyEvent)
SIDE_TABLES: dict[str, SideTable[Any]] = {
    "queues": QUEUES,
    "queue_events": QUEUE_EVENTS,
    "workers": WORKERS,
    "tokens": TOKENS,
    "webhooks": WEBHOOKS,
    "purges": PURGES,
    "uploads": UPLOADS,
    "policy_books": POLICY_BOOKS,
    "policy_events": POLICY_EVENTS,
}
"""By the name of the table, for `{{columns.NAME}}` in SQL files."""
_read_terms = msgspec.json.Decoder(TaskTerms).decode


class PolicyMove(msgspec.Struct, frozen=True, kw_only=True):
    """Rules to be applied, or without a digest those that are to be removed."""

    digest: str | None
    body: str | None
    actor: str
    reason: str | None


class QueueMove(msgspec.Struct, frozen=True, kw_only=True):
    """A queue to be paused or resumed, and how that is entered in the queues' ledger."""

    queue: str
    type: str
    actor: str
    reason: str | None
    request_id: str | None

    @property
    def pauses(self) -> bool:
        """Whether no job of the queue may be claimed afterwards."""
        return self.type == "paused"

    @property
    def entry(self) -> Row:
        """The values of its entry."""
        return self.queue, self.type, self.actor, self.reason, self.request_id

    def is_repeat(self, known: Row | None) -> bool:
        """Return whether the request was carried out before; `known` is its earlier use."""
        if known is not None and tuple(known) != (self.queue, self.type, self.actor):
            raise RequestIdReused(
                f"request_id {self.request_id!r} was already used for queue {known[0]!r} {known[1]}"
            )
        return known is not None


def token_row(token: NewToken) -> Row:
    """Write id, name, digest, role, tenant, queues, creator and lifetime."""
    check_id(token.id, "token")
    _check_field(token, "name", "the token's name", limit=100)
    _check_field(token, "role", "role", limit=20)
    check_actor(token.created_by)
    _check_optional(token, "tenant")
    if type(token.digest) is not bytes or len(token.digest) != 32:
        raise BadData("a token's digest must be 32 bytes of SHA-256")
    if token.lifetime is not None:
        check_number(token.lifetime, "a token's lifetime", high=LIFETIME_LIMIT)
    with about("queues"):
        queues = None if token.queues is None else _token_queues(token.queues)
    named = (token.id, token.name, token.digest, token.role, token.tenant, queues)
    return (*named, token.created_by, token.lifetime)


def _token_queues(queues: tuple[str, ...]) -> str:
    if type(queues) is not tuple or not queues:
        raise BadData("a token's queues must be a tuple of at least one name; None is for all")
    if len(queues) > TOKEN_QUEUES_LIMIT:
        raise BadData(f"a token for {len(queues):,} queues; the limit is {TOKEN_QUEUES_LIMIT}")
    names = {check_text(queue, "a queue's name", limit=NAME_LIMIT) for queue in queues}
    return _json(sorted(names))


def webhook_row(hook: NewWebhook) -> Row:
    """Write id, tenant, url, secret, states, queue, task and creator."""
    with about("id"):
        check_id(hook.id, "webhook")
    _check_field(hook, "tenant", "tenant")
    _check_field(hook, "url", "url", limit=URL_LIMIT)
    check_text(hook.secret, "a webhook's secret", limit=NAME_LIMIT)
    check_actor(hook.created_by)
    _check_optional(hook, "queue")
    _check_optional(hook, "task")
    with about("states"):
        states = None if hook.states is None else _webhook_states(hook.states)
    named = (hook.id, hook.tenant, hook.url, hook.secret)
    return (*named, states, hook.queue, hook.task, hook.created_by)


def _webhook_states(states: frozenset[State]) -> str:
    # What is not admitted yet means approvals that are requested.
    if not states or not (TERMINAL | UNADMITTED).issuperset(states):
        ends = ", ".join(sorted(TERMINAL))
        raise BadData(f"a webhook reports ends of jobs: its states must be some of {ends}")
    return _json(sorted(state.code for state in states))


def check_webhook_key(key: tuple[str, str]) -> tuple[str, str]:
    """Check a webhook's id and tenant."""
    id, tenant = key
    return check_id(id, "webhook"), check_text(tenant, "tenant", limit=NAME_LIMIT)


def upload_row(upload: NewUpload) -> Row:
    """Write id, tenant, creator and lifetime."""
    check_id(upload.id, "upload")
    _check_field(upload, "tenant", "tenant")
    check_actor(upload.created_by)
    check_number(upload.lifetime, "an upload's lifetime", high=LIFETIME_LIMIT)
    return upload.id, upload.tenant, upload.created_by, upload.lifetime


def read_upload(row: Row) -> Upload:
    """Make an upload out of a row."""
    kept = UPLOADS.read(row)
    return replace(kept, state=UploadState(kept.state))


def reservation_row(wanted: Reservation) -> Row:
    """Write id, tenant, writer, bytes, and how long its silence and the upload last."""
    check_text(wanted.writer, "writer", limit=NAME_LIMIT)
    check_number(wanted.bytes, "bytes", low=0, high=BYTES_LIMIT)
    named = (check_id(wanted.id, "upload"), wanted.tenant, wanted.writer, wanted.bytes)
    return (*named, wanted.silent, wanted.lifetime)


def finalization_row(found: Finalization) -> Row:
    """Write id, tenant, revision, what was found, actor, request_id, two spans and writer."""
    check_actor(found.actor)
    check_number(found.files, "files", low=0)
    check_text(found.digest, "digest", limit=NAME_LIMIT)
    if found.request_id is not None:
        check_text(found.request_id, "request_id")
    named = (check_id(found.id, "upload"), found.tenant, found.rev, found.files, found.digest)
    return (*named, found.actor, found.request_id, found.silent, found.lifetime, found.writer)


def worker_row(worker: Announcement) -> Row:
    """Write name, pid, concurrency, host, lists and room."""
    check_worker_name(worker.name)
    check_text(worker.host, "host", limit=255)
    check_number(worker.pid, "pid", low=0)
    check_number(worker.concurrency, "concurrency")
    for what in ("cpus", "memory_mb", "free_cpus", "free_memory_mb"):
        if (number := getattr(worker, what)) is not None:
            check_number(number, what, low=0)
    if type(worker.capabilities) is not frozenset:
        raise BadData("capabilities must be a frozenset")
    for what in ("queues", "tasks"):
        if type(getattr(worker, what)) is not tuple:
            raise BadData(f"{what} must be a tuple")
    size = sum(
        len(check_text(name, f"a name in {what}", limit=NAME_LIMIT))
        for what in ("queues", "capabilities", "tasks")
        for name in getattr(worker, what)
    )
    if size > WORKER_NAMES_LIMIT:
        raise BadData(
            f"queues, capabilities and tasks hold {size:,} characters; the limit is "
            f"{WORKER_NAMES_LIMIT:,}"
        )
    lists = (worker.queues, sorted(worker.capabilities), worker.tasks)
    room = (worker.cpus, worker.memory_mb, worker.free_cpus, worker.free_memory_mb)
    return (worker.name, worker.pid, worker.concurrency, worker.host, *map(_json, lists), *room)


def log_row(entry: LogEntry) -> Row:
    """Write a line of a job's log."""
    check_number(entry.attempt, "attempt")
    check_number(entry.at, "at", low=0, high=LOG_TIME_LIMIT)
    check_number(entry.level, "level", low=0, high=HIGHEST_LEVEL)
    check_text(entry.message, "a line of a log", limit=LOG_TEXT, empty=True)
    return entry.id, entry.attempt, entry.at, entry.level, entry.message


def terms_rows(terms: Sequence[TaskTerms]) -> list[Row]:
    """Write names of tasks and their terms, each task once; refuse what no job could run under."""
    return list({one.task: (one.task, _terms_text(one)) for one in terms}.values())


def _terms_text(terms: TaskTerms) -> str:
    check_text(terms.task, "the task's name", limit=NAME_LIMIT)
    check_text(terms.queue, "queue", limit=NAME_LIMIT)
    if faults := policy_faults(terms.policy, bounded=False):
        raise BadData(f"task {terms.task!r}: {faults_text(faults)}")
    if len(terms.needs) > NEEDS_LIMIT:
        raise BadData(
            f"task {terms.task!r} needs {len(terms.needs):,} capabilities; the limit is "
            f"{NEEDS_LIMIT}"
        )
    for need in terms.needs:
        check_text(need, "a capability in needs", limit=NAME_LIMIT)
    return _json(terms)


def choose_terms(tasks: Sequence[str], found: Iterable[Row]) -> list[TaskTerms | None]:
    """Return the terms of each task out of rows (tenant, task, body): a tenant's own come first."""
    texts: dict[str, str] = {}
    for tenant, task, body in found:
        if tenant != ALL_TENANTS or task not in texts:
            texts[task] = body
    return [_read_terms(texts[task]) if task in texts else None for task in tasks]


def check_id(id: str, what: str) -> str:
    """Check the id of a token or webhook: ASCII, so that its order is the same everywhere."""
    check_text(id, f"the {what}'s id", limit=40)
    if not (id.isascii() and id.isalnum()):
        raise BadData(f"a {what}'s id must be ASCII letters and digits, not {id!r}")
    return id


def check_actor(actor: str) -> str:
    """Check the name of the person or program that changes something."""
    return check_text(actor, "actor", limit=NAME_LIMIT)


def check_worker_name(name: str) -> str:
    """Check the name of a worker."""
    return check_text(name, "the worker's name", limit=NAME_LIMIT)


def check_queue_move(queue: str, actor: str, reason: str | None, request_id: str | None) -> None:
    """Check what a pause or resume is entered with."""
    check_text(queue, "queue", limit=NAME_LIMIT)
    check_actor(actor)
    for name, value in (("reason", reason), ("request_id", request_id)):
        if value is not None:
            check_text(value, name)


def _check_field(record: Any, field: str, what: str, *, limit: int = NAME_LIMIT) -> None:
    with about(field):
        check_text(getattr(record, field), what, limit=limit)


def _check_optional(record: Any, field: str) -> None:
    if getattr(record, field) is not None:
        _check_field(record, field, field)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def queue_problems(queues: Sequence[QueueStatus], log: Sequence[QueueEvent]) -> list[str]:
    """Compare each queue with the last entry of the queues' ledger."""
    last = {event.queue: event for event in log}
    problems = [_queue_problem(queue, last.get(queue.name)) for queue in queues]
    known = {queue.name for queue in queues}
    lost = [
        f"queue {name!r} has entries in the queues' ledger and no row"
        for name in last
        if name not in known
    ]
    return [problem for problem in problems if problem is not None] + lost


def _queue_problem(queue: QueueStatus, last: QueueEvent | None) -> str | None:
    if last is None:
        return f"queue {queue.name!r} has no entry in the queues' ledger"
    if last.type == "paused":
        is_as_entered = (
            queue.paused_at is not None
            and abs(queue.paused_at - last.at) < APART
            and (queue.paused_by, queue.reason) == (last.actor, last.reason)
        )
    else:
        is_as_entered = (queue.paused_at, queue.paused_by, queue.reason) == (None, None, None)
    if is_as_entered:
        return None
    is_paused = "paused" if queue.paused_at is not None else "not paused"
    return f"queue {queue.name!r} is {is_paused}, its ledger has {last.type} by {last.actor!r}"


def mark_problems(marks: Iterable[tuple[int, JobId]]) -> list[str]:
    """Describe marks of jobs that are not there."""
    return [f"mark {number} is of job {id_}, which is not there" for number, id_ in marks]


def hold_problems(holds: Iterable[tuple[JobId, str]]) -> list[str]:
    """Describe holds of jobs that are not there."""
    return [f"there is a hold {hold!r} of job {id_}, which is not there" for id_, hold in holds]


def signal_problems(ids: Iterable[JobId]) -> list[str]:
    """Describe jobs that have pending signals, and count none or are not there."""
    return [f"there are pending signals of job {id_}, which counts none" for id_ in ids]


def row_problems(what: str, rows: Sequence[Row], read: Callable[[Row], Any]) -> list[str]:
    """Describe rows that cannot be read; the first column names each."""
    problems = []
    for row in rows:
        try:
            read(row)
        except (*UNREADABLE, HoldfastError) as error:
            problems.append(f"{what} {row[0]!r} cannot be read: {error}")
    return problems


def token_problems(rows: Sequence[Row]) -> list[str]:
    """Describe tokens that cannot be read, or are not what a token is."""
    problems = row_problems("token", rows, TOKENS.read)
    for row in rows:
        id_, _, digest, *rest = row
        created_at, _, expires_at, revoked_at, revoked_by = rest[-5:]
        if len(digest) != 32:
            problems.append(f"token {id_!r} has a digest of {len(digest)} bytes, not 32")
        if (revoked_at is None) != (revoked_by is None):
            problems.append(f"token {id_!r} is half revoked")
        if expires_at is not None and expires_at < created_at:
            problems.append(f"token {id_!r} expires before it was made")
    return problems


def webhook_problems(rows: Sequence[Row]) -> list[str]:
    """Describe webhooks that cannot be read, or are not what a webhook is."""
    problems = row_problems("webhook", rows, WEBHOOKS.read)
    for row in rows:
        secret, removed_at, removed_by = row[3], row[-2], row[-1]
        if (removed_at is None) != (removed_by is None):
            problems.append(f"webhook {row[0]!r} is half removed")
        if (removed_at is None) != (secret is not None):
            problems.append(f"webhook {row[0]!r} has {'a' if secret else 'no'} secret")
    return problems


def upload_problems(rows: Sequence[Row], strays: Sequence[Row]) -> list[str]:
    """Describe uploads that are not what an upload is, and such as jobs name and are gone."""
    problems = row_problems("upload", rows, read_upload)
    if problems:
        return problems
    for one in map(read_upload, rows):
        if one.created_at > one.moved_at:
            problems.append(f"upload {one.id!r} was moved before it was made")
        if one.removed_at is not None and one.bytes:
            problems.append(f"upload {one.id!r} is removed and has {one.bytes:,} bytes")
        if (one.finalized_at is None) != (one.digest is None):
            problems.append(f"upload {one.id!r} is half finalized")
    return problems + [f"upload {row[0]!r} has jobs or files and is not there" for row in strays]


def cursor_problems(rows: Sequence[Row], end: str, read: Callable[[str], Any]) -> list[str]:
    """Describe cursors that cannot be read, or are ahead of the end of the tail."""
    problems = row_problems("cursor", rows, lambda row: read(row[1]))
    return problems + [
        f"cursor {name!r} is ahead of the last event: events would be passed over"
        for name, cursor in rows
        if cursor > end
    ]
