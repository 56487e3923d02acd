"""What is seen of the demo: a narrator, a live table of the jobs, commands and what they say."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from examples.demo.crew import ROOT
from holdfast import Holdfast
from holdfast.cli.live import Changes, jobs_table, line

LOOK_SECONDS = 0.2
LIMIT_SECONDS = 60.0


class Stuck(Exception):
    """Something did not happen that the demo waits for."""


class Stage:
    """Shows the jobs of an app while the demo goes on; on a terminal as a table that moves.

    Anywhere else each change is one line, so that a log of it reads well.
    """

    def __init__(self, app: Holdfast, environment: dict[str, str], console: Console) -> None:
        """Show what happens in an app's store; commands get the environment."""
        self._app = app
        self._environment = environment
        self._console = console
        self._changes = Changes()
        self._stack = AsyncExitStack()
        self.failures: list[str] = []
        """What was not as it should be."""

    async def __aenter__(self) -> Self:
        """Begin to show."""
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
        """Show the last state of things, and stop."""
        self._looking.cancel()
        await asyncio.wait([self._looking])
        await self._stack.aclose()
        self._live = None
        if kind is None:
            await self._look()
            self._console.print(self._table)

    def chapter(self, title: str) -> None:
        """Begin another part of the story."""
        self._console.print(f"\n[bold cyan]{title}[/]")

    def tell(self, text: str) -> None:
        """Say what happens."""
        self._console.print(text, markup=False, highlight=False)

    def check(self, holds: bool, text: str) -> None:
        """Say that something is as it should be, or that it is not."""
        self._console.print(f"[green]✓[/] {text}" if holds else f"[bold red]✗[/] {text}")
        if not holds:
            self.failures.append(text)

    async def command(self, *words: str) -> int:
        """Run a command as anybody could, and show what it says; tells its exit code."""
        self._console.print(f"[dim]$[/] [bold]holdfast {escape(shlex.join(words))}[/]")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.cli", *words),
            cwd=ROOT,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), LIMIT_SECONDS)
        self._console.print(said.decode().rstrip(), markup=False, highlight=False, soft_wrap=True)
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
            for job in self._changes.of(jobs):
                self.tell(f"    {line(job, now)}")


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while not holds():  # noqa: ASYNC110  it is in another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Stuck(f"{what} did not happen within {LIMIT_SECONDS:g} s") from None
