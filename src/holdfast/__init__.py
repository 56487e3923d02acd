"""Durable jobs for agents, commands and functions: one lifecycle, enforced by the store."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app.app import Holdfast
    from holdfast.client.client import Client
    from holdfast.errors import (
        HoldfastError,
        JobCancelled,
        JobDeadLettered,
        JobDenied,
        JobError,
        JobFailed,
        JobTimedOut,
        PermanentError,
        ResultTimeout,
        StepMismatch,
        TransientError,
        ValidationError,
        WaitTimeout,
    )
    from holdfast.flow.options import Backoff
    from holdfast.runners.command.options import Commands
    from holdfast.runners.command.profiles import AgentProfile, Secret
    from holdfast.tasks.context import Context
    from holdfast.tasks.durable.replay import Suspended
    from holdfast.tasks.durable.verdicts import NOT_HAPPENED, UNKNOWN, Happened
    from holdfast.tasks.handles import JobHandle, PendingHandle
    from holdfast.tasks.tasks import Call, Task
    from holdfast.worker.failures import Failure

__all__ = [
    "NOT_HAPPENED",
    "UNKNOWN",
    "AgentProfile",
    "Backoff",
    "Call",
    "Client",
    "Commands",
    "Context",
    "Failure",
    "Happened",
    "Holdfast",
    "HoldfastError",
    "JobCancelled",
    "JobDeadLettered",
    "JobDenied",
    "JobError",
    "JobFailed",
    "JobHandle",
    "JobTimedOut",
    "PendingHandle",
    "PermanentError",
    "ResultTimeout",
    "Secret",
    "StepMismatch",
    "Suspended",
    "Task",
    "TransientError",
    "ValidationError",
    "WaitTimeout",
]

__version__ = "0.1.0"

_HOMES = {
    "NOT_HAPPENED": "tasks.durable.verdicts",
    "UNKNOWN": "tasks.durable.verdicts",
    "AgentProfile": "runners.command.profiles",
    "Backoff": "flow.options",
    "Call": "tasks.tasks",
    "Client": "client.client",
    "Commands": "runners.command.options",
    "Context": "tasks.context",
    "Failure": "worker.failures",
    "Happened": "tasks.durable.verdicts",
    "Holdfast": "app.app",
    "JobHandle": "tasks.handles",
    "Secret": "runners.command.profiles",
    "Suspended": "tasks.durable.replay",
    "PendingHandle": "tasks.handles",
    "Task": "tasks.tasks",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the law needs no asyncio, no pydantic."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        raise ModuleNotFoundError(
            f"holdfast.{name} needs httpx: pip install 'holdfast[client]'", name=error.name
        ) from error
    return getattr(home, name)
