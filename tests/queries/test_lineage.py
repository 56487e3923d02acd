"""The tree that a job stands in: complete where it is small, bounded where it is not."""

from __future__ import annotations

from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import Link, State
from holdfast.ports.store import Store
from holdfast.queries.lineage import Node, read_lineage
from holdfast.testing.factories import job_ids
from holdfast.testing.store_actions import submit_one
from tests.flow.families import child_of, tree


def ids(nodes: list[Node]) -> list[JobId]:
    return [node.id for node in nodes]


async def test_a_job_is_shown_with_all_above_and_below(store: Store) -> None:
    top, middle, leaf = await tree(store, State.RUNNING, State.FAILED)
    other = await child_of(store, middle, State.QUEUED, step_index=1)
    redriven = await submit_one(store, parent_id=leaf.id, link_kind=Link.REDRIVE)
    shown = await read_lineage(store, middle)

    assert ids(shown.above) == [top.id]
    assert (shown.tree.id, ids(shown.tree.below)) == (middle.id, [leaf.id, other.id])
    [below] = shown.tree.below[0].below
    assert (below.id, below.link, below.state) == (redriven.id, Link.REDRIVE, State.QUEUED)
    assert (shown.tree.below[0].error_code, shown.tree.below[1].step_index) == ("boom", 1)
    assert not shown.tree.left_out


async def test_a_deep_tree_ends_where_it_is_told_to(store: Store) -> None:
    top, *rest = await tree(store, *[State.RUNNING] * 3)
    shown = await read_lineage(store, top, depth=2)

    [first] = shown.tree.below
    [second] = first.below
    assert (second.id, second.below, second.left_out) == (rest[1].id, [], True)
    assert not first.left_out


async def test_a_wide_tree_ends_where_it_is_told_to(store: Store) -> None:
    top, first = await tree(store, State.RUNNING)
    others = [await child_of(store, top, State.QUEUED) for _ in range(4)]
    await child_of(store, first)
    all_of_them = await read_lineage(store, top, size=6)
    assert ids(all_of_them.tree.below) == [first.id, *(job.id for job in others)]
    assert not all_of_them.tree.left_out

    some = await read_lineage(store, top, size=5)
    assert (some.tree.left_out, some.tree.below[0].left_out) == (False, True)
    few = await read_lineage(store, top, size=2)
    assert (len(few.tree.below), few.tree.left_out) == (2, True)


async def test_a_line_that_leads_nowhere_ends(store: Store) -> None:
    orphan = await submit_one(store, parent_id=job_ids.mint(), link_kind=Link.CHILD)

    assert (await read_lineage(store, orphan)).above == []
    # The mark of a parent that never was: verify would rightly name it.
    await store.unmark(await store.marked())
