"""Submit a command or an agent: what may be asked for, what is granted, and what is refused.

Every surface comes through here. The terms of a command are its own: it is tried once, its silence
means that it is lost, and no task of the same name changes them (D9, resolution 5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from holdfast.durations import Span, WrittenSpan
from holdfast.errors import BadData, about
from holdfast.flow.options import check_fields, read_deadline, read_job_options
from holdfast.flow.submit import Inherited, JobBuilder, NamedTask, build_submission
from holdfast.lifecycle.command_spec import (
    DEFAULT_PROFILE,
    KINDS,
    OWN_VARIABLES,
    PROFILE_NAME,
    QUEUES,
    VARIABLE_NAME,
    CommandSpec,
    CommandType,
    needed_capabilities,
)
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.holds import upload_hold
from holdfast.lifecycle.keys import has_keys
from holdfast.lifecycle.payload import Body, check_number, check_text, encode_body
from holdfast.lifecycle.record import JobId, NewJob
from holdfast.lifecycle.routes import AGENT_PREFIX
from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.submission import content_digest
from holdfast.lifecycle.times import SECOND

RunnerName = Literal["podman", "sandbox", "process"]
WITH_IMAGES: RunnerName = "podman"
"""The runner that makes boxes from images."""
ASKED_LIMIT = 1_000_000
"""More of anything is a mistake, and is refused; up to here it is limited to what is allowed."""
COMMAND_LIMIT = 10_000
"""Characters of a command, or of all its arguments together."""
PROSE_LIMIT = 100_000
"""Characters of an agent's task, and of its context."""
IMAGE_LIMIT = 500
FILES_ID_LIMIT = 100
BRANCH_LIMIT = 250
MINUTE = 60 * SECOND
COMMAND_TERMS = Policy(
    max_attempts=1,
    idempotent=False,
    on_silence="lose",
    on_exhausted="fail",
    letter_on_fail=False,
    start_timeout=10 * MINUTE,
)
"""The terms of every command, but for its timeout."""


class Allowance(NamedTuple):
    """How much of something a job gets unless it asks, and how much at most (D2)."""

    default: int
    most: int


ALLOWANCES: dict[CommandType, dict[str, Allowance]] = {
    "worker": {
        "cpus": Allowance(2, 8),
        "memory_gb": Allowance(4, 16),
        "timeout_minutes": Allowance(30, 120),
    },
    "agent": {
        "cpus": Allowance(2, 4),
        "memory_gb": Allowance(4, 8),
        "timeout_minutes": Allowance(60, 120),
    },
}
Asked = Annotated[int | UnsetType, Meta(extra_json_schema={"minimum": 1, "maximum": ASKED_LIMIT})]
"""A whole number; null is not one."""


