"""A hard cancel reaches whoever lives below a job, also below those that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from holdfast.errors import BadData, Refused, StaleRevision, StoreUnavailable
from holdfast.flow.cancel import cancel
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.linked import compensation_id
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import CancelMode, Link, State
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, new_job, owner_of
from holdfast.testing.store_actions import do, job_in, running_job, stored
from tests.flow.families import (
    Claims,
    Unreadable,
    child_of,
    end,
    states,
    tended,
    tree,
    waiting_parent,
)
from tests.flow.test_command import Interrupting

RUNNING, CANCELLED, SUCCEEDED = State.RUNNING, State.CANCELLED, State.SUCCEEDED
SOFT, HARD = CancelMode.SOFT, CancelMode.HARD
ONCE = Policy(max_attempts=3, idempotent=False)


async def asked(store: Store, *jobs: Job) -> list[CancelMode | None]:
    """Tell how jobs were asked to end."""
    return [(await stored(store, job.id)).cancel_requested for job in jobs]


async def softly_ended(store: Store) -> tuple[Job, Job]:
    """Have a parent that a soft cancel ended, and its child, which runs on and was asked softly."""
    parent, [child] = await waiting_parent(store, RUNNING)
    ended = await cancel(store, parent.id, CONTROL)
    assert ended.state is CANCELLED
    assert await asked(store, child) == [SOFT]
    return ended, child


@pytest.mark.req("A18", "B13")
async def test_a_hard_cancel_reaches_the_children_of_a_parent_that_a_soft_one_ended(
    either_store: Store,
) -> None:
    store = either_store
    parent, child = await softly_ended(store)
    after = await cancel(store, parent.id, CONTROL, hard=True, reason="enough")

    assert await asked(store, child) == [HARD]
    assert after == await stored(store, parent.id) == parent, "what has ended takes no event"
    last = (await store.events(child.id))[-1]
    assert (last.actor, last.reason) == (CONTROL.label, "enough")


@pytest.mark.req("A18", "B13")
@pytest.mark.parametrize(
    "state", [State.FAILED, CANCELLED, State.TIMED_OUT, State.DEAD_LETTERED, State.DENIED]
)
async def test_a_hard_cancel_reaches_below_a_parent_however_it_ended(
    store: Store, state: State
) -> None:
    parent = await job_in(store, state)
    held, queued = await child_of(store, parent), await child_of(store, parent, State.QUEUED)
    await cancel(store, parent.id, CONTROL, hard=True)

    assert await asked(store, held) == [HARD]
    assert await states(store, queued) == [CANCELLED]
    last = (await store.events(held.id))[-1]
    assert last.reason == f"{parent.id} was cancelled hard"


@pytest.mark.req("A18", "B13")
async def test_a_hard_cancel_reaches_below_a_child_that_a_soft_one_ended(
    either_store: Store,
) -> None:
    store = either_store
    top, between, held = await tree(store, State.WAITING, RUNNING)
    await cancel(store, top.id, CONTROL)
    assert await states(store, between) == [CANCELLED]
    assert await asked(store, top, held) == [SOFT, SOFT]
    await cancel(store, top.id, CONTROL, hard=True)

    assert await asked(store, top, held) == [HARD, HARD]


@pytest.mark.req("A18", "B13")
async def test_a_hard_cancel_reaches_all_levels_below_those_that_have_ended(
    either_store: Store,
) -> None:
    store = either_store
    parent, child = await softly_ended(store)
    below = await child_of(store, child, State.WAITING)
    deep = await child_of(store, below)
    await tended(store)
    assert await states(store, below) == [CANCELLED]
    assert await asked(store, deep) == [SOFT]
    await cancel(store, parent.id, CONTROL, hard=True)

    assert await asked(store, child, deep) == [HARD, HARD]


async def test_of_a_parent_that_succeeded_only_those_are_reached_that_were_asked(
    either_store: Store,
) -> None:
    store = either_store
    parent, was_asked = await tree(store, RUNNING)
    before = await cancel(store, parent.id, CONTROL)
    done = await end(store, before)
    free = await child_of(store, parent)
    tried = await child_of(store, parent, policy=ONCE)
    again = new_job(parent_id=tried.id, link_kind=Link.RETRY, policy=ONCE)
    await do(store, tried, c.Fail(actor=owner_of(tried), error_code="boom", submits=(again,)))

    assert await cancel(store, parent.id, CONTROL, hard=True) == done
    assert await asked(store, was_asked, free) == [HARD, None]
    assert (await stored(store, again.record.id)).state is State.QUEUED


async def test_a_hard_cancel_reaches_the_next_try_of_a_child_that_has_ended(store: Store) -> None:
    parent = await job_in(store, State.FAILED)
    first = await child_of(store, parent, policy=ONCE)
    again = new_job(parent_id=first.id, link_kind=Link.RETRY, policy=ONCE)
    await do(store, first, c.Fail(actor=owner_of(first), error_code="boom", submits=(again,)))
    await cancel(store, parent.id, CONTROL, hard=True)

    assert (await stored(store, again.record.id)).state is CANCELLED


async def test_a_hard_cancel_reaches_the_next_try_of_the_job_itself(store: Store) -> None:
    first = await running_job(store, policy=ONCE)
    again = new_job(parent_id=first.id, link_kind=Link.RETRY, policy=ONCE)
    await do(store, first, c.Fail(actor=owner_of(first), error_code="boom", submits=(again,)))
    await cancel(store, first.id, CONTROL, hard=True)

    assert (await stored(store, again.record.id)).state is CANCELLED


@pytest.mark.parametrize("state", [State.QUEUED, State.FAILED])
async def test_a_reason_is_checked_whether_or_not_there_is_anything_to_write(
    store: Store, state: State
) -> None:
    job = await job_in(store, state)
    with pytest.raises(BadData, match="reason has 100,000 characters"):
        await cancel(store, job.id, CONTROL, hard=True, reason="x" * 100_000)


@pytest.mark.req("B28")
async def test_what_undoes_a_job_is_not_cancelled_with_its_children(store: Store) -> None:
    parent = await job_in(store, State.FAILED, policy=Policy(compensates=True))
    child = await child_of(store, parent)
    await cancel(store, parent.id, CONTROL, hard=True)

    assert await asked(store, child) == [HARD]
    assert (await stored(store, compensation_id(parent.id))).state is State.QUEUED


async def test_more_children_than_one_page_are_all_reached(
    either_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = either_store
    for limit in ("flow.cancel.PARENTS", "queries.family.FIRST_PAGE", "queries.family.NEXT_PAGE"):
        monkeypatch.setattr(f"holdfast.{limit}", 2)
    parent = await job_in(store, State.FAILED)
    ended = [await child_of(store, parent, State.FAILED) for _ in range(5)]
    held = [await child_of(store, one) for one in ended for _ in range(3)]
    await cancel(store, parent.id, CONTROL, hard=True)

    assert await asked(store, *held) == [HARD] * 15


async def test_a_child_that_is_claimed_at_that_moment_is_asked_hard(store: Store) -> None:
    parent = await job_in(store, State.FAILED)
    child = await child_of(store, parent, State.QUEUED)
    await cancel(cast("Store", Claims(store, child)), parent.id, CONTROL, hard=True)

    assert await states(store, child) == [State.CLAIMED]
    assert await asked(store, child) == [HARD]


@pytest.mark.req("A18", "B13")
async def test_a_hard_cancel_reaches_below_a_child_that_fails_at_that_moment(store: Store) -> None:
    parent = await job_in(store, State.FAILED)
    child = await child_of(store, parent)
    grandchild = await child_of(store, child)

    async def fail_child() -> None:
        failing = c.Fail(actor=owner_of(child), error_code="x", body=b"{}")
        await do(store, await stored(store, child.id), failing)

    racing: Any = Interrupting(store, fail_child, 1)
    await cancel(racing, parent.id, CONTROL, hard=True)
    assert (await stored(store, child.id)).state is State.FAILED
    assert await asked(store, grandchild) == [HARD]


# Repeats.


@pytest.mark.req("B5")
@pytest.mark.parametrize("request_id", ["r-1", None])
async def test_a_hard_cancel_of_what_has_ended_may_be_repeated(
    either_store: Store, request_id: str | None
) -> None:
    store = either_store
    parent, child = await softly_ended(store)
    for _ in range(3):
        await cancel(store, parent.id, CONTROL, hard=True, request_id=request_id)

    kinds = [event.facts.cancel for event in await store.events(child.id)]
    assert kinds.count(HARD) == 1


class Breaks:
    """A store whose connection breaks when a walk looks at the children of a job."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def children(self, parents: Sequence[JobId], **wishes: Any) -> list[Job]:
        raise StoreUnavailable("it broke here")


