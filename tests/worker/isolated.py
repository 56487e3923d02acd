"""Durable handlers that run in processes of their own; each tells a file what it did, and where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast import NOT_HAPPENED, Context, Happened, PermanentError
from holdfast.app.app import Holdfast

app = Holdfast(":memory:", unbounded_leases=True)
TERMS: dict[str, Any] = {"isolate": "process", "backoff": "1ms", "retries": 3}


def note(file: str, what: str) -> str:
    """Have an effect."""
    with Path(file).open("a") as out:
        out.write(f"{what} {os.getpid()}\n")
    return what


def noted(file: str) -> list[str]:
    """Tell what was done."""
    path = Path(file)
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def pids(file: str) -> set[int]:
    """Tell which processes did it."""
    return {int(line.split()[1]) for line in Path(file).read_text().splitlines()}


async def note_later(file: str, what: str) -> str:
    """Have an effect in a coroutine."""
    return note(file, what)


@app.task(**TERMS)
async def in_coroutine(ctx: Context, file: str) -> list[str]:
    """Fail after the first of two steps, then raise no more."""
    first = await ctx.step("first", note_later, file, "first")
    if ctx.attempt == 1:
        raise OSError("not yet")
    return [first, await ctx.step("second", note, file, "second")]


@app.task(**TERMS)
def in_function(ctx: Context, file: str) -> list[str]:
    """Do the same without a loop."""
    first = ctx.sync.step("first", note, file, "first")
    if ctx.attempt == 1:
        raise OSError("not yet")
    return [first, ctx.sync.step("second", note, file, "second")]


@app.task(**TERMS)
def spawns_by_name(ctx: Context, task: str) -> str:
    """Spawn a child of a task that this app does not have."""
    return ctx.sync.spawn(app.named(task)).id


@app.task(**TERMS)
def dies_between(ctx: Context, file: str) -> list[str]:
    """Die between two steps."""
    done = [ctx.sync.step("step", note, file, "one")]
    if ctx.attempt == 1:
        os._exit(7)
    return [*done, ctx.sync.step("step", note, file, "two")]


def note_and_die(file: str, attempt: int) -> str:
    """Die between the effect and its record."""
    told = note(file, "paid")
    if attempt == 1:
        os._exit(7)
    return told


def was_noted(file: str, attempt: int) -> Any:
    """Say whether it happened."""
    return Happened("paid") if noted(file) else NOT_HAPPENED


@app.task(**TERMS)
async def dies_within(ctx: Context, file: str) -> str:
    """Die in a step that can be verified."""
    told: str = await ctx.step("pay", note_and_die, file, ctx.attempt, verify=was_noted)
    return told


@app.task(**TERMS)
async def waits(ctx: Context, file: str) -> list[Any]:
    """Be parked by a sleep and by a signal."""
    note(file, "begin")
    await ctx.sleep("1ms")
    return [await ctx.step("before", note, file, "before"), await ctx.wait_for("go"), ctx.attempt]


@app.task(**TERMS)
def waits_in_function(ctx: Context, file: str) -> list[Any]:
    """Be parked without a loop."""
    note(file, "begin")
    ctx.sync.sleep("1ms")
    before = ctx.sync.step("before", note, file, "before")
    return [before, ctx.sync.wait_for("go"), ctx.attempt]


@app.task(**TERMS)
def remembers_much(ctx: Context, size: int, steps: int) -> list[int]:
    """Have more to remember than any one body may be."""
    sizes = [len(ctx.sync.step("large", large, size)) for _ in range(steps)]
    if ctx.attempt == 1:
        raise OSError("not yet")
    return sizes


def large(size: int) -> str:
    """Return much."""
    return "x" * size


async def take_back(ctx: Context, told: str, /) -> None:
    """Undo a step."""
    note(ctx.job.labels["file"], f"undo-{told[:10]}")


def undo(ctx: Context, file: str, size: int) -> None:
    """Undo the whole, and use a step for it."""
    ctx.sync.step("undo", note, file, "undo-all")


@app.task(compensate=undo, compensate_steps={"note": take_back}, **TERMS)
async def undone(ctx: Context, file: str, size: int = 10) -> None:
    """Do two steps that have to be undone."""
    for letter in "ab":
        await ctx.step("note", note, file, letter * size)
    raise PermanentError("no")


@app.task(**TERMS)
def says(ctx: Context) -> None:
    """Say two lines."""
    ctx.log.info("from another process")
    try:
        raise ValueError("odd")
    except ValueError:
        ctx.log.exception("it failed")


@app.task(isolate="process", retries=0)
def closed_shop(ctx: Context, file: str, gate: str) -> list[str]:
    """Charge, then fail while a file is not there."""
    key = ctx.effect_key("charge")
    done = [ctx.sync.step("charge", note, file, key)]
    done += ctx.sync.gather(ctx.sync.spawn(child_of_shop, file))
    if not Path(gate).exists():
        raise OSError("the shop is closed")
    return [*done, ctx.sync.step("ship", lambda: note(file, ctx.effect_key()))]


@app.task(isolate="process", retries=0)
def child_of_shop(file: str) -> str:
    """Have an effect in a child."""
    return note(file, "child")


@app.task(isolate="process", retries=0)
def renamed(ctx: Context, file: str, gate: str) -> str:
    """Do a step under another name while a file is there."""
    name = "other" if Path(gate).exists() else "charge"
    done: str = ctx.sync.step(name, note, file, "charge")
    if ctx.attempt == 1:
        Path(gate).touch()
    ctx.sync.wait_for("go")
    return done


@app.task(isolate="process", idempotent=False)
def pays_once(ctx: Context) -> int:
    """Tell how often it may be tried."""
    return ctx.job.max_attempts
