"""The record of a job, its events, and what a change of it consists of."""

from __future__ import annotations

from typing import Generic, NewType, TypeAlias
from uuid import UUID

from msgspec import Struct

from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.states import (
    CLAIMABLE,
    OWNED,
    TERMINAL,
    CancelMode,
    EventType,
    Kind,
    Letter,
    Link,
    Priority,
    Retention,
    Role,
    State,
)
from holdfast.lifecycle.times import T_co, Time

JobId = NewType("JobId", UUID)
VERSION = 1
"""The version of events and records (B27): readers of version 1 ignore what they do not know."""

# gc=False, here and where these are carried: what is frozen and made of values cannot be part of a
# cycle, and the collector's walks over thousands of records cost a sixth of a commit.


class Signal(Struct, frozen=True, array_like=True, gc=False):
    """A buffered signal: its name and the revision of the event that brought it."""

    name: str
    rev: int


class Record(Struct, Generic[T_co], frozen=True, kw_only=True, gc=False):
    """A job as its events describe it. `Job` has instants, `Draft` may have symbolic times."""

    id: JobId
    tenant: str = "default"
    job_id: str | None = None
    kind: Kind = Kind.FUNCTION
    task: str = ""
    task_version: str | None = None
    """Only a worker that has the task in this version may claim it; None: in any."""
    queue: str = "default"
    priority: Priority = Priority.INTERACTIVE
    needs: frozenset[str] = frozenset()
    policy: Policy = DEFAULT_POLICY
    cpus: int | None = None
    memory_mb: int | None = None
    parent_id: JobId | None = None
    link_kind: Link | None = None
    workflow_id: str | None = None
    step_index: int | None = None
    key_kinds: int = 0
    deadline_at: T_co | None = None
    created_at: T_co

    state: State
    rev: int
    beats: int = 0
    """Heartbeats since the last event that was not a heartbeat."""
    attempt: int = 0
    failures: int = 0
    releases: int = 0
    epoch: int | None = None
    owner: str | None = None
    lease_expires_at: T_co | None = None
    timeout_at: T_co | None = None
    """When the present phase (claimed or running) times out."""
    run_at: T_co | None = None
    """When it is due; while waiting, when the wait ends by itself."""
    held_by: tuple[str, ...] = ()
    cancel_requested: CancelMode | None = None
    wait_for: str | None = None
    signals: tuple[Signal, ...] = ()
    """Signals that no wait has consumed, oldest first."""
    unread_signals: int = 0
    """How many more there are: a record may be read without them (`Jobs.get`)."""
    late_results: tuple[str, ...] = ()
    lost_owner: str | None = None
    """The last owner, if the job was taken from it: whether its run has ended is unknown. Kept
    until the next claim; a job that ends with it has `kill: unconfirmed`."""
    updated_at: T_co
    started_at: T_co | None = None
    finished_at: T_co | None = None
    result_digest: bytes | None = None
    error_code: str | None = None
    exit_code: int | None = None
    result_ptr: str | None = None
    letter: Letter | None = None
    retention: Retention = Retention.LIVE
    version: int = VERSION

    @property
    def public_id(self) -> str:
        """The job_id its submitter gave, else the text of the internal id."""
        return self.job_id or str(self.id)

    @property
    def pending_signals(self) -> int:
        """How many signals no wait has consumed."""
        return len(self.signals) + self.unread_signals

    @property
    def terminal(self) -> bool:
        """Whether the outcome is final."""
        return self.state in TERMINAL

    @property
    def owned(self) -> bool:
        """Whether a worker holds its lease."""
        return self.state in OWNED

    @property
    def claimed(self) -> bool:
        """Whether a worker holds it and has not started it."""
        return self.state is State.CLAIMED

    @property
    def running(self) -> bool:
        """Whether its handler runs."""
        return self.state is State.RUNNING

    @property
    def waiting(self) -> bool:
        """Whether a signal, a timer or its children will wake it."""
        return self.state is State.WAITING

    @property
    def succeeded(self) -> bool:
        """Whether it ended with a result."""
        return self.state is State.SUCCEEDED

    @property
    def cancelled(self) -> bool:
        """Whether it ended by a cancel."""
        return self.state is State.CANCELLED

    @property
    def timed_out(self) -> bool:
        """Whether it ended by a time limit."""
        return self.state is State.TIMED_OUT

    @property
    def claimable(self) -> bool:
        """Whether a worker may claim it once it is due."""
        return self.state in CLAIMABLE and not self.held_by and self.cancel_requested is None

    def is_ready(self: Record[int], now: int) -> bool:
        """Return whether a worker may claim it now."""
        return self.claimable and self.run_at is not None and self.run_at <= now


