"""Routes: which jobs a worker may claim by its tasks, and which needs are a runner's.

A worker offers tasks, each as `name` or `name@version`. A job has one route, its task and version.
A job without a version may go to every worker that has the task; one with a version only to a
worker that has the task in that version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from holdfast.errors import BadData
from holdfast.lifecycle.payload import check_text

VERSION_LIMIT = 64
VERSION_PATTERN = f"[A-Za-z0-9._+-]{{1,{VERSION_LIMIT}}}"
_VERSION = re.compile(VERSION_PATTERN)
COMMAND_CAPABILITY = "command"
"""What a worker has that runs commands and agents; they need it."""
RUNNER_PREFIX = "runner:"
"""Before the name of a runner, the capability of a worker that has it."""
AGENT_PREFIX = "agent:"
"""Before the name of a profile of agents, the capability of a worker that has it."""
ADAPTER_PREFIX = "adapter:"
"""Before the id of an adapter, the capability of a worker that has it (A5)."""
COMMAND_QUEUES = {"worker": "commands", "agent": "agents"}
"""The queue of commands of each type, unless a submitter names another."""


def check_task(name: Any, what: str = "the name") -> str:
    """Check the name of a task, offered or submitted: the @ separates it from its version."""
    check_text(name, what, limit=200)
    if "@" in name:
        raise BadData(f"{what} {name!r} must not contain '@'; give the version by version=…")
    return str(name)


def check_version(value: Any, what: str) -> str:
    """Check the version of a task."""
    check_text(value, what, limit=VERSION_LIMIT)
    if _VERSION.fullmatch(value) is None:
        raise BadData(
            f"{what} must consist of letters, digits and . _ + -, not {value!r}: "
            "for example '2' or '2024.1'"
        )
    return str(value)


def route(task: str, version: str | None) -> str:
    """Return the route of a job. The schema computes the same for its index."""
    return f"{task}@{version or ''}"


def offer(task: str, version: str | None) -> str:
    """Return a task as a worker offers it."""
    return task if version is None else f"{task}@{version}"


def is_storable(name: str) -> bool:
    """Return whether a store can hold a name; no job has one that it cannot."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False


@lru_cache(maxsize=256)
def offered_routes(offers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the routes of the jobs that a worker with these offers may claim, sorted."""
    routes = set()
    for one in filter(is_storable, offers):
        task, has_version, version = one.rpartition("@")
        if has_version:
            routes.add(route(task, version))
        routes.add(route(task or one, None))
    return tuple(sorted(routes))


def is_offered(offers: Iterable[str], task: str, version: str | None) -> bool:
    """Return whether a worker with these offers may claim a job of this task and version."""
    wanted = offer(task, version)
    return any(
        one == wanted or (version is None and one.rpartition("@")[0] == task) for one in offers
    )


def is_runner_need(need: str) -> bool:
    """Return whether a job needs this in order to run in a box, and not for its own sake."""
    return need == COMMAND_CAPABILITY or need.startswith((RUNNER_PREFIX, AGENT_PREFIX))
