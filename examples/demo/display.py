"""The output of the demo: text, a live table of the jobs, commands and their output."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from examples.demo.workers import ROOT
from holdfast import Holdfast, JobHandle
from holdfast.cli.watch import Changes, job_line, jobs_table
from holdfast.lifecycle.states import State

LOOK_SECONDS = 0.2
LIMIT_SECONDS = 60.0


class Stuck(Exception):
    """Something that the demo waits for did not happen."""


class Display:
    """Shows the jobs of an app while the demo runs, on a terminal as a live table.

    Without a terminal, each change is one line.
    """

    def __init__(self, app: Holdfast, environment: dict[str, str], console: Console) -> None:
        """Show the jobs of an app; commands run with the environment."""
        self._app = app
        self._environment = environment
        self._console = console
        self._changes = Changes()
        self._stack = AsyncExitStack()
        self.failures: list[str] = []
        """The checks that failed."""

    async def __aenter__(self) -> Self:
        """Start the display."""
        self._live: Live | None = None
        if self._console.is_terminal:
            live = Live(console=self._console, refresh_per_second=10, transient=True)
            self._live = self._stack.enter_context(live)
        self._looking = asyncio.create_task(self._look_on())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Show the final table, and stop."""
        self._looking.cancel()
        await asyncio.wait([self._looking])
        await self._stack.aclose()
        self._live = None
        if kind is None:
            await self._look()
            self._console.print(self._table)

    def chapter(self, title: str) -> None:
        """Write the title of a part."""
        self._console.print(f"\n[bold cyan]{title}[/]")

    def write(self, text: str) -> None:
        """Write a line."""
        self._console.print(text, markup=False, highlight=False)

    def check(self, holds: bool, text: str) -> None:
        """Write whether a check passed, and keep it if it failed."""
        self._console.print(f"[green]✓[/] {text}" if holds else f"[bold red]✗[/] {text}")
        if not holds:
            self.failures.append(text)

    async def command(self, *words: str) -> int:
        """Run a command, show its output, and return its exit code."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.cli", *words),
            cwd=ROOT,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), LIMIT_SECONDS)
        # Together, so that no line about a job comes between a command and its output.
        self._console.print(f"[dim]$[/] [bold]holdfast {escape(shlex.join(words))}[/]")
        self._console.print(output.decode().rstrip(), markup=False, highlight=False, soft_wrap=True)
        return process.returncode or 0

    async def _look_on(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        jobs = [job.record async for job in self._app.jobs(limit=20)]
        now = (await (await self._app.store()).clock()).now
        self._table = jobs_table(jobs, now)
        if self._live is not None:
            self._live.update(self._table)
        elif not self._console.is_terminal:
            for job in self._changes.select_changed(jobs):
                self.write(f"    {job_line(job, now)}")


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while not holds():  # noqa: ASYNC110  another process changes it
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Stuck(f"{what} did not happen within {LIMIT_SECONDS:g} s") from None


async def reach(job: JobHandle[Any], state: State) -> None:
    """Wait until a job is in a state."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while (await job.refresh()).state is not state:  # noqa: ASYNC110  another process's
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Stuck(f"{job.id} is {job.state}, not {state}") from None
