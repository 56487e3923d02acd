"""The worker's side of one handler's process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from functools import partial

from holdfast.errors import HandlerDied
from holdfast.lifecycle.payload import decode_body
from holdfast.runners.process import protocol
from holdfast.runners.process.error_transfer import not_loaded
from holdfast.runners.process.log_transfer import log_levels, replay
from holdfast.runners.process.subprocess import Subprocess
from holdfast.tasks.cancellation import Cancelled
from holdfast.tasks.context import Context
from holdfast.tasks.durable.protocol import NotRecorded, Reply
from holdfast.telemetry.tracing import current_traceparent

_MODULE = "holdfast.runners.process.child_main"
_READ_SIZE = 64 * 1024
_EXIT_SECONDS = 1.0


class ProcessUnusable(Exception):
    """The process cannot be used any more; the message gives the reason."""


class ChannelClosed(ProcessUnusable):
    """It closed its channel: most likely it died, and its exit code shows how."""


class ProcessSession:
    """One process and the jobs it is given, one at a time."""

    def __init__(self) -> None:
        """Start the process."""
        self.process = Subprocess(_MODULE)
        self.jobs = 0
        self.loaded_bytes: int | None = None
        self.handler_started = False
        """Whether the handler of the current job was called."""
        self.closed = asyncio.Event()
        """Set once nothing of it runs, and its channel is closed."""
        self._loop = asyncio.get_running_loop()
        self._frames: protocol.Frames[protocol.ToWorker] = protocol.Frames(protocol.ToWorker)
        self._received: list[protocol.ToWorker] = []
        self._replies: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        """Replies are as large as bodies: two at once must not mix on the channel."""

    async def load(self, app: protocol.AppReference) -> None:
        """Have it import the app; raise RemoteError with what its import raised."""
        await self._send(
            protocol.LoadApp(
                app=app, search_path=sys.path, arguments=sys.argv, log_levels=log_levels()
            )
        )
        match await self._receive():
            case protocol.AppLoaded(memory_bytes):
                self.loaded_bytes = memory_bytes
            case protocol.AppFailed(report):
                raise not_loaded(str(app), report)
            case other:
                raise ProcessUnusable(f"sent {type(other).__name__} instead of loading the app")

    async def run(self, task: str, ctx: Context, body: bytes | None) -> protocol.Outcome:
        """Have it run a handler; what the handler reports meanwhile goes through its context."""
        self.jobs += 1
        self.handler_started = False
        plain = None if body is None else bytes(body)  # a Body is not for the wire
        trace, facts = current_traceparent(), ctx.facts()
        await self._send(protocol.RunHandler(task=task, facts=facts, body=plain, traceparent=trace))
        stopping = asyncio.create_task(self._pass_on_cancel(ctx.cancelled))
        try:
            return await self._await_outcome(ctx)
        finally:
            stopping.cancel()
            await asyncio.wait({stopping})

    async def _await_outcome(self, ctx: Context) -> protocol.Outcome:
        while True:
            match await self._receive():
                case protocol.HandlerStarted():
                    self.handler_started = True
                case protocol.HandlerProgress(body):
                    ctx.progress(decode_body(body))
                case protocol.HandlerHeartbeat():
                    ctx.heartbeat()
                case protocol.JobLogLine(level, line):
                    ctx.keep_line(level, line)
                case protocol.DurableCall(number, request):
                    ctx.ask(request, partial(self._start_reply, number))
                case protocol.Returned() | protocol.Raised() as outcome:
                    return outcome
                case other:
                    raise ProcessUnusable(f"sent {type(other).__name__} in the middle of a job")

    async def _pass_on_cancel(self, cancelled: Cancelled) -> None:
        reason = await cancelled
        with contextlib.suppress(ProcessUnusable):
            # So short that the kernel takes all of it or nothing, should we be cancelled here.
            async with self._sending:
                await self._send(protocol.StopHandler(reason))

    def _start_reply(self, number: int, reply: Reply) -> None:
        """Send the reply to a durable call; a process that is gone meanwhile does not need it."""
        replying = self._loop.create_task(self._send_reply(protocol.DurableReply(number, reply)))
        self._replies.add(replying)
        replying.add_done_callback(self._replies.discard)

    async def _send_reply(self, reply: protocol.DurableReply) -> None:
        with contextlib.suppress(ProcessUnusable):
            async with self._sending:
                try:
                    await self._send(reply)
                except protocol.InvalidMessage as error:
                    # Without any reply the handler would wait for ever.
                    refused = NotRecorded("too_large", str(error))
                    await self._send(protocol.DurableReply(reply.number, refused))

    async def _send(self, message: protocol.ToChild) -> None:
        try:
            framed = protocol.frame(message, limit=protocol.TO_CHILD_LIMIT)
            await self._loop.sock_sendall(self.process.channel, framed)
        except OSError as error:
            raise ChannelClosed("closed its channel") from error

    async def _receive(self) -> protocol.ToWorker:
        """Return the next message that is not for our logging."""
        while True:
            while self._received:
                message = self._received.pop(0)
                if not isinstance(message, protocol.LogRecord):
                    return message
                replay(message)
            await self._read_messages()

    async def _read_messages(self) -> None:
        try:
            data = await self._loop.sock_recv(self.process.channel, _READ_SIZE)
            self._received += self._frames.feed(data)
        except OSError as error:
            raise ChannelClosed("closed its channel") from error
        except protocol.InvalidMessage as error:
            raise ProcessUnusable(f"sent {error}") from error
        if not data:
            raise ChannelClosed("closed its channel")

    async def end(self, seconds: float) -> None:
        """Let it end by itself; kill it if it does not in time."""
        self.process.channel.close()
        await asyncio.wait({self.process.exit}, timeout=seconds)
        await self.kill()

    async def kill(self) -> int:
        """Kill it and its whole group; return its exit code once nothing of them runs."""
        self.process.kill()
        code = await self.process.ended()
        self.process.channel.close()
        self.closed.set()
        return code

    async def explain_death(self, reason: ProcessUnusable) -> HandlerDied:
        """Kill it if it lives, and return the error that describes how it ended."""
        if isinstance(reason, ChannelClosed):
            # It may be about to exit, and its exit code is worth knowing.
            await asyncio.wait({self.process.exit}, timeout=_EXIT_SECONDS)
        by_itself = self.process.exit.done()
        code = await self.kill()
        return HandlerDied(
            f"the handler's process {_exit_text(code) if by_itself else reason}",
            exit_code=code if code >= 0 else None,
            signal=None if code >= 0 else _signal_name(-code),
        )


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} in the middle of a job"
    name = _signal_name(-code)
    hint = " (killed from outside; perhaps it used too much memory)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
