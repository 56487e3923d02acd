"""Submit through the SQL function `holdfast_submit`, in the transaction of its caller.

What the function takes and answers, as text, for any driver that calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from holdfast.lifecycle.execution_policy import needs_key, needs_text, policy_key, policy_text
from holdfast.lifecycle.keys import Existing, KeyHolder, KeyPlan, KeyRefusal, KeyVerdict
from holdfast.lifecycle.record import JobId, NewJob
from holdfast.lifecycle.times import encode
from holdfast.ports.models import SubmitRefused
from holdfast.stores.columns import created_text, tuple_text
from holdfast.stores.outcomes import Enlisted, refused_as_purged, refused_by_key
from holdfast.stores.postgres.schema import DEFAULT_SCHEMA, quoted
from holdfast.stores.sql_files import blocks

PACKAGE = "holdfast.stores.postgres"


class HeldKey(Struct, frozen=True, kw_only=True):
    """A key of a job, or its job_id if that is an internal id, that belongs to another job."""

    id: UUID
    digest: str | None = None
    kind: int = 0
    job_id: str | None = None


class SubmitAnswer(Struct, frozen=True, kw_only=True):
    """What the function returns."""

    held: dict[str, list[HeldKey]] = {}
    refers: dict[str, HeldKey] = {}


@cache
def enlist_sql(parameter: str, schema: str = DEFAULT_SCHEMA) -> str:
    """Write the statement with a parameter as the caller's driver writes it.

    It names the schema: the caller's search_path may lead anywhere.
    """
    text = blocks(PACKAGE, "enlist.sql")["enlist"].partition("\n")[2]
    return text.replace(":schema", quoted(schema)).replace("$1", parameter)


_encode = msgspec.json.Encoder().encode
_read_answer = msgspec.json.Decoder(SubmitAnswer).decode


def dictionary_keys(job: NewJob) -> tuple[int, int]:
    """Name the policy and the needs of a job."""
    return policy_key(job.record.policy), needs_key(job.record.needs)


def enlist_text(jobs: Sequence[NewJob]) -> str:
    """Write decided jobs as the function takes them."""
    policies = {policy_key(job.record.policy): job.record.policy for job in jobs}
    needs = {needs_key(job.record.needs): job.record.needs for job in jobs if job.record.needs}
    asked = {
        "jobs": [_job_as_json(job, refers_to) for job, refers_to in _with_ids(jobs)],
        "keys": [key for job in jobs for key in _keys_as_json(job)],
        "policies": [
            {
                "id": key,
                "body": policy_text(policy).decode(),
                "lease": policy.lease,
                "running_lease": policy.running_lease,
                "start_timeout": policy.start_timeout,
            }
            for key, policy in policies.items()
        ],
        "needs": [{"id": key, "body": needs_text(value).decode()} for key, value in needs.items()],
    }
    return _encode(asked).decode()


def _with_ids(jobs: Sequence[NewJob]) -> list[tuple[NewJob, UUID | None]]:
    return [(job, next((id_ for _, id_ in KeyPlan([job]).as_ids()), None)) for job in jobs]


def _job_as_json(job: NewJob, refers_to: UUID | None) -> dict[str, Any]:
    record, event = job.record, job.event
    return {
        "id": record.id,
        "refers_to": refers_to,
        "tenant": record.tenant,
        "task": record.task,
        "task_version": record.task_version,
        "queue": record.queue,
        "state": record.state.code,
        "kind": record.kind.code,
        "priority": record.priority.code,
        "needs": needs_key(record.needs),
        "policy": policy_key(record.policy),
        "cpus": record.cpus,
        "memory_mb": record.memory_mb,
        "job_id": record.job_id,
        "parent_id": record.parent_id,
        "link_kind": record.link_kind and record.link_kind.code,
        "workflow_id": record.workflow_id,
        "step_index": record.step_index,
        "key_kinds": record.key_kinds,
        "held_by": tuple_text(record.held_by),
        "run_at": encode(event.run_at),
        "deadline_at": encode(event.deadline_at),
        "actor": event.actor,
        "request_id": event.request_id,
        "reason": event.reason,
        "correlation_id": event.correlation_id,
        "data": created_text(event),
        "body": None if event.body is None else event.body.decode(),
        "digest": None if event.digest is None else event.digest.hex(),
    }


def _keys_as_json(job: NewJob) -> list[dict[str, Any]]:
    record = job.record
    return [
        {
            "tenant": record.tenant,
            "kind": key.kind,
            "key": key.key,
            "id": record.id,
            "digest": key.digest.hex(),
        }
        for key in job.keys
    ]


def read_outcomes(jobs: Sequence[NewJob], text: str) -> list[Enlisted | SubmitRefused]:
    """Read what the function answered, in the order of the jobs."""
    answer = _read_answer(text)
    names = {job.record.id: job.record.public_id for job in jobs}
    for one in (*answer.refers.values(), *(one for held in answer.held.values() for one in held)):
        if one.job_id is not None:
            names[JobId(one.id)] = one.job_id
    return [_read_outcome(job, answer, names) for job in jobs]


def _read_outcome(
    job: NewJob, answer: SubmitAnswer, names: dict[JobId, str]
) -> Enlisted | SubmitRefused:
    match _read_verdict(job, answer):
        case None:
            id_ = job.record.id
            return Enlisted(id=id_, job_id=names[id_], created=True)
        case Existing(id=id_):
            if id_ not in names:
                # A key is committed with its job: where that has no row, it was purged.
                return refused_as_purged(id_)
            return Enlisted(id=id_, job_id=names[id_], created=False)
        case KeyRefusal() as refusal:
            return refused_by_key(refusal)


def _read_verdict(job: NewJob, answer: SubmitAnswer) -> KeyVerdict:
    plan, id_ = KeyPlan([job]), str(job.record.id)
    if (refers := answer.refers.get(id_)) is not None:
        plan.refers(job, refers.id, None if refers.digest is None else _bytes(refers))
    keys = {key.kind: (job.record.tenant, key.kind, key.key) for key in job.keys}
    plan.held({keys[one.kind]: KeyHolder(one.id, _bytes(one)) for one in answer.held.get(id_, ())})
    return plan.verdict(job)


def _bytes(one: HeldKey) -> bytes:
    return bytes.fromhex(one.digest or "")
