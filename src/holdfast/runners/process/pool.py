"""Processes for isolated handlers: a worker can kill them, and they cannot harm it.

A bounded number of processes is kept warm and used again. One that was killed, died or is worn out
is replaced. docs/isolation.md states what this promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from msgspec import Struct

from holdfast.errors import HandlerDied
from holdfast.lifecycle.payload import Body
from holdfast.runners.process import protocol
from holdfast.runners.process.app_loader import app_reference, refuse_while_loading
from holdfast.runners.process.error_transfer import error_of
from holdfast.runners.process.session import ProcessSession, ProcessUnusable
from holdfast.tasks.cancellation import wait_to_the_end
from holdfast.tasks.context import Context

T = TypeVar("T")


class ProcessSettings(Struct, frozen=True, kw_only=True):
    """When a process is replaced, and how long it may take to start and to end."""

    jobs_per_process: int = 100
    memory_growth_bytes: int = 1024**3
    """How much it may grow, after loading the app, until a job has ended."""
    start_seconds: float = 60.0
    end_seconds: float = 2.0


class ProcessPool:
    """Runs handlers of one app, each in a process that can be killed and dies with its worker.

    Use it on one loop. `app` is `module:attribute`.
    """

    def __init__(
        self, app: str, *, processes: int, settings: ProcessSettings | None = None
    ) -> None:
        """Run at most `processes` jobs at once; a process starts when it is first needed."""
        refuse_while_loading()
        self._app = app_reference(app)
        self._settings = settings or ProcessSettings()
        self._slots = asyncio.Semaphore(processes)
        self._idle: list[ProcessSession] = []
        self._all: set[ProcessSession] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self, task: str, ctx: Context, body: bytes | None) -> Body:
        """Run the handler of a task and return its result as JSON, or raise what it raised.

        Cancelling the await kills its process and all that it started, and then raises.
        """
        async with self._slots:
            outcome = await self._run_in_process(task, ctx, body)
        if isinstance(outcome, protocol.Raised):
            raise error_of(outcome)
        return Body(outcome.body)

    async def close(self) -> None:
        """End every process: an idle one by itself, a busy one by force."""
        self._closed = True
        idle, self._idle = self._idle, []
        for process in self._all.difference(idle):
            process.process.kill()
        for process in idle:
            self._let_end(process)
        await wait_to_the_end(asyncio.gather(*(one.closed.wait() for one in self._all)))

    async def _run_in_process(
        self, task: str, ctx: Context, body: bytes | None
    ) -> protocol.Outcome:
        while True:
            process = self._take_process()
            try:
                outcome = await self._load_and_run(process, task, ctx, body)
            except ProcessUnusable as reason:
                died = await self._do_to_the_end(process, process.explain_death(reason))
                if self._closed or process.handler_started or process.jobs <= 1:
                    raise died from None
                # Else it died between two jobs, and this one was not started: it gets another.
            except BaseException:
                await self._do_to_the_end(process, process.kill())
                raise
            else:
                await self._put_back(process, outcome)
                return outcome

    async def _load_and_run(
        self, process: ProcessSession, task: str, ctx: Context, body: bytes | None
    ) -> protocol.Outcome:
        if process.loaded_bytes is None:
            try:
                async with asyncio.timeout(self._settings.start_seconds):
                    await process.load(self._app)
            except TimeoutError:
                raise ProcessUnusable(f"did not load {self._app} in time") from None
        return await process.run(task, ctx, body)

    def _take_process(self) -> ProcessSession:
        if self._closed:
            raise HandlerDied("the worker is closing and starts no more processes for handlers")
        # The one used last: the memory of those that are not needed can be swapped out.
        return self._idle.pop() if self._idle else self._start_process()

    def _start_process(self) -> ProcessSession:
        try:
            process = ProcessSession()
        except OSError as error:
            raise HandlerDied(f"no process could be started for the handler: {error}") from error
        self._all.add(process)
        process.process.exit.add_done_callback(lambda _: self._died_idle(process))
        return process

    async def _put_back(self, process: ProcessSession, outcome: protocol.Outcome) -> None:
        if outcome.condition.left_behind:
            # The outcome may lead to another try, which must not meet what still runs of this one.
            await self._do_to_the_end(process, process.kill())
        elif self._closed or self._is_worn_out(process, outcome.condition):
            self._let_end(process)
        else:
            self._idle.append(process)

    def _is_worn_out(self, process: ProcessSession, condition: protocol.ProcessCondition) -> bool:
        growth = condition.memory_bytes - (process.loaded_bytes or 0)
        return (
            process.process.exit.done()
            or process.jobs >= self._settings.jobs_per_process
            or growth > self._settings.memory_growth_bytes
        )

    def _died_idle(self, process: ProcessSession) -> None:
        if process in self._idle:
            self._idle.remove(process)
            self._let_end(process)

    def _let_end(self, process: ProcessSession) -> None:
        ending = asyncio.create_task(
            self._do_to_the_end(process, process.end(self._settings.end_seconds))
        )
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _do_to_the_end(self, process: ProcessSession, work: Awaitable[T]) -> T:
        """Do the last thing with a process, even if this is cancelled meanwhile."""
        try:
            return await wait_to_the_end(work)
        finally:
            self._all.discard(process)
