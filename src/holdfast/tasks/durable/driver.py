"""How durable calls are carried out: they are generators that yield actions, written once; a driver
carries the actions out, awaiting on an event loop or blocking in a thread.
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

from holdfast.tasks.cancellation import wait_to_the_end
from holdfast.tasks.durable.gate import Ticket
from holdfast.tasks.durable.protocol import Ask, AwaitSignal, Recall, Reply, Request, StepRecorded


class CallFunction(Struct, frozen=True):
    """Call a function, and await it if it is a coroutine."""

    fn: Callable[[], Any]
    step: str | None = None
    """The step whose effect this is; None for a verifier, which has none."""


class Pause(Struct, frozen=True):
    """Wait before the next try; zero seconds let others run."""

    seconds: float


class EnterGate(Struct, frozen=True):
    """Wait for the turn at the attempt's gate."""

    ticket: Ticket


class RaiseCancel(Struct, frozen=True):
    """Raise a cancel that came during the wait for a reply: nothing is recorded, so it counts."""


Action: TypeAlias = Request | CallFunction | Pause | EnterGate | RaiseCancel
"""What a durable call yields, for the driver to carry out."""
DurableCall: TypeAlias = Generator[Action, Any, Any]


class Driver:
    """Carries out the actions of durable calls."""

    def __init__(self, ask: Ask, is_killed: Callable[[], bool]) -> None:
        self._ask = ask
        self._is_killed = is_killed
        self._recalling: asyncio.Future[Reply] | None = None
        self.driving: dict[asyncio.Task[Any], _Driving] = {}
        """Tasks of the loop that are inside a durable call."""
        self._late: dict[asyncio.Task[Any], int] = {}
        """Tasks that were cancelled inside one that got a reply, and how often by then."""

    async def drive(self, call: DurableCall, until: float | None = None) -> Any:
        """Carry out a durable call on the running loop.

        `until` is for waits: when, by the loop's clock, a time limit of asyncio around them ends.
        A cancel from then on does not end the wait, which has that limit itself: its end must be
        recorded, or a later attempt would not go the same way.
        """
        turn, driving = _Turn(call), _Driving(until)
        task = asyncio.current_task()
        assert task is not None
        around = self.driving.get(task)
        self.driving[task] = driving
        try:
            while (action := turn.next_action()) is not None:
                with turn:
                    turn.value = await self.perform(action)
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
        """Return whether the caller was cancelled, or its time was up, in a call with a reply."""
        task = asyncio.current_task()
        return task is not None and 0 < self._late.get(task, 0) <= task.cancelling()

    def _cancel_later(self, task: asyncio.Task[Any], driving: _Driving) -> None:
        """Raise a cancel that was kept where the handler waits next.

        Not if it has left the block it was meant for by then: `asyncio.timeout` takes it back.
        """
        if driving.cancel is not None:
            count = self._late[task] = task.cancelling()
            asyncio.get_running_loop().call_soon(_cancel_again, task, count)

    def drive_sync(self, call: DurableCall) -> Any:
        """Carry out a durable call in a thread that may block."""
        turn = _Turn(call)
        while (action := turn.next_action()) is not None:
            with turn:
                turn.value = self.perform_sync(action)
        return turn.result

    async def perform(self, action: Action) -> Any:
        """Carry out one action on the running loop."""
        match action:
            case CallFunction(fn):
                return await call_or_run_in_thread(fn)
            case Pause(seconds):
                return await self._pause(action, seconds)
            case RaiseCancel():
                return self._raise_cancel()
            case Recall():
                # One reply for all that start side by side: they continue at the same moment, and
                # none takes the others for removed because its reply came first.
                if self._recalling is None:
                    self._recalling = self.send_request(action)
                return await self._await_reply(action, self._recalling)
            case _:
                return await self._await_reply(action, self.send_request(action))

    async def _pause(self, action: Pause, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError as error:
            self._keep_or_raise_cancel(error, action)

    async def _await_reply(
        self, action: Request | EnterGate, reply: asyncio.Future[Reply]
    ) -> Reply:
        """Wait for a reply, despite a cancel where the call must not continue without it."""
        driving = self._current_call()
        if driving.until is None and not isinstance(action, AwaitSignal | Recall):
            return await reply
        while True:
            try:
                return await asyncio.shield(reply)
            except asyncio.CancelledError as error:
                self._keep_or_raise_cancel(error, action)

    def _keep_or_raise_cancel(self, cancel: asyncio.CancelledError, action: Action) -> None:
        """Keep a cancel for later, or raise it.

        A request that may suspend the job, or that returns what was recorded, gets its reply first:
        a handler that continued without it would act where nothing can be recorded any more, or
        differently from what is recorded. A kill is not kept: the handler does not continue.
        """
        driving = self._current_call()
        if self._is_killed() or not (isinstance(action, AwaitSignal | Recall) or driving.is_over()):
            raise cancel
        driving.cancel = cancel

    def _raise_cancel(self) -> None:
        driving = self._current_call()
        if driving.cancel is not None and not driving.is_over():
            cancel, driving.cancel = driving.cancel, None
            raise cancel

    def _current_call(self) -> _Driving:
        task = asyncio.current_task()
        assert task is not None
        return self.driving[task]

    def send_request(self, request: Request | EnterGate) -> asyncio.Future[Reply]:
        """Send a request; the reply comes on the running loop."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()
        answer = partial(_settle_on_loop, loop, threading.get_ident(), reply)
        self._send_to_worker_or_gate(request, answer)
        return reply

    def _send_to_worker_or_gate(
        self, request: Request | EnterGate, answer: Callable[[Reply], None]
    ) -> None:
        if isinstance(request, EnterGate):
            request.ticket.enter(partial(answer, StepRecorded()))
        else:
            self._ask(request, answer)

    def perform_sync(self, action: Action) -> Any:
        """Carry out one action in a thread that may block."""
        match action:
            case CallFunction(fn):
                value = fn()
                if inspect.isawaitable(value):
                    raise TypeError(
                        "a step of a handler that is a plain function must be a plain function"
                    )
                return value
            case Pause(seconds):
                return time.sleep(seconds)
            case RaiseCancel():
                return None
            case _:
                replies: list[Reply] = []
                arrived = threading.Event()

                def answer(reply: Reply) -> None:
                    replies.append(reply)
                    arrived.set()

                self._send_to_worker_or_gate(action, answer)
                arrived.wait()
                return replies[0]


class _Driving:
    """A durable call that an asyncio task is in."""

    __slots__ = ("cancel", "until")

    def __init__(self, until: float | None) -> None:
        self.until = until
        self.cancel: asyncio.CancelledError | None = None
        """A cancel that came while the call could not be interrupted."""

    def is_over(self) -> bool:
        """Return whether the time limit around the call is over."""
        return self.until is not None and asyncio.get_running_loop().time() >= self.until


class _Turn:
    """The state of one call: the value or error that it gets next; actions run `with` it.

    What is raised there goes to the generator, which decides what it means.
    """

    def __init__(self, call: DurableCall) -> None:
        self._call = call
        self._error: BaseException | None = None
        self.value: Any = None
        self.result: Any = None

    def next_action(self) -> Action | None:
        """Return the next action; None once there is a result."""
        value, error = self.value, self._error
        self.value = self._error = None
        try:
            return self._call.send(value) if error is None else self._call.throw(error)
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
        # The same cancel once more: what takes it back counts one.
        task.uncancel()
        task.cancel()


def _settle_on_loop(
    loop: asyncio.AbstractEventLoop, thread: int, future: asyncio.Future[Reply], reply: Reply
) -> None:
    # Most replies come on the loop itself, which then need not be woken by a call of the system.
    if threading.get_ident() == thread:
        _settle(future, reply)
    else:
        loop.call_soon_threadsafe(_settle, future, reply)


def _settle(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


async def call_or_run_in_thread(fn: Callable[[], Any]) -> Any:
    """Call a function: a coroutine on the loop, anything else in a thread."""
    inner = fn.func if isinstance(fn, partial) else fn
    if inspect.iscoroutinefunction(inner):
        return await fn()
    # To its end also when killed: a thread cannot be killed. Else its job would count as dead, and
    # run elsewhere, while the step still has its effect.
    loop = asyncio.get_running_loop()
    value = await wait_to_the_end(loop.run_in_executor(None, copy_context().run, fn))
    return await value if inspect.isawaitable(value) else value
