"""Who makes a soak: a steady submitter, a worker in a process of its own, and a pinned snapshot."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from bench.soak_app import touch
from holdfast.app.app import Holdfast

ROOT = Path(__file__).resolve().parents[1]
STEP_SECONDS = 0.05
"""Between two submits; each brings what is due by then."""


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `holdfast worker` with a user's defaults; stopped in order at the end."""
    process = await asyncio.create_subprocess_exec(
        *holdfast("worker", "bench.soak_app:app", "--url", url, "--log-level", "WARNING"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
        if process.returncode is None:
            process.terminate()
        if code := await asyncio.wait_for(process.wait(), 120):
            raise RuntimeError(f"the worker ended with code {code}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def holdfast(*arguments: str) -> list[str]:
    """Name the command as a user calls it."""
    return [sys.executable, "-m", "holdfast.cli", *arguments]


class Submitter:
    """Submits at a fixed rate, whatever becomes of the jobs."""

    def __init__(self, app: Holdfast, rate: float) -> None:
        """Submit to an app, a number of jobs per second."""
        self.submitted = 0
        self.stopping = False
        self._app = app
        self._rate = rate

    async def run(self) -> None:
        """Submit until stopped; one that was late brings all that is due."""
        start = time.monotonic()
        while not self.stopping:
            due = int((time.monotonic() - start) * self._rate) - self.submitted
            if due > 0:
                await self.submit(due)
            await asyncio.sleep(STEP_SECONDS)

    async def submit(self, jobs: int) -> None:
        """Submit a number of jobs together."""
        first = self.submitted
        await self._app.submit_many([touch.prepare(first + n) for n in range(jobs)])
        self.submitted += jobs


class Pin:
    """A session that holds an old snapshot: nothing that dies behind it can be removed."""

    def __init__(self, url: str) -> None:
        """Hold none yet."""
        self._url = url
        self._connection: asyncpg.Connection | None = None

    @property
    def held(self) -> bool:
        """Whether it holds one."""
        return self._connection is not None

    async def hold(self) -> None:
        """Take a snapshot and keep it."""
        self._connection = await asyncpg.connect(self._url)
        await self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await self._connection.fetchval("SELECT pg_current_xact_id()")

    async def let_go(self) -> None:
        """Let it go, if there is one."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
