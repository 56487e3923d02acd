"""Children that are there when they are first needed: most apps isolate no handler."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.context import Context
from holdfast.lifecycle.payload import Body
from holdfast.runners.processes import Named, ProcessRunner


class LazyProcesses:
    """A runner of isolated handlers that is made for the first of them."""

    def __init__(self, app: Callable[[], str], processes: int) -> None:
        """`app` names the app as `module:attribute`, for the children to find it."""
        self._app = app
        self._processes = processes
        self._runner: ProcessRunner | None = None

    async def run(self, task: Named, ctx: Context, body: bytes | None) -> Body:
        """Run a handler in a child."""
        if self._runner is None:
            self._runner = ProcessRunner(self._app(), processes=self._processes)
        return await self._runner.run(task, ctx, body)

    async def close(self) -> None:
        """Let no child survive."""
        if self._runner is not None:
            await self._runner.close()
