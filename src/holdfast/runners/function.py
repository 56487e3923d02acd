"""Handlers in the worker's own process: `async def` on its event loop, `def` in threads.

`TaskRunner` is what all runners of Python functions have in common: the tasks, the handler's
context, the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from msgspec import Struct

from holdfast.flow.claim import offers
from holdfast.flow.finish import end_after_return
from holdfast.lifecycle.commands import Complete
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import Link
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.runner import KILL_PATIENCE_SECONDS, Attempt
from holdfast.tasks.context import Context, current_context
from holdfast.tasks.tasks import Mode, Task

# Named once: reading a member off an enum's class costs as much as a call (Python 3.11).
_ASYNC, _COMPENSATION = Mode.ASYNC, Link.COMPENSATION


class HandlerCall(Struct, gc=False):
    """One call of a handler: its task, its context and its arguments."""

    task: Task[Any, Any]
    ctx: Context
    body: bytes | None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    compensates: bool = False
    """Whether the task's compensations are called, in place of its function."""


class TaskRunner:
    """Finds and binds the tasks of some modes; a subclass runs them."""

    kill_patience_seconds = KILL_PATIENCE_SECONDS
    observes_exits = False
    modes: frozenset[Mode]

    def __init__(self, tasks: Mapping[str, Task[Any, Any]]) -> None:
        """Run tasks of this registry; more may be added to it later."""
        self._tasks = tasks
        self._offers: tuple[str, ...] = ()
        self._known = 0

    def _own(self) -> list[Task[Any, Any]]:
        return [task for task in self._tasks.values() if task.mode in self.modes]

    def offers(self) -> tuple[str, ...]:
        """Return the tasks of its modes; see `Runner.offers`."""
        if self._known != len(self._tasks):
            self._known = len(self._tasks)
            self._offers = offers(self._own())
        return self._offers

    def published(self) -> list[TaskTerms]:
        """Return the terms of its tasks; see `Runner.published`."""
        return [task.published for task in self._own()]

    def find(self, job: Job) -> Task[Any, Any] | None:
        """Return a job's task, if it is there in the job's version and of one of its modes."""
        task = self._tasks.get(job.task)
        if task is None or task.mode not in self.modes:
            return None
        return task if job.task_version in (None, task.version) else None

    def bind(self, task: Task[Any, Any], attempt: Attempt) -> HandlerCall:
        """Validate the arguments, and make the context that the handler sees."""
        claimed = attempt.claimed
        like = claimed.group.like
        undoes = like.link_kind is _COMPENSATION
        args, kwargs = ((), {}) if undoes else task.bind(claimed.body)
        ctx = Context(
            claimed, attempt, attempt=like.attempt, epoch=like.epoch or 1, ends_at=attempt.ends_at
        )
        current_context.set(ctx)
        return HandlerCall(task, ctx, claimed.body, args, kwargs, undoes)

    def prepare(self, call: HandlerCall) -> None:
        """Do nothing: a handler needs nothing before it is started."""

    def stop(self, call: HandlerCall, reason: str) -> None:
        """Ask the handler to stop, by its context."""
        call.ctx.cancelled.set(reason)

    def kill(self, call: HandlerCall) -> None:
        """Have the handler's durable calls know that it is being killed."""
        call.ctx.cancelled.killed = True

    def collect(self, call: HandlerCall, value: object, actor: Actor) -> Complete:
        """Write the result as JSON."""
        return end_after_return(actor, value, call.task.pack_result, call.task.name)


class FunctionRunner(TaskRunner):
    """Runs handlers on the event loop, and in a bounded number of threads. Implements `Runner`."""

    modes = frozenset({Mode.ASYNC, Mode.THREAD})

    def __init__(self, tasks: Mapping[str, Task[Any, Any]], *, threads: int) -> None:
        super().__init__(tasks)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="holdfast handler")
        self._closed = False

    def run(self, call: HandlerCall) -> Awaitable[object]:
        """Call the handler; one in a thread cannot be killed, and its end is waited for."""
        task, ctx = call.task, call.ctx
        if call.compensates:
            return ctx.conclude(task.call(ctx, call.body))
        if not task.takes_context:
            # It cannot make durable calls, so there is nothing to conclude.
            if task.mode is _ASYNC:
                return task.fn(*call.args, **call.kwargs)  # type: ignore[no-any-return]
            return self._run_in_thread(partial(task.fn, *call.args, **call.kwargs))
        if task.mode is _ASYNC:
            return ctx.conclude(task.fn(ctx, *call.args, **call.kwargs))
        return ctx.conclude(self._run_in_thread(partial(task.fn, ctx, *call.args, **call.kwargs)))

    async def _run_in_thread(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, copy_context().run, function)
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if self._closed:
                    raise
        return future.result()

    async def close(self) -> None:
        """Wait for threads no longer: what cannot be killed is left behind."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
