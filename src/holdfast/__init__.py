"""Durable jobs for agents, commands and functions: one lifecycle, enforced by the store."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.client.client import Client
    from holdfast.context import Context
    from holdfast.durable.replay import Suspended
    from holdfast.durable.verdicts import NOT_HAPPENED, UNKNOWN, Happened
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
    from holdfast.jobs import JobHandle
    from holdfast.options import Backoff
    from holdfast.pending import PendingHandle
    from holdfast.services.failures import Failure
    from holdfast.tasks import Call, Task

__all__ = [
    "NOT_HAPPENED",
    "UNKNOWN",
    "Backoff",
    "Call",
    "Client",
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
    "StepMismatch",
    "Suspended",
    "Task",
    "TransientError",
    "ValidationError",
    "WaitTimeout",
]

__version__ = "0.1.0"

_HOMES = {
    "NOT_HAPPENED": "durable.verdicts",
    "UNKNOWN": "durable.verdicts",
    "Backoff": "options",
    "Call": "tasks",
    "Client": "client.client",
    "Context": "context",
    "Failure": "services.failures",
    "Happened": "durable.verdicts",
    "Holdfast": "app",
    "JobHandle": "jobs",
    "Suspended": "durable.replay",
    "PendingHandle": "pending",
    "Task": "tasks",
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
