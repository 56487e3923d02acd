"""Claim: what a worker asks the store for, and what it has to settle before it runs a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.flow.submit import KnownTask
from holdfast.ids import mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.lease import shortest_grant
from holdfast.lifecycle.record import Actor, Created, Job
from holdfast.lifecycle.routes import offer
from holdfast.lifecycle.terms import corrected_policy, correction_reason
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Capacity, Claimed, ClaimRequest


def make_claim_request(
    owner: str,
    limit: int,
    *,
    queues: tuple[str, ...],
    tasks: tuple[str, ...],
    capabilities: frozenset[str],
    capacity: Capacity | None = None,
) -> ClaimRequest:
    """Return a new request for up to `limit` due jobs that a worker can run.

    Repeated under its request_id, it returns the same jobs while they are owned.
    """
    return ClaimRequest(
        request_id=mint_request(),
        owner=owner,
        queues=queues,
        limit=limit,
        tasks=tasks,
        capabilities=capabilities,
        capacity=capacity,
    )


def offers(tasks: Iterable[KnownTask]) -> tuple[str, ...]:
    """Return the tasks that a worker has, as a claim names them."""
    return tuple(sorted(offer(task.name, task.version) for task in tasks))


def shortest_lease_seconds(claimed: Sequence[Claimed]) -> float:
    """Return the shortest lease that any of these jobs is granted."""
    groups = {id(one.group): one.group for one in claimed}.values()
    return min(shortest_grant(group.like.policy) for group in groups) / SECOND


def make_terms_correction(
    job: Job, created: Created, actor: Actor, task: Policy, request_id: str | None = None
) -> c.CorrectTerms | None:
    """Return the command that gives a job its task's terms where its own are weaker."""
    policy = corrected_policy(job, created, task)
    if policy is None:
        return None
    reason = correction_reason(job.policy, policy)
    return c.CorrectTerms(actor=actor, policy=policy, reason=reason, request_id=request_id)


def release_unserved(job: Job, actor: Actor) -> c.Release:
    """Return the command for a job whose task, or its version, this worker does not have."""
    wanted = offer(job.task, job.task_version)
    return c.Release(actor=actor, reason=f"this worker has no task {wanted}", unserved=True)
