"""Compensations of a task, and how the job that undoes another one calls them (B28).

The worker reads the job's arguments and completed steps. Here they are undone, the last step first,
in the process in which the task's handlers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import BadTask
from holdfast.lifecycle.payload import Body, check_text
from holdfast.tasks.context import Context
from holdfast.tasks.durable.driver import call_or_run_in_thread
from holdfast.tasks.signature import NULL, Bound, Signature

STEP_NAME_LIMIT = 150
"""Characters of a step's name that leave room for the name of its compensation."""


class Done(Struct, frozen=True):
    """A step that was completed, and its result."""

    name: str
    use: int
    result: msgspec.Raw

    @property
    def undone_as(self) -> str:
        """The name of the step that undoes it."""
        return f"compensate:{self.name}:{self.use}"


class Story(Struct, frozen=True, kw_only=True):
    """What is known of the job that is undone: its arguments, and its steps, the last first."""

    arguments: msgspec.Raw
    steps: list[Done]


class Undoing:
    """What undoes a task: a function for all of it, and functions for steps by their names."""

    def __init__(
        self,
        task: Signature,
        name: str,
        whole: Callable[..., Any] | None,
        steps: Mapping[str, Callable[..., Any]],
    ) -> None:
        """Check the functions against the arguments that they will get."""
        self._whole = None if whole is None else _TaskUndo(task, name, whole)
        self._steps = {step: _StepUndo(name, step, fn) for step, fn in steps.items()}
        self.steps = frozenset(steps)
        """The names of the steps that can be undone."""

    async def run(self, ctx: Context, body: bytes | None) -> Body:
        """Undo: each completed step that has a compensation, as a step; then the whole."""
        story = msgspec.json.decode(body or b"null", type=Story)
        for done in story.steps:
            if (undo := self._steps.get(done.name)) is not None:
                await ctx.step(done.undone_as, undo.call_with(ctx, done.result))
        if self._whole is not None:
            await self._whole.call(ctx, bytes(story.arguments))
        return NULL


class _Called:
    """One compensating function."""

    def __init__(self, what: str, fn: Any) -> None:
        if not callable(fn):
            raise BadTask(f"{what} must be a function, not {fn!r}")
        self._fn: Callable[..., Any] = fn
        self._shape = Signature(what, fn, Context)
        self.names = self._shape.names

    def _bound(self, ctx: Context, body: bytes) -> Callable[[], Any]:
        arguments: Bound = self._shape.unpack(body)
        args, kwargs = arguments
        return partial(self._fn, *((ctx,) if self._shape.takes_context else ()), *args, **kwargs)


class _TaskUndo(_Called):
    """Undoes the task: takes the arguments of the task."""

    def __init__(self, task: Signature, name: str, fn: Any) -> None:
        super().__init__(f"the compensation of task {name!r}", fn)
        if set(self.names) != set(task.names):
            wanted = ", ".join(task.names) or "no arguments"
            raise BadTask(
                f"task {name!r}: its compensation must take the arguments of the task ({wanted}), "
                f"not {', '.join(self.names) or 'nothing'}"
            )

    async def call(self, ctx: Context, body: bytes) -> None:
        await call_or_run_in_thread(self._bound(ctx, body))


class _StepUndo(_Called):
    """Undoes one step: takes the result of the step."""

    def __init__(self, task: str, step: str, fn: Any) -> None:
        what = f"the compensation of step {step!r} of task {task!r}"
        super().__init__(what, fn)
        check_text(step, "a step's name in compensate_steps", limit=STEP_NAME_LIMIT)
        if len(self.names) != 1:
            raise BadTask(f"{what} takes one argument, the step's result (and ctx, if you like)")

    def call_with(self, ctx: Context, result: msgspec.Raw) -> Callable[[], Any]:
        [name] = self.names
        call = self._bound(ctx, msgspec.json.encode({name: result}))

        async def undo() -> None:
            # Its value is not used, and need not be JSON.
            await call_or_run_in_thread(call)

        return undo
