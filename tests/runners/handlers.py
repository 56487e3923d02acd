"""An app whose handlers run in processes of their own: well-behaved, and otherwise."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.errors import PermanentError, TransientError, ValidationError
from holdfast.lifecycle.payload import Body, decode_body, encode_body
from holdfast.runners.process.child_channel import Channel
from holdfast.tasks.context import Context, current_context
from holdfast.telemetry.tracing import current_traceparent

Function = Callable[..., Any]


class Handler:
    """What a runner needs of a task, without the terms under which it is submitted."""

    def __init__(self, fn: Function) -> None:
        self.name = fn.__name__
        self.fn = fn

    def call(self, ctx: Context, body: bytes | None) -> Any:
        return self.fn(ctx, **(decode_body(body) or {}))

    def pack_result(self, value: Any) -> Body:
        return encode_body(value, "result")


class App:
    def __init__(self) -> None:
        self.tasks: dict[str, Handler] = {}

    def task(self, fn: Function) -> Handler:
        self.tasks[fn.__name__] = Handler(fn)
        return self.tasks[fn.__name__]


app = App()
kept: list[Any] = []


def sleep_forever() -> None:
    threading.Event().wait()


def spawn_sleeper() -> int:
    return subprocess.Popen(["sleep", "1000"]).pid


@app.task
def add(ctx: Context, a: int, b: int) -> int:
    return a + b


@app.task
async def add_async(ctx: Context, a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@app.task
def pid(ctx: Context) -> int:
    return os.getpid()


@app.task
async def loop_number(ctx: Context) -> int:
    return id(asyncio.get_running_loop())


@app.task
def everything(ctx: Context) -> dict[str, Any]:
    return {
        "id": ctx.job.id,
        "labels": ctx.job.labels,
        "attempt": ctx.attempt,
        "token": str(ctx.token),
        "time_left": ctx.time_left,
        "current": current_context.get() is ctx,
        "cancelled": bool(ctx.cancelled),
    }


@app.task
async def current_in_a_task(ctx: Context) -> bool:
    async def look() -> bool:
        return current_context.get() is ctx

    return await asyncio.create_task(look()) and await asyncio.to_thread(
        lambda: current_context.get() is ctx
    )


@app.task
def trace(ctx: Context) -> str | None:
    return current_traceparent()


@app.task
async def trace_async(ctx: Context) -> str | None:
    return await asyncio.create_task(asyncio.to_thread(current_traceparent))


@app.task
def say(ctx: Context) -> None:
    ctx.progress({"done": 1})
    ctx.heartbeat()
    ctx.progress({"done": 2})


@app.task
def log(ctx: Context) -> None:
    ctx.log.info("from the job %d", 7, extra={"amount": 3})
    logging.getLogger("library").warning("from a library")
    try:
        raise ValueError("odd")
    except ValueError:
        ctx.log.exception("with a traceback")


@app.task
def shout(ctx: Context) -> None:
    print("on stdout")
    print("on stderr", file=sys.stderr)


@app.task
def cancelled_flag(ctx: Context) -> str | None:
    ctx.progress("begun")
    while not ctx.cancelled:
        time.sleep(0.001)
    return ctx.cancelled.reason


@app.task
def cancelled_wait(ctx: Context) -> str | None:
    ctx.progress("begun")
    assert ctx.cancelled.wait(60)
    return ctx.cancelled.reason


@app.task
async def cancelled_await(ctx: Context) -> str:
    ctx.progress("begun")
    return await ctx.cancelled


class Declined(PermanentError):
    """A handler's own kind of permanent error."""

    code = "declined"


class Unreadable(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: None)

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise TypeError("no pickle")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "transient": lambda: TransientError("busy", retry_in=12.5),
    "permanent": lambda: PermanentError("gone", code="account_gone"),
    "own": lambda: Declined("by the bank"),
    "validation": lambda: ValidationError("no such colour"),
    "unreadable": Unreadable,
    "interrupt": KeyboardInterrupt,
    "cancelled": lambda: asyncio.CancelledError("asked to"),
}


@app.task
def fail(ctx: Context, how: str) -> None:
    raise ERRORS[how]()


@app.task
async def fail_async(ctx: Context, how: str) -> None:
    raise ERRORS[how]()


@app.task
def fail_with_cause(ctx: Context) -> None:
    try:
        raise KeyError("account")
    except KeyError as error:
        raise ValueError("no account") from error


