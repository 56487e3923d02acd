"""The process of isolated handlers: `python -m holdfast.runners.process.child_main`.

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
from collections.abc import Callable, Mapping
from contextvars import copy_context
from itertools import count
from queue import SimpleQueue
from typing import Any, NoReturn

from holdfast.errors import BadData, NoSuchTask, UnfitResult
from holdfast.lifecycle.payload import BODY_LIMIT, Body
from holdfast.queries.error_reports import describe_error
from holdfast.runners.process import app_loader, protocol
from holdfast.runners.process.child_channel import Channel
from holdfast.runners.process.child_health import RunningBefore, memory_bytes
from holdfast.runners.process.error_transfer import describe_raised
from holdfast.runners.process.log_transfer import forward
from holdfast.tasks.context import Context, current_context
from holdfast.tasks.durable.protocol import Reply, Request
from holdfast.telemetry.redaction import REDACTOR
from holdfast.telemetry.tracing import carry

_PR_SET_PDEATHSIG = 1


class WorkerLink:
    """How a context in this process reaches the worker, for as long as its job runs."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asked: dict[int, Callable[[Reply], None]] = {}
        self._numbers = count(1)
        self.over = False

    def progress(self, body: Body) -> None:
        """Report how far the job is."""
        self._offer(protocol.HandlerProgress(bytes(body)))

    def heartbeat(self) -> None:
        """Have the worker renew the lease."""
        self._offer(protocol.HandlerHeartbeat())

    def log(self, level: int, line: str) -> None:
        """Have the worker keep a line of the job's log."""
        # This waits if the worker is slow to read, as records of the logging do.
        if not self.over:
            self._channel.send(protocol.JobLogLine(level, line))

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Make a durable call."""
        if self.over:
            return
        number = next(self._numbers)
        self._asked[number] = answer
        self._channel.send(protocol.DurableCall(number, request))

    def answer(self, number: int, reply: Reply) -> None:
        """Pass a reply to its caller; called in the thread that listens."""
        if (answer := self._asked.pop(number, None)) is not None:
            answer(reply)

    def _offer(self, message: protocol.HandlerProgress | protocol.HandlerHeartbeat) -> None:
        # What a thread reports that its handler left behind must not count for the next job.
        if not self.over:
            self._channel.offer(message)


class HandlerJob:
    """One handler to call."""

    def __init__(self, run: protocol.RunHandler, channel: Channel) -> None:
        self.task = run.task
        self.body = run.body
        self.traceparent = run.traceparent
        self.link = WorkerLink(channel)
        self.context = Context.restore(run.facts, self.link)


class ChildProcess:
    """Runs the jobs that come over a channel, one after the other."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._inbox: SimpleQueue[protocol.LoadApp | HandlerJob | None] = SimpleQueue()
        self._job: HandlerJob | None = None
        self._busy = False
        self._tasks: Mapping[str, Any] = {}
        self._runner = asyncio.Runner()
        self._loop: asyncio.AbstractEventLoop | None = None

    def serve(self) -> int:
        """Serve until the channel ends; return the exit code."""
        threading.Thread(target=self._listen, name="holdfast-channel", daemon=True).start()
        while (order := self._inbox.get()) is not None:
            if isinstance(order, HandlerJob):
                self._perform_job(order)
            elif not self._load_app(order):
                return 1
        self._runner.close()
        return 0

    def _listen(self) -> None:
        with contextlib.suppress(protocol.InvalidMessage):
            for message in self._channel.messages():
                self._handle_message(message)
        # The worker is gone, or has closed the channel. In the middle of a job nothing would ever
        # know what it still does: end it, and all that it started.
        if self._busy:
            os.killpg(0, signal.SIGKILL)
        self._inbox.put(None)

    def _handle_message(self, message: protocol.ToChild) -> None:
        match message:
            case protocol.LoadApp():
                self._busy = True
                self._inbox.put(message)
            case protocol.RunHandler():
                self._busy = True
                self._job = HandlerJob(message, self._channel)
                self._inbox.put(self._job)
            case protocol.StopHandler(reason):
                if self._job is not None:
                    self._job.context.cancelled.set(reason)
            case protocol.DurableReply(number, reply):
                if self._job is not None:
                    self._job.link.answer(number, reply)

    def _load_app(self, order: protocol.LoadApp) -> bool:
        sys.path[:] = order.search_path
        sys.argv[:] = order.arguments
        forwarder = forward(self._channel.send, order.log_levels)
        try:
            self._tasks = app_loader.load_tasks(order.app)
            forwarder.step_aside()
        except BaseException as error:  # noqa: BLE001  (a script may even exit when imported)
            self._send_last(protocol.AppFailed(describe_error(error)))
            return False
        self._send_last(protocol.AppLoaded(memory_bytes()))
        return True

    def _perform_job(self, job: HandlerJob) -> None:
        self._channel.send(protocol.HandlerStarted())
        before = RunningBefore(self._loop)
        outcome: protocol.Outcome
        try:
            body = copy_context().run(self._call_handler, job)
            in_order = not job.context.cancelled
            outcome = protocol.Returned(body=body, condition=self._condition(before, in_order))
        except SystemExit as request:
            _exit(request)
        except BaseException as error:  # noqa: BLE001  (whatever it was, it goes to the worker)
            outcome = describe_raised(error, self._condition(before, in_order=False))
        job.link.over = True
        self._send_last(outcome)

    def _call_handler(self, job: HandlerJob) -> bytes:
        task = self._tasks.get(job.task)
        if task is None:
            raise NoSuchTask(f"the app has no task {job.task!r} in the handler's process")
        current_context.set(job.context)
        # It was made in the thread that listens, where the app's function is not set.
        job.context.redact = REDACTOR.get()
        with carry(job.traceparent):
            value = task.call(job.context, job.body)
            if inspect.isawaitable(value):
                self._loop = self._runner.get_loop()
                handler = job.context.conclude(value)
                value = self._runner.run(handler, context=copy_context())
            else:
                job.context.finish()
        return _pack_result(task, value)

    def _condition(self, before: RunningBefore, in_order: bool) -> protocol.ProcessCondition:
        # What a handler leaves running when it succeeds it leaves on purpose: a pool, a browser.
        left_behind = not in_order and before.left_behind(self._loop)
        return protocol.ProcessCondition(memory_bytes=memory_bytes(), left_behind=left_behind)

    def _send_last(self, message: protocol.ToWorker) -> None:
        """Send the last message about a job, or about the app."""
        _flush()
        # Before it is sent: the answer to it may already be the next job.
        self._job, self._busy = None, False
        self._channel.send(message)


def _pack_result(task: Any, value: Any) -> bytes:
    """Encode a result, here: one that is too large must not reach the worker."""
    try:
        body = task.pack_result(value)
        if len(body) > BODY_LIMIT:
            raise BadData(f"{len(body):,} bytes of JSON; the limit is {BODY_LIMIT:,}")
    except BadData as error:
        raise UnfitResult(f"the result of {task.name} cannot be kept: {error}") from error
    return bytes(body)


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
    """Have the kernel kill this process with its worker; if that is gone already, exit now."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def main() -> int:
    """Serve a worker; the command line has its pid, the channel and the tether."""
    parent, channel, tether = (int(argument) for argument in sys.argv[1:])
    _die_with(parent)
    connection = socket.socket(fileno=channel)
    _keep_descriptors_private(channel, tether)
    os.register_at_fork(after_in_child=connection.detach)
    return ChildProcess(Channel(connection)).serve()


def _keep_descriptors_private(*descriptors: int) -> None:
    """Keep descriptors from what a handler starts: the worker sees by them that we live."""
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
