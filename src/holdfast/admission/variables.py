"""What rules may read of a job: flat, typed, and always there."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any

import msgspec

from holdfast.lifecycle.command_spec import CommandSpec
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY
from holdfast.lifecycle.record import Event, NewJob
from holdfast.lifecycle.states import BOXED, Kind, Priority, Role
from holdfast.lifecycle.times import SECOND

UNLIMITED = 2**63 - 1
"""The timeout of a job that has none: it is longer than any that a rule could name."""
TOPIC_PREFIX = "job."
"""How the tasks start that are topics, beside those of the bus."""
RISK = "risk"
"""The label with a job's risk tags, separated by commas; one by one they are `risk:TAG` labels."""
TYPES: dict[str, str] = {
    "kind": "str",
    "task": "str",
    "topic": "str",
    "queue": "str",
    "tenant": "str",
    "priority": "str",
    "labels": "map",
    "env": "map",
    "needs": "list",
    "adapter": "str",
    "command": "list",
    "image": "str",
    "network": "str",
    "cpus": "int",
    "memory_mb": "int",
    "timeout_seconds": "int",
    "retries": "int",
    "parent": "str",
    "submitter": "str",
    "submitter_role": "str",
    "risk_tags": "list",
    "body_bytes": "int",
}
"""Each variable with its type; `list` and `map` are of texts."""
_EMPTY: dict[str, Any] = {"str": "", "int": 0, "list": [], "map": {}}
DEFAULTS: dict[str, Any] = {name: _EMPTY[kind] for name, kind in TYPES.items()} | {
    "kind": Kind.FUNCTION.value,
    "queue": "default",
    "tenant": "default",
    "priority": Priority.INTERACTIVE.value,
    "timeout_seconds": UNLIMITED,
    "retries": DEFAULT_POLICY.max_attempts - 1,
    "submitter_role": Role.GATEWAY.value,
}
"""The variables of a job that asks for nothing."""
_PREFIXED = {role.value: role.value for role in Role} | {
    role.value: "" for role in (Role.OWNER, Role.WORKER, Role.BUS, Role.HOST)
}
_read_spec = msgspec.json.Decoder(CommandSpec).decode


def variables_of(job: NewJob) -> dict[str, Any]:
    """Return the variables of a new job; what it does not have is empty, or 0."""
    return event_variables(job.event)


def recorded_variables(event: Event[Any]) -> dict[str, Any]:
    """Return the variables of a recorded job as it asked, before the rules of then limited it."""
    asked: dict[str, Any] = {
        name: _EMPTY[TYPES[name]] if value is None else value
        for name, value in (event.facts.asked or {}).items()
        if name in TYPES
    }
    if "timeout_seconds" in asked:
        asked["timeout_seconds"] = ceil(asked["timeout_seconds"]) or UNLIMITED
    return event_variables(event) | asked


def event_variables(event: Event[Any]) -> dict[str, Any]:
    """Return the variables of a job as its first event has them."""
    made = event.created
    assert made is not None
    policy, labels = made.policy, made.labels
    role, submitter = split_actor(event.actor)
    found: dict[str, Any] = {
        "kind": made.kind.value,
        "task": made.task,
        "topic": made.task if _is_topic(made.kind, made.task) else "",
        "queue": made.queue,
        "tenant": made.tenant,
        "priority": made.priority.value,
        "labels": labels,
        "env": made.env,
        "needs": sorted(made.needs) if made.needs else [],
        "adapter": made.adapter_id or "",
        "command": [],
        "image": "",
        "network": "",
        "cpus": made.cpus or 0,
        "memory_mb": made.memory_mb or 0,
        # Rounded up: 0.5 seconds are not 0.
        "timeout_seconds": UNLIMITED if policy.timeout is None else -(-policy.timeout // SECOND),
        "retries": policy.max_attempts - 1,
        "parent": "" if made.link_kind is None else made.link_kind.value,
        "submitter": submitter,
        "submitter_role": role,
        "risk_tags": _list_risks(labels) if labels else [],
        "body_bytes": len(event.body or b""),
    }
    if made.kind in BOXED:
        found |= _describe_command(event.body)
    return found


def _is_topic(kind: Kind, task: str) -> bool:
    return kind is Kind.BUS or task.startswith(TOPIC_PREFIX)


def _list_risks(labels: dict[str, str]) -> list[str]:
    named = {key.removeprefix(RISK + ":") for key in labels if key.startswith(RISK + ":")}
    listed = {tag.strip() for tag in labels.get(RISK, "").split(",")}
    return sorted((named | listed) - {""})


def _describe_command(body: bytes | None) -> dict[str, Any]:
    spec = read_command(body)
    if spec is None:
        return {}
    command = spec.argv if spec.argv is not None else (spec.command,) if spec.command else ()
    return {"command": list(command), "image": spec.image or "", "network": spec.network or ""}


def read_command(body: bytes | None) -> CommandSpec | None:
    """Return what a command's body asks for; None if it cannot be read."""
    try:
        return _read_spec(body or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@lru_cache(maxsize=1024)
def split_actor(label: str) -> tuple[str, str]:
    """Return the role and the name of an actor as an event has it."""
    role, colon, name = label.partition(":")
    # Owners are written by their bare names, which may contain a colon.
    if colon and _PREFIXED.get(role):
        return role, name
    return Role.WORKER.value, label
