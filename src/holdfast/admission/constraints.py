"""Limit a new job to what its rule allows: never looser than it was asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.admission.book import Constraints
from holdfast.admission.variables import read_command
from holdfast.lifecycle.derive import born
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Created, DraftEvent, NewJob
from holdfast.lifecycle.states import BOXED, Priority
from holdfast.lifecycle.times import SECOND

Asked = dict[str, int | float | str | None]
"""What was asked for where it was limited, by the name of the variable."""


class Limited(NamedTuple):
    """A job within its limits, and what it had asked for."""

    job: NewJob
    asked: Asked


def limit(job: NewJob, constraints: Constraints) -> Limited:
    """Return a new job within its limits. Its keys keep the digest of what was asked for."""
    event, made = job.event, job.event.created
    assert made is not None
    asked: Asked = {}
    policy = _limit_policy(made.policy, constraints, asked)
    changes = _limit_room(made, constraints, asked)
    stated = _state(made, constraints)
    if policy is not made.policy or stated != made.stated:
        changes |= {"policy": policy, "stated": stated}
    body = _limit_body(event, made, constraints, asked)
    if not changes and body is None:
        return Limited(job, asked)
    event = replace(event, created=replace(made, **changes))
    if body is not None:
        event = replace(event, body=body, digest=digest(body))
    return Limited(replace(job, event=event, record=born(event)), asked)


def _limit_policy(policy: Policy, constraints: Constraints, asked: Asked) -> Policy:
    changes: dict[str, Any] = {}
    if constraints.timeout_seconds is not None:
        most = max(1, round(constraints.timeout_seconds * SECOND))
        if policy.timeout is None or policy.timeout > most:
            asked["timeout_seconds"] = None if policy.timeout is None else policy.timeout / SECOND
            changes["timeout"] = most
    if constraints.retries is not None and policy.max_attempts > constraints.retries + 1:
        asked["retries"] = policy.max_attempts - 1
        changes["max_attempts"] = constraints.retries + 1
    return replace(policy, **changes) if changes else policy


def _state(made: Created, constraints: Constraints) -> tuple[str, ...] | None:
    """Return which terms are fixed: a worker that fills in the others must not undo a limit.

    Also one that is within its limit: the task's own may be beyond it.
    """
    if made.stated is None:
        return None
    limits = {"timeout": constraints.timeout_seconds, "max_attempts": constraints.retries}
    limited = {name for name, most in limits.items() if most is not None}
    return (*made.stated, *sorted(limited - set(made.stated)))


def state_retries(job: NewJob) -> NewJob:
    """Return a new job whose retries its worker does not raise: a later decision may limit them."""
    made = job.event.created
    assert made is not None
    if made.stated is None or "max_attempts" in made.stated:
        return job
    made = replace(made, stated=(*made.stated, "max_attempts"))
    event = replace(job.event, created=made)
    return replace(job, event=event, record=born(event))


def _limit_room(made: Created, constraints: Constraints, asked: Asked) -> dict[str, Any]:
    """Return the CPUs, memory and priority that are limited.

    Only what runs in a box gets room that it did not ask for: a function has its worker's.
    """
    changes: dict[str, Any] = {}
    for name in ("cpus", "memory_mb"):
        most, value = getattr(constraints, name), getattr(made, name)
        missing = value is None and made.kind in BOXED
        if most is not None and (missing or (value is not None and value > most)):
            asked[name] = value
            changes[name] = most
    if constraints.priority is not None:
        best = Priority.named(constraints.priority)
        if made.priority.code < best.code:
            asked["priority"] = made.priority.value
            changes["priority"] = best
    return changes


def _limit_body(
    event: DraftEvent, made: Created, constraints: Constraints, asked: Asked
) -> bytes | None:
    """Return the body of a command that gets no network; None if it stays as it is."""
    if constraints.network != "none" or made.kind not in BOXED:
        return None
    spec = read_command(event.body)
    if spec is None or spec.network == "none":
        return None
    asked["network"] = spec.network
    return msgspec.json.encode(replace(spec, network="none"))
