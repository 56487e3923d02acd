"""Every operation has its route, its method and its command, or a reason for having none."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import typer.main

from holdfast import Client, Holdfast, JobHandle
from holdfast.cli.main import app
from holdfast.http.endpoints import ENDPOINTS
from holdfast.operations import requests as q
from holdfast.operations.local import OPERATIONS
from holdfast.operations.request import Request
from holdfast.worker_protocol.protocol import WORKER_OPERATIONS

NO_ROUTE = {
    q.AwaitEvents: "a client polls the history; a browser follows the stream of GetJobEvents",
}
BY_OTHERS = "operators use the command, programs `operations().do(…)`"
NO_METHOD = {
    q.KillJob: "over HTTP, for clients of the document of commands; others cancel",
    q.GetJobInDialect: BY_OTHERS,
    q.GetHistoryInDialect: BY_OTHERS,
    q.GetLogs: BY_OTHERS,
    q.GetOutput: "over HTTP, for clients of the document of commands",
    q.GetLineage: BY_OTHERS,
    q.GetJobEvents: "`JobHandle.events` follows a job over AwaitEvents",
    q.GetEvents: "a stream of the server; a program on a store follows jobs",
    q.ExplainPolicy: BY_OTHERS,
    q.GetPolicy: BY_OTHERS,
    q.ListPolicies: BY_OTHERS,
    q.ApplyPolicy: BY_OTHERS,
    q.ListLetters: BY_OTHERS,
    q.CountLetters: BY_OTHERS,
    q.GetLetter: BY_OTHERS,
    q.DiscardLetter: BY_OTHERS,
    q.RedriveLetters: BY_OTHERS,
    q.DiscardLetters: BY_OTHERS,
    q.GetClock: "for commands that show an age",
    q.GetStats: "for dashboards, over HTTP",
    q.AddWebhook: BY_OTHERS,
    q.ListWebhooks: BY_OTHERS,
    q.GetWebhook: BY_OTHERS,
    q.RemoveWebhook: BY_OTHERS,
    q.ListUploads: BY_OTHERS,
    q.GetUpload: BY_OTHERS,
    q.WriteUploadFile: "over HTTP; `upload` sends a directory as one archive",
    q.CreateToken: BY_OTHERS,
    q.ListTokens: BY_OTHERS,
    q.RevokeToken: BY_OTHERS,
}
NO_COMMAND = {
    q.KillJob: "over HTTP, for clients of the document of commands; others cancel",
    q.SubmitJobs: "a command submits one job",
    q.GetJobInDialect: "over HTTP, for the five seeds",
    q.GetHistoryInDialect: "over HTTP, for the five seeds",
    q.GetOutput: "`holdfast logs` shows the same lines",
    q.AwaitEvents: "`holdfast watch` shows how jobs stand, not their events",
    q.GetJobEvents: "`holdfast show` reads the history",
    q.GetEvents: "a stream of the server",
    q.GetStats: "`holdfast queues` and `holdfast workers` show the same numbers",
    q.GetWebhook: "`holdfast webhook list` shows it",
    q.WriteUploadFile: "`holdfast upload` sends one archive",
}


def kinds_built_by(function: FunctionType, owner: type | None = None) -> set[type[Request[Any]]]:
    """Return the requests that a function names, or one that it calls, as far as names show."""
    found: set[type[Request[Any]]] = set()
    seen: set[Any] = set()
    todo: list[Any] = [(function, owner)]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        for value in _referenced(*one):
            if isinstance(value, type) and issubclass(value, Request):
                found.add(value)
            elif isinstance(value, FunctionType) and value.__module__.startswith("holdfast."):
                todo.append((value, one[1]))
            elif isinstance(value, type) and value.__module__.startswith("holdfast.cli."):
                todo += [(each, value) for each in vars(value).values() if inspect.isfunction(each)]
    return found


def _referenced(function: FunctionType, owner: type | None) -> Iterator[Any]:
    names = set(_names(function.__code__))
    known = inspect.unwrap(function).__globals__
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    for name in names:
        value = known.get(name, getattr(owner, name, None))
        yield value
        if isinstance(value, ModuleType):
            yield from (getattr(value, other, None) for other in names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _names(const)


def commands(group: Any) -> Iterator[FunctionType]:
    """Yield what carries out each command."""
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from commands(command)
        else:
            yield command.callback


def methods() -> Iterator[tuple[FunctionType, type]]:
    """Yield the public methods of apps, clients and handles."""
    for owner in (Client, Holdfast, JobHandle):
        for name, method in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                yield method, owner


def missing_from(built: set[type[Request[Any]]]) -> set[type[Request[Any]]]:
    """Return the operations that are not among these."""
    return set(OPERATIONS) - built


def test_every_operation_has_its_route() -> None:
    served = {kind for endpoint in ENDPOINTS for kind in endpoint.kinds}
    assert missing_from(served) == set(NO_ROUTE)
    assert set(WORKER_OPERATIONS) <= served


def test_every_operation_has_a_method_of_an_app_a_client_or_a_handle() -> None:
    built = {kind for method, owner in methods() for kind in kinds_built_by(method, owner)}
    assert missing_from(built) == set(NO_METHOD)


def test_every_operation_has_its_command() -> None:
    built = {
        kind
        for callback in commands(typer.main.get_group(app))
        for kind in kinds_built_by(callback)
    }
    assert missing_from(built) == set(NO_COMMAND)


@pytest.mark.parametrize("reasons", [NO_ROUTE, NO_METHOD, NO_COMMAND])
def test_an_operation_that_a_surface_lacks_has_a_reason(reasons: dict[Any, str]) -> None:
    assert all(reasons.values())
