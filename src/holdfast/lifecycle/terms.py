"""Terms belong to the task: which of a job's are weaker than its task's, and what replaces them.

Weaker means that the job may do what its task forbids: run again although the task is not
idempotent, be tried more often than a task that is not idempotent allows, run longer than the
task's timeout, or end without the compensation that the task has. Any other term is the
submitter's choice; where a submitter did not know the task's terms, those it did not give are the
task's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from holdfast.lifecycle.execution_policy import POLICY_SPANS, Policy
from holdfast.lifecycle.keys import has_keys
from holdfast.lifecycle.record import Created, Job
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.submission import Submission, content_digest
from holdfast.lifecycle.times import SECOND

POLICY_FIELDS = tuple(field.name for field in fields(Policy))
POLICY_SET = frozenset(POLICY_FIELDS)


class TaskTerms(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The terms of a task's jobs unless their submitter gives others; published by workers."""

    task: str
    policy: Policy
    queue: str = "default"
    priority: Priority = Priority.INTERACTIVE
    needs: frozenset[str] = frozenset()


def weaker_terms(policy: Policy, task: Policy) -> dict[str, Any]:
    """Return the terms that are weaker than the task's, with the values that they should have."""
    weaker: dict[str, Any] = {}
    if policy.idempotent and not task.idempotent:
        weaker["idempotent"] = False
    if not task.idempotent and policy.max_attempts > task.max_attempts:
        weaker["max_attempts"] = task.max_attempts
    if task.timeout is not None and (policy.timeout is None or policy.timeout > task.timeout):
        weaker["timeout"] = task.timeout
    if task.compensates and not policy.compensates:
        weaker["compensates"] = True
    return weaker


def settled_policy(policy: Policy, task: Policy, stated: Iterable[str] | None = None) -> Policy:
    """Return the policy that a job of a task runs under.

    `stated` are the fields that a submitter gave who did not know the task's terms: only these are
    its own, and all others are the task's. None: all of them are its own.
    """
    if policy == task:
        return task
    if stated is not None:
        own = POLICY_SET.intersection(stated)
        policy = replace(task, **{name: getattr(policy, name) for name in own})
    weaker = weaker_terms(policy, task)
    return replace(policy, **weaker) if weaker else policy


def corrected_policy(job: Job, created: Created, task: Policy) -> Policy | None:
    """Return the policy that a claimed job should have instead of its own; None if it is right."""
    policy = job.policy
    if policy is task or policy == task or is_compensation(job):
        # What undoes a job has the name of its task, and terms of its own.
        return None
    # What was corrected once is filled in: a later version of the task changes no job's terms.
    stated = created.stated if policy == created.policy else None
    settled = settled_policy(policy, task, stated)
    return None if settled == policy else settled


def correction_reason(before: Policy, after: Policy) -> str:
    """Return a correction in words."""
    changes = [
        f"{name} {_shown(name, getattr(before, name))} to {_shown(name, getattr(after, name))}"
        for name in POLICY_FIELDS
        if getattr(before, name) != getattr(after, name)
    ]
    return f"the task's terms: {', '.join(changes)}"


def _shown(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value / SECOND:g}s" if name in POLICY_SPANS else str(value)


def by_name(
    submission: Submission,
    terms: TaskTerms | None,
    *,
    given: Iterable[str],
    stated: tuple[str, ...] | None,
) -> Submission:
    """Return a submission by the name of a task with the terms of that task, if they are known.

    `given` are the fields of the submission and `stated` those of its policy that the submitter
    gave itself; None: all of them. A repetition is compared with what was asked for, not with what
    was filled in: the terms may have become known between the two.
    """
    if terms is None:
        return replace(submission, stated=stated)
    own = frozenset(given)
    content = submission.content
    if content is None and has_keys(submission):
        content = content_digest(submission)
    inherited = {
        name: getattr(terms, name) for name in ("queue", "priority", "needs") if name not in own
    }
    return replace(
        submission,
        policy=settled_policy(submission.policy, terms.policy, stated),
        content=content,
        stated=None,
        **inherited,
    )
