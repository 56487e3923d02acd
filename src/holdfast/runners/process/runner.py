"""The runner of isolated handlers: each in a process that can be killed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.errors import HandlerDied
from holdfast.lifecycle.payload import Body
from holdfast.runners.function import HandlerCall, TaskRunner
from holdfast.runners.process.pool import ProcessPool, ProcessSettings
from holdfast.tasks.tasks import Mode, Task


class ProcessRunner(TaskRunner):
    """Runs handlers of tasks with `isolate="process"`. Implements `Runner`."""

    modes = frozenset({Mode.PROCESS})

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        app: Callable[[], str],
        *,
        processes: int,
        settings: ProcessSettings | None = None,
    ) -> None:
        """Start no process yet; `app` names the app as `module:attribute`, for them to find it."""
        super().__init__(tasks)
        self._app = app
        self._processes = processes
        self._settings = settings
        self._pool: ProcessPool | None = None
        self._closed = False

    def run(self, call: HandlerCall) -> Awaitable[object]:
        """Run the handler in a process; killed, nothing that it started survives it."""
        return call.ctx.conclude(self._run(call))

    async def _run(self, call: HandlerCall) -> Body:
        if self._closed:
            raise HandlerDied("the worker is closing and starts no more processes for handlers")
        if self._pool is None:
            # With the first job: most workers have no isolated task, and need no app to import.
            self._pool = ProcessPool(
                self._app(), processes=self._processes, settings=self._settings
            )
        return await self._pool.run(call.task.name, call.ctx, call.body)

    async def close(self) -> None:
        """Let no process survive."""
        self._closed = True
        if self._pool is not None:
            await self._pool.close()
