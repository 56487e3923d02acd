"""Tasks and queues of Holdfast's own services are closed to every caller."""

from __future__ import annotations

import pytest

from holdfast.errors import HoldfastError, ReservedName
from holdfast.flow.letters import LetterFilter
from holdfast.flow.redrive import Wish
from holdfast.lifecycle.states import State
from holdfast.operations import Operations, Wanted
from holdfast.ports import Query, Store
from holdfast.testing.acts import job_in
from holdfast.webhooks import QUEUE, TASK


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (Wanted(task=TASK), "task"),
        (Wanted(task=TASK, queue=QUEUE), "task"),
        (Wanted(task="holdfast.anything"), "task"),
        (Wanted(task="mine", queue=QUEUE), "queue"),
        (Wanted(task="mine", queue=QUEUE, job_id="with-a-key"), "queue"),
    ],
)
async def test_a_job_of_holdfasts_own_cannot_be_submitted(
    mine: Operations, wanted: Wanted, field: str
) -> None:
    [refused] = await mine.submit([wanted])
    assert isinstance(refused, HoldfastError)
    assert (type(refused), refused.code) == (ReservedName, "reserved_name")
    assert refused.field is not None
    assert refused.field.removeprefix("$.").removeprefix("jobs[0].") == field
    assert (await mine.find(Query())).jobs == []


async def test_a_similar_name_is_anybodys(mine: Operations) -> None:
    [taken] = await mine.submit([Wanted(task="holdfastly", queue="holdfast-webhooks")])
    assert not isinstance(taken, HoldfastError)


async def test_a_dead_letter_is_not_redriven_into_a_reserved_queue(
    mine: Operations, store: Store
) -> None:
    dead = await job_in(store, State.DEAD_LETTERED, tenant="mine")
    with pytest.raises(ReservedName):
        await mine.redrive(dead.id, wish=Wish(queue=QUEUE))
    with pytest.raises(ReservedName):
        await mine.redrive_all(LetterFilter(), wish=Wish(queue=QUEUE))
    assert (await mine.find(Query(queue=QUEUE))).jobs == []
