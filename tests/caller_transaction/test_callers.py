"""With every driver: the job is there exactly if the caller's rows are."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.errors import BadData, BadTransaction, KeyConflict, NotCommitted
from holdfast.lifecycle.states import State
from holdfast.testing.store_actions import claim_one
from tests.caller_transaction.callers import Caller


async def orders(url: str) -> list[int]:
    """What the caller has, as everybody else sees it."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("SELECT number FROM orders ORDER BY number")
    await connection.close()
    return [row[0] for row in rows]


async def jobs(app: Holdfast) -> list[str]:
    """What Holdfast has, as everybody else sees it."""
    return [job.id async for job in app.jobs()]


async def test_a_commit_makes_the_row_and_the_job(app: Holdfast, any_caller: Caller) -> None:
    await any_caller.begin()
    await any_caller.order(1)
    handle = await any_caller.submit(app.tasks["ship"], 1)

    assert (handle.committed, handle.created) == (False, True)
    assert app.meters.lane("ship", "default").submitted == 1
    assert (await orders(app.url), await jobs(app)) == ([], [])
    with pytest.raises(NotCommitted, match="not committed yet"):
        await handle.result()

    await any_caller.commit()

    assert (await orders(app.url), await jobs(app)) == ([1], [handle.id])
    job = await handle.refresh()
    assert (handle.committed, job.id, job.state, job.created) == (
        True, handle.id, State.QUEUED, True,
    )  # fmt: skip


async def test_a_rollback_leaves_neither(app: Holdfast, caller: Caller) -> None:
    await caller.begin()
    await caller.order(1)
    handle = await caller.submit(app.tasks["ship"], 1, dedupe_key="order-1")
    await caller.rollback()

    assert (await orders(app.url), await jobs(app)) == ([], [])
    with pytest.raises(NotCommitted, match=handle.id):
        await handle.refresh()
    again = await app.tasks["ship"].options(dedupe_key="order-1").submit(1)
    assert again.created


async def test_a_rollback_to_a_savepoint_leaves_what_came_before(
    app: Holdfast, caller: Caller
) -> None:
    await caller.begin()
    first = await caller.submit(app.tasks["ship"], 1)
    await caller.run("SAVEPOINT later")
    await caller.order(2)
    await caller.submit(app.tasks["ship"], 2, dedupe_key="order-2")
    await caller.run("ROLLBACK TO SAVEPOINT later")
    third = await caller.submit(app.tasks["ship"], 3, dedupe_key="order-2")
    await caller.commit()

    assert third.created, "the key was given back with the savepoint"
    assert await orders(app.url) == []
    assert set(await jobs(app)) == {first.id, third.id}


async def test_a_conflict_in_the_callers_own_table_takes_the_job_along(
    app: Holdfast, caller: Caller
) -> None:
    await caller.begin()
    await caller.order(1)
    await caller.commit()

    await caller.begin()
    await caller.submit(app.tasks["ship"], 1)
    with pytest.raises(Exception, match="orders_pkey"):
        await caller.order(1)
    with pytest.raises(BadTransaction, match="has failed before") as failed:
        await caller.submit(app.tasks["ship"], 2)
    await caller.rollback()

    assert failed.value.code == "transaction_failed"
    assert (await orders(app.url), await jobs(app)) == ([1], [])


async def test_a_taken_key_answers_with_its_job_and_a_refused_one_leaves_the_transaction_usable(
    app: Holdfast, caller: Caller
) -> None:
    there = await app.tasks["ship"].options(job_id="order-1").submit(1)

    await caller.begin()
    same = await caller.submit(app.tasks["ship"], 1, job_id="order-1")
    with pytest.raises(KeyConflict, match="another body") as refused:
        await caller.submit(app.tasks["ship"], 2, job_id="order-1", dedupe_key="free")
    await caller.order(3)
    taken_back = await caller.submit(app.tasks["ship"], 3, dedupe_key="free")
    await caller.commit()

    assert (same.created, same.id) == (False, "order-1")
    assert refused.value.job_id == str(there.record.id)
    assert taken_back.created, "a refused job keeps none of its keys"
    assert await orders(app.url) == [3]
    assert set(await jobs(app)) == {"order-1", taken_back.id}


async def test_bad_data_is_refused_before_anything_is_written(
    app: Holdfast, caller: Caller
) -> None:
    task: Any = app.tasks["ship"]
    await caller.begin()
    with pytest.raises(BadData):
        await caller.submit(task, "not a number")
    with pytest.raises(BadData):
        await caller.submit(task, 1, job_id="a" * 10_000)
    await caller.order(1)
    await caller.commit()

    assert (await orders(app.url), await jobs(app)) == ([1], [])


async def test_texts_of_all_kinds_arrive_as_they_are(app: Holdfast, any_caller: Caller) -> None:
    said = 'it\'s 100 % "so": :name $1 %s {} \\u0000 \u2028 \N{GRINNING FACE}'
    tell = app.task(name="tell")(_tell)
    await any_caller.begin()
    handle = await any_caller.submit(tell, said, labels={"said": said})
    await any_caller.commit()

    claimed = await claim_one(await app.store(), "default")
    assert (claimed.job.public_id, claimed.body) == (handle.id, tell.prepare(said).body)
    assert claimed.created.labels == {"said": said}


def _tell(said: str) -> str:
    return said
