"""Lineage: a job's parents, and all that was spawned or linked below it, as a tree.

Bounded in depth and size: a node shows when something below it is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import Link, State
from holdfast.ports.models import Query
from holdfast.ports.store import Store

DEPTH, SIZE = 10, 200
"""How many levels below a job are shown, and how many jobs in all."""
ANCESTORS = 50
"""How far up a line is followed: damage might make it a circle."""


class Node(Struct, kw_only=True):
    """A job in its tree."""

    id: JobId
    job_id: str
    task: str
    state: State
    link: Link | None = None
    """Why it has a parent."""
    step_index: int | None = None
    error_code: str | None = None
    below: list[Node] = []
    """Oldest first."""
    left_out: bool = False
    """There is more below it than is shown."""


class Lineage(Struct, kw_only=True):
    """The line above a job, and the tree below it."""

    above: list[Node]
    """From the top down."""
    tree: Node


MaySee: TypeAlias = Callable[[Job], bool]


def _everything(job: Job) -> bool:
    del job
    return True


async def read_lineage(
    store: Store,
    job: Job,
    *,
    depth: int = DEPTH,
    size: int = SIZE,
    may_see: MaySee = _everything,
) -> Lineage:
    """Read the tree of a job, level by level; what the caller may not see is not in it."""
    above = await _read_ancestors(store, job, may_see)
    return Lineage(above=above, tree=await _read_descendants(store, job, depth, size, may_see))


async def _read_ancestors(store: Store, job: Job, may_see: MaySee) -> list[Node]:
    line: list[Node] = []
    while job.parent_id is not None and len(line) < ANCESTORS:
        found = (await store.get([job.parent_id]))[0]
        if found is None or not may_see(found):
            break
        job = found
        line.append(_make_node(job))
    return line[::-1]


async def _read_descendants(store: Store, job: Job, depth: int, size: int, may_see: MaySee) -> Node:
    top = _make_node(job)
    level, left = [top], size
    for _ in range(depth):
        following: list[Node] = []
        for node in level:
            await _add_children(store, node, left, may_see)
            left -= len(node.below)
            following += node.below
        level = following
    for node in level:
        # What lies below the last level is not read, only whether there is something.
        await _add_children(store, node, 0, may_see)
    return top


async def _add_children(store: Store, node: Node, room: int, may_see: MaySee) -> None:
    page = await store.find(Query(parent_id=node.id, limit=max(room, 1)))
    seen = [job for job in page.jobs if may_see(job)]
    node.below = [_make_node(job) for job in seen[:room]][::-1]
    node.left_out = page.next is not None or len(seen) > room


def _make_node(job: Job) -> Node:
    return Node(
        id=job.id,
        job_id=job.public_id,
        task=job.task,
        state=job.state,
        link=job.link_kind,
        step_index=job.step_index,
        error_code=job.error_code,
    )