class WantedCommand(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A command or an agent to run in a box of its own (D17). It is tried once."""

    type: CommandType
    """`worker` runs a command, `agent` an agent with a task."""
    command: str | None = None
    """A worker's command, run by `/bin/sh -c`."""
    argv: tuple[str, ...] | None = None
    """A worker's program and its arguments, run without a shell; instead of `command`."""
    image: str | None = None
    """The container image; by default the host's."""
    cpus: Asked = UNSET
    """By default 2; at most 8 for a worker, 4 for an agent. More is limited to that."""
    memory_gb: Asked = UNSET
    """By default 4; at most 16 for a worker, 8 for an agent. More is limited to that."""
    timeout_minutes: Asked = UNSET
    """By default 30 for a worker, 60 for an agent; at most 120. More is limited to that."""
    runner: RunnerName | None = None
    """What it must run in; by default the best that the host has."""
    files_id: str | None = None
    """The upload that becomes /work; the job waits until it is finalized."""
    task: str | None = None
    """What an agent is to do."""
    context: str | None = None
    """What an agent should know for it."""
    git_branch: str | None = None
    """The branch that an agent works on."""
    profile: str | None = None
    """How an agent is run: the name of a profile that a worker's host has; `default` if not set."""
    tenant: str | None = None
    """Only for a caller that acts for all tenants; by default the caller's own."""
    queue: str | None = None
    """By default `commands` for workers, `agents` for agents."""
    priority: Literal["critical", "interactive", "batch"] | None = None
    needs: tuple[str, ...] | None = None
    """Capabilities that its worker must have beside that of running commands."""
    delay: WrittenSpan | None = None
    run_at: datetime | None = None
    deadline: WrittenSpan | None = None
    deadline_at: datetime | None = None
    job_id: str | None = None
    request_id: str | None = None
    client_job_id: str | None = None
    """A UUID of version 4: as long as its job is not cleaned, a repeated submit returns it."""
    dedupe_key: str | None = None
    unique: Literal["live"] | None = None
    parent: str | None = None
    workflow_id: str | None = None
    step_index: int | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    labels: dict[str, str] | None = None
    env: dict[str, str] | None = None
    """Environment variables of the command."""
    context_ptr: str | None = None
    """A pointer that is carried along and never read; not the `context` of an agent."""
    adapter_id: str | None = None
    """Only a worker that has this adapter may claim it."""


class CommandOptions(TypedDict, total=False):
    """What `submit_command(…)` takes beside the command."""

    type: CommandType
    image: str
    cpus: int
    memory_gb: int
    timeout_minutes: int
    runner: RunnerName
    files_id: str
    task: str
    context: str
    git_branch: str
    profile: str
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
    queue: str
    priority: Priority | Literal["interactive", "batch", "critical"]
    needs: tuple[str, ...]


class Grant(Struct, frozen=True):
    """What a command gets of what it asked for."""

    cpus: int
    memory_gb: int
    timeout_minutes: int
    asked: dict[str, int]
    """What was asked for beyond a limit, by field."""


def decide_command(
    builder: JobBuilder,
    wanted: WantedCommand,
    *,
    tenant: str,
    parent_id: JobId | None = None,
    waits: bool = False,
) -> NewJob:
    """Decide the job of a command; bad data raises before anything is written.

    One that `waits` for its upload is admitted once that is finalized (D3).

    A repetition is compared with what was asked for, not with what was granted: if a limit has
    changed between the two, it is still the same request.
    """
    spec = read_spec(wanted)
    grant = read_grant(wanted)
    given = _read_options(wanted) | {"tenant": tenant, "kind": KINDS[wanted.type]}
    inherited = Inherited(traceparent=wanted.traceparent)
    asked = build_submission(
        NamedTask(wanted.type),
        _encode_spec(spec),
        given | _read_asked_terms(wanted),
        parent_id=parent_id,
        inherited=inherited,
    )
    granted: dict[str, Any] = {
        "needs": _list_needs(wanted) | given.get("needs", frozenset()),
        "cpus": grant.cpus,
        "memory_mb": grant.memory_gb * 1024,
        "policy": replace(COMMAND_TERMS, timeout=grant.timeout_minutes * MINUTE),
        "content": content_digest(asked) if has_keys(asked) else None,
    }
    if waits and wanted.files_id is not None:
        granted |= {"admitted": False, "holds": (upload_hold(wanted.files_id),)}
    return builder.decide(
        NamedTask(wanted.type, queue=QUEUES[wanted.type], elsewhere=False),
        _encode_spec(replace(spec, asked=grant.asked)),
        given | granted,
        parent_id=parent_id,
        inherited=inherited,
    )


def _list_needs(wanted: WantedCommand) -> frozenset[str]:
    profile = (wanted.profile or DEFAULT_PROFILE) if wanted.type == "agent" else None
    return needed_capabilities(_runner_of(wanted), profile)


def _runner_of(wanted: WantedCommand) -> str | None:
    """Return the runner that a command must have: one that names an image needs containers."""
    return WITH_IMAGES if wanted.runner is None and wanted.image is not None else wanted.runner


def read_grant(wanted: WantedCommand) -> Grant:
    """Return the CPUs, memory and time that a command gets: the limit, where it asks for more."""
    asked = _list_asked(wanted)
    allowed = ALLOWANCES[_check_type(wanted.type)]
    beyond = {name: value for name, value in asked.items() if value > allowed[name].most}
    granted = {
        name: min(asked.get(name, allowance.default), allowance.most)
        for name, allowance in allowed.items()
    }
    return Grant(**granted, asked=beyond)


def limits_note(wanted: WantedCommand) -> str | None:
    """Describe what was limited; None if a command gets all that it asked for."""
    grant = read_grant(wanted)
    parts = [f"{name} {value} to {getattr(grant, name)}" for name, value in grant.asked.items()]
    return f"limited {', '.join(parts)}, the most for type {wanted.type}" if parts else None


def read_spec(wanted: WantedCommand) -> CommandSpec:
    """Return what is to run, without what was granted; BadData names the field that is wrong."""
    if _check_type(wanted.type) == "worker":
        _check_worker(wanted)
    else:
        _check_agent(wanted)
    if wanted.files_id is not None:
        with about("files_id"):
            check_text(wanted.files_id, "files_id", limit=FILES_ID_LIMIT)
    if wanted.runner is not None and wanted.runner not in get_args(RunnerName):
        raise _field_error("runner", f"must be one of {', '.join(get_args(RunnerName))}")
    if wanted.image is not None and wanted.runner not in (None, WITH_IMAGES):
        raise _field_error("image", f"is for the runner {WITH_IMAGES}; {wanted.runner} has none")
    return CommandSpec(
        type=wanted.type,
        command=wanted.command,
        argv=None if wanted.argv is None else tuple(wanted.argv),
        image=None if wanted.image is None else _check_image(wanted.image),
        files_id=wanted.files_id,
        task=wanted.task,
        context=wanted.context,
        git_branch=wanted.git_branch,
        profile=wanted.profile,
        runner=wanted.runner,
    )


def _check_type(value: Any) -> CommandType:
    if value not in get_args(CommandType):
        raise _field_error("type", f"must be worker or agent, not {value!r}")
    kind: CommandType = value
    return kind


def _check_worker(wanted: WantedCommand) -> None:
    """Check that a worker has a command, and nothing of an agent's."""
    for name in ("task", "context", "git_branch", "profile"):
        if getattr(wanted, name) is not None:
            raise _field_error(name, "is for jobs of type agent; a worker has a command")
    if wanted.command is not None and wanted.argv is not None:
        raise _field_error("argv", "is given instead of a command, not beside it")
    if wanted.argv is not None:
        _check_argv(wanted.argv)
    elif wanted.command is None or not _is_written(wanted.command):
        text = "a job of type worker needs a command, or argv"
        raise BadData(text, code="missing_command", field="command")
    else:
        with about("command"):
            check_text(wanted.command, "command", limit=COMMAND_LIMIT)


def _check_argv(argv: Any) -> None:
    if isinstance(argv, str) or not isinstance(argv, tuple | list):
        raise _field_error("argv", f"must be a list of texts, not {argv!r}")
    if not argv or argv[0] == "":
        text = "argv needs a program to run"
        raise BadData(text, code="missing_command", field="argv")
    with about("argv"):
        for one in argv:
            check_text(one, "an argument in argv", limit=COMMAND_LIMIT, empty=True)
    if (length := sum(map(len, argv))) > COMMAND_LIMIT:
        text = f"has {length:,} characters; the limit is {COMMAND_LIMIT:,}"
        raise _field_error("argv", text)


def _check_agent(wanted: WantedCommand) -> None:
    """Check that an agent has a task and a branch, and no command."""
    for name in ("command", "argv"):
        if getattr(wanted, name) is not None:
            raise _field_error(name, "is for jobs of type worker; an agent has a task")
    if wanted.task is None or not _is_written(wanted.task):
        raise BadData("a job of type agent needs a task", code="missing_task", field="task")
    for name in ("task", "context"):
        if (text := getattr(wanted, name)) is not None:
            with about(name):
                check_text(text, name, limit=PROSE_LIMIT, empty=True)
    if not wanted.git_branch:
        text = "a job of type agent needs a git_branch"
        raise BadData(text, code="missing_git_branch", field="git_branch")
    with about("git_branch"):
        branch = check_text(wanted.git_branch, "git_branch", limit=BRANCH_LIMIT)
    if not _BRANCH.fullmatch(branch):
        raise _field_error("git_branch", f"is not the name of a branch: {branch!r}")
    if wanted.profile is not None:
        with about("profile"):
            profile = check_text(wanted.profile, "profile")
        if not PROFILE_NAME.fullmatch(profile):
            raise _field_error("profile", f"is not the name of a profile: {profile!r}")


def _is_written(text: Any) -> bool:
    """Return whether a text is more than blanks; what is not text is refused later."""
    return not isinstance(text, str) or bool(text.strip())


def _check_image(image: Any) -> str:
    with about("image"):
        name = check_text(image, "image", limit=IMAGE_LIMIT)
    if not _IMAGE.fullmatch(name):
        raise _field_error("image", f"is not the name of an image: {name!r}")
    return name


_IMAGE = re.compile(
    r"(?:[a-zA-Z0-9][a-zA-Z0-9.-]*(?::[0-9]{1,5})?/)?"  # the registry
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"  # the tag
    r"(?:@[a-z0-9]+:[0-9a-f]{32,128})?",  # the digest
    re.ASCII,
)
"""A reference of a container image, and nothing that a runtime could take for an option or, as in
`docker-archive:/etc/passwd`, for a file of the host."""
_BRANCH = re.compile(r"(?!-)(?!.*(?:\.\.|@\{|//))[^\s\x00-\x20\x7f~^:?*\[\\]+(?<![./])")
"""What git takes as the name of a branch, as far as it matters to a command line."""


def _list_asked(wanted: WantedCommand) -> dict[str, int]:
    """Return what was asked for by number; anything but whole numbers from 1 is refused (D2)."""
    given = {name: getattr(wanted, name) for name in ALLOWANCES["worker"]}
    asked: dict[str, int] = {}
    for name, value in given.items():
        if value is not UNSET:
            with about(name):
                asked[name] = check_number(value, name, high=ASKED_LIMIT)
    return asked


def _read_asked_terms(wanted: WantedCommand) -> dict[str, Any]:
    """Return the terms that were asked for, in place of those that are granted."""
    asked = _list_asked(wanted)
    minutes, memory = asked.get("timeout_minutes"), asked.get("memory_gb")
    timeout = None if minutes is None else minutes * MINUTE
    return {
        "cpus": asked.get("cpus"),
        "memory_mb": None if memory is None else memory * 1024,
        "policy": replace(DEFAULT_POLICY, timeout=timeout),
    }


def _read_options(wanted: WantedCommand) -> dict[str, Any]:
    """Read what a command has in common with any job."""
    options: Any = {name: value for name in _COMMON if (value := getattr(wanted, name)) is not None}
    fields = read_job_options(options, COMMAND_TERMS)
    fields |= read_deadline(wanted.deadline, wanted.deadline_at)
    if wanted.files_id is not None:
        fields["files_id"] = wanted.files_id
    check_fields(fields)
    for need in fields.get("needs", ()):
        if need.startswith(AGENT_PREFIX):
            raise _field_error("needs", f"has {need!r}; an agent names its profile by `profile`")
    for name in fields.get("env", ()):
        if not VARIABLE_NAME.fullmatch(name):
            raise _field_error("env", f"has {name!r}, which is not the name of a variable")
        if name.startswith(OWN_VARIABLES):
            raise _field_error("env", f"has {name!r}; Holdfast sets {OWN_VARIABLES}… itself")
    return fields


_COMMON = (
    *("queue", "priority", "needs", "delay", "run_at", "deadline"),
    *("job_id", "request_id", "client_job_id", "dedupe_key", "unique"),
    *("workflow_id", "step_index", "correlation_id", "labels", "env"),
    *("context_ptr", "adapter_id"),
)
"""The fields that a job of any kind has."""


def _encode_spec(spec: CommandSpec) -> Body:
    return encode_body(msgspec.to_builtins(spec), "the command")


def _field_error(field: str, text: str) -> BadData:
    return BadData(f"{field} {text}", field=field)
