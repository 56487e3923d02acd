"""Handlers in processes of their own: what a worker can really kill, and what cannot hurt it.

A bounded number of processes is kept warm and used again. One that was killed, died or is worn out
is replaced. What this promises and what not: docs/isolation.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from holdfast.context import Context
from holdfast.errors import HandlerDied
from holdfast.lifecycle.payload import Body
from holdfast.runners import wire
from holdfast.runners.conversation import Conversation, Gone
from holdfast.runners.loading import app_reference, refuse_while_loading
from holdfast.runners.outcomes import error_of

T = TypeVar("T")


class ProcessSettings(Struct, frozen=True, kw_only=True):
    """When a process is replaced, and how long it may take to begin and to end."""

    jobs_per_process: int = 100
    memory_growth_bytes: int = 1024**3
    """How much larger than after loading the app it may be when a job has ended."""
    start_seconds: float = 60.0
    end_seconds: float = 2.0


class Named(Protocol):
    """All that this side needs of a task: its process looks the rest up."""

    name: str


class ProcessRunner:
    """Runs handlers of one app, each in a process that can be killed and dies with its worker.

    Use it on one loop. `app` is `module:attribute`.
    """

    def __init__(
        self, app: str, *, processes: int, settings: ProcessSettings | None = None
    ) -> None:
        """Start none yet; at most this many run jobs at a time."""
        refuse_while_loading()
        self._app = app_reference(app)
        self._settings = settings or ProcessSettings()
        self._slots = asyncio.Semaphore(processes)
        self._idle: list[Conversation] = []
        self._all: set[Conversation] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self, task: Named, ctx: Context, body: bytes | None) -> Body:
        """Run the handler and return its packed result, or raise what it raised.

        Cancelling the await kills its process and all that it started, then raises.
        """
        async with self._slots:
            outcome = await self._outcome(task.name, ctx, body)
        if isinstance(outcome, wire.Raised):
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
        await _to_the_end(_all_hung_up(self._all))

    async def _outcome(self, task: str, ctx: Context, body: bytes | None) -> wire.Outcome:
        while True:
            process = self._take()
            try:
                outcome = await self._ask(process, task, ctx, body)
            except Gone as gone:
                died = await self._last(process, process.bury(gone))
                if self._closed or process.began or process.jobs <= 1:
                    raise died from None
                # Else it died between two jobs, and this one has not begun: it gets another.
            except BaseException:
                await self._last(process, process.kill())
                raise
            else:
                await self._put_back(process, outcome)
                return outcome

    async def _ask(
        self, process: Conversation, task: str, ctx: Context, body: bytes | None
    ) -> wire.Outcome:
        if process.loaded_bytes is None:
            try:
                async with asyncio.timeout(self._settings.start_seconds):
                    await process.load(self._app)
            except TimeoutError:
                raise Gone(f"did not load {self._app} in time") from None
        return await process.run(task, ctx, body)

    def _take(self) -> Conversation:
        if self._closed:
            raise HandlerDied("the worker is closing; no handler's process is started any more")
        # The one used last: those that are not needed grow cold, and their memory with them.
        return self._idle.pop() if self._idle else self._grow()

    def _grow(self) -> Conversation:
        try:
            process = Conversation()
        except OSError as error:
            raise HandlerDied(f"no process could be started for the handler: {error}") from error
        self._all.add(process)
        process.process.exit.add_done_callback(lambda _: self._died_idle(process))
        return process

    async def _put_back(self, process: Conversation, outcome: wire.Outcome) -> None:
        if outcome.condition.left_behind:
            # The outcome may lead to another try, which must not meet what goes on of this one.
            await self._last(process, process.kill())
        elif self._closed or self._worn_out(process, outcome.condition):
            self._let_end(process)
        else:
            self._idle.append(process)

    def _worn_out(self, process: Conversation, condition: wire.Condition) -> bool:
        growth = condition.memory_bytes - (process.loaded_bytes or 0)
        return (
            process.process.exit.done()
            or process.jobs >= self._settings.jobs_per_process
            or growth > self._settings.memory_growth_bytes
        )

    def _died_idle(self, process: Conversation) -> None:
        if process in self._idle:
            self._idle.remove(process)
            self._let_end(process)

    def _let_end(self, process: Conversation) -> None:
        ending = asyncio.create_task(self._last(process, process.end(self._settings.end_seconds)))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _last(self, process: Conversation, work: Coroutine[Any, Any, T]) -> T:
        """Do the last thing with a process, whoever cancels meanwhile."""
        try:
            return await _to_the_end(work)
        finally:
            self._all.discard(process)


async def _all_hung_up(processes: set[Conversation]) -> None:
    await asyncio.gather(*(process.hung_up.wait() for process in processes))


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work first; a cancellation that came meanwhile is raised afterwards."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
