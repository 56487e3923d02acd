"""Jobs of the runner contract as Python functions: on the loop, in threads, in processes."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.lifecycle.payload import encode_body
from holdfast.testing.runner_contract import VALUE, Behaviour

on_loop, in_threads, isolated = Holdfast(), Holdfast(), Holdfast()


def submission(behaviour: Behaviour, file: Path) -> dict[str, Any]:
    """Return the fields of a job that behaves so."""
    wrong = {"file": 7} if behaviour is Behaviour.INVALID else {"file": str(file)}
    task = "returns" if behaviour is Behaviour.INVALID else behaviour.value
    return {"task": task, "body": encode_body(wrong)}


@contextmanager
def locked(file: str) -> Iterator[TextIO]:
    """Hold the lock on a file, and write into it that the job has started."""
    with Path(file).open("a") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened.write("started\n")
        opened.flush()
        yield opened


def report(ctx: Context) -> None:
    """Report as `Behaviour.REPORTS` says."""
    ctx.progress(1)
    ctx.heartbeat()
    ctx.log.info("half")
    ctx.progress(2)


async def returns_async(ctx: Context, file: str) -> int:
    with locked(file):
        await asyncio.sleep(0)
        return VALUE


async def fails_async(ctx: Context, file: str) -> None:
    with locked(file):
        await asyncio.sleep(0)
        raise OSError("failed on purpose")


async def runs_on_async(ctx: Context, file: str) -> None:
    with locked(file):
        while True:  # noqa: ASYNC110  until it is killed
            await asyncio.sleep(0.002)


async def stops_async(ctx: Context, file: str) -> int:
    with locked(file) as opened:
        opened.write(f"{await ctx.cancelled}\n")
        return VALUE


async def reports_async(ctx: Context, file: str) -> int:
    with locked(file):
        report(ctx)
        return VALUE


async def unkeepable_async(ctx: Context, file: str) -> Any:
    return object()


def returns(ctx: Context, file: str) -> int:
    with locked(file):
        return VALUE


def fails(ctx: Context, file: str) -> None:
    with locked(file):
        raise OSError("failed on purpose")


def runs_on(ctx: Context, file: str) -> None:
    # A thread cannot be killed: it ends when it is asked to.
    with locked(file):
        while not ctx.cancelled:
            time.sleep(0.002)


def stops(ctx: Context, file: str) -> int:
    with locked(file) as opened:
        ctx.cancelled.wait(60)
        opened.write(f"{ctx.cancelled.reason}\n")
        return VALUE


def reports(ctx: Context, file: str) -> int:
    with locked(file):
        report(ctx)
        return VALUE


def unkeepable(ctx: Context, file: str) -> Any:
    return object()


def runs_on_deaf(ctx: Context, file: str) -> None:
    with locked(file):
        while True:
            time.sleep(0.002)


for name, on_its_loop, plain in (
    ("returns", returns_async, returns),
    ("fails", fails_async, fails),
    ("stops", stops_async, stops),
    ("reports", reports_async, reports),
    ("unkeepable", unkeepable_async, unkeepable),
    ("runs_on", runs_on_async, runs_on),
):
    on_loop.task(name=name)(on_its_loop)
    in_threads.task(name=name)(plain)
    if plain is not runs_on:
        isolated.task(name=name, isolate="process")(plain)
isolated.task(name="runs_on", isolate="process")(runs_on_deaf)
