"""What a command or agent job asks for: its fields, as they are kept in the job's body."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from holdfast.lifecycle.routes import (
    AGENT_PREFIX,
    COMMAND_CAPABILITY,
    COMMAND_QUEUES,
    RUNNER_PREFIX,
)
from holdfast.lifecycle.states import Kind

CommandType = Literal["worker", "agent"]
KINDS: dict[str, Kind] = {"worker": Kind.COMMAND, "agent": Kind.AGENT}
"""The kind of job that each type is; the type is also the name of its task."""
QUEUES = COMMAND_QUEUES
CAPABILITY = COMMAND_CAPABILITY
"""What a worker must have to claim a command or agent job."""
DEFAULT_PROFILE = "default"
"""The profile of an agent that names none."""
PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
OWN_VARIABLES = "HOLDFAST_"
"""The prefix of variables that Holdfast itself gives to a command."""


class CommandSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of a command or agent job. CPUs, memory and the timeout are the job's own terms."""

    type: CommandType
    command: str | None = None
    """A shell command, run by `/bin/sh -c`."""
    argv: tuple[str, ...] | None = None
    """A program and its arguments, run without a shell. A worker job has this or `command`."""
    image: str | None = None
    files_id: str | None = None
    task: str | None = None
    context: str | None = None
    git_branch: str | None = None
    profile: str | None = None
    """An agent's profile; None is `DEFAULT_PROFILE`."""
    runner: str | None = None
    """`podman`, `sandbox` or `process`, where the submitter insists on one."""
    network: Literal["none", "host"] | None = None
    """`none`, where the rules allow it no network; None is what its profile has."""
    asked: dict[str, int] = {}
    """What was asked for beyond a limit and is granted as the limit (D2), by field."""


def needed_capabilities(runner: str | None, profile: str | None = None) -> frozenset[str]:
    """Return what a worker must have for a job: the runner that it insists on, its profile."""
    needs = {CAPABILITY}
    if runner is not None:
        needs.add(runner_capability(runner))
    if profile is not None:
        needs.add(profile_capability(profile))
    return frozenset(needs)


def runner_capability(runner: str) -> str:
    """Return the capability of a worker that has a runner."""
    return RUNNER_PREFIX + runner


def profile_capability(profile: str) -> str:
    """Return the capability of a worker that has a profile of agents."""
    return AGENT_PREFIX + profile
