"""News: how often a file is looked at for commits of other processes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from holdfast.stores.sqlite import wakeup
from holdfast.stores.sqlite.wakeup import LOOK_SECONDS, LOOKS, News


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(wakeup, "time", clock)
    return clock


async def waited_for(told: News) -> asyncio.Task[bool]:
    task = asyncio.create_task(told.wait(frozenset(["nowhere"]), told.number, 60))
    await asyncio.sleep(0)
    return task


async def test_nobody_looks_where_nobody_waits() -> None:
    told = News()
    assert told.next_look_seconds() is None
    task = await waited_for(told)
    assert told.next_look_seconds() is not None
    task.cancel()


@pytest.mark.parametrize("foreign", [False, True])
async def test_the_longer_the_silence_the_rarer_the_looks(clock: Clock, foreign: bool) -> None:
    most, least = LOOK_SECONDS
    told = News()
    told.note_data_version(1)
    task = await waited_for(told)
    assert told.next_look_seconds() == least
    if foreign:
        told.note_data_version(2)
        task = await waited_for(told)
    else:
        told.note_commit({"another"})
    rests = []
    for _ in range(5):
        rests.append(told.next_look_seconds())
        clock.now += LOOKS * least / 3
    assert rests[0] == most
    assert rests[-1] == least
    assert all(a is not None and b is not None and a <= b for a, b in pairwise(rests))
    assert len(set(rests)) > 2
    task.cancel()