@app.task
def recurse(ctx: Context) -> None:
    recurse.fn(ctx)


def exit_hard() -> None:
    os._exit(3)


def exit_softly() -> None:
    sys.exit(4)


def exit_in_words() -> None:
    sys.exit("enough")


def exit_with_threads() -> None:
    threading.Thread(target=sleep_forever).start()
    sys.exit(5)


def crash() -> None:
    ctypes.string_at(0)


def recurse_in_c() -> None:
    nest: tuple[Any, ...] = ()
    for _ in range(10**6):
        nest = (nest,)
    hash(nest)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def our_channel() -> socket.socket:
    """What the process speaks to its worker over; no handler should reach for it."""
    return next(found for found in gc.get_objects() if type(found) is Channel)._connection


def babble() -> None:
    our_channel().sendall(b"\x00\x00\x00\x05\xff\xff\xff\xff\xff")
    sleep_forever()


def babble_at_length() -> None:
    our_channel().sendall(b"\xff" * 1000)
    sleep_forever()


def hang_up() -> None:
    our_channel().shutdown(socket.SHUT_WR)
    sleep_forever()


def close_everything() -> None:
    os.closerange(3, 1000)
    sleep_forever()


DEATHS = {
    death.__name__: death
    for death in (
        exit_hard,
        exit_softly,
        exit_in_words,
        exit_with_threads,
        crash,
        recurse_in_c,
        be_killed,
        babble,
        babble_at_length,
        hang_up,
        close_everything,
    )
}


@app.task
def die(ctx: Context, how: str) -> None:
    DEATHS[how]()


@app.task
async def die_async(ctx: Context, how: str) -> None:
    DEATHS[how]()


@app.task
def answer_at_length(ctx: Context, size: int) -> str:
    return "x" * size


class Careless(Handler):
    """Packs whatever it is given."""

    def pack_result(self, value: Any) -> Body:
        return Body(value)


def answer_without_looking(ctx: Context) -> bytes:
    return b'"' + b"x" * (2 * 1024 * 1024) + b'"'


app.tasks["answer_without_looking"] = Careless(answer_without_looking)


@app.task
def answer_oddly(ctx: Context) -> Any:
    return object()


@app.task
def hold(ctx: Context) -> None:
    """Tell who we are and what we started, then hold on to the processor."""
    ctx.progress([os.getpid(), spawn_sleeper()])
    while True:
        pass


@app.task
async def hold_async(ctx: Context) -> None:
    ctx.progress([os.getpid(), spawn_sleeper()])
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            continue


@app.task
def leave(ctx: Context, what: str, then: str) -> int | None:
    left = None
    if what == "process":
        left = spawn_sleeper()
    elif what == "thread":
        threading.Thread(target=sleep_forever, daemon=True).start()
    ctx.progress([os.getpid(), left])
    if then == "fail":
        raise ValueError("left something")
    if then == "obey":
        ctx.cancelled.wait(60)
    return left


@app.task
async def leave_a_task(ctx: Context) -> None:
    kept.append(asyncio.create_task(asyncio.sleep(1000)))
    ctx.progress([os.getpid()])
    raise ValueError("left something")


@app.task
def talk_later(ctx: Context) -> None:
    kept.append(ctx)


@app.task
def let_the_earlier_one_talk(ctx: Context) -> None:
    kept[-1].progress("too late")
    kept[-1].heartbeat()
    ctx.progress("in time")


@app.task
def grow(ctx: Context, size: int) -> int:
    kept.append(b"x" * size)
    return os.getpid()


@app.task
def fork(ctx: Context, how: str) -> tuple[int, str]:
    """Leave a copy of this process, out of the group's reach; tell what our channel is."""
    channel = os.readlink(f"/proc/self/fd/{our_channel().fileno()}")
    gone, leaving = os.pipe()
    # What forks in C, past Python, closes nothing of ours.
    forked = os.fork() if how == "python" else int(ctypes.PyDLL(None).fork())
    if forked == 0:
        os.setsid()
        os.write(leaving, b"!")
        signal.pause()
    # Until it has left the group it would die with us.
    os.read(gone, 1)
    return forked, channel


@app.task
def refuse_to_exit(ctx: Context) -> int:
    atexit.register(sleep_forever)
    return os.getpid()
