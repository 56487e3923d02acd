"""What a worker elsewhere receives of a job that it claimed, and of its earlier attempts."""

from __future__ import annotations

import logging
from typing import Literal
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from holdfast.durations import Instant, instant
from holdfast.errors import LeaseConflictError, NoSuchJob, PermanentError, Refused
from holdfast.flow.claim import make_terms_correction
from holdfast.flow.command import perform
from holdfast.flow.finish import end_after_error
from holdfast.lifecycle.linked import first_job
from holdfast.lifecycle.record import SLEEP, Actor, Created, JobId
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import Priority, Role
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Claimed
from holdfast.ports.store import Store
from holdfast.tasks.context import TRACEPARENT, FencingToken
from holdfast.tasks.durable.protocol import Entry
from holdfast.tasks.durable.records import recorded_entries
from holdfast.tasks.durable.step_errors import RecordedError
from holdfast.worker.compensation import add_story
from holdfast.worker_protocol.report_commands import trouble_of
from holdfast.worker_protocol.reports import Trouble
from holdfast.worker_protocol.sessions import release_or_end

log = logging.getLogger(__name__)


class Assignment(Struct, frozen=True, kw_only=True):
    """A job that was claimed: what to do, and within what time."""

    id: str
    """The id its submitter gave, else the internal one."""
    internal_id: UUID
    """What reports name it by."""
    attempt: int
    token: str
    """For resources outside, which can refuse requests with an older one: job/epoch/attempt."""
    task: str
    args: Raw
    """The named arguments, as they were submitted; for a compensation, the history of its job."""
    tenant: str
    queue: str
    priority: Priority
    failures: int
    max_attempts: int
    recall: bool
    """Whether there is something to recall, of earlier attempts or of the job that this one
    continues from: read it before doing anything."""
    lineage: UUID
    """The first job of its line of retries and redrives. An outside effect is keyed by this and the
    step's name, `lineage/step`: the same in every attempt, retry and redrive."""
    lease_seconds: float
    """How long it is held without a report; `start` renews it."""
    heartbeat_seconds: float
    """How often to report `heartbeat` once it is started; the lease survives one that fails."""
    timeout_seconds: float | None
    """How long it may run; then stop it, and report `time_out`."""
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
    context_ptr: str | None = None
    """A pointer that the submitter gave, such as a URI, as it was given."""
    adapter_id: str | None = None
    """The adapter that the submitter asked for."""


class Recorded(Struct, frozen=True, kw_only=True):
    """What an earlier attempt did, which must not be done again."""

    kind: Literal["step", "wait", "child"]
    name: str | None
    """A step's name, or the signal's that was waited for; none for a sleep."""
    use: int
    result: Raw | None = None
    """The step's; for a wait, the payload of the signal."""
    error: Trouble | None = None
    """It failed, and the work continued."""
    timed_out: bool = False
    """A wait whose timeout came before its signal."""
    begun: int = 0
    """How often it was started, if it is not known to have ended: it may have had its effect."""


async def assign(
    store: Store, claimed: Claimed, terms: TaskTerms | None = None
) -> Assignment | None:
    """Return what a worker receives of a claim; None if the job cannot be run, and was ended.

    `terms` are those published for the job's task: weaker ones of the job are corrected first.
    """
    undoes = is_compensation(claimed.job)
    if terms is not None:
        try:
            claimed = await _correct_terms(store, claimed, terms)
        except (Refused, LeaseConflictError, NoSuchJob) as error:
            log.warning("job %s is not assigned: %s", claimed.job.public_id, error)
            await release_or_end(store, claimed.job)
            return None
    if undoes:
        try:
            claimed = await add_story(store, claimed)
        except PermanentError as error:
            await _end_unrunnable(store, claimed, error)
            return None
    job, made, policy = claimed.job, claimed.created, claimed.job.policy
    return Assignment(
        internal_id=job.id,
        id=job.public_id,
        attempt=job.attempt,
        token=str(FencingToken(job.public_id, job.epoch or 1, job.attempt)),
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
        context_ptr=made.context_ptr,
        adapter_id=made.adapter_id,
    )


async def _correct_terms(store: Store, claimed: Claimed, terms: TaskTerms) -> Claimed:
    job = claimed.job
    actor = Actor(Role.OWNER, job.owner or "", job.attempt)
    command = make_terms_correction(job, claimed.created, actor, terms.policy)
    if command is None:
        return claimed
    return claimed.with_record(await perform(store, job.id, command))


async def _end_unrunnable(store: Store, claimed: Claimed, error: PermanentError) -> None:
    """End what cannot be run: the job that it is to undo is gone, or was erased."""
    job = claimed.job
    actor = Actor(Role.OWNER, job.owner or "", job.attempt)
    command = end_after_error(job, actor, error, claimed=claimed, started=False, jitter=0.0)
    await perform(store, job.id, command)


async def read_records(store: Store, id_: JobId) -> list[Recorded]:
    """Read what a job's attempts recorded, and those of the jobs that it continues from."""
    [first] = await store.events(id_, limit=1)
    entries = await recorded_entries(store, id_, first.created or Created())
    return [_show_record(entry) for entry in entries]


def _show_record(entry: Entry) -> Recorded:
    return Recorded(
        kind=msgspec.convert(entry.kind, Literal["step", "wait", "child"]),
        name=None if entry.name == SLEEP else entry.name,
        use=entry.use,
        result=None if entry.body is None or entry.failed else Raw(entry.body),
        error=_trouble(entry.body) if entry.failed else None,
        timed_out=entry.timed_out,
        begun=entry.starts,
    )


def _trouble(body: bytes | None) -> Trouble:
    return trouble_of(msgspec.json.decode(body or b"null", type=RecordedError).report)
