"""Tending families: parents are woken once, and children do not outlive a parent that was ended."""

from __future__ import annotations

import asyncio
from typing import cast

import asyncpg
import pytest

from holdfast.errors import StoreUnavailable
from holdfast.flow import cancel
from holdfast.flow.command import perform
from holdfast.flow.families import tend, tend_ignoring_marks
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import Decision, decide
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.family import CHILDREN, wait_name
from holdfast.lifecycle.payload import TEXT_LIMIT
from holdfast.lifecycle.record import Draft, Job
from holdfast.lifecycle.states import TERMINAL, CancelMode, Link, State
from holdfast.ports.store import Store
from holdfast.queries.family import list_awaited
from holdfast.testing.factories import CONTROL, RECONCILER, job_ids, new_job, owner_of
from holdfast.testing.store_actions import (
    WAYS_OUT,
    change,
    claim_one,
    do,
    job_in,
    running_job,
    stored,
    submit_one,
)
from holdfast.wiring import opened, read_address
from tests.flow.families import (
    Claims,
    Dies,
    Meeting,
    Unreadable,
    child_of,
    end,
    states,
    tended,
    tree,
    waiting_parent,
    wakes,
)
from tests.stores.ledgers import somebody_waits_for
from tests.support.emptying import empty_ledger
from tests.support.postgres import PostgresCluster

RUNNING, SUCCEEDED = State.RUNNING, State.SUCCEEDED


@pytest.fixture
def emptied_url(shared_postgres_url: str) -> str:
    asyncio.run(empty_ledger(shared_postgres_url))
    return shared_postgres_url


async def test_a_parent_is_woken_when_its_last_child_has_ended(either_store: Store) -> None:
    store = either_store
    parent, [first, last] = await waiting_parent(store, RUNNING, RUNNING)
    await end(store, first)
    assert (await tended(store)).woken == 0
    assert await states(store, parent) == [State.WAITING]

    await do(store, last, WAYS_OUT[State.FAILED](last))
    assert (await tended(store)).woken == 1
    woken = await stored(store, parent.id)
    assert (woken.state, woken.signals) == (State.QUEUED, ())
    assert (await tended(store)).marks == 0


@pytest.mark.req("E5")
async def test_the_last_child_that_ends_while_the_wait_is_written_wakes_its_parent(
    either_store: Store,
) -> None:
    # The parent saw a live child, and decided to wait; the child's end was tended before the wait
    # was written, when there was nobody to wake.
    store = either_store
    parent = await running_job(store)
    child = await child_of(store, parent)
    decided = change(parent, c.Wait(actor=owner_of(parent), signal=CHILDREN))
    await end(store, child)
    assert (await tended(store)).woken == 0
    await store.commit([decided])

    assert (await tended(store)).woken == 1
    assert await states(store, parent) == [State.QUEUED]


async def test_a_wait_for_some_children_does_not_last_for_the_others(store: Store) -> None:
    parent, children = await waiting_parent(store, *[RUNNING] * 3, name=wait_name([0, 1]))
    for child in children[:2]:
        assert (await tended(store)).woken == 0
        await end(store, child)

    assert (await tended(store)).woken == 1
    assert await states(store, parent, children[2]) == [State.QUEUED, RUNNING]


async def test_a_wait_for_the_last_of_many_children_reads_past_the_first(store: Store) -> None:
    parent, children = await waiting_parent(store, *[State.QUEUED] * 30, name=wait_name([29]))
    assert (await tended(store)).woken == 0
    await do(store, children[29], c.Cancel(actor=CONTROL))

    assert (await tended(store)).woken == 1
    assert await wakes(store, parent) == 1


async def test_a_parent_that_waits_for_none_is_woken_at_once(store: Store) -> None:
    parent, _ = await waiting_parent(store)

    assert (await tended(store)).woken == 1
    assert await states(store, parent) == [State.QUEUED]


async def test_a_parent_whose_signal_is_there_is_only_resumed(store: Store) -> None:
    parent, _ = await waiting_parent(store)
    await perform(store, parent.id, c.SignalJob(actor=CONTROL, name=CHILDREN))

    assert (await tended(store)).woken == 1
    assert (await stored(store, parent.id)).signals == ()


async def test_whoever_waits_for_something_else_is_left_alone(store: Store) -> None:
    parent = await running_job(store)
    child = await child_of(store, parent)
    parked = await do(store, parent, c.Wait(actor=owner_of(parent), signal="go"))
    await end(store, child)

    assert (await tended(store)).written == 0
    assert await states(store, parked) == [State.WAITING]


# Two last children finishing at once: a bug class of DESIGN.


