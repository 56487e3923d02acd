"""Handlers whose steps have effects outside, and which die between an effect and its record.

The step tells the resource, and then its process is killed: nothing in the ledger says that it
happened. The verifier of the next attempt looks into the resource.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from itertools import count
from typing import Any

from holdfast import NOT_HAPPENED, Context, Happened
from tests.support.crew import EFFECTS
from tests.support.resource import Resource

DEATH = "HOLDFAST_TEST_STEP_DEATH"
"""After how many effects a process is killed; it lives where the environment does not say."""
SOON_SECONDS = 0.3
"""How long an effect waits for others to die with it."""
STEPS = 3
_effects = count(1)


class Fenced(Exception):
    """The resource has seen a later attempt."""


def pay(ctx: Context, number: int) -> int:
    """Have the effect."""
    if not Resource(os.environ[EFFECTS]).write(ctx.token, f"pay {number}"):
        raise Fenced(f"the resource refused {ctx.token}")
    return number


def look(ctx: Context, number: int) -> Any:
    """Say whether it happened; an attempt before ours that still lives cannot pay from now on."""
    resource = Resource(os.environ[EFFECTS])
    if not resource.write(ctx.token, "look"):
        raise Fenced(f"the resource refused {ctx.token}")
    paid = [one for one in resource.of(ctx.job.id) if one.accepted and one.what == f"pay {number}"]
    return Happened(number) if paid else NOT_HAPPENED


async def pay_and_die(ctx: Context, number: int) -> int:
    """Pay, on the loop."""
    paid = pay(ctx, number)
    if (seconds := _seconds_left()) is not None:
        await asyncio.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)
    return paid


def pay_and_die_in_a_thread(ctx: Context, number: int) -> int:
    """Pay, where one may block."""
    paid = pay(ctx, number)
    if (seconds := _seconds_left()) is not None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)
    return paid


def _seconds_left() -> float | None:
    limit = os.environ.get(DEATH)
    if limit is None:
        return None
    return SOON_SECONDS if next(_effects) < int(limit) else 0.0


async def paying(ctx: Context) -> list[int]:
    """Pay several times, each a step, some of them called in threads."""
    paid = []
    for number in range(STEPS):
        act = pay_and_die if number % 2 else pay_and_die_in_a_thread
        paid.append(await ctx.step("pay", act, ctx, number, verify=look))
    return paid


def paying_in_a_thread(ctx: Context) -> list[int]:
    """The same in a handler that is no coroutine."""
    return [
        ctx.sync.step("pay", pay_and_die_in_a_thread, ctx, number, verify=look)
        for number in range(STEPS)
    ]
