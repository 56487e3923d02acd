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
from holdfast.durable.messages import Ask, Await, Recall, Reply, Request, Written


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


class Heed(Struct, frozen=True):
    """Raise a cancel that came while a reply was waited for: nothing is recorded, so it counts."""


Effect: TypeAlias = Request | Call | Pause | Enter | Heed
Steps: TypeAlias = Generator[Effect, Any, Any]


class Driver:
    """Does what durable calls want done."""

    def __init__(self, ask: Ask, is_killed: Callable[[], bool]) -> None:
        """Hand requests to the worker, which may kill the attempt."""
        self._ask = ask
        self._is_killed = is_killed
        self._recalling: asyncio.Future[Reply] | None = None
        self.driving: dict[asyncio.Task[Any], _Driving] = {}
        """Tasks of the loop that are in the middle of a durable call."""
        self._late: dict[asyncio.Task[Any], int] = {}
        """Tasks that were cancelled in one that had an answer, and how often they were by then."""

    async def drive(self, steps: Steps, until: float | None = None) -> Any:
        """Do what the steps want, on the running loop.

        `until` is for waits: when, by the loop's clock, a time limit of asyncio around them ends.
        A cancel from then on does not end the wait, which has that limit itself: the ledger must
        know of its end, or a later attempt would not go the same way.
        """
        turn, driving = _Turn(steps), _Driving(until)
        task = asyncio.current_task()
        assert task is not None
        around = self.driving.get(task)
        self.driving[task] = driving
        try:
            while (effect := turn.wanted()) is not None:
                with turn:
                    turn.value = await self.perform(effect)
        except Exception:
            self._cancel_later(task, driving)
            raise
        else:
            self._cancel_later(task, driving)
            return turn.result
        finally:
            if around is None:
                del self.driving[task]
            else:
                self.driving[task] = around

    def is_late(self) -> bool:
        """Whether the caller was cancelled, or its time was up, in a call that had an answer."""
        task = asyncio.current_task()
        return task is not None and 0 < self._late.get(task, 0) <= task.cancelling()

    def _cancel_later(self, task: asyncio.Task[Any], driving: _Driving) -> None:
        """Have a cancel that was kept strike where the handler waits next.

        Not if it has left what it was meant for by then: `asyncio.timeout` takes its cancel back.
        """
        if driving.cancel is not None:
            count = self._late[task] = task.cancelling()
            asyncio.get_running_loop().call_soon(_cancel_again, task, count)

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
                return await self._pause(effect, seconds)
            case Heed():
                return self._heed()
            case Recall():
                # One answer for all that begin side by side: they go on at the same moment, and
                # none takes the others for removed because it was told first.
                if self._recalling is None:
                    self._recalling = self.asked(effect)
                return await self._reply(effect, self._recalling)
            case _:
                return await self._reply(effect, self.asked(effect))

    async def _pause(self, effect: Pause, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError as error:
            self._keep(error, effect)

    async def _reply(self, effect: Request | Enter, reply: asyncio.Future[Reply]) -> Reply:
        """Wait for a reply; where the call must not go on without it, despite a cancel."""
        driving = self._driving()
        if driving.until is None and not isinstance(effect, Await | Recall):
            return await reply
        while True:
            try:
                return await asyncio.shield(reply)
            except asyncio.CancelledError as error:
                self._keep(error, effect)

    def _keep(self, cancel: asyncio.CancelledError, effect: Effect) -> None:
        """Keep a cancel for later, or raise it.

        A request that may park the job, or that tells what was recorded, has its reply first: a
        handler that went on without it would act where nothing can be recorded any more, or
        another way than the recorded one. A kill is not kept: nothing of the handler goes on.
        """
        driving = self._driving()
        if self._is_killed() or not (isinstance(effect, Await | Recall) or driving.is_over()):
            raise cancel
        driving.cancel = cancel

    def _heed(self) -> None:
        driving = self._driving()
        if driving.cancel is not None and not driving.is_over():
            cancel, driving.cancel = driving.cancel, None
            raise cancel

    def _driving(self) -> _Driving:
        task = asyncio.current_task()
        assert task is not None
        return self.driving[task]

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
            case Heed():
                return None
            case _:
                said: list[Reply] = []
                there = threading.Event()

                def answer(reply: Reply) -> None:
                    said.append(reply)
                    there.set()

                self._send(effect, answer)
                there.wait()
                return said[0]


class _Driving:
    """A durable call that a task is in the middle of."""

    __slots__ = ("cancel", "until")

    def __init__(self, until: float | None) -> None:
        self.until = until
        self.cancel: asyncio.CancelledError | None = None
        """Came while the call had to go on."""

    def is_over(self) -> bool:
        """Whether the time limit around the call is over."""
        return self.until is not None and asyncio.get_running_loop().time() >= self.until


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


def _cancel_again(task: asyncio.Task[Any], count: int) -> None:
    if not task.done() and task.cancelling() >= count:
        # The same cancel once more: whoever takes it back counts one.
        task.uncancel()
        task.cancel()


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
