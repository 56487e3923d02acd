"""What a worker elsewhere is told of a job that it claimed, and of its earlier attempts."""

from __future__ import annotations

import logging
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.context import TRACEPARENT, Token
from holdfast.durable.failures import Failure
from holdfast.durable.messages import Entry
from holdfast.durable.records import recorded_entries
from holdfast.errors import LeaseConflictError, NoSuchJob, PermanentError, Refused
from holdfast.flow.finish import after_error
from holdfast.flow.perform import perform
from holdfast.http.words import Trouble
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import SLEEP, Actor, Created, JobId
from holdfast.lifecycle.linked import first_job
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import Priority, Role
from holdfast.lifecycle.terms import TaskTerms, corrected_policy, correction_reason
from holdfast.lifecycle.times import SECOND
from holdfast.ports import Claimed, Store
from holdfast.services.leaving import give_back
from holdfast.services.retelling import retold
from holdfast.views import Instant, instant

log = logging.getLogger(__name__)


class Assignment(Struct, frozen=True, kw_only=True):
    """A job that was claimed: what to do, and within what time."""

    id: str
    """The id its submitter gave, else the internal one."""
    internal_id: UUID
    """What reports name it by."""
    attempt: int
    token: str
    """For resources outside, which can refuse whatever carries an older one: job/epoch/attempt."""
    task: str
    args: Raw
    """The named arguments, as they were submitted; of a compensation, the story of its job."""
    tenant: str
    queue: str
    priority: Priority
    failures: int
    max_attempts: int
    recall: bool
    """Whether there is something to recall, of earlier attempts or of the job that this one
    continues from: ask for it before doing anything."""
    lineage: UUID
    """The first job of its line of retries and redrives. An outside effect is keyed by this and the
    step's name, `lineage/step`: the same in every attempt, retry and redrive."""
    lease_seconds: float
    """How long it is held without a word; `start` counts anew."""
    heartbeat_seconds: float
    """How often to say `heartbeat` once it is started; two that fail are one too many."""
    timeout_seconds: float | None
    """How long it may run; then it is to be stopped, and `time_out` to be said."""
    deadline_at: Instant | None
    created_at: Instant
    correlation_id: str | None
    traceparent: str | None
    workflow_id: str | None
    parent_id: UUID | None
    compensates: UUID | None
    """The job that this one undoes."""
    labels: dict[str, str]
    env: dict[str, str]


class Recorded(Struct, frozen=True, kw_only=True):
    """What an earlier attempt did, which is not to be done again."""

    kind: Literal["step", "wait", "child"]
    name: str | None
    """A step's name, or the signal's that was waited for; none for a sleep."""
    use: int
    result: Raw | None = None
    """The step's; of a wait, what the signal brought."""
    error: Trouble | None = None
    """It failed, and the work went on."""
    timed_out: bool = False
    """A wait whose time came first."""
    begun: int = 0
    """How often it was begun, if it is not known to have ended: it may have had its effect."""


async def assign(
    store: Store, claimed: Claimed, terms: TaskTerms | None = None
) -> Assignment | None:
    """Tell a worker what it claimed; None where that cannot be told, and was ended instead.

    `terms` are those that were published of the job's task: weaker ones are corrected first.
    """
    undoes = is_compensation(claimed.job)
    if terms is not None:
        try:
            claimed = await _corrected(store, claimed, terms)
        except (Refused, LeaseConflictError, NoSuchJob) as error:
            log.warning("job %s is not given out: %s", claimed.job.public_id, error)
            await give_back(store, claimed.job)
            return None
    if undoes:
        try:
            claimed = await retold(store, claimed)
        except PermanentError as error:
            await _end(store, claimed, error)
            return None
    job, made, policy = claimed.job, claimed.created, claimed.job.policy
    return Assignment(
        internal_id=job.id,
        id=job.public_id,
        attempt=job.attempt,
        token=str(Token(job.public_id, job.epoch or 1, job.attempt)),
        task=job.task,
        args=Raw(claimed.body or b"null"),
        tenant=job.tenant,
        queue=job.queue,
        priority=job.priority,
        failures=job.failures,
        max_attempts=policy.max_attempts,
        recall=job.attempt > 1 or made.resumes is not None,
        lineage=first_job(job, made),
        lease_seconds=policy.lease / SECOND,
        heartbeat_seconds=policy.heartbeat / SECOND,
        timeout_seconds=None if policy.timeout is None else policy.timeout / SECOND,
        deadline_at=None if job.deadline_at is None else instant(job.deadline_at),
        created_at=instant(job.created_at),
        correlation_id=claimed.correlation_id,
        traceparent=made.env.get(TRACEPARENT),
        workflow_id=job.workflow_id,
        parent_id=None if undoes else job.parent_id,
        compensates=job.parent_id if undoes else None,
        labels=made.labels,
        env={name: value for name, value in made.env.items() if name != TRACEPARENT},
    )


async def _corrected(store: Store, claimed: Claimed, terms: TaskTerms) -> Claimed:
    job = claimed.job
    policy = corrected_policy(job, claimed.created, terms.policy)
    if policy is None:
        return claimed
    command = c.CorrectTerms(
        actor=Actor(Role.OWNER, job.owner or "", job.attempt),
        policy=policy,
        reason=correction_reason(job.policy, policy),
    )
    return replace(claimed, job=await perform(store, job.id, command))


async def _end(store: Store, claimed: Claimed, error: PermanentError) -> None:
    """End what nobody can do: the job that it is to undo is gone, or was erased."""
    job = claimed.job
    actor = Actor(Role.OWNER, job.owner or "", job.attempt)
    command = after_error(job, actor, error, claimed=claimed, started=False, jitter=0.0)
    await perform(store, job.id, command)


async def recorded(store: Store, id_: JobId) -> list[Recorded]:
    """Read what a job's attempts recorded, and those of the jobs that it continues from."""
    [first] = await store.events(id_, limit=1)
    entries = await recorded_entries(store, id_, first.created or Created())
    return [_recorded(entry) for entry in entries]


def _recorded(entry: Entry) -> Recorded:
    return Recorded(
        kind=msgspec.convert(entry.kind, Literal["step", "wait", "child"]),
        name=None if entry.name == SLEEP else entry.name,
        use=entry.use,
        result=None if entry.body is None or entry.failed else Raw(entry.body),
        error=_trouble(entry.body) if entry.failed else None,
        timed_out=entry.timed_out,
        begun=entry.begun,
    )


def _trouble(body: bytes | None) -> Trouble:
    return Trouble.of(msgspec.json.decode(body or b"null", type=Failure).report)
