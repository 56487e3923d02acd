"""The process of isolated handlers: `python -m holdfast.runners.child`, started by a worker.

It runs one job at a time, on its main thread, and ends when its worker closes the channel or dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import inspect
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from itertools import count
from queue import SimpleQueue
from typing import Any, NoReturn

from holdfast.context import Context, current_context
from holdfast.durable.messages import Reply, Request
from holdfast.errors import BadData, NoSuchTask, UnfitResult
from holdfast.flow.redaction import current_redactor
from holdfast.flow.reports import report_of
from holdfast.lifecycle.payload import BODY_LIMIT, Body
from holdfast.runners import loading, wire
from holdfast.runners.channel import Channel
from holdfast.runners.condition import Traces, memory_bytes
from holdfast.runners.outcomes import raised
from holdfast.runners.records import forward
from holdfast.telemetry.tracing import carry

_PR_SET_PDEATHSIG = 1


class WorkerLink:
    """How a context in this process reaches the worker, for as long as its job runs."""

    def __init__(self, channel: Channel) -> None:
        """Speak over the process's channel."""
        self._channel = channel
        self._asked: dict[int, Callable[[Reply], None]] = {}
        self._numbers = count(1)
        self.over = False

    def progress(self, body: Body) -> None:
        """Tell the worker how far the job is."""
        self._offer(wire.Progress(bytes(body)))

    def heartbeat(self) -> None:
        """Have the worker renew the lease."""
        self._offer(wire.Heartbeat())

    def log(self, level: int, line: str) -> None:
        """Have the worker keep a line of the job's log."""
        # Waiting if the worker is slow to read, as the records of its logging do.
        if not self.over:
            self._channel.send(wire.LogLine(level, line))

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Have the worker recall or remember something."""
        if self.over:
            return
        number = next(self._numbers)
        self._asked[number] = answer
        self._channel.send(wire.Asking(number, request))

    def answer(self, number: int, reply: Reply) -> None:
        """Hand an answer to whoever asked; called in the thread that listens."""
        if (answer := self._asked.pop(number, None)) is not None:
            answer(reply)

    def _offer(self, message: wire.Progress | wire.Heartbeat) -> None:
        # What a thread says that its handler left behind must not count for the next job.
        if not self.over:
            self._channel.offer(message)


class Job:
    """One handler to call."""

    def __init__(self, run: wire.Run, channel: Channel) -> None:
        """Restore its context."""
        self.task = run.task
        self.body = run.body
        self.traceparent = run.traceparent
        self.link = WorkerLink(channel)
        self.context = Context.restore(run.facts, self.link)


class Child:
    """Runs the jobs that come over a channel, one after the other."""

    def __init__(self, channel: Channel) -> None:
        """Serve a channel."""
        self._channel = channel
        self._inbox: SimpleQueue[wire.Load | Job | None] = SimpleQueue()
        self._job: Job | None = None
        self._busy = False
        self._tasks: Mapping[str, Any] = {}
        self._runner = asyncio.Runner()
        self._loop: asyncio.AbstractEventLoop | None = None

    def live(self) -> int:
        """Do what comes until the channel ends; returns the exit code."""
        threading.Thread(target=self._listen, name="holdfast-channel", daemon=True).start()
        while (order := self._inbox.get()) is not None:
            if isinstance(order, Job):
                self._perform(order)
            elif not self._load(order):
                return 1
        self._runner.close()
        return 0

    def _listen(self) -> None:
        with contextlib.suppress(wire.Garbled):
            for message in self._channel.messages():
                self._take(message)
        # The worker is gone, or wants no more of us. In the middle of a job nobody would ever
        # know what it still does: end it, and all that it started.
        if self._busy:
            os.killpg(0, signal.SIGKILL)
        self._inbox.put(None)

    def _take(self, message: wire.ToChild) -> None:
        match message:
            case wire.Load():
                self._busy = True
                self._inbox.put(message)
            case wire.Run():
                self._busy = True
                self._job = Job(message, self._channel)
                self._inbox.put(self._job)
            case wire.Cancel(reason):
                if self._job is not None:
                    self._job.context.cancelled.set(reason)
            case wire.Answer(number, reply):
                if self._job is not None:
                    self._job.link.answer(number, reply)

    def _load(self, order: wire.Load) -> bool:
        sys.path[:] = order.search_path
        sys.argv[:] = order.arguments
        forwarder = forward(self._channel.send, order.log_levels)
        try:
            self._tasks = loading.load_tasks(order.app)
            forwarder.step_aside()
        except BaseException as error:  # noqa: BLE001  (a script may even exit when imported)
            self._tell(wire.Unusable(report_of(error)))
            return False
        self._tell(wire.Ready(memory_bytes()))
        return True

    def _perform(self, job: Job) -> None:
        self._channel.send(wire.Started())
        before = Traces(self._loop)
        outcome: wire.Outcome
        try:
            body = copy_context().run(self._call, job)
            in_order = not job.context.cancelled
            outcome = wire.Returned(body=body, condition=self._condition(before, in_order))
        except SystemExit as request:
            _exit(request)
        except BaseException as error:  # noqa: BLE001  (whatever it was, the worker is told)
            outcome = raised(error, self._condition(before, in_order=False))
        job.link.over = True
        self._tell(outcome)

    def _call(self, job: Job) -> bytes:
        task = self._tasks.get(job.task)
        if task is None:
            raise NoSuchTask(f"the app has no task {job.task!r} in the handler's process")
        current_context.set(job.context)
        # It was made in the thread that listens, where the app's function is not set.
        job.context.redact = current_redactor()
        with carry(job.traceparent):
            value = task.call(job.context, job.body)
            if inspect.isawaitable(value):
                self._loop = self._runner.get_loop()
                value = self._runner.run(_awaited(value, job.context), context=copy_context())
        job.context.finish()
        return _packed(task, value)

    def _condition(self, before: Traces, in_order: bool) -> wire.Condition:
        # What a handler leaves running when it succeeds it leaves on purpose: a pool, a browser.
        left_behind = not in_order and before.left_behind(self._loop)
        return wire.Condition(memory_bytes=memory_bytes(), left_behind=left_behind)

    def _tell(self, message: wire.ToWorker) -> None:
        _flush()
        # Before it is sent: the answer to it may already be the next job.
        self._job, self._busy = None, False
        self._channel.send(message)


def _packed(task: Any, value: Any) -> bytes:
    """Write a result down, here: one that is too large never reaches the worker."""
    try:
        body = task.pack_result(value)
        if len(body) > BODY_LIMIT:
            raise BadData(f"{len(body):,} bytes of JSON; the limit is {BODY_LIMIT:,}")
    except BadData as error:
        raise UnfitResult(f"the result of {task.name} cannot be kept: {error}") from error
    return bytes(body)


async def _awaited(value: Awaitable[Any], ctx: Context) -> Any:
    try:
        return await value
    finally:
        if ctx.is_durable:
            await ctx.rest()


def _exit(request: SystemExit) -> NoReturn:
    """End at once, as the handler asked: threads that it left do not keep the process alive."""
    code = request.code
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    _flush()
    os._exit((code or 0) & 0xFF)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its worker; if that is gone already, end now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main() -> int:
    """Begin as the worker says on the command line: its pid, the channel, the tether."""
    parent, channel, tether = (int(argument) for argument in sys.argv[1:])
    _die_with(parent)
    connection = socket.socket(fileno=channel)
    _keep_to_ourselves(channel, tether)
    os.register_at_fork(after_in_child=connection.detach)
    return Child(Channel(connection)).live()


def _keep_to_ourselves(*descriptors: int) -> None:
    """Let nothing that a handler starts hold what tells the worker that we live."""
    held = list(descriptors)
    for descriptor in held:
        os.set_inheritable(descriptor, False)

    def let_go() -> None:
        # Once: in a fork of the fork the numbers may be other files'.
        while held:
            os.close(held.pop())

    os.register_at_fork(after_in_child=let_go)


if __name__ == "__main__":
    sys.exit(main())
