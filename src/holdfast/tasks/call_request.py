"""A call of a task as a server accepts it: with the terms of a known task, or by name alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Raw

from holdfast.durations import instant, written_span
from holdfast.errors import BadData
from holdfast.flow.options import Backoff, check_known
from holdfast.flow.submit import Inherited
from holdfast.flow.submit_command import CommandOptions, WantedCommand
from holdfast.flow.submit_topic import TopicOptions, WantedTopic
from holdfast.lifecycle.payload import encode_body
from holdfast.operations.requests import Growth, WantedJob
from holdfast.operations.views import PolicyView
from holdfast.tasks.context import Context, current_context
from holdfast.tasks.handles import JobHandle, PendingHandle
from holdfast.tasks.tasks import Call

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
    "context_ptr",
    "adapter_id",
)
_OF_COMMANDS = frozenset(
    {
        *("type", "image", "cpus", "memory_gb", "timeout_minutes", "runner", "files_id"),
        *("task", "context", "git_branch", "profile"),
    }
)


def build_wanted_job(call: Call, traceparent: str | None) -> WantedJob:
    """Return a call as a server takes it."""
    return WantedJob(
        task=call.task.name,
        args=Raw(call.body),
        parent=_parent_id_text(call.parent),
        traceparent=traceparent,
        **_read_inherited() | _build_terms(call) | _build_common(call.options),
    )


def build_wanted_command(
    command: str | Sequence[str] | None, options: CommandOptions, inherited: Inherited
) -> WantedCommand:
    """Return a command as a server takes it; it checks the values."""
    _check_command_options(options)
    fields: dict[str, Any] = {name: one for name, one in options.items() if name in _OF_COMMANDS}
    fields |= _build_common(options)
    if isinstance(command, str):
        fields["command"] = command
    elif command is not None:
        fields["argv"] = tuple(command)
    fields.setdefault("type", "worker")
    fields.setdefault("correlation_id", inherited.correlation_id)
    return WantedCommand(
        parent=_parent_id_text(options.get("parent")),
        traceparent=inherited.traceparent,
        **fields,
    )


def build_wanted_topic(
    topic: str, args: Mapping[str, Any], options: TopicOptions, inherited: Inherited
) -> WantedTopic:
    """Return a job of a topic as a server takes it; it checks the values."""
    check_known(options, TopicOptions)
    if not isinstance(args, Mapping):
        raise BadData(f"args must be a mapping of named arguments, not {args!r}", field="args")
    fields = _build_common(options)
    fields.setdefault("correlation_id", inherited.correlation_id)
    return WantedTopic(
        topic=topic,
        args=Raw(encode_body(dict(args), "args")),
        parent=_parent_id_text(options.get("parent")),
        traceparent=inherited.traceparent,
        **fields,
    )


def _check_command_options(options: CommandOptions) -> None:
    if "retries" in options:
        raise BadData(
            "a command has no retries: it is tried once; redrive it after a failure",
            field="retries",
        )
    check_known(options, CommandOptions)


def _build_common(options: Any) -> dict[str, Any]:
    """Return the options that any job may have."""
    fields = {name: options[name] for name in _SAME if name in options}
    fields |= _build_times(options)
    fields |= {name: dict(options[name]) for name in ("labels", "env") if name in options}
    if "priority" in options:
        fields["priority"] = str(options["priority"])
    if "needs" in options:
        fields["needs"] = tuple(sorted(options["needs"]))
    return fields


def _build_terms(call: Call) -> dict[str, Any]:
    task = call.task
    if task.elsewhere:
        # The server may know the task: then the options change its terms there.
        return _build_changed_terms(call.options)
    return {
        "task_version": task.version,
        "queue": task.queue,
        "priority": task.priority.value,
        "needs": tuple(sorted(task.needs)),
        "policy": PolicyView.of(call.fields.get("policy", task.policy)),
    }


def _build_changed_terms(options: Any) -> dict[str, Any]:
    terms: dict[str, Any] = {"retries": options["retries"]} if "retries" in options else {}
    for name in ("timeout", "start_timeout"):
        if name not in options:
            continue
        if options[name] is None:
            raise BadData(f"{name} of a task that is not known here can be changed, not removed")
        terms[name] = written_span(options[name])
    match options.get("backoff"):
        case None:
            pass
        case Backoff(first=first, factor=factor, max=longest):
            terms["backoff"] = Growth(
                first=written_span(first), factor=float(factor), max=written_span(longest)
            )
        case span:
            terms["backoff"] = written_span(span)
    return terms


def _build_times(options: Any) -> dict[str, Any]:
    times: dict[str, Any] = {}
    if "delay" in options:
        times["delay"] = written_span(options["delay"])
    if "run_at" in options:
        at = options["run_at"]
        times["run_at"] = at if isinstance(at, datetime) else instant(at)
    if "deadline" in options:
        limit = options["deadline"]
        name = "deadline_at" if isinstance(limit, datetime) else "deadline"
        times[name] = limit if isinstance(limit, datetime) else written_span(limit)
    return times


def _parent_id_text(parent: Any) -> str | None:
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
            raise BadData(f"a parent must be a job, its id or a context, not {parent!r}")


def _read_inherited() -> dict[str, Any]:
    """Pass on the correlation of the job that runs here (B23)."""
    correlation_id = read_correlation()
    return {} if correlation_id is None else {"correlation_id": correlation_id}


def read_correlation() -> str | None:
    """Return the correlation of the job that runs here."""
    context = current_context.get(None)
    return None if context is None else context.job.correlation_id
