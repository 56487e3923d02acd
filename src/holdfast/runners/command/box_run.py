"""One run of a command: its box is started, watched and killed, and its outputs are kept.

What runs boxes is behind the port `Boxes`; here is what a stop means, and that nothing ends while
anything of the box may still run, or its outputs may still be kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.crash_points import reach
from holdfast.errors import (
    ArtifactsTooLarge,
    BlobsUnavailable,
    BoxLost,
    BoxUnkillable,
    RuntimeTrouble,
)
from holdfast.ports.box import (
    Box,
    Boxes,
    BoxExit,
    BoxState,
    CommandFailed,
    CommandStopped,
    OutputsNotKept,
    Sight,
)
from holdfast.runners.command.agent_exchange import AgentExchange
from holdfast.runners.command.agent_files import AgentFiles
from holdfast.runners.command.exit_note import look_at, note_exit
from holdfast.runners.command.makers import BoxMakers
from holdfast.runners.command.outputs import KEEP_SECONDS, STOPPED_KEEP_SECONDS, OutputKeeper

log = logging.getLogger(__name__)

T = TypeVar("T")

SHUTDOWN_GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL at the end of a worker, whose own grace is over by then."""


class BoxRun(Struct, kw_only=True, eq=False):
    """One attempt of a command."""

    box: Box
    boxes: Boxes
    makers: BoxMakers
    make_keeper: Callable[[Box], OutputKeeper]
    pause_seconds: float
    """Before a runtime that failed is asked again."""
    files: AgentFiles | None = None
    """What is written for an agent before its box is made."""
    exchange: AgentExchange | None = None
    """What an agent reports through while it runs."""
    outputs: OutputKeeper | None = None
    stopped: bool = False
    """Whether it was asked to stop: from then on its exit code does not decide."""
    cancelled: bool = False
    """Whether that was a cancel: it counts more than an end that came before it was heard."""
    started: bool = False
    """Whether its start was asked for: something of it may run."""
    waiting: bool = False
    """Whether it is known to run, and its end is waited for."""
    killed: bool = False
    left: bool = False
    """Whether it continues without this worker."""
    ended: bool = False
    """Whether its box is dead, and what is left is to keep its outputs."""
    lost: bool = False
    """Whether its lease is lost: nothing of it may be written any more."""
    worker_ends: bool = False
    """Whether its worker ends, and does not wait for its outputs until they are kept."""
    terminating: asyncio.Task[None] | None = None

    async def start_and_watch(self) -> BoxExit:
        """Start a prepared box; return the exit of a success, or raise how else it ended."""
        return await self._watch(self._start_and_wait())

    async def find_and_watch(self) -> BoxExit:
        """Do the same for a box that another worker of this host made."""
        return await self._watch(self._find_and_wait())

    async def _find_and_wait(self) -> BoxExit | None:
        await self._find_box()
        return await self._look_and_wait()

    async def _find_box(self) -> None:
        """Find what made a box that another worker may have made, with other settings."""
        while True:
            try:
                if (found := await self.makers.find_maker(self.box)) is not None:
                    self.boxes, self.box = found
                return
            except (RuntimeTrouble, OSError) as error:
                log.warning("%s: what made it is not known yet: %s", self.box.name, error)
                await asyncio.sleep(self.pause_seconds)

    async def _watch(self, ending: Coroutine[Any, Any, BoxExit | None]) -> BoxExit:
        """Wait for the end, keep the outputs, and return the exit of a success."""
        waiting = asyncio.create_task(self._record_reports(ending))
        outputs = self.outputs = self.make_keeper(self.box)
        try:
            exit = await self._await_end(outputs, waiting)
        except asyncio.CancelledError:
            raise
        except Exception:
            await self._keep_what_is_left(outputs)
            raise
        if exit is not None:
            await asyncio.to_thread(note_exit, self.box, exit)
        reach("box.exited")
        return await self._judge(outputs, exit)

    async def _record_reports(self, ending: Coroutine[Any, Any, BoxExit | None]) -> BoxExit | None:
        """Wait for the end; what an agent reports meanwhile is recorded before it."""
        observed = self._observe_end(ending)
        return await (observed if self.exchange is None else self.exchange.beside(observed))

    async def _observe_end(self, ending: Coroutine[Any, Any, BoxExit | None]) -> BoxExit | None:
        exit = await ending
        # From here on nothing stops it: neither the last reports nor the outputs count as running.
        self.ended = True
        return exit

    async def _await_end(
        self, outputs: OutputKeeper, waiting: asyncio.Task[BoxExit | None]
    ) -> BoxExit | None:
        """Wait until the box is dead; a cancellation kills it, and so does trouble.

        Where no exit was observed, nothing of the box may be left.
        """
        watching = asyncio.create_task(outputs.watch())
        try:
            await asyncio.wait([waiting, watching], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            raise ArtifactsTooLarge(watching.result())
        except asyncio.CancelledError:
            if self.left:
                await cancel_and_wait(waiting)
                raise
            exit = await finish_despite_cancel(self._kill(waiting))
            self.stopped = self.ended = True
            return exit
        except Exception:
            await finish_despite_cancel(self._kill(waiting))
            self.ended = True
            raise
        finally:
            await cancel_and_wait(watching)

    async def _judge(self, outputs: OutputKeeper, exit: BoxExit | None) -> BoxExit:
        """Return the exit of a command that succeeded and whose outputs are kept."""
        if self.lost or not self.started:
            raise CommandStopped(exit)
        if exit is None or self.stopped or exit.code != 0:
            await self._keep_what_is_left(outputs)
            if exit is None or self.stopped:
                raise CommandStopped(exit)
            raise CommandFailed(exit)
        try:
            await self._keep(outputs.keep())
        except (ArtifactsTooLarge, BlobsUnavailable, OSError) as error:
            raise OutputsNotKept(exit, error) from error
        return exit

    async def _keep_what_is_left(self, outputs: OutputKeeper) -> None:
        """Keep the outputs of a command that did not succeed: without them it ends all the same."""
        if self.lost:
            return
        seconds = STOPPED_KEEP_SECONDS if self.stopped else KEEP_SECONDS
        if self.worker_ends:
            seconds = SHUTDOWN_GRACE_SECONDS
        try:
            await self._keep(outputs.keep(seconds))
        except asyncio.CancelledError:
            # How it ended is known, and is written although its worker ends.
            if self.left or self.lost:
                raise
        except (ArtifactsTooLarge, BlobsUnavailable, OSError) as error:
            log.warning("%s: not all of its outputs are kept: %s", self.box.name, error)

    async def _keep(self, keeping: Coroutine[Any, Any, None]) -> None:
        """Keep outputs, whatever is asked of the attempt meanwhile: it has ended.

        Except by the end of its worker, or if its lease is lost: then nothing may be written.
        """
        task = asyncio.create_task(keeping)
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                if self.left or self.lost or self.worker_ends:
                    await cancel_and_wait(task)
                    raise
        task.result()

    def is_keeping(self) -> bool:
        """Return whether its outputs are being kept."""
        return self.ended and not (self.lost or self.worker_ends)

    async def _start_and_wait(self) -> BoxExit | None:
        """Start a prepared box and wait for its end; None if it was stopped before it started."""
        if self.stopped:
            await self._kill()
            return None
        try:
            self.started = True
            await self.boxes.start(self.box)
        except RuntimeTrouble as error:
            log.warning("%s: the start is not confirmed: %s", self.box.name, error)
            return await self._look_and_wait()
        reach("box.started")
        return await self._wait()

    async def _look_and_wait(self) -> BoxExit | None:
        """Find out how far a box is, and wait for its end from there."""
        sight = await self._look()
        match sight.state:
            case BoxState.EXITED:
                # It ended by itself, before a request of this worker could reach it: of those only
                # a cancel counts more than its exit code (D8, D14).
                self.stopped = self.cancelled
                self.started = True
                return sight.exit
            case BoxState.RUNNING:
                self.started = True
                return await self._wait()
            case BoxState.CREATED if not self.started:
                return await self._start_and_wait()
            case BoxState.CREATED:
                # Its start was asked for and has not happened: now it must never happen.
                await self._kill()
                raise RuntimeTrouble("its start failed: the runtime did not start the box")
            case _:
                raise BoxLost(f"its box is {sight.state}; how its command ended is unknown")

    async def _look(self) -> Sight:
        """Look at a box until the runtime answers."""
        while True:
            try:
                return await look_at(self.boxes, self.box)
            except (RuntimeTrouble, OSError) as error:
                log.warning("%s: the runtime does not answer: %s", self.box.name, error)
                await asyncio.sleep(self.pause_seconds)

    async def _wait(self) -> BoxExit:
        """Wait for the end of a box that runs; a stop that came before it ran reaches it now."""
        self.waiting = True
        if self.stopped:
            self._terminate()
        while True:
            try:
                return await self.boxes.wait(self.box)
            except RuntimeTrouble as error:
                log.warning("%s: its end is not known yet: %s", self.box.name, error)
                await asyncio.sleep(self.pause_seconds)

    def stop(self, reason: str) -> None:
        """Send SIGTERM to the command; before its start: never start it."""
        self.lost |= reason == "lease_lost"
        self.worker_ends |= reason == "shutdown"
        if self.ended:
            return
        self.stopped = True
        self.cancelled |= reason == "cancel"
        if self.waiting and reason != "lease_lost":
            self._terminate()

    def _terminate(self) -> None:
        if self.terminating is None:
            self.terminating = asyncio.create_task(self._send_sigterm())

    async def _send_sigterm(self) -> None:
        """Send SIGTERM; if the runtime does not answer, the kill after the grace will do.

        Not where the kill follows at once: a hard cancel leaves no time to react (B13).
        """
        if self.killed:
            return
        try:
            await self.boxes.terminate(self.box)
        except RuntimeTrouble as error:
            log.warning("%s: SIGTERM could not be sent: %s", self.box.name, error)

    def kill(self) -> None:
        """Take note: from now on its exit code does not decide, and SIGTERM is too late."""
        if not self.ended:
            self.stopped = self.killed = True

    async def _kill(self, waiting: asyncio.Task[BoxExit | None] | None = None) -> BoxExit | None:
        """Kill a box until it is proven empty; return its exit, None if it never ran."""
        await self._find_box()
        while True:
            try:
                await self.boxes.kill(self.box)
                break
            except (BoxUnkillable, RuntimeTrouble, OSError) as error:
                log.warning("%s: it could not be killed: %s", self.box.name, error)
                await asyncio.sleep(min(self.pause_seconds, 1.0))
        if not self.started:
            if waiting is not None:
                await cancel_and_wait(waiting)
            return None
        return await self._read_exit(waiting)

    async def _read_exit(self, waiting: asyncio.Task[BoxExit | None] | None) -> BoxExit | None:
        """Return the exit of a box that was killed, if the runtime knows it."""
        if waiting is not None:
            await asyncio.wait([waiting], timeout=self.pause_seconds)
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                return waiting.result()
            await cancel_and_wait(waiting)
        try:
            return (await self.boxes.look(self.box)).exit
        except (RuntimeTrouble, OSError):
            return None


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Finish work, such as a kill, though the attempt is cancelled again meanwhile."""
    task = asyncio.create_task(work)
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            # A kill that is repeated ends no sooner.
            continue
    return task.result()


async def cancel_and_wait(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended; whatever it ends with is not of interest."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
