"""What was submitted: read from the ledger, compared by arguments, shown with what differs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from holdfast.app.app import Holdfast
from holdfast.lifecycle.payload import decode_body
from holdfast.tasks.handles import JobHandle
from holdfast.tasks.tasks import Task

SHOWN = 5
"""How many jobs a message lists, the closest first."""
VALUE_LIMIT = 200
_MISSING = object()


class SubmittedJob(Struct, frozen=True):
    """A job, and what its handler is called with."""

    job: JobHandle[Any]
    arguments: dict[str, Any]

    def differences(self, wanted: Mapping[str, Any]) -> list[str]:
        """List where it is not what was expected."""
        found = ((name, self.arguments.get(name, _MISSING), wanted[name]) for name in wanted)
        return [
            _difference(name, value, expected)
            for name, value, expected in found
            if value is _MISSING or value != expected
        ]


async def submitted(app: Holdfast, task: Task[..., Any] | str | None = None) -> list[SubmittedJob]:
    """List the jobs of a task, or all, in the order in which they were submitted."""
    name = task.name if isinstance(task, Task) else task
    jobs = [job async for job in app.jobs(task=name)]
    return [SubmittedJob(job, await _arguments(app, job)) for job in reversed(jobs)]


async def assert_submitted(
    app: Holdfast, task: Task[..., Any] | str, /, **arguments: Any
) -> JobHandle[Any]:
    """Return the newest job of a task that was submitted with these arguments among its own."""
    found = await submitted(app, task)
    for one in reversed(found):
        if not one.differences(arguments):
            return one.job
    raise AssertionError(await _no_such(app, _name(task), arguments, found))


async def assert_not_submitted(
    app: Holdfast, task: Task[..., Any] | str, /, **arguments: Any
) -> None:
    """Check that no job of a task was submitted with these arguments."""
    found = [one for one in await submitted(app, task) if not one.differences(arguments)]
    if found:
        raise AssertionError(f"{_call(_name(task), arguments)} was submitted:\n{_list(found, {})}")


async def _arguments(app: Holdfast, job: JobHandle[Any]) -> dict[str, Any]:
    store = await app.store()
    [first] = await store.events(job.record.id, limit=1)
    task = app.tasks.get(job.record.task)
    if task is None:
        plain = decode_body(first.body)
        return plain if isinstance(plain, dict) else {}
    args, kwargs = task.bind(first.body)
    context = (None,) if task.takes_context else ()
    signature = inspect.signature(task.fn)
    bound = signature.bind(*context, *args, **kwargs)
    bound.apply_defaults()
    return dict(list(bound.arguments.items())[len(context) :])


async def _no_such(
    app: Holdfast, task: str, wanted: Mapping[str, Any], found: list[SubmittedJob]
) -> str:
    head = f"no job {_call(task, wanted)} was submitted"
    if found:
        closest = sorted(found, key=lambda one: len(one.differences(wanted)))
        there = "is one job" if len(found) == 1 else f"are {len(found)} jobs"
        return f"{head}. There {there} of {task!r}:\n{_list(closest, wanted)}"
    others = sorted({one.job.record.task for one in await submitted(app)})
    return f"{head}, nor any of {task!r}. There are jobs of: {', '.join(others) or 'no task'}"


def _list(found: list[SubmittedJob], wanted: Mapping[str, Any]) -> str:
    lines = [
        f"  {_call(one.job.record.task, one.arguments)}  [{one.job.id}, {one.job.state}]"
        + "".join(f"\n      {text}" for text in one.differences(wanted))
        for one in found[:SHOWN]
    ]
    rest = len(found) - SHOWN
    return "\n".join([*lines, *([f"  and {rest} more"] if rest > 0 else [])])


def _difference(name: str, value: Any, wanted: Any) -> str:
    if value is _MISSING:
        return f"{name}: there is no such argument"
    return f"{name}: is {_show(value)}, not {_show(wanted)}"


def _call(task: str, arguments: Mapping[str, Any]) -> str:
    return f"{task}({', '.join(f'{name}={_show(value)}' for name, value in arguments.items())})"


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_LIMIT else text[: VALUE_LIMIT - 1] + "…"


def _name(task: Task[..., Any] | str) -> str:
    return task.name if isinstance(task, Task) else task
