"""Parents and children: marks that come with a change and only with it, and who is listed."""

from __future__ import annotations

from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.family import CHILDREN, wait_name
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import TERMINAL, Link, State
from holdfast.ports.models import Committed
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, RECONCILER, job_ids, new_job, owner_of
from holdfast.testing.store_actions import (
    WAYS_OUT,
    chain,
    change,
    claimed_job,
    commit_one,
    do,
    job_in,
    refused,
    running_job,
    submit_one,
)

ENDS = sorted(TERMINAL)
OTHER_LINKS = (Link.RETRY, Link.REDRIVE, Link.COMPENSATION)


async def child_of(store: Store, parent: Job, state: State = State.QUEUED, **options: Any) -> Job:
    """Submit a child of a job, and lead it into a state."""
    return await job_in(store, state, parent_id=parent.id, link_kind=Link.CHILD, **options)


async def marked(store: Store) -> list[JobId]:
    """List the marked jobs, once for each mark."""
    return [mark.id for mark in await store.marked()]


async def unmarked(store: Store) -> None:
    """Take all marks away that arranging a test has left."""
    await store.unmark(await store.marked())


async def end(store: Store, job: Job) -> Job:
    """End a running job in order."""
    return await do(store, job, c.Complete(actor=owner_of(job)))


