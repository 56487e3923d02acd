"""Tasks and queues of Holdfast's own services are closed to every caller."""

from __future__ import annotations

import pytest

from holdfast.errors import HoldfastError, ReservedName
from holdfast.lifecycle.states import State
from holdfast.operations.request import Operations
from holdfast.operations.requests import (
    ListJobs,
    RedriveLetter,
    RedriveLetters,
    SubmitJobs,
    WantedJob,
)
from holdfast.ports.store import Store
from holdfast.testing.store_actions import job_in
from holdfast.webhooks.registry import QUEUE, TASK


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (WantedJob(task=TASK), "task"),
        (WantedJob(task=TASK, queue=QUEUE), "task"),
        (WantedJob(task="holdfast.anything"), "task"),
        (WantedJob(task="mine", queue=QUEUE), "queue"),
        (WantedJob(task="mine", queue=QUEUE, job_id="with-a-key"), "queue"),
    ],
)
async def test_a_job_of_holdfasts_own_cannot_be_submitted(
    mine: Operations, wanted: WantedJob, field: str
) -> None:
    [refused] = await mine.do(SubmitJobs(jobs=[wanted]))
    assert isinstance(refused, HoldfastError)
    assert (type(refused), refused.code) == (ReservedName, "reserved_name")
    assert refused.field is not None
    assert refused.field.removeprefix("$.").removeprefix("jobs[0].") == field
    assert (await mine.do(ListJobs())).jobs == []


async def test_a_similar_name_is_anybodys(mine: Operations) -> None:
    [taken] = await mine.do(
        SubmitJobs(jobs=[WantedJob(task="holdfastly", queue="holdfast-webhooks")])
    )
    assert not isinstance(taken, HoldfastError)


async def test_a_dead_letter_is_not_redriven_into_a_reserved_queue(
    mine: Operations, store: Store
) -> None:
    dead = await job_in(store, State.DEAD_LETTERED, tenant="mine")
    with pytest.raises(ReservedName):
        await mine.do(RedriveLetter(job=dead.id, queue=QUEUE))
    with pytest.raises(ReservedName):
        await mine.do(RedriveLetters(to_queue=QUEUE))
    assert (await mine.do(ListJobs(queue=QUEUE))).jobs == []
