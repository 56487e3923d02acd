"""Command and agent jobs as people read them: what was to run, and how it went."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from holdfast.durations import instant
from holdfast.lifecycle.command_spec import DEFAULT_PROFILE, KINDS, CommandSpec
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.times import SECOND

_KINDS = frozenset(KINDS.values())


def is_command(job: Job) -> bool:
    """Return whether a job is a command or an agent, and no function."""
    return job.kind in _KINDS


def read_spec(body: bytes | Any) -> CommandSpec | None:
    """Read the body of a command's first event, as text or decoded; None if it is erased."""
    if body is None:
        return None
    if isinstance(body, bytes):
        return msgspec.json.decode(body, type=CommandSpec)
    return msgspec.convert(body, CommandSpec)


def command_line(spec: CommandSpec) -> str | None:
    """Return the command as a shell takes it; None for an agent, which has a task."""
    return spec.command if spec.argv is None else shlex.join(spec.argv)


def render_command(job: Job, spec: CommandSpec | None, now: int) -> dict[str, Any]:
    """Return what the document of commands shows of one, beside how it stands (D17)."""
    shown = {
        "type": job.task,
        "command": None if spec is None else command_line(spec),
        "image": None if spec is None else spec.image,
        "cpus": job.cpus,
        "memory_gb": None if job.memory_mb is None else job.memory_mb // 1024,
        "created_at": _date(job.created_at),
        "started_at": _date(job.started_at),
        "completed_at": _date(job.finished_at),
    }
    if spec is not None and spec.type == "agent":
        shown |= {"task": spec.task, "context": spec.context, "git_branch": spec.git_branch}
        shown["profile"] = spec.profile or DEFAULT_PROFILE
    if job.finished_at is not None:
        return shown | {"duration_seconds": _seconds(job.started_at, job.finished_at)}
    return shown | {"elapsed_seconds": _seconds(job.started_at, now)}


def _date(time: int | None) -> str | None:
    return None if time is None else msgspec.to_builtins(instant(time))


def _seconds(start: int | None, end: int) -> int | None:
    return None if start is None else max(0, end - start) // SECOND
