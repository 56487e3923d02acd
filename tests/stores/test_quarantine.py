"""One unreadable row: it is set aside; all other claims, sweeps and commits go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from holdfast.errors import JobUnreadable
from holdfast.flow.clean import RetentionTerms, clean
from holdfast.flow.purge import PurgeTerms, purge_all
from holdfast.flow.recover import sweep
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import EventType, Link, Retention, State
from holdfast.maintenance.rebuild import rebuild
from holdfast.ports.models import Capacity, Committed, Query, Rejected, SubmitRefused, Submitted
from holdfast.testing.factories import CONTROL, JANITOR, RECONCILER, SHORT_RUN, new_job, owner_of
from holdfast.testing.store_actions import (
    change,
    claim,
    claimed_ids,
    do,
    job_in,
    passed,
    running_job,
    submit_one,
)
from tests.stores.damage import vandal
from tests.stores.ledgers import Ledger, make_ledger, problems_of
from tests.stores.raw import ENGINES

STRAY = (
    "INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, actor)"
    " SELECT id, rev + 1, $2, state, state, updated_at, attempt, 'stray' FROM jobs WHERE id = $1"
)
DAMAGE: dict[str, Sequence[Any]] = {
    "its first event is missing": ("DELETE FROM events WHERE id = $1 AND rev = 1",),
    "its policy is unknown": ("UPDATE jobs SET policy = 12345 WHERE id = $1",),
    "its first event's data is cut": (
        "UPDATE events SET data = '{\"policy\":1' WHERE id = $1 AND rev = 1",
    ),
    "its first event's data is empty": ("UPDATE events SET data = NULL WHERE id = $1 AND rev = 1",),
    "it lacks signals that it counts": ("UPDATE jobs SET pending_signals = 2 WHERE id = $1",),
    "a stray event is ahead of it": (STRAY, EventType.HELD.code),
}
OF_ROWS = ("its policy is unknown", "it lacks signals that it counts")
"""Damage of the row itself, which whoever reads it meets."""


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return make_ledger(request, tmp_path_factory)


@pytest.fixture
async def damaged(ledger: Ledger) -> AsyncIterator[Callable[..., Any]]:
    """What damages a job behind the store's back."""
    async with vandal(ledger) as hand:

        async def damage(id: JobId, how: str) -> None:
            sql, *values = DAMAGE[how]
            await hand.rows(sql, id, *values)

        yield damage


@pytest.mark.parametrize("tasks", [1, 12], ids=["one task", "many tasks"])
@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("how", DAMAGE)
async def test_one_unreadable_row_does_not_stop_claims(
    ledger: Ledger, damaged: Any, how: str, limit: int, tasks: int
) -> None:
    async with ledger.store() as store:
        bad = await submit_one(store, task="task-0")
        good = {(await submit_one(store, task=f"task-{n % tasks}")).id for n in range(1, 12)}
    await damaged(bad.id, how)
    async with ledger.store() as store:
        taken: set[JobId] = set()
        for _ in range(14):
            taken |= set(await claimed_ids(store, limit=limit))
        assert taken == good
        assert [one.id for one in (await store.quarantined()).jobs] == [bad.id]


@pytest.mark.parametrize("tasks", [1, 3], ids=["one task", "many tasks"])
@pytest.mark.parametrize("how", DAMAGE)
async def test_no_more_is_claimed_beside_an_unreadable_row_than_there_is_room_for(
    ledger: Ledger, damaged: Any, how: str, tasks: int
) -> None:
    async with ledger.store() as store:
        jobs = [await submit_one(store, task=f"task-{n % tasks}", cpus=2) for n in range(6)]
    await damaged(jobs[1].id, how)
    async with ledger.store() as store:
        taken = await claimed_ids(store, limit=9, capacity=Capacity(cpus=4, memory_mb=1))
        assert 1 <= len(taken) <= 2
        assert jobs[1].id not in taken