async def test_two_last_children_finishing_at_once_wake_their_parent_once(
    either_store: Store,
) -> None:
    """Both ends are decided before either is written, and so are both wakes."""
    parent, children = await waiting_parent(either_store, RUNNING, RUNNING)
    ends, looks = Meeting(either_store, 2), Meeting(either_store, 2)
    await asyncio.gather(*(end(cast("Store", ends), child) for child in children))
    reports = await asyncio.gather(*(tend(cast("Store", looks), RECONCILER) for _ in range(2)))

    assert (ends.met, looks.met) == (2, 2)
    assert sum(report.woken for report in reports) == 1
    assert await wakes(either_store, parent) == 1
    assert await either_store.marked() == []


async def test_two_last_children_whose_ends_overlap_wake_their_parent_once(
    emptied_url: str, postgres_cluster: PostgresCluster
) -> None:
    """One end is held by a lock while the other is written and tended: it must not be the last."""
    async with opened(read_address(emptied_url)) as store:
        parent, [slow, quick] = await waiting_parent(store, RUNNING, RUNNING)
        stranger = await asyncpg.connect(emptied_url)
        async with stranger.transaction():
            await stranger.execute("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", slow.id)
            ending = asyncio.create_task(end(store, slow))
            await somebody_waits_for(stranger, postgres_cluster)
            await end(store, quick)
            assert (await tended(store)).woken == 0
            assert not ending.done()
        await ending
        await stranger.close()

        assert (await tended(store)).woken == 1
        assert await wakes(store, parent) == 1


async def test_tenders_that_wait_for_the_same_parent_wake_it_once(
    emptied_url: str, postgres_cluster: PostgresCluster
) -> None:
    async with opened(read_address(emptied_url)) as store:
        parent, _ = await waiting_parent(store, SUCCEEDED)
        stranger = await asyncpg.connect(emptied_url)
        async with stranger.transaction():
            await stranger.execute("SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE", parent.id)
            looks = [asyncio.create_task(tend(store, RECONCILER)) for _ in range(2)]
            await somebody_waits_for(stranger, postgres_cluster)
        await stranger.close()

        assert sum(report.woken for report in await asyncio.gather(*looks)) == 1
        assert await wakes(store, parent) == 1


# What a death or a loss in between leaves is healed.


async def test_a_death_after_the_wake_wakes_nobody_twice(either_store: Store) -> None:
    parent, _ = await waiting_parent(either_store, SUCCEEDED)
    with pytest.raises(StoreUnavailable):
        await tend(cast("Store", Dies(either_store)), RECONCILER)
    assert await either_store.marked() != []

    assert (await tended(either_store)).written == 0
    assert await wakes(either_store, parent) == 1


async def test_a_lost_mark_is_healed_by_the_slow_pass(either_store: Store) -> None:
    store = either_store
    parent, _ = await waiting_parent(store, SUCCEEDED)
    forsaken, orphan = await tree(store, State.QUEUED)
    await do(store, forsaken, WAYS_OUT[State.FAILED](forsaken))
    await store.unmark(await store.marked())
    assert (await tended(store)).written == 0

    report, after = await tend_ignoring_marks(store, RECONCILER)
    assert (report.woken, report.cancelled, after) == (1, 1, None)
    assert await states(store, parent, orphan) == [State.QUEUED, State.CANCELLED]


async def test_the_slow_pass_goes_through_all_families_a_few_at_a_time(store: Store) -> None:
    parents = [(await waiting_parent(store, State.QUEUED))[0] for _ in range(5)]
    children = await store.children([parent.id for parent in parents])
    for child in children:
        await do(store, child, c.Cancel(actor=CONTROL))
    await store.unmark(await store.marked())
    woken, after = 0, None
    for _ in range(3):
        report, after = await tend_ignoring_marks(store, RECONCILER, after=after, limit=2)
        woken += report.woken

    assert (woken, after) == (5, None)


# Cancel, deadline and failure reach the tree.


@pytest.mark.req("A18")
async def test_a_cancel_reaches_three_levels(either_store: Store) -> None:
    store = either_store
    top, held, *rest = await tree(store, RUNNING, State.WAITING, State.QUEUED, State.RETRYING)
    await cancel.cancel(store, top.id, CONTROL, reason="enough")
    for job in (top, held):
        assert (await stored(store, job.id)).cancel_requested is CancelMode.SOFT
    assert await states(store, *rest) == [State.CANCELLED] * 3

    last = (await store.events(rest[-1].id))[-1]
    assert last.actor.startswith("reconciler:")
    assert last.reason == f"its parent {rest[-2].id} ended cancelled"


