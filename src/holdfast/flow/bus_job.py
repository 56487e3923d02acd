"""Bus jobs: the terms of a topic, and a job that a client offers on a bus."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.admission.topics import Route
from holdfast.flow.options import list_adapter_needs
from holdfast.flow.submit import NamedTask, build_submission
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.record import Actor, JobId, NewJob
from holdfast.lifecycle.states import Kind, Link
from holdfast.lifecycle.submission import content_digest
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import SECOND, After, seconds
from holdfast.ports.bus import JobOffer

TIMEOUT_SECONDS = 3600.0
"""How long a job of a topic that gives no timeout may take: nothing else would end it if its worker
died, for workers on a bus need not report that they live."""
LEASE = 120 * SECOND
HEARTBEAT = 30 * SECOND
_MOST_MS = 365 * 24 * 3600 * 1000


def bus_policy(route: Route) -> Policy:
    """Return the terms of a topic's jobs, whichever way they were submitted (resolutions 5 and 6).

    A silent worker has them sent again if a try is left; without retries it ends them. A worker
    need not report its start: without a start timeout of its own, a job that was sent has as long
    as it may run.
    """
    timeout = route.timeout_seconds or TIMEOUT_SECONDS
    start = route.start_timeout_seconds or timeout
    return Policy(
        max_attempts=route.retries + 1,
        idempotent=route.idempotent,
        on_exhausted="fail",
        letter_on_fail=True,
        on_silence="stall" if route.idempotent and route.retries else "time_out",
        lease=LEASE,
        heartbeat=HEARTBEAT,
        start_timeout=max(1, seconds(start)),
        timeout=max(1, seconds(timeout)),
    )


def build_bus_job(
    offer: JobOffer,
    route: Route,
    actor: Actor,
    *,
    tenant: str,
    parent_id: JobId | None = None,
    policy: Policy | None = None,
) -> NewJob:
    """Decide the job that a client asks for; raise BadData for what cannot be kept."""
    needs = set(offer.needs)
    if offer.adapter_id is not None and route.adapter == "require":
        needs |= list_adapter_needs([offer.adapter_id])
    given: dict[str, Any] = {
        "kind": Kind.BUS,
        "queue": offer.topic,
        "job_id": offer.job_id,
        "dedupe_key": offer.idempotency_key,
        "priority": offer.priority,
        "needs": frozenset(needs),
        "policy": policy or bus_policy(route),
        "correlation_id": offer.trace_id,
        "context_ptr": offer.context_ptr,
        "adapter_id": offer.adapter_id,
        "env": dict(offer.env),
        "labels": dict(offer.labels),
        "workflow_id": offer.workflow_id,
        "step_index": offer.step_index,
    }
    if offer.deadline_ms is not None:
        given["deadline_at"] = After(min(offer.deadline_ms, _MOST_MS) * 1000)
    if parent_id is not None:
        given |= {"parent_id": parent_id, "link_kind": Link.CHILD}
    body = msgspec.json.encode(offer.rest, order="deterministic")
    submission = build_submission(NamedTask(offer.topic), body, given, tenant=tenant)
    # A repetition is recognised by what was asked for: each packet may have a trace of its own, and
    # the terms of the topic may have changed in between.
    asked = replace(submission, correlation_id=None, policy=DEFAULT_POLICY)
    return submit(replace(submission, content=content_digest(asked)), actor)