@pytest.mark.parametrize("how", [*OF_ROWS, "a stray event is ahead of it"])
async def test_one_unreadable_row_that_is_due_does_not_stop_a_sweep(
    ledger: Ledger, damaged: Any, how: str
) -> None:
    async with ledger.store() as store:
        bad = await running_job(store, policy=SHORT_RUN)
        good = await running_job(store, policy=SHORT_RUN)
        await passed(store, good.lease_expires_at)
    await damaged(bad.id, how)
    async with ledger.store() as store:
        await sweep(store, RECONCILER, jitter=lambda: 0.0)
        assert await _state(store, good.id) is State.STALLED
        # It is looked at no more, instead of being tried again in every sweep.
        assert (await sweep(store, RECONCILER, jitter=lambda: 0.0)).failed == {}


@pytest.mark.parametrize("how", OF_ROWS)
async def test_a_commit_that_meets_an_unreadable_row_answers_for_the_others(
    ledger: Ledger, damaged: Any, how: str
) -> None:
    async with ledger.store() as store:
        bad, good = [await running_job(store) for _ in range(2)]
        stale = change(bad, c.Complete(actor=owner_of(bad), body=b"1"))
        await store.commit([change(bad, c.SignalJob(actor=CONTROL, name="go", body=b"1"))])
    await damaged(bad.id, how)
    async with ledger.store() as store:
        done = change(good, c.Complete(actor=owner_of(good), body=b"1"))
        first, second = await store.commit([stale, done])
        assert isinstance(second, Committed), second
        assert isinstance(first, Rejected), first
        assert (first.code, str(bad.id) in first.message) == ("job_unreadable", True)
        assert await _state(store, good.id) is State.SUCCEEDED


@pytest.mark.parametrize("how", OF_ROWS)
async def test_a_damaged_holder_of_a_key_refuses_that_submit_alone(
    ledger: Ledger, damaged: Any, how: str
) -> None:
    async with ledger.store() as store:
        bad = await submit_one(store, dedupe_key="k")
    await damaged(bad.id, how)
    async with ledger.store() as store:
        batch = [new_job(dedupe_key="k"), new_job(dedupe_key="other"), new_job()]
        refused, *others = await store.submit(batch)
        assert isinstance(refused, SubmitRefused)
        assert (refused.code, refused.holder) == ("job_unreadable", bad.id)
        assert [isinstance(one, Submitted) and one.created for one in others] == [True, True]
        assert [one.id for one in (await store.quarantined()).jobs] == [bad.id]


@pytest.mark.parametrize("how", [*OF_ROWS, "its first event's data is cut"])
async def test_a_submit_sent_again_for_a_damaged_job_refuses_that_submit_alone(
    ledger: Ledger, damaged: Any, how: str
) -> None:
    again, fresh = new_job(), new_job()
    async with ledger.store() as store:
        await store.submit([again])
    await damaged(again.record.id, how)
    async with ledger.store() as store:
        refused, other = await store.submit([again, fresh])
        assert isinstance(refused, SubmitRefused)
        assert (refused.code, refused.holder) == ("job_unreadable", again.record.id)
        assert isinstance(other, Submitted)
        assert other.created


@pytest.mark.parametrize("how", DAMAGE)
async def test_what_was_set_aside_is_listed_with_its_reason_and_named_by_verify(
    ledger: Ledger, damaged: Any, how: str
) -> None:
    async with ledger.store() as store:
        bad = await submit_one(store)
    await damaged(bad.id, how)
    async with ledger.store() as store:
        assert await claim(store) == []
        listed = await store.quarantined()
        assert ([one.id for one in listed.jobs], listed.total) == ([bad.id], 1)
        assert listed.jobs[0].reason
        assert listed.jobs[0].since >= bad.created_at
        texts = [one.text for one in await problems_of(store) if one.id == bad.id]
        assert [text for text in texts if f"quarantine release {bad.id}" in text]


