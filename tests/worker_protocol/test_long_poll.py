"""The waiting room, over a store that only counts who looks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, cast

from holdfast.ports.models import Claimed, ClaimRequest
from holdfast.ports.store import Store
from holdfast.worker_protocol.long_poll import LongPoll

LONG = 1000.0
JOB = cast("Claimed", "a job")


class Counter:
    """A store that gives what a test puts there, and notes who asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.due: list[Claimed] = []
        self._news = asyncio.Event()

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Give one, if there is one."""
        self.asked.append(request.owner)
        return [self.due.pop()] if self.due else []

    async def wake_up(self, queues: Sequence[str], *, limit_seconds: float) -> bool:
        """Wait for news."""
        await self._news.wait()
        self._news.clear()
        return True

    def come(self, *jobs: Claimed) -> None:
        """Have jobs come, or only news."""
        self.due += jobs
        self._news.set()


async def turns() -> None:
    """Let whoever can go on do so."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def stays() -> AsyncIterator[asyncio.Event]:
    """Watch a worker that stays."""
    yield asyncio.Event()


def wish(owner: str, queue: str = "default", **more: Any) -> ClaimRequest:
    """Ask for one job."""
    return ClaimRequest(request_id=owner, owner=owner, queues=(queue,), limit=1, **more)


async def test_of_those_who_want_the_same_one_looks() -> None:
    counter = Counter()
    room = LongPoll(cast("Store", counter))
    ann, bob, cid = [
        asyncio.create_task(room.claim(wish(name), LONG, stays)) for name in ("ann", "bob", "cid")
    ]
    await turns()
    assert sorted(counter.asked) == ["ann", "ann", "bob", "cid"]
    counter.come()
    await turns()
    assert counter.asked[4:] == ["ann"]
    counter.come(JOB)
    assert await ann == [JOB]
    await turns()
    # Whoever came next looks at once: there may be more than the first could take.
    assert counter.asked[5:] == ["ann", "bob"]
    counter.come(JOB)
    assert await bob == [JOB]
    cid.cancel()
    await asyncio.gather(cid, return_exceptions=True)
    assert room._lines == {}


async def test_those_who_want_something_else_look_for_themselves() -> None:
    counter = Counter()
    room = LongPoll(cast("Store", counter))
    wishes = [
        wish("ann"),
        wish("bob", "other"),
        wish("cid", tenant="mine"),
        wish("dan", tasks=("charge",)),
        wish("eve", tasks=("refund",)),
    ]
    waiting = [asyncio.create_task(room.claim(one, LONG, stays)) for one in wishes]
    await turns()
    assert sorted(counter.asked) == sorted(["ann", "bob", "cid", "dan", "eve"] * 2)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_nothing_is_claimed_for_whoever_went_away() -> None:
    counter = Counter()
    room = LongPoll(cast("Store", counter))
    left = asyncio.Event()
    waiting = asyncio.create_task(room.claim(wish("ann"), LONG, lambda: nullcontext(left)))
    await turns()
    left.set()
    counter.come(JOB)
    assert await waiting == []
    assert counter.due == [JOB]


async def test_whoever_went_away_keeps_no_place_in_line() -> None:
    counter = Counter()
    room = LongPoll(cast("Store", counter))
    left = asyncio.Event()
    first = asyncio.create_task(room.claim(wish("ann"), LONG, stays))
    await turns()
    second = asyncio.create_task(room.claim(wish("bob"), LONG, lambda: nullcontext(left)))
    await turns()
    left.set()
    async with asyncio.timeout(30):
        assert await second == []
    counter.come(JOB)
    assert await first == [JOB]
    assert room._lines == {}


async def test_a_claim_that_does_not_wait_or_whose_time_is_up_is_answered() -> None:
    counter = Counter()
    room = LongPoll(cast("Store", counter))
    assert await room.claim(wish("ann"), 0.0, stays) == []
    assert counter.asked == ["ann"]
    first = asyncio.create_task(room.claim(wish("ann"), LONG, stays))
    await turns()
    assert await room.claim(wish("bob"), 0.01, stays) == []
    assert counter.asked == ["ann", "ann", "ann", "bob"]
    counter.come(JOB)
    assert await first == [JOB]


async def test_workers_with_different_tasks_do_not_wait_for_each_other() -> None:
    counter = Counter()
    room = LongPoll(cast("Store", counter))
    wishes = [wish("one", tasks=("a",)), wish("other", tasks=("b",)), wish("any", tasks=None)]
    waiting = [asyncio.create_task(room.claim(one, LONG, stays)) for one in wishes]
    await turns()
    # Each has looked at once, and again as the first of its own line.
    assert counter.asked.count("other") == counter.asked.count("any") == 2
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
