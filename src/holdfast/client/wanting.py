"""From a call to what a server is asked for: the terms of a task at hand, or words alone."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec import Raw

from holdfast.context import Context, current_context
from holdfast.errors import BadData
from holdfast.jobs import JobHandle
from holdfast.operations import Growth, Spoken, Wanted
from holdfast.options import Backoff
from holdfast.pending import PendingHandle
from holdfast.spans import Span
from holdfast.tasks import Call
from holdfast.views import PolicyView, instant

_SAME = (
    "job_id",
    "request_id",
    "client_job_id",
    "dedupe_key",
    "unique",
    "workflow_id",
    "step_index",
    "correlation_id",
    "tenant",
    "queue",
)


def wanted_of(call: Call, traceparent: str | None) -> Wanted:
    """Tell a call as a server takes it."""
    said = call.said
    fields: dict[str, Any] = {name: said[name] for name in _SAME if name in said}
    fields |= _times(said)
    fields |= {name: dict(said[name]) for name in ("labels", "env") if name in said}
    if "priority" in said:
        fields["priority"] = str(said["priority"])
    if "needs" in said:
        fields["needs"] = tuple(sorted(said["needs"]))
    return Wanted(
        task=call.task.name,
        args=Raw(call.body),
        parent=_parent(call.parent),
        traceparent=traceparent,
        **_inherited() | _terms(call) | fields,
    )


def _terms(call: Call) -> dict[str, Any]:
    task = call.task
    if task.elsewhere:
        # Words alone: the server may know the task, and then they change what it says there.
        return _words(call.said)
    return {
        "task_version": task.version,
        "queue": task.queue,
        "priority": task.priority.value,
        "needs": tuple(sorted(task.needs)),
        "policy": PolicyView.of(call.fields.get("policy", task.policy)),
    }


def _words(said: Any) -> dict[str, Any]:
    words: dict[str, Any] = {"retries": said["retries"]} if "retries" in said else {}
    for name in ("timeout", "start_timeout"):
        if name not in said:
            continue
        if said[name] is None:
            raise BadData(f"{name} of a task that is not at hand can be changed, not taken away")
        words[name] = _spoken(said[name])
    match said.get("backoff"):
        case None:
            pass
        case Backoff(first=first, factor=factor, max=longest):
            words["backoff"] = Growth(
                first=_spoken(first), factor=float(factor), max=_spoken(longest)
            )
        case span:
            words["backoff"] = _spoken(span)
    return words


def _times(said: Any) -> dict[str, Any]:
    times: dict[str, Any] = {}
    if "delay" in said:
        times["delay"] = _spoken(said["delay"])
    if "run_at" in said:
        at = said["run_at"]
        times["run_at"] = at if isinstance(at, datetime) else instant(at)
    if "deadline" in said:
        limit = said["deadline"]
        name = "deadline_at" if isinstance(limit, datetime) else "deadline"
        times[name] = limit if isinstance(limit, datetime) else _spoken(limit)
    return times


def _spoken(span: Span) -> Spoken:
    return span.total_seconds() if isinstance(span, timedelta) else span


def _parent(parent: Any) -> str | None:
    match parent:
        case None:
            return None
        case JobHandle():
            return str(parent.record.id)
        case PendingHandle():
            return str(parent.internal_id)
        case Context():
            return str(parent.job.id)
        case str() | UUID():
            return str(parent)
        case _:
            raise BadData(f"a parent is a job, its id or a context, not {parent!r}")


def _inherited() -> dict[str, Any]:
    """Carry the correlation of the job on that runs here (B23)."""
    context = current_context.get(None)
    if context is None or context.job.correlation_id is None:
        return {}
    return {"correlation_id": context.job.correlation_id}