class FamilyContract:
    """Marks, children and families."""

    async def test_the_birth_and_every_end_of_a_child_mark_its_parent(self, store: Store) -> None:
        for state in ENDS:
            parent = await submit_one(store)
            await child_of(store, parent, state)

            assert await marked(store) == [parent.id, parent.id], state
            await unmarked(store)

    async def test_a_child_that_starts_and_ends_in_one_commit_marks_its_parent(
        self, store: Store
    ) -> None:
        parent = await submit_one(store)
        job = await child_of(store, parent, State.CLAIMED)
        await unmarked(store)
        actor = owner_of(job)
        await store.commit(chain(job, c.Start(actor=actor), c.Complete(actor=actor)))

        assert await marked(store) == [parent.id]

    async def test_a_child_that_goes_on_marks_nobody(self, store: Store) -> None:
        parent = await submit_one(store)
        job = await child_of(store, parent, State.RUNNING)
        await unmarked(store)
        await do(store, job, c.Retry(actor=owner_of(job), error_code="boom", retry_in=0))

        assert await marked(store) == []

    async def test_the_end_of_a_job_without_family_marks_nobody(self, store: Store) -> None:
        for state in ENDS:
            await job_in(store, state)

        assert await marked(store) == []

    async def test_the_end_of_a_linked_retry_marks_the_try_before(self, store: Store) -> None:
        # That may have been a child: its parent waits for the last try.
        first = await job_in(store, State.FAILED)
        again = await running_job(store, parent_id=first.id, link_kind=Link.RETRY)
        assert await marked(store) == []
        await end(store, again)

        assert await marked(store) == [first.id]

    async def test_a_redrive_and_a_compensation_mark_nobody(self, store: Store) -> None:
        first = await submit_one(store)
        for link in (Link.REDRIVE, Link.COMPENSATION):
            await job_in(store, State.FAILED, parent_id=first.id, link_kind=link)

        assert await marked(store) == []

    async def test_a_note_on_a_child_after_its_end_marks_nobody(self, store: Store) -> None:
        job = await child_of(store, await submit_one(store), State.DEAD_LETTERED)
        await unmarked(store)
        await do(store, job, c.Discarded(actor=CONTROL))

        assert await marked(store) == []

    async def test_a_change_that_was_refused_marks_nobody(self, store: Store) -> None:
        job = await child_of(store, await submit_one(store), State.RUNNING)
        late = change(job, c.Complete(actor=owner_of(job)))
        await do(store, job, c.Progress(actor=owner_of(job), body=b"1"))
        await unmarked(store)
        await refused(store, late)

        assert await marked(store) == []

    async def test_only_the_accepted_of_a_batch_mark(self, store: Store) -> None:
        one, other = await submit_one(store), await submit_one(store)
        good = await child_of(store, one, State.RUNNING)
        bad = await child_of(store, other, State.RUNNING)
        ends = [change(job, c.Complete(actor=owner_of(job))) for job in (good, bad)]
        await do(store, bad, c.Progress(actor=owner_of(bad), body=b"1"))
        await unmarked(store)
        outcomes = await store.commit(ends)

        assert [isinstance(outcome, Committed) for outcome in outcomes] == [True, False]
        assert await marked(store) == [one.id]

    async def test_a_wait_for_children_marks_the_job_that_waits(self, store: Store) -> None:
        # The last child may have ended between the parent's look and its wait.
        parents = [await running_job(store) for _ in range(2)]
        for parent, name in zip(parents, (CHILDREN, wait_name([0, 1, 5])), strict=True):
            await do(store, parent, c.Wait(actor=owner_of(parent), signal=name))

        assert await marked(store) == [parent.id for parent in parents]

    async def test_any_other_wait_marks_nobody(self, store: Store) -> None:
        await job_in(store, State.WAITING)

        assert await marked(store) == []

    async def test_a_requested_cancel_marks_a_job_with_children(self, store: Store) -> None:
        alone, parent, past = [await running_job(store) for _ in range(3)]
        await child_of(store, parent)
        await child_of(store, past, State.FAILED)
        await unmarked(store)
        for job in (alone, parent, past):
            await do(store, job, c.RequestCancel(actor=CONTROL))

        # Also where all have ended: one may live on in a linked retry.
        assert await marked(store) == [parent.id, past.id]

    async def test_every_end_but_success_marks_a_job_with_children(self, store: Store) -> None:
        for state, way_out in WAYS_OUT.items():
            if state not in TERMINAL:
                continue
            parent = await running_job(store)
            await child_of(store, parent)
            if state is State.CANCELLED:
                parent = await do(store, parent, c.RequestCancel(actor=CONTROL))
            await unmarked(store)
            await do(store, parent, way_out(parent))

            expected = [] if state is State.SUCCEEDED else [parent.id]
            assert await marked(store) == expected, state

    async def test_a_cancelled_parent_in_the_queue_is_marked(self, store: Store) -> None:
        parent = await submit_one(store)
        await child_of(store, parent)
        await unmarked(store)
        await do(store, parent, c.Cancel(actor=CONTROL))

        assert await marked(store) == [parent.id]

    async def test_a_child_that_fails_marks_its_parent_and_for_its_children_itself(
        self, store: Store
    ) -> None:
        parent = await submit_one(store)
        job = await child_of(store, parent, State.RUNNING)
        await child_of(store, job)
        await unmarked(store)
        await do(store, job, c.Fail(actor=owner_of(job), error_code="boom"))

        assert sorted(await marked(store)) == sorted([parent.id, job.id])

    async def test_a_child_born_with_a_change_marks_its_parent(self, store: Store) -> None:
        parent = await running_job(store)
        child = new_job(parent_id=parent.id, link_kind=Link.CHILD)
        step = c.Step(actor=owner_of(parent), name="spawn", submits=(child,))
        await do(store, parent, step)

        assert [job.id for job in await store.children([parent.id])] == [child.record.id]
        assert await marked(store) == [parent.id]

    async def test_a_child_that_was_submitted_before_is_not_born_again(self, store: Store) -> None:
        parent = await submit_one(store)
        options = {"parent_id": parent.id, "link_kind": Link.CHILD, "dedupe_key": "once"}
        await store.submit([new_job(**options)])
        await unmarked(store)
        await store.submit([new_job(**options)])

        assert await marked(store) == []

    async def test_a_mark_that_came_since_stays(self, store: Store) -> None:
        parent = await submit_one(store)
        first, second = [await child_of(store, parent, State.RUNNING) for _ in range(2)]
        await unmarked(store)
        await end(store, first)
        seen = await store.marked()
        await end(store, second)
        await store.unmark(seen)

        assert await marked(store) == [parent.id]

    async def test_a_mark_never_passes_for_one_that_was_removed(self, store: Store) -> None:
        parent = await submit_one(store)
        first, second = [await child_of(store, parent, State.RUNNING) for _ in range(2)]
        await unmarked(store)
        await end(store, first)
        # Two look at once: the slower one removes what it saw when another has come.
        seen = await store.marked()
        await store.unmark(seen)
        await end(store, second)
        await store.unmark(seen)

        assert await marked(store) == [parent.id]

    async def test_marks_come_oldest_first_up_to_the_limit(self, store: Store) -> None:
        parents = [await submit_one(store) for _ in range(3)]
        for parent in reversed(parents):
            await child_of(store, parent)

        expected = [parent.id for parent in reversed(parents)]
        assert await marked(store) == expected
        assert [mark.id for mark in await store.marked(limit=2)] == expected[:2]
        await store.unmark([])
        assert await marked(store) == expected

    async def test_children_are_listed_by_parent_and_age(self, store: Store) -> None:
        one, other = await submit_one(store), await submit_one(store)
        for link in OTHER_LINKS:
            await submit_one(store, parent_id=one.id, link_kind=link)
        ended = await child_of(store, one, State.SUCCEEDED)
        held = await child_of(store, one, State.RUNNING)
        waiting, queued = await child_of(store, one, State.WAITING), await child_of(store, one)
        others = [await child_of(store, other) for _ in range(2)]

        listed = await store.children([other.id, one.id])
        assert listed == [ended, held, waiting, queued, *others]
        assert await store.children([other.id, one.id], limit=1) == [ended, others[0]]
        assert await store.children([one.id], after=held.id) == [waiting, queued]
        assert await store.children([one.id], live_only=True, limit=2) == [held, waiting]
        assert await store.children([one.id], live_only=True, after=waiting.id) == [queued]
        assert await store.children([]) == []
        assert await store.children([queued.id, queued.id]) == []

    async def test_families_are_parents_of_live_children_and_those_who_wait_for_any(
        self, store: Store
    ) -> None:
        await submit_one(store)
        await job_in(store, State.WAITING)
        past, parent, both = [await running_job(store) for _ in range(3)]
        await child_of(store, past, State.FAILED)
        for _ in range(2):
            await child_of(store, parent)
        await child_of(store, both, State.RUNNING)
        await do(store, both, c.Wait(actor=owner_of(both), signal=wait_name([0])))
        waiter = await claimed_job(store)
        actor = owner_of(waiter)
        await store.commit(
            chain(waiter, c.Start(actor=actor), c.Wait(actor=actor, signal=CHILDREN))
        )

        families = [parent.id, both.id, waiter.id]
        assert await store.families() == families
        assert await store.families(limit=2) == families[:2]
        assert await store.families(after=both.id) == families[2:]

    async def test_a_woken_job_stops_being_a_family(self, store: Store) -> None:
        parent = await running_job(store)
        waiting = await do(store, parent, c.Wait(actor=owner_of(parent), signal=CHILDREN))
        woken = chain(
            waiting, c.SignalJob(actor=CONTROL, name=CHILDREN), c.Resume(actor=RECONCILER)
        )
        await store.commit(woken)

        assert await store.families() == []

    async def test_an_unknown_parent_is_marked_all_the_same(self, store: Store) -> None:
        nobody = job_ids.mint()
        await commit_one(
            store,
            change(
                await submit_one(store, parent_id=nobody, link_kind=Link.CHILD),
                c.Cancel(actor=CONTROL),
            ),
        )

        assert await marked(store) == [nobody, nobody]
