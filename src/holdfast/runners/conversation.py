"""A worker's side of one handler's process: what it asks of it, and what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from functools import partial

from holdfast.context import Cancelled, Context
from holdfast.durable.messages import Refused, Reply
from holdfast.errors import HandlerDied
from holdfast.lifecycle.payload import decode_body
from holdfast.runners import wire
from holdfast.runners.outcomes import not_loaded
from holdfast.runners.records import log_levels, replay
from holdfast.runners.spawned import Spawned
from holdfast.telemetry.tracing import current_traceparent

_MODULE = "holdfast.runners.child"
_READ_SIZE = 64 * 1024
_EXIT_SECONDS = 1.0


class Gone(Exception):
    """The process is of no use any more; the message says why."""


class HungUp(Gone):
    """It closed its channel: most likely it died, and its exit code says how."""


class Conversation:
    """One process and the jobs it is given, one at a time."""

    def __init__(self) -> None:
        """Start the process; it is not asked anything yet."""
        self.process = Spawned(_MODULE)
        self.jobs = 0
        self.loaded_bytes: int | None = None
        self.began = False
        """Whether the handler of the current job was called."""
        self.hung_up = asyncio.Event()
        """Set once nothing of it runs and nothing of it is held any more."""
        self._loop = asyncio.get_running_loop()
        self._frames: wire.Frames[wire.ToWorker] = wire.Frames(wire.ToWorker)
        self._heard: list[wire.ToWorker] = []
        self._answers: set[asyncio.Task[None]] = set()
        self._saying = asyncio.Lock()
        """Answers are as large as bodies: two at once must not mix on the channel."""

    async def load(self, app: wire.AppReference) -> None:
        """Have it import the app; raises RemoteError with what its import raised."""
        order = wire.Load(
            app=app,
            search_path=sys.path,
            arguments=sys.argv,
            log_levels=log_levels(),
        )
        await self._say(order)
        match await self._hear():
            case wire.Ready(memory_bytes):
                self.loaded_bytes = memory_bytes
            case wire.Unusable(report):
                raise not_loaded(str(app), report)
            case other:
                raise Gone(f"said {type(other).__name__} instead of loading the app")

    async def run(self, task: str, ctx: Context, body: bytes | None) -> wire.Outcome:
        """Have it run a handler; what the handler says meanwhile goes through its context."""
        self.jobs += 1
        self.began = False
        plain = None if body is None else bytes(body)  # a Body is not for the wire
        traceparent = current_traceparent()
        order = wire.Run(task=task, facts=ctx.facts(), body=plain, traceparent=traceparent)
        await self._say(order)
        asking = asyncio.create_task(self._pass_on(ctx.cancelled))
        try:
            return await self._outcome(ctx)
        finally:
            asking.cancel()
            await asyncio.wait({asking})

    async def _outcome(self, ctx: Context) -> wire.Outcome:
        while True:
            match await self._hear():
                case wire.Started():
                    self.began = True
                case wire.Progress(body):
                    ctx.progress(decode_body(body))
                case wire.Heartbeat():
                    ctx.heartbeat()
                case wire.LogLine(level, line):
                    ctx.keep_line(level, line)
                case wire.Asking(number, request):
                    ctx.ask(request, partial(self._answer, number))
                case wire.Returned() | wire.Raised() as outcome:
                    return outcome
                case other:
                    raise Gone(f"said {type(other).__name__} in the middle of a job")

    async def _pass_on(self, cancelled: Cancelled) -> None:
        reason = await cancelled
        with contextlib.suppress(Gone):
            # So short that the kernel takes all of it or nothing, should we be cancelled here.
            async with self._saying:
                await self._say(wire.Cancel(reason))

    def _answer(self, number: int, reply: Reply) -> None:
        """Tell it what came of a request; one that has gone meanwhile misses nothing."""
        saying = self._loop.create_task(self._say_if_there(wire.Answer(number, reply)))
        self._answers.add(saying)
        saying.add_done_callback(self._answers.discard)

    async def _say_if_there(self, answer: wire.Answer) -> None:
        with contextlib.suppress(Gone):
            async with self._saying:
                try:
                    await self._say(answer)
                except wire.Garbled as error:
                    # Said at all, or the handler would wait for its answer for ever.
                    await self._say(wire.Answer(answer.number, Refused("too_large", str(error))))

    async def _say(self, message: wire.ToChild) -> None:
        try:
            framed = wire.frame(message, limit=wire.TO_CHILD_LIMIT)
            await self._loop.sock_sendall(self.process.channel, framed)
        except OSError as error:
            raise HungUp("closed its channel") from error

    async def _hear(self) -> wire.ToWorker:
        """The next message that is not for our logging."""
        while True:
            while self._heard:
                message = self._heard.pop(0)
                if not isinstance(message, wire.LogRecord):
                    return message
                replay(message)
            await self._read()

    async def _read(self) -> None:
        try:
            data = await self._loop.sock_recv(self.process.channel, _READ_SIZE)
            self._heard += self._frames.feed(data)
        except OSError as error:
            raise HungUp("closed its channel") from error
        except wire.Garbled as error:
            raise Gone(f"sent {error}") from error
        if not data:
            raise HungUp("closed its channel")

    async def end(self, seconds: float) -> None:
        """Let it end by itself; kill it if it has not done so in time."""
        self.process.channel.close()
        await asyncio.wait({self.process.exit}, timeout=seconds)
        await self.kill()

    async def kill(self) -> int:
        """Kill it and all of its group; returns its exit code once nothing of them runs."""
        self.process.kill()
        code = await self.process.ended()
        self.process.channel.close()
        self.hung_up.set()
        return code

    async def bury(self, gone: Gone) -> HandlerDied:
        """See to it that it is dead, and tell how that came about."""
        if isinstance(gone, HungUp):
            # It may be on its way out, and the way is worth knowing.
            await asyncio.wait({self.process.exit}, timeout=_EXIT_SECONDS)
        by_itself = self.process.exit.done()
        code = await self.kill()
        return HandlerDied(
            f"the handler's process {_how_it_ended(code) if by_itself else gone}",
            exit_code=code if code >= 0 else None,
            signal=None if code >= 0 else _signal_name(-code),
        )


def _how_it_ended(code: int) -> str:
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