Job: TypeAlias = Record[int]
Draft: TypeAlias = Record[Time]


class Created(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a submit fixes; stored in the first event."""

    tenant: str = "default"
    job_id: str | None = None
    kind: Kind = Kind.FUNCTION
    task: str = ""
    task_version: str | None = None
    queue: str = "default"
    priority: Priority = Priority.INTERACTIVE
    needs: frozenset[str] = frozenset()
    policy: Policy = DEFAULT_POLICY
    cpus: int | None = None
    memory_mb: int | None = None
    parent_id: JobId | None = None
    link_kind: Link | None = None
    workflow_id: str | None = None
    step_index: int | None = None
    key_kinds: int = 0
    client_job_id: str | None = None
    dedupe_key: str | None = None
    content: bytes | None = None
    """Digest of what was asked for, which decides on a repeated key; only with keys."""
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    context_ptr: str | None = None
    adapter_id: str | None = None
    files_id: str | None = None
    """The upload that the job's files are from."""
    trace_id: str | None = None
    resumes: JobId | None = None
    """The ended job whose recorded steps, waits and children this one continues from."""
    lineage: JobId | None = None
    """The first job of a line of retries and redrives; None where this job is the first."""
    stated: tuple[str, ...] | None = None
    """The fields of `policy` that a submitter gave who did not know the terms of the task; None if
    it knew them. The first worker that claims the job fills in the others (resolution 18)."""


class KeptOutput(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What was kept of a run's log or artifacts: enough to recognise it, and not the thing."""

    digest: str
    bytes: int
    truncated: bool = False
    """Whether there was more than is kept."""


class Facts(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What an event holds beside its states, times and body. Unknown fields are ignored."""

    epoch: int | None = None
    failures: int | None = None
    releases: int | None = None
    held: str | None = None
    holds: tuple[str, ...] = ()
    """The holds that a job is born under, sorted; `held` is one that is placed later."""
    unheld: str | None = None
    cancel: CancelMode | None = None
    kill: str | None = None
    """Evidence of how a run ended: `confirmed` where its owner killed it or its host saw that
    nothing of it is left, `unconfirmed` where the owner was lost before; while it still runs, that
    it cannot be killed: `unkillable`."""
    wait_for: str | None = None
    signal: str | None = None
    consumed: int | None = None
    """The revision of the signal that this event used up."""
    timer: bool = False
    step: str | None = None
    step_use: int | None = None
    error_code: str | None = None
    exit_code: int | None = None
    result_ptr: str | None = None
    execution_ms: int | None = None
    stage: str | None = None
    letter: Letter | None = None
    retention: Retention | None = None
    late: str | None = None
    late_state: str | None = None
    last_owner: str | None = None
    link: JobId | None = None
    rule: str | None = None
    rules: str | None = None
    """The digest of all rules that the decision was made by."""
    verdict: str | None = None
    """What the rules decided at the birth of the job."""
    asked: dict[str, int | float | str | None] | None = None
    """What was asked for where the rules limited it, by the name of the limit."""
    decided_by: str | None = None
    """Who decided, where it was not the rules alone: an external kernel, or its failure."""
    approvers: tuple[str, ...] = ()
    """The roles of those who may approve, where that was decided after the birth."""
    on_expiry: str | None = None
    """What becomes of the job if nobody approves it, likewise."""
    terms: Policy | None = None
    """The terms that the job gets with its admission, where a decision limits them before it."""
    approved: str | None = None
    """The digest of the request that a person has approved."""
    worker: str | None = None
    """Who ran it, where that is not the owner (A9)."""
    log: KeptOutput | None = None
    artifacts: KeptOutput | None = None
    policy: Policy | None = None
    """The terms that the job has from this event on; all of them, so that one event suffices."""
    network: str | None = None
    """The network that a box was started with, if it has any."""


NO_FACTS = Facts()
UNKILLABLE = "unkillable"
CONFIRMED = "confirmed"
UNCONFIRMED = "unconfirmed"
PENDING_SIGNALS = 1000
"""How many signals a job keeps that no wait has consumed, unless another limit was set."""
SIGNAL_NAME = 208
"""Characters of a signal's name: those of a step's name, and the prefix `resolve:`."""
RESERVED = "holdfast:"
"""The prefix of signals that only Holdfast itself sends."""
RESOLVE = "resolve:"
"""The prefix of the signal that reports whether an interrupted step took effect."""
ANSWER = "answer:"
"""The prefix of the signal that answers a question of an agent, and of the step that asks it."""
SLEEP = RESERVED + "sleep"
"""What a sleeping job waits for: no one can send it."""
MISMATCH = RESERVED + "step_mismatch"
"""What a job waits for whose recorded steps the worker's code does not have."""
ELSEWHERE = RESERVED + "child_elsewhere"
"""What a job waits for that continues from another one: the end of that one's children."""
RECHECKS = frozenset({MISMATCH, ELSEWHERE})
"""Waits that a worker starts, not a handler: each ends by its time, and is checked again."""


class Event(Struct, Generic[T_co], frozen=True, kw_only=True, gc=False):
    """One accepted change of one job. The log of these is the authority."""

    id: JobId
    rev: int
    type: EventType
    from_state: State | None
    to_state: State
    at: T_co
    actor: str
    attempt: int = 0
    beats: int = 0
    """How many heartbeats lie between this event and the one before it."""
    request_id: str | None = None
    reason: str | None = None
    lease_expires_at: T_co | None = None
    """The lease granted; on an event that ends an ownership, the lease that ended."""
    run_at: T_co | None = None
    deadline_at: T_co | None = None
    correlation_id: str | None = None
    created: Created | None = None
    facts: Facts = NO_FACTS
    body: bytes | None = None
    """JSON text: request, result, error, step result or signal."""
    digest: bytes | None = None
    """The digest of the body; it stays when retention erases the body."""
    version: int = VERSION
    seal: bytes | None = None

    @property
    def ends(self) -> bool:
        """Whether it ended its job: a later note on the job does not end it again."""
        return self.to_state in TERMINAL and self.from_state not in TERMINAL


LoggedEvent: TypeAlias = Event[int]
DraftEvent: TypeAlias = Event[Time]


class Actor(Struct, frozen=True, gc=False):
    """Who acts, and in what capacity."""

    role: Role
    name: str
    attempt: int | None = None
    """The attempt an owner believes it is running; part of its fence."""

    @property
    def label(self) -> str:
        """How the actor is written into an event."""
        return self.name if self.role in _BY_NAME else f"{self.role}:{self.name}"


_BY_NAME = frozenset({Role.OWNER, Role.WORKER, Role.BUS, Role.HOST})
"""Roles that are written as the bare name: an owner's is the one that it claimed under."""


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """A decided write: the record it was decided on, its one event, and the record that follows.

    A store writes it where `rev` still equals `record.rev` and, if `fenced`, the lease is live.
    """

    record: Draft
    event: DraftEvent
    next: Draft
    fenced: bool = False
    submits: tuple[NewJob, ...] = ()
    """Children, a linked retry, a compensation: inserted if and only if this is accepted."""

    @property
    def id(self) -> JobId:
        """The job it changes."""
        return self.record.id

    @property
    def adopts(self) -> bool:
        """Whether it gives an owned job to another owner."""
        return self.record.owned and self.next.owned and self.next.owner != self.record.owner

    @property
    def corrects(self) -> bool:
        """Whether it changes the job's terms."""
        return self.next.policy is not self.record.policy


class Key(Struct, frozen=True, gc=False):
    """A key given by a submitter, and the digest that its body is compared by."""

    kind: int
    key: str
    digest: bytes


class NewJob(Struct, frozen=True, kw_only=True, gc=False):
    """A decided submit: the record at revision 1, its event, its keys."""

    record: Draft
    event: DraftEvent
    keys: tuple[Key, ...] = ()


class Unchanged(Struct, frozen=True, gc=False):
    """The command's effect already holds: success, without a revision or an event."""

    record: Draft


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a command is not accepted: a stable code, and a sentence for a person."""

    code: str
    message: str
