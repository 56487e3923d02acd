"""How durable calls get done: they are generators that yield what they want, written once; two
small drivers do it, one awaiting on a loop, one blocking in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Generator
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.durable.gate import Ticket
from holdfast.durable.messages import Ask, Recall, Reply, Request, Written


class Call(Struct, frozen=True):
    """Call a function, and wait for it if it is a coroutine."""

    fn: Callable[[], Any]
    step: str | None = None
    """The step whose effect this is; None where somebody is only asked about one."""


class Pause(Struct, frozen=True):
    """Wait before the next try; zero seconds let others run."""

    seconds: float


class Enter(Struct, frozen=True):
    """Wait for the turn at the attempt's gate."""

    ticket: Ticket


Effect: TypeAlias = Request | Call | Pause | Enter
Steps: TypeAlias = Generator[Effect, Any, Any]


class Driver:
    """Does what durable calls want done."""

    def __init__(self, ask: Ask) -> None:
        """Hand requests to the worker."""
        self._ask = ask
        self._recalling: asyncio.Future[Reply] | None = None
        self.driving: set[asyncio.Task[Any]] = set()
        """Tasks of the loop that are in the middle of a durable call."""

    async def drive(self, steps: Steps) -> Any:
        """Do what the steps want, on the running loop."""
        turn = _Turn(steps)
        task = asyncio.current_task()
        assert task is not None
        self.driving.add(task)
        try:
            while (effect := turn.wanted()) is not None:
                with turn:
                    turn.value = await self.perform(effect)
            return turn.result
        finally:
            self.driving.discard(task)

    def drive_sync(self, steps: Steps) -> Any:
        """Do what the steps want, in a thread that may block."""
        turn = _Turn(steps)
        while (effect := turn.wanted()) is not None:
            with turn:
                turn.value = self.perform_sync(effect)
        return turn.result

    async def perform(self, effect: Effect) -> Any:
        """Do one thing, on the running loop."""
        match effect:
            case Call(fn):
                return await called(fn)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Recall():
                # One answer for all that begin side by side: they go on at the same moment, and
                # none takes the others for removed because it was told first.
                if self._recalling is None:
                    self._recalling = self.asked(effect)
                return await asyncio.shield(self._recalling)
            case _:
                return await self.asked(effect)

    def asked(self, request: Request | Enter) -> asyncio.Future[Reply]:
        """Hand a request on; the answer comes on the running loop."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()
        self._send(request, partial(_hand_over, loop, reply))
        return reply

    def _send(self, request: Request | Enter, answer: Callable[[Reply], None]) -> None:
        if isinstance(request, Enter):
            request.ticket.enter(partial(answer, Written()))
        else:
            self._ask(request, answer)

    def perform_sync(self, effect: Effect) -> Any:
        """Do one thing, in a thread that may block."""
        match effect:
            case Call(fn):
                value = fn()
                if inspect.isawaitable(value):
                    raise TypeError("a step of a handler that is no coroutine cannot be one")
                return value
            case Pause(seconds):
                return time.sleep(seconds)
            case _:
                said: list[Reply] = []
                there = threading.Event()

                def answer(reply: Reply) -> None:
                    said.append(reply)
                    there.set()

                self._send(effect, answer)
                there.wait()
                return said[0]


class _Turn:
    """Where one call is: what it was given last, or what was raised; `with` it, do what it wants.

    Whatever is raised there goes to the steps: they decide what it means.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._error: BaseException | None = None
        self.value: Any = None
        self.result: Any = None

    def wanted(self) -> Effect | None:
        """Tell what is wanted next; None once there is a result."""
        value, error = self.value, self._error
        self.value = self._error = None
        try:
            return self._steps.send(value) if error is None else self._steps.throw(error)
        except StopIteration as stop:
            self.result = stop.value
            return None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._error = error
        return True


def _hand_over(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Reply], reply: Reply
) -> None:
    loop.call_soon_threadsafe(_settle, future, reply)


def _settle(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


async def called(fn: Callable[[], Any]) -> Any:
    """Call a function: a coroutine on the loop, anything else in a thread."""
    inner = fn.func if isinstance(fn, partial) else fn
    if inspect.iscoroutinefunction(inner):
        return await fn()
    value = await _in_thread(fn)
    return await value if inspect.isawaitable(value) else value


async def _in_thread(fn: Callable[[], Any]) -> Any:
    """Call in a thread, and wait for its end also when killed: a thread cannot be.

    Else its job would be told dead, and go on elsewhere, while the step still has its effect.
    """
    call = asyncio.get_running_loop().run_in_executor(None, copy_context().run, fn)
    killed: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            killed = error
    if killed is not None:
        call.exception()
        raise killed
    return call.result()
