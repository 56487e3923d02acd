"""The app that worker processes of these tests serve, and their children load.

Every handler tells a resource outside when it begins and ends, with its token; what the resource
refuses, the handler takes for its own end.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from holdfast import Context
from holdfast.app.app import Holdfast
from tests.crashes.paying import paying, paying_in_a_thread
from tests.support.crew import EFFECTS
from tests.support.resource import Resource

LEASE_SECONDS = 0.6
BRISK: dict[str, Any] = {"lease": "600ms", "heartbeat": "300ms", "backoff": "10ms"}
"""Short leases: what a dead worker held is found soon, and what a live one holds is renewed."""
MANY = {**BRISK, "retries": 50}
STEADY_LEASE_SECONDS = 4.0
STEADY: dict[str, Any] = {"lease": "4s", "heartbeat": "2s", "backoff": "10ms"}
"""Leases that a busy machine does not lose by itself, for tests that count attempts or failures."""
DEADLINE = "HOLDFAST_TEST_DEADLINE"
"""Names the seconds after which a worker process's store tells that its database is away."""
Done: TypeAlias = dict[str, int]


class Fenced(Exception):
    """The resource has seen a later attempt."""


def begin(ctx: Context) -> None:
    """Tell the resource that the attempt runs."""
    effect(ctx, "begin")


def end(ctx: Context) -> Done:
    """Have the effect that the job is there for; the result names the attempt."""
    effect(ctx, "end")
    return {"attempt": ctx.attempt}


def effect(ctx: Context, what: str) -> None:
    """Write to the resource under the attempt's token."""
    if not Resource(os.environ[EFFECTS]).write(ctx.token, what):
        raise Fenced(f"the resource refused {ctx.token}")


async def quick(ctx: Context) -> Done:
    """Run for no time."""
    begin(ctx)
    return end(ctx)


async def reporting(ctx: Context) -> Done:
    """Say how far it is, and take long enough for that to be written by itself."""
    begin(ctx)
    ctx.progress({"half": True})
    ctx.heartbeat()
    await asyncio.sleep(0.05)
    return end(ctx)


async def shaky(ctx: Context) -> Done:
    """Fail the first time."""
    begin(ctx)
    if ctx.job.failures == 0:
        raise OSError("not yet")
    return end(ctx)


async def failing(ctx: Context) -> Done:
    """Fail every time."""
    begin(ctx)
    raise OSError("never")


async def lasting(ctx: Context, seconds: float = 1.5 * LEASE_SECONDS) -> Done:
    """Take longer than a lease, so that it must be renewed."""
    begin(ctx)
    await asyncio.sleep(seconds)
    return end(ctx)


def threaded(ctx: Context, seconds: float = 0.05) -> Done:
    """Run in a thread for a while."""
    begin(ctx)
    ctx.cancelled.wait(seconds)
    return end(ctx)


def isolated(ctx: Context, seconds: float = 0.0) -> Done:
    """Run in a process of its own for a while."""
    begin(ctx)
    ctx.cancelled.wait(seconds)
    return end(ctx)


async def gated(ctx: Context, gate: str) -> Done:
    """Run until a file is there."""
    begin(ctx)
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240  a test makes it, in another process
        await asyncio.sleep(0.01)
    return end(ctx)


async def heedless(ctx: Context, gate: str) -> Done:
    """Run until a file is there or it is killed; act then, whatever the resource says, and return.

    So it acts late in any case, be it killed for its lost lease or sooner than that is noticed.
    """
    begin(ctx)
    with suppress(asyncio.CancelledError):
        while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240  as above
            await asyncio.sleep(0.01)
    Resource(os.environ[EFFECTS]).write(ctx.token, "end")
    return {"attempt": ctx.attempt}


async def blocking(ctx: Context, seconds: float) -> Done:
    """Block the event loop."""
    begin(ctx)
    time.sleep(seconds)  # noqa: ASYNC251  the point of it
    return end(ctx)


async def hoarding(ctx: Context, seconds: float) -> Done:
    """Hold the interpreter's lock: no other thread of the process runs meanwhile."""
    begin(ctx)
    if ctx.attempt == 1:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    return end(ctx)


def exiting(ctx: Context) -> Done:
    """End the process it runs in, without a word."""
    begin(ctx)
    os._exit(7)


def crashing(ctx: Context) -> Done:
    """Die of a wrong pointer."""
    begin(ctx)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)
    return end(ctx)


def strange_result(ctx: Context) -> Any:
    """Return what no other process can have."""
    begin(ctx)
    return lambda: None


class Strange(Exception):
    """An error that cannot be carried to another process, and hardly be told."""

    def __init__(self) -> None:
        """Carry a function."""
        super().__init__(lambda: None)

    def __reduce__(self) -> Any:
        """Refuse to be carried."""
        raise TypeError("I stay here")

    def __str__(self) -> str:
        """Refuse to be told."""
        raise ValueError("no words")


def strange_error(ctx: Context) -> Done:
    """Raise what cannot be carried."""
    begin(ctx)
    raise Strange


def endless(ctx: Context) -> Done:
    """Call itself for ever."""
    begin(ctx)
    return _deeper(ctx)


def _deeper(ctx: Context) -> Done:
    return _deeper(ctx)


def huge(ctx: Context, size: int) -> str:
    """Return far more than can be kept."""
    begin(ctx)
    return "x" * size


async def brooding(ctx: Context, die: bool = False) -> list[Done]:
    """Spawn three children and gather them; if wanted, die in between the first time."""
    quick_task = app.tasks["quick"]
    children = [await ctx.spawn(quick_task) for _ in range(3)]
    if die and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return await ctx.gather(*children)


def make_app(url: str = ":memory:", **settings: Any) -> Holdfast:
    """Make an app with all of these tasks."""
    made = Holdfast(url, unbounded_leases=True, **settings)
    handler: Any
    for handler in (quick, reporting, shaky, lasting, threaded, gated, heedless):
        made.task(**MANY)(handler)
    made.task(name="careful", idempotent=False, **MANY)(quick)
    made.task(name="careful_lasting", idempotent=False, **MANY)(lasting)
    made.task(name="patient")(quick)
    for handler in (paying, paying_in_a_thread):
        made.task(retries=500, **BRISK)(handler)
    made.task(name="paying_isolated", isolate="process", retries=500, **STEADY)(paying)
    made.task(isolate="process", **MANY)(isolated)
    made.task(**MANY)(brooding)
    made.task(name="brooding_isolated", isolate="process", retries=50, **STEADY)(brooding)
    steady = {**STEADY, "retries": 50, "cancel_grace": "0s"}
    for handler in (quick, reporting, shaky, lasting, threaded, gated, heedless):
        made.task(name=f"steady_{handler.__name__}", **steady)(handler)
    made.task(name="steady_careful", idempotent=False, **steady)(quick)
    made.task(name="steady_careful_lasting", idempotent=False, **steady)(lasting)
    made.task(name="steady_isolated", isolate="process", **steady)(isolated)
    for handler in (blocking, hoarding):
        made.task(**steady)(handler)
    poison = {**STEADY, "retries": 2}
    made.task(**{**poison, **BRISK})(failing)
    made.task(name="exits_its_worker", **poison)(exiting)
    for handler in (exiting, crashing, strange_result, strange_error, endless, huge):
        made.task(isolate="process", **poison)(handler)
    for handler in (strange_result, strange_error, endless, huge):
        made.task(name=f"{handler.__name__}_here", **poison)(handler)
    return made


app = make_app(deadline_seconds=float(os.environ.get(DEADLINE, "30")))
