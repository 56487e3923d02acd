"""What the tests of process handlers look at: a context's link, processes, descriptors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.lifecycle.payload import Body, decode_body, encode_body
from holdfast.runners.process.pool import ProcessPool, ProcessSettings
from holdfast.tasks.context import Context, JobFacts
from holdfast.tasks.durable.protocol import NotRecorded, Reply, Request

APP = "tests.runners.handlers:app"


class RecordingLink:
    """Keeps what a handler says."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.beats = 0
        self.lines: list[tuple[int, str]] = []

    def progress(self, body: Body) -> None:
        self.said.put_nowait(decode_body(body))

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Remember nothing: no handler here makes durable calls."""
        answer(NotRecorded("not_here", f"nobody answers {request}"))

    def heartbeat(self) -> None:
        self.beats += 1

    def log(self, level: int, line: str) -> None:
        self.lines.append((level, line))


class World:
    """A runner and the jobs it is given."""

    def __init__(self, runner: ProcessPool) -> None:
        self.runner = runner
        self.link = RecordingLink()

    def context(self, **given: Any) -> Context:
        facts = JobFacts(
            id="j-1", task="t", queue="q", tenant="", created_at=0, labels={"colour": "red"}
        )
        return Context(facts, self.link, **{"attempt": 1, "epoch": 3, **given})

    async def run(self, task: str, ctx: Context | None = None, **arguments: Any) -> Any:
        body = encode_body(arguments)
        answer = await self.runner.run(task, ctx or self.context(), body)
        return decode_body(answer)

    async def heard(self) -> Any:
        """The next thing that a handler says of its progress."""
        return await asyncio.wait_for(self.link.said.get(), 30)


async def failure(given: World, task: str, **arguments: Any) -> HoldfastError:
    """What a job raises; it must."""
    try:
        await given.run(task, **arguments)
    except HoldfastError as error:
        return error
    raise AssertionError(f"{task} did not fail")


@asynccontextmanager
async def world(app: str = APP, *, processes: int = 1, **settings: Any) -> AsyncIterator[World]:
    runner = ProcessPool(app, processes=processes, settings=ProcessSettings(**settings))
    try:
        yield World(runner)
    finally:
        await runner.close()


def runs(pid: int) -> bool:
    """Whether a process does anything any more; a dead one may wait for its parent's attention."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def children() -> set[int]:
    """The processes that this one started and has not reaped."""
    listings = Path("/proc/self/task").glob("*/children")
    return {int(pid) for listing in listings for pid in listing.read_text().split()}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
