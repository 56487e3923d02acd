"""When a worker's commands leave: alone when idle, together under load, a full batch at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.record import Change
from holdfast.ports.models import ClaimGroup, Outcome
from holdfast.worker import outbox

LIMIT = 60
"""Seconds after which a test has failed; nothing here takes so long."""


class HeldUp:
    """A worker's commits, which are not written before the gate opens."""

    def __init__(self, worker: object, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand between the worker and its store."""
        store = worker._store  # type: ignore[attr-defined]
        self.gate = asyncio.Event()
        self.sizes: list[int] = []
        """Of each commit, in jobs."""
        self._commit = store.commit
        self._sent = asyncio.Condition()
        monkeypatch.setattr(store, "commit", self._hold_up)
        # Else some of a batch would leave by a call of its own.
        monkeypatch.setattr(ClaimGroup, "plan", None)

    async def _hold_up(self, changes: Sequence[Change]) -> list[Outcome]:
        if changes:  # a sweep finds nothing, and says so
            async with self._sent:
                self.sizes.append(len({change.id for change in changes}))
                self._sent.notify_all()
            await self.gate.wait()
        outcomes: list[Outcome] = await self._commit(changes)
        return outcomes

    async def sent(self, commits: int) -> None:
        """Wait until so many commits have left."""
        async with asyncio.timeout(LIMIT), self._sent:
            await self._sent.wait_for(lambda: len(self.sizes) >= commits)


@pytest.mark.parametrize("again", [1, 2])
async def test_a_full_batch_leaves_beside_the_commit_under_way_and_a_smaller_one_gathers(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    monkeypatch.setattr(outbox, "BATCH", 4)
    done = asyncio.Semaphore(0)

    @app.task
    async def short() -> None:
        done.release()

    async def run(jobs: int) -> None:
        await short.submit_many([()] * jobs)
        for _ in range(jobs):
            await asyncio.wait_for(done.acquire(), LIMIT)

    worker = app.worker(poll=0.01, tick=60)
    commits = HeldUp(worker, monkeypatch)
    async with worker:
        await run(1)
        await commits.sent(1)
        await run(3)
        assert commits.sizes == [1]
        await run(1)
        await commits.sent(2)
        await run(4 * again)
        assert commits.sizes == [1, 4]
        commits.gate.set()
    assert commits.sizes == [1, 4] + [4] * again
