"""Submit a job by its topic: to the queue of a pool, or to a bus (A2).

A route to a queue makes a job of the task that has the topic's name. A route to a bus makes a job
whose task and queue are the topic, under the terms of the route. Either way the job keeps the pool
that it was submitted to: a change of the routes is for later jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, Raw, Struct, field

from holdfast.admission.topics import Route, Topics
from holdfast.durations import Span, WrittenSpan
from holdfast.errors import ValidationError, about
from holdfast.flow.bus_arguments import check_bus_arguments
from holdfast.flow.bus_job import bus_policy
from holdfast.flow.options import check_fields, read_deadline, read_job_options
from holdfast.flow.submit import (
    Inherited,
    JobBuilder,
    KnownTask,
    NamedTask,
    PublishedTerms,
    build_submission,
)
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY
from holdfast.lifecycle.keys import has_keys
from holdfast.lifecycle.payload import Body, check_body, decode_body
from holdfast.lifecycle.record import JobId, NewJob
from holdfast.lifecycle.states import Kind, Priority
from holdfast.lifecycle.submission import content_digest


class WantedTopic(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A job for the pool of a topic."""

    topic: str
    """Where it goes, such as `job.chat.simple`: `[topics]` has the pool of each pattern."""
    args: Annotated[Raw, Meta(extra_json_schema={"type": "object"})] = field(
        default_factory=lambda: Raw(b"{}")
    )
    """A JSON object of named arguments."""
    tenant: str | None = None
    """Only for a caller that acts for all tenants; by default the caller's own."""
    priority: Literal["critical", "interactive", "batch"] | None = None
    needs: tuple[str, ...] | None = None
    delay: WrittenSpan | None = None
    run_at: datetime | None = None
    deadline: WrittenSpan | None = None
    deadline_at: datetime | None = None
    job_id: str | None = None
    request_id: str | None = None
    client_job_id: str | None = None
    dedupe_key: str | None = None
    unique: Literal["live"] | None = None
    parent: str | None = None
    workflow_id: str | None = None
    step_index: int | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    labels: dict[str, str] | None = None
    env: dict[str, str] | None = None
    context_ptr: str | None = None
    """A pointer for the worker, such as a URI: it is carried along and never read."""
    adapter_id: str | None = None
    """Only a worker that has this adapter may claim it, unless the pool prefers it only."""


class TopicOptions(TypedDict, total=False):
    """What `submit_topic(…)` takes beside the topic and its arguments."""

    delay: Span
    run_at: datetime | int
    deadline: Span | datetime
    job_id: str
    request_id: str
    client_job_id: str
    dedupe_key: str
    unique: Literal["live"] | None
    parent: Any
    workflow_id: str
    step_index: int
    correlation_id: str
    tenant: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    context_ptr: str
    adapter_id: str
    priority: Priority | Literal["interactive", "batch", "critical"]
    needs: tuple[str, ...]


def decide_topic(
    builder: JobBuilder,
    wanted: WantedTopic,
    topics: Topics,
    *,
    tenant: str,
    task: KnownTask | None = None,
    parent_id: JobId | None = None,
    terms: PublishedTerms | None = None,
) -> NewJob:
    """Decide the job of a topic; bad data raises before anything is written.

    `task` is the one of the topic's name where it is known, and `terms` returns the published terms
    of one that is not. A repetition is compared with what was asked for, not with where it was
    sent: if a route has changed between the two, it is still the same request.
    """
    route = topics.route_or_refuse(wanted.topic)
    given = _read_options(wanted) | {"tenant": tenant}
    known = task if route.queue is not None else None
    body = _check_arguments(wanted, known, route, tenant)
    inherited = Inherited(traceparent=wanted.traceparent)
    named = NamedTask(wanted.topic)
    asked = build_submission(named, body, given, parent_id=parent_id, inherited=inherited)
    content = content_digest(asked) if has_keys(asked) else None
    return builder.decide(
        known or _named_task(wanted.topic, route),
        body,
        given | _route_fields(wanted.topic, route) | {"content": content},
        parent_id=parent_id,
        inherited=inherited,
        stated=(),
        terms=terms,
        adapter_required=route.adapter == "require",
    )


def _named_task(topic: str, route: Route) -> NamedTask:
    """Return the task of a topic that is known by name alone; on a bus it has no other terms."""
    if route.bus is None:
        return NamedTask(topic)
    return NamedTask(topic, policy=bus_policy(route), elsewhere=False)


def _route_fields(topic: str, route: Route) -> dict[str, Any]:
    if route.bus is None:
        return {"queue": route.queue}
    return {"kind": Kind.BUS, "queue": topic}


def _read_options(wanted: WantedTopic) -> dict[str, Any]:
    options: Any = {name: value for name in _COMMON if (value := getattr(wanted, name)) is not None}
    fields = read_job_options(options, DEFAULT_POLICY)
    fields |= read_deadline(wanted.deadline, wanted.deadline_at)
    check_fields(fields)
    return fields


_COMMON = (
    *("priority", "needs", "delay", "run_at", "deadline"),
    *("job_id", "request_id", "client_job_id", "dedupe_key", "unique"),
    *("workflow_id", "step_index", "correlation_id", "labels", "env"),
    *("context_ptr", "adapter_id"),
)
"""The fields that are options of any job."""


def _check_arguments(
    wanted: WantedTopic, task: KnownTask | None, route: Route, tenant: str
) -> Body:
    with about("args"):
        body = check_body(bytes(wanted.args), "args")
        if not isinstance(decode_body(body), dict):
            raise ValidationError("args must be an object of named arguments")
        if task is not None:
            task.bind(body)
        if route.bus is not None:
            check_bus_arguments(body, tenant)
        return body