async def test_a_hard_cancel_reaches_children_hard(store: Store) -> None:
    top, held = await tree(store, RUNNING)
    await cancel.cancel(store, top.id, CONTROL)
    await cancel.cancel(store, top.id, CONTROL, hard=True)

    assert (await stored(store, held.id)).cancel_requested is CancelMode.HARD


async def test_a_hard_cancel_reaches_who_runs_below_a_parked_parent_hard(
    either_store: Store,
) -> None:
    store = either_store
    top, [between] = await waiting_parent(store, State.WAITING)
    held = await child_of(store, between)
    await cancel.cancel(store, top.id, CONTROL, hard=True)

    assert await states(store, top, between) == [State.CANCELLED] * 2
    assert (await stored(store, held.id)).cancel_requested is CancelMode.HARD


async def test_a_cancel_is_acknowledged_though_the_tree_has_to_wait(store: Store) -> None:
    top, child = await tree(store, State.QUEUED)
    job = await cancel.cancel(cast("Store", Dies(store)), top.id, CONTROL)
    assert job.cancel_requested is CancelMode.SOFT

    await tended(store)
    assert await states(store, child) == [State.CANCELLED]


@pytest.mark.parametrize("state", [state for state in WAYS_OUT if state in TERMINAL])
async def test_children_end_with_a_parent_that_did_not_succeed(store: Store, state: State) -> None:
    parent = await running_job(store)
    held, queued = await child_of(store, parent), await child_of(store, parent, State.QUEUED)
    if state is State.CANCELLED:
        parent = await do(store, parent, c.RequestCancel(actor=CONTROL))
    await do(store, parent, WAYS_OUT[state](parent))
    await tended(store)

    lives = state is SUCCEEDED
    assert await states(store, queued) == [State.QUEUED if lives else State.CANCELLED]
    assert ((await stored(store, held.id)).cancel_requested is None) is lives


async def test_a_child_born_after_the_cancel_does_not_survive(either_store: Store) -> None:
    store = either_store
    parent = await running_job(store)
    asked = await cancel.cancel(store, parent.id, CONTROL)
    await tended(store)
    # Its handler has not noticed yet, and spawns.
    spawned = new_job(parent_id=parent.id, link_kind=Link.CHILD)
    await do(store, asked, c.Step(actor=owner_of(asked), name="spawn", submits=(spawned,)))
    late = await submit_one(store, parent_id=parent.id, link_kind=Link.CHILD)
    await tended(store)

    born = await stored(store, spawned.record.id)
    assert await states(store, born, late) == [State.CANCELLED] * 2


async def test_a_child_born_after_its_parents_end_does_not_survive(store: Store) -> None:
    parent = await job_in(store, State.FAILED)
    late = await child_of(store, parent, State.QUEUED)
    await tended(store)

    assert await states(store, late) == [State.CANCELLED]


async def test_more_children_than_one_look_takes_are_all_ended(either_store: Store) -> None:
    store = either_store
    parent = await running_job(store)
    # Those that run were asked before, and must not hide the others.
    held = [await child_of(store, parent) for _ in range(3)]
    queued = [await child_of(store, parent, State.QUEUED) for _ in range(5)]
    await perform(store, parent.id, c.RequestCancel(actor=CONTROL))
    report = await tended(store, limit=2)

    assert (report.asked, report.cancelled) == (3, 5)
    assert await states(store, *held, *queued) == [RUNNING] * 3 + [State.CANCELLED] * 5


async def test_a_child_that_is_claimed_while_it_is_ended_is_asked_instead(store: Store) -> None:
    parent, child = await tree(store, State.QUEUED)
    await perform(store, parent.id, c.RequestCancel(actor=CONTROL))
    claims = Claims(store, child)
    report = await tend(cast("Store", claims), RECONCILER)

    assert (report.lost, report.asked, report.cancelled) == (1, 1, 0)
    assert (await stored(store, child.id)).cancel_requested is CancelMode.SOFT
    assert await store.marked() == []


# A child that is not idempotent lives on in a linked retry (A16).

ONCE = Policy(max_attempts=3, idempotent=False)


async def fail_with_a_retry(store: Store, job: Job) -> Job:
    again = new_job(
        parent_id=job.id, link_kind=Link.RETRY, step_index=job.step_index, policy=job.policy
    )
    await do(store, job, c.Fail(actor=owner_of(job), error_code="boom", submits=(again,)))
    return await stored(store, again.record.id)