@pytest.mark.req("B5")
async def test_a_hard_cancel_that_broke_off_is_finished_by_its_repeat(either_store: Store) -> None:
    store = either_store
    top, _, held = await tree(store, State.WAITING, RUNNING)
    await cancel(store, top.id, CONTROL)
    breaks = cast("Store", Breaks(store))
    with pytest.raises(StoreUnavailable):
        await cancel(breaks, top.id, CONTROL, hard=True, request_id="r-1")
    assert await asked(store, top, held) == [HARD, SOFT]
    await cancel(store, top.id, CONTROL, hard=True, request_id="r-1")

    assert await asked(store, held) == [HARD]


async def test_a_request_that_stood_for_a_soft_cancel_hardens_nobody(store: Store) -> None:
    parent, [child] = await waiting_parent(store, RUNNING)
    await cancel(store, parent.id, CONTROL, request_id="r-1")
    await cancel(store, parent.id, CONTROL, hard=True, request_id="r-1")

    assert await asked(store, child) == [SOFT]


@pytest.mark.req("C3")
async def test_a_hard_cancel_of_another_revision_reaches_nobody(store: Store) -> None:
    parent, child = await softly_ended(store)
    with pytest.raises(StaleRevision):
        await cancel(store, parent.id, CONTROL, hard=True, expected_rev=parent.rev + 1)

    assert await asked(store, child) == [SOFT]


async def test_a_family_that_cannot_be_read_is_told_after_the_others_were_reached(
    store: Store,
) -> None:
    parent = await job_in(store, State.FAILED)
    poison, other = [await child_of(store, parent, State.FAILED) for _ in range(2)]
    held = await child_of(store, other)
    with pytest.raises(Refused, match=f"{poison.id}: .*unreadable") as caught:
        await cancel(cast("Store", Unreadable(store, poison.id)), parent.id, CONTROL, hard=True)

    assert caught.value.code == "not_reached"
    assert await asked(store, held) == [HARD]
