"""An attempt under watch: the plan of faults is asked at its start, its steps and its end.

The handler and the durable calls are the real ones; only what happens between them is added.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError as Abandoned
from functools import partial
from typing import Any

from holdfast.tasks.context import Context
from holdfast.tasks.durable.driver import Action, CallFunction, Pause
from holdfast.tasks.durable.protocol import RecordStep
from holdfast.tasks.durable.replay import Durable, Suspended
from holdfast.tasks.tasks import Mode, Task
from holdfast.testing.faults import Faults, InjectedCrash, InjectedDelay, InjectedError, Moment


class Died(BaseException):
    """Ends the thread of a handler whose worker died, at the end of the test."""


class Watch:
    """What is seen of one attempt, and done to it."""

    def __init__(
        self,
        faults: Faults,
        *,
        elapse: Callable[[float], Awaitable[None]],
        die: Callable[[], Awaitable[None]],
    ) -> None:
        """Take a plan, and how time passes and the worker dies; `die` never returns."""
        self.error: BaseException | None = None
        """What the handler raised."""
        self.elapse = elapse
        self._die = die
        self._faults = faults
        self._loop = asyncio.get_running_loop()

    def over(self, task: Task[Any, Any]) -> Task[Any, Any]:
        """Return a task whose handler is watched; in this process, whatever its isolation."""
        watched = copy.copy(task)
        runs_async = inspect.iscoroutinefunction(task.fn) or inspect.iscoroutinefunction(
            getattr(task.fn, "__call__", None)  # noqa: B004  what it calls, not whether
        )
        watched.mode = Mode.ASYNC if runs_async else Mode.THREAD
        watched.fn = partial(self._run if runs_async else self._run_in_thread, task)
        return watched

    async def _run(self, task: Task[Any, Any], *args: Any, **kwargs: Any) -> Any:
        self._look_into(task, args)
        try:
            await self.come(task.name, Moment.BEFORE, is_step=False)
            value = await task.fn(*args, **kwargs)
            await self.come(task.name, Moment.DURING, is_step=False)
        except BaseException as error:
            self._note(error)
            raise
        return value

    def _run_in_thread(self, task: Task[Any, Any], *args: Any, **kwargs: Any) -> Any:
        self._look_into(task, args)
        come = partial(self.come, task.name, is_step=False)
        try:
            self.wait(partial(come, moment=Moment.BEFORE))
            value = task.fn(*args, **kwargs)
            self.wait(partial(come, moment=Moment.DURING))
        except BaseException as error:
            self._note(error)
            raise
        return value

    def _look_into(self, task: Task[Any, Any], args: tuple[Any, ...]) -> None:
        """Watch the steps too, where the handler can make any."""
        if task.takes_context and isinstance(ctx := args[0], Context):
            ctx.durable = WatchedSteps(ctx, self)

    def _note(self, error: BaseException) -> None:
        if not isinstance(error, Suspended):
            self.error = error

    async def come(self, name: str, moment: Moment | None, *, is_step: bool = True) -> None:
        """Carry out what is planned for a point; `moment` is None where there is none."""
        if moment is None:
            return
        for act in self._faults.at(name, moment, is_step=is_step):
            match act:
                case InjectedError(error):
                    raise error
                case InjectedDelay(seconds):
                    await self.elapse(seconds)
                case InjectedCrash():
                    await self._die()

    def wait(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something on the loop, for a handler in a thread."""
        try:
            asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result()
        except Abandoned:
            raise Died from None


async def _awaited(work: Callable[[], Awaitable[None]]) -> None:
    await work()


class WatchedSteps(Durable):
    """The durable calls of an attempt under watch."""

    def __init__(self, ctx: Context, watch: Watch) -> None:
        """Remember by asking the worker, as always."""
        super().__init__(ctx.ask, ctx.goes_on_elsewhere, ctx.is_killed)
        self._watch = watch

    async def perform(self, effect: Action) -> Any:
        """Do what a step wants, and let come what was planned for it."""
        if isinstance(effect, Pause) and effect.seconds:
            return await self._watch.elapse(effect.seconds)
        name, before, after = _points(effect)
        await self._watch.come(name, before)
        value = await super().perform(effect)
        await self._watch.come(name, after)
        return value

    def perform_sync(self, effect: Action) -> Any:
        """Do the same for a handler in a thread."""
        if isinstance(effect, Pause) and effect.seconds:
            return self._watch.wait(partial(self._watch.elapse, effect.seconds))
        name, before, after = _points(effect)
        self._watch.wait(partial(self._watch.come, name, before))
        value = super().perform_sync(effect)
        self._watch.wait(partial(self._watch.come, name, after))
        return value


def _points(effect: Action) -> tuple[str, Moment | None, Moment | None]:
    """Name the step that something is done for, and the moments before and after it."""
    match effect:
        case CallFunction(step=str(name)):
            return name, Moment.BEFORE, Moment.DURING
        case RecordStep(name=name, failed=False):
            return name, None, Moment.AFTER
        case _:
            return "", None, None