@pytest.mark.req("A16")
async def test_a_linked_retry_is_found_behind_hundreds_of_newer_links(either_store: Store) -> None:
    store = either_store
    parent = await running_job(store)
    first = await child_of(store, parent, policy=ONCE, step_index=0)
    await do(store, parent, c.Wait(actor=owner_of(parent), signal=wait_name([0])))
    second = await fail_with_a_retry(store, first)
    await store.submit([new_job(parent_id=first.id, link_kind=Link.REDRIVE) for _ in range(150)])
    await tended(store)

    assert await states(store, parent) == [State.WAITING]
    assert await list_awaited(store, await stored(store, parent.id)) == [second]


@pytest.mark.req("A16")
async def test_a_parent_waits_for_the_last_try_of_a_child(either_store: Store) -> None:
    store = either_store
    parent = await running_job(store)
    first = await child_of(store, parent, policy=ONCE, step_index=0)
    await do(store, parent, c.Wait(actor=owner_of(parent), signal=wait_name([0])))
    second = await fail_with_a_retry(store, first)
    assert (await tended(store)).woken == 0
    claimed = (await claim_one(store)).job
    assert claimed.id == second.id
    third = await fail_with_a_retry(
        store, await do(store, claimed, c.Start(actor=owner_of(claimed)))
    )
    assert (await tended(store)).woken == 0
    await do(store, third, c.Cancel(actor=CONTROL))

    assert (await tended(store)).woken == 1
    assert await wakes(store, parent) == 1


async def test_a_cancel_reaches_the_next_try_of_a_child(store: Store) -> None:
    parent = await running_job(store)
    first = await child_of(store, parent, policy=ONCE)
    again = await fail_with_a_retry(store, first)
    await tended(store)
    await perform(store, parent.id, c.RequestCancel(actor=CONTROL))
    await tended(store)

    assert await states(store, again) == [State.CANCELLED]


async def test_a_retry_born_after_the_cancel_does_not_survive(store: Store) -> None:
    parent = await running_job(store)
    first = await child_of(store, parent, policy=ONCE)
    await perform(store, parent.id, c.RequestCancel(actor=CONTROL))
    # Before the cancel has reached it: with its own request the law would leave the retry out.
    again = await fail_with_a_retry(store, first)
    await tended(store)

    assert await states(store, again) == [State.CANCELLED]


# One family does not stop the others.


async def test_one_poison_family_does_not_stop_the_others(store: Store) -> None:
    poison, _ = await waiting_parent(store, SUCCEEDED)
    parent, _ = await waiting_parent(store, SUCCEEDED)
    report = await tend(cast("Store", Unreadable(store, poison.id)), RECONCILER)

    assert report.woken == 1
    assert "unreadable" in report.failed[poison.id]
    assert await states(store, poison, parent) == [State.WAITING, State.QUEUED]
    # It does not come back at once, and holds up nobody's marks; the slow pass tries again.
    assert await store.marked() == []
    healed, _ = await tend_ignoring_marks(store, RECONCILER)
    assert healed.woken == 1


async def test_a_family_of_the_longest_id_is_ended_like_any(store: Store) -> None:
    parent = await job_in(store, State.QUEUED, job_id="x" * TEXT_LIMIT)
    child = await child_of(store, parent, State.QUEUED)
    await cancel.cancel(store, parent.id, CONTROL)

    assert await states(store, child) == [State.CANCELLED]


async def test_a_child_that_cannot_be_judged_does_not_stop_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison, _ = await waiting_parent(store, SUCCEEDED)
    await waiting_parent(store, SUCCEEDED)

    def judge(record: Draft, command: c.Command) -> Decision:
        if record.id == poison.id:
            raise ValueError("no law knows this")
        return decide(record, command)

    monkeypatch.setattr("holdfast.flow.batch.decide", judge)
    report = await tend(store, RECONCILER)

    assert report.woken == 1
    assert "no law" in report.failed[poison.id]


async def test_marks_of_unknown_parents_are_put_away(store: Store) -> None:
    await submit_one(store, parent_id=job_ids.mint(), link_kind=Link.CHILD)

    assert (await tended(store)).failed == {}


async def test_a_thousand_children_wake_their_parent_once(store: Store) -> None:
    parent = await running_job(store)
    born = [
        new_job(parent_id=parent.id, link_kind=Link.CHILD, step_index=number, queue="brood")
        for number in range(1000)
    ]
    await store.submit(born)
    await do(store, parent, c.Wait(actor=owner_of(parent), signal=wait_name(range(1000))))
    children = await store.children([parent.id], limit=1000)
    for some in (children[:999], children[999:]):
        assert await states(store, parent) == [State.WAITING]
        await store.commit([change(child, c.Cancel(actor=CONTROL)) for child in some])
        await tended(store)

    assert await wakes(store, parent) == 1
