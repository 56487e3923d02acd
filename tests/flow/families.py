"""Families for tests: parents that wait, children in any state, and stores that stand still."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.flow.families import FamilySweep, tend
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.family import CHILDREN
from holdfast.lifecycle.record import Change, Job, JobId
from holdfast.lifecycle.states import EventType, Link, State
from holdfast.ports.models import Mark, Outcome
from holdfast.ports.store import Store
from holdfast.testing.factories import RECONCILER, owner_of
from holdfast.testing.store_actions import claim_one, do, job_in, running_job, stored

LIMIT_SECONDS = 20.0


async def child_of(store: Store, parent: Job, state: State = State.RUNNING, **wishes: Any) -> Job:
    """Have a child of a job in some state."""
    return await job_in(store, state, parent_id=parent.id, link_kind=Link.CHILD, **wishes)


async def waiting_parent(
    store: Store, *states: State, name: str = CHILDREN
) -> tuple[Job, list[Job]]:
    """Have a parent that waits for its children, which are in these states."""
    parent = await running_job(store)
    children = [
        await child_of(store, parent, state, step_index=number)
        for number, state in enumerate(states)
    ]
    parked = await do(store, parent, c.Wait(actor=owner_of(parent), signal=name))
    return parked, children


async def tree(store: Store, *states: State) -> list[Job]:
    """Have a running job and its descendants, one per level, in these states."""
    jobs = [await running_job(store)]
    for state in states:
        jobs.append(await child_of(store, jobs[-1], state))
    return jobs


async def end(store: Store, job: Job) -> Job:
    """End a running job in order."""
    return await do(store, job, c.Complete(actor=owner_of(job)))


async def tended(store: Store, **wishes: Any) -> FamilySweep:
    """Look at all marked families, and leave no mark."""
    report = await tend(store, RECONCILER, **wishes)
    assert await store.marked() == []
    return report


async def states(store: Store, *jobs: Job) -> list[State]:
    """Tell how jobs stand."""
    return [(await stored(store, job.id)).state for job in jobs]


async def wakes(store: Store, parent: Job) -> int:
    """Count how often a job's wait was ended."""
    events = await store.events(parent.id)
    return sum(event.type is EventType.WAIT_COMPLETED for event in events)


class Meeting:
    """A store whose next commits stand still until so many of them have come together."""

    def __init__(self, inner: Store, callers: int) -> None:
        self._inner = inner
        self._barrier = asyncio.Barrier(callers)
        self._left = callers
        self.met = 0
        """How many stood there, each with its decision made, when the first was let through."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write, but not before the others are here."""
        if self._left > 0:
            self._left -= 1
            self.met += 1
            async with asyncio.timeout(LIMIT_SECONDS):
                await self._barrier.wait()
        return await self._inner.commit(changes)


class Dies:
    """A store that fails where a tender would go on after its commit."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def unmark(self, marks: Sequence[Mark]) -> None:
        raise StoreUnavailable("it died here")


class Claims:
    """A store in which a child is claimed between a tender's look and its write."""

    def __init__(self, inner: Store, child: Job) -> None:
        self._inner = inner
        self._queue: str | None = child.queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, changes: Any) -> Any:
        queue, self._queue = self._queue, None
        if queue is not None:
            await claim_one(self._inner, queue)
        return await self._inner.commit(changes)


class Unreadable:
    """A store in which one job's row cannot be read."""

    def __init__(self, inner: Store, id: JobId) -> None:
        self._inner = inner
        self._id = id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, ids: Sequence[JobId], **wishes: Any) -> list[Job | None]:
        if self._id in ids:
            raise ValueError("an unreadable row")
        return await self._inner.get(ids, **wishes)

    async def children(self, parents: Sequence[JobId], **wishes: Any) -> list[Job]:
        if self._id in parents:
            raise ValueError("an unreadable row")
        return await self._inner.children(parents, **wishes)
