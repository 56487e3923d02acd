"""What woken jobs recorded is read for many at once, unless a history is long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from holdfast.lifecycle.record import JobId
from holdfast.tasks.durable.protocol import Recall, Recalled, Reply
from holdfast.telemetry import Meters
from holdfast.worker.durable_calls import SHORT_HISTORY, DurableCalls


class Counting:
    """A store of jobs that recorded nothing; it counts how it was read."""

    def __init__(self) -> None:
        self.together: list[list[JobId]] = []
        self.alone: list[JobId] = []

    async def histories(self, ids: list[JobId], *, last: int) -> list[list[Any]]:
        """Count one read of several."""
        assert last == SHORT_HISTORY
        self.together.append(list(ids))
        return [[] for _ in ids]

    async def events(self, id: JobId, **_: Any) -> list[Any]:
        """Count one read of one."""
        self.alone.append(id)
        return []


def woken(number: int, *, rev: int = 5, adopted: bool = False) -> Any:
    """Return a job in its second attempt."""
    job = SimpleNamespace(id=JobId(UUID(int=number)), attempt=2)
    created = SimpleNamespace(resumes=None, tenant="default")
    return SimpleNamespace(
        claimed=SimpleNamespace(id=job.id, job=job, created=created),
        record=SimpleNamespace(rev=rev),
        adopted=adopted,
    )


async def recall(store: Counting, *jobs: Any) -> list[Reply]:
    """Ask for what jobs recorded, all in one turn of the loop."""
    calls = DurableCalls(cast("Any", store), cast("Any", None), Meters())
    replies: list[Reply] = []
    await asyncio.gather(*(calls.answer(job, Recall(), replies.append) for job in jobs))
    return replies


async def test_jobs_that_wake_together_are_read_by_one_statement() -> None:
    store, jobs = Counting(), [woken(number) for number in range(3)]
    assert await recall(store, *jobs) == [Recalled([])] * 3
    assert store.together == [[job.claimed.job.id for job in jobs]]
    assert store.alone == []


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(woken(1, rev=SHORT_HISTORY + 1), id="a long history"),
        pytest.param(woken(1, adopted=True), id="a run that is older than its worker"),
    ],
)
async def test_what_one_statement_might_not_read_whole_is_read_page_by_page(job: Any) -> None:
    store = Counting()
    assert await recall(store, job) == [Recalled([])]
    assert (store.together, store.alone) == ([], [job.claimed.job.id])