async def test_a_repaired_job_that_is_released_is_claimed_again(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        bad = await submit_one(store)
        [row] = await hand.rows("SELECT policy FROM jobs WHERE id = $1", bad.id)
        await hand.rows("UPDATE jobs SET policy = 12345 WHERE id = $1", bad.id)
        assert await claim(store) == []
        await hand.rows("UPDATE jobs SET policy = $2 WHERE id = $1", bad.id, row["policy"])
        assert await claim(store) == []
        assert await store.release_quarantined([bad.id]) == 1
        assert await claimed_ids(store) == [bad.id]
        assert await problems_of(store) == []


async def test_a_rebuild_releases_what_its_events_can_restore(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        bad = await submit_one(store)
        await hand.rows("UPDATE jobs SET policy = 12345 WHERE id = $1", bad.id)
        assert await claim(store) == []
        await rebuild(store)
        assert await claimed_ids(store) == [bad.id]
        assert (await store.quarantined()).total == 0


async def test_a_mark_that_is_refused_does_not_stop_claims_either(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        bad = [await submit_one(store) for _ in range(3)]
        good = [await submit_one(store) for _ in range(3)]
        await hand.many(
            "UPDATE events SET data = '{' WHERE id = $1 AND rev = 1", [(job.id,) for job in bad]
        )
        await hand.rows(REFUSE_MARKS[ledger.engine])
        taken: list[JobId] = []
        for _ in range(3):
            taken += await claimed_ids(store, limit=2)
        # PostgreSQL reads what it claimed after its commit, so these are claimed and not given out.
        assert set(taken) == {job.id for job in good}


REFUSE_MARKS = {
    "sqlite": "CREATE TRIGGER no_marks BEFORE UPDATE OF quarantined_at ON jobs"
    " BEGIN SELECT RAISE(ABORT, 'no marks'); END",
    "postgres": "ALTER TABLE jobs ADD CHECK (quarantined_at IS NULL)",
}


@pytest.mark.parametrize("how", OF_ROWS)
async def test_lists_leave_an_unreadable_job_out_and_name_it(
    ledger: Ledger, damaged: Any, how: str
) -> None:
    async with ledger.store() as store:
        first, bad, last = [await submit_one(store) for _ in range(3)]
    await damaged(bad.id, how)
    async with ledger.store() as store:
        page = await store.find(Query(limit=2))
        assert ([job.id for job in page.jobs], page.unreadable) == ([last.id], [bad.id])
        rest = await store.find(Query(before=page.next))
        assert [job.id for job in rest.jobs] == [first.id]
        with pytest.raises(JobUnreadable, match=str(bad.id)):
            await store.get([first.id, bad.id])


async def test_the_tail_goes_on_behind_an_unreadable_event(ledger: Ledger, damaged: Any) -> None:
    async with ledger.store() as store:
        first, bad, last = [await submit_one(store) for _ in range(3)]
    await damaged(bad.id, "its first event's data is cut")
    async with ledger.store() as store:
        seen: list[JobId] = []
        cursor = None
        for _ in range(4):
            tail = await store.tail(cursor, limit=1)
            assert len(tail.cursors) == len(tail.events)
            seen += [event.id for event in tail.events]
            cursor = tail.cursor
        assert seen == [first.id, last.id]


@pytest.mark.parametrize("how", OF_ROWS)
async def test_what_an_owner_holds_is_told_without_what_cannot_be_read(
    ledger: Ledger, damaged: Any, how: str
) -> None:
    async with ledger.store() as store:
        bad, good = [await running_job(store) for _ in range(2)]
    await damaged(bad.id, how)
    async with ledger.store() as store:
        assert [job.id for job in await store.owned("worker-1")] == [good.id]
        assert [job.id for job in await store.owned("worker-1")] == [good.id]
        assert (await store.quarantined()).total == 1


async def _state(store: Any, id: JobId) -> State:
    [job] = await store.get([id])
    assert job is not None
    return job.state  # type: ignore[no-any-return]


async def test_a_damaged_parent_does_not_stop_retention_and_keeps_its_children(
    ledger: Ledger, damaged: Any
) -> None:
    async with ledger.store() as store:
        parent = await running_job(store)
        child = await job_in(store, State.SUCCEEDED, parent_id=parent.id, link_kind=Link.CHILD)
        parent = await do(store, parent, c.Complete(actor=owner_of(parent)))
        others = {(await job_in(store, State.SUCCEEDED)).id for _ in range(3)}
    await damaged(parent.id, "its policy is unknown")
    async with ledger.store() as store:
        report = await clean(store, JANITOR, RetentionTerms(succeeded=0, unsuccessful=0))
        assert report.cleaned == len(others)
        await submit_one(store, queue="newest")
        await purge_all(store, JANITOR, PurgeTerms(succeeded=0, unsuccessful=0))
        assert await store.get([*others]) == [None] * len(others)
        [kept] = await store.get([child.id])
        assert kept is not None
        assert kept.retention is Retention.LIVE
