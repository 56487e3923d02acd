"""Harden: let a hard cancel reach whoever lives below a job, also below those that have ended.

A sweep passes a cancel on from record to record, and a record that has ended takes no harder word.
So whoever cancels hard walks the tree. Nothing remembers a walk that broke off: the cancel is
repeated, goes through all of it again, and writes what is missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from holdfast.errors import Refused
from holdfast.flow.children import FIRST_LOOK, NEXT_LOOK, Tended, Visit, by_parent
from holdfast.flow.correlate import correlated
from holdfast.flow.reports import writable
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.family import forsakes, may_go_on
from holdfast.lifecycle.job import Actor, Change, Job, JobId
from holdfast.lifecycle.payload import TEXT_LIMIT
from holdfast.lifecycle.states import OWNED, Cancel
from holdfast.ports import Committed, Lost, Outcome, Store

PARENTS = 50
"""How many jobs' children are read together; most have none."""
TRIES = 5
"""How often a job is decided anew that changes hands at that very moment."""


async def harden(store: Store, top: Job, actor: Actor, reason: str | None = None) -> None:
    """Cancel hard whoever lives below a job, parents before their children.

    Of a job that succeeded, only those that were asked to end before: the others run on.
    """
    said = reason or writable(f"{top.public_id} was cancelled hard", TEXT_LIMIT)
    walk = _Walk(store, actor, said)
    left = [_branch(top), *map(_branch, await walk.cancelled(await walk.tries(top)))]
    while left:
        some = left[-PARENTS:]
        del left[-PARENTS:]
        async for jobs in walk.children(some):
            left += map(_branch, await walk.cancelled(jobs))
    # Those that were cancelled before have only been read.
    await store.await_durable()
    if walk.failed:
        id_, why = next(iter(walk.failed.items()))
        raise Refused(
            f"not all jobs below {top.public_id} were reached: {id_}: {why}; cancel it again",
            code="not_reached",
            job_id=top.public_id,
        )


class _Branch(Struct, frozen=True, gc=False):
    """Where a walk goes on: a job of which no more is kept than this, for there may be many."""

    id: JobId
    forsakes: bool


def _branch(job: Job) -> _Branch:
    return _Branch(job.id, forsakes(job))


class _Walk:
    """The way of one hard cancel through a tree."""

    def __init__(self, store: Store, actor: Actor, reason: str) -> None:
        report = Tended()
        self.failed = report.failed
        """Jobs that could not be read or written; the others were."""
        self._store = store
        self._visit = Visit(store, actor, report, NEXT_LOOK)
        self._said: dict[str, Any] = {"actor": actor, "mode": Cancel.HARD, "reason": reason}

    async def children(self, parents: Sequence[_Branch]) -> AsyncIterator[list[Job]]:
        """Read, in pages, the children that have to end, and those that have ended."""
        kept = {parent.id for parent in parents if not parent.forsakes}
        async for page in self._pages([parent.id for parent in parents]):
            yield [
                job
                for child in page
                for job in [child, *await self.tries(child)]
                if child.parent_id not in kept or job.terminal or job.cancel_requested is not None
            ]

    async def _pages(self, ids: Sequence[JobId]) -> AsyncIterator[list[Job]]:
        first = await self._page(ids, FIRST_LOOK)
        yield first
        for id_, page in by_parent(first).items():
            size = FIRST_LOOK
            while len(page) == size and id_ is not None:
                last, size = page[-1].id, NEXT_LOOK
                page = await self._page([id_], size, after=last)  # noqa: PLW2901
                yield page

    async def _page(self, ids: Sequence[JobId], size: int, after: JobId | None = None) -> list[Job]:
        return await self._visit.read(partial(self._store.children, after=after, limit=size), ids)

    async def tries(self, job: Job) -> list[Job]:
        """Follow the tries of a job that lives on in linked retries (A16)."""
        return await self._visit.read(self._following, [job.id]) if may_go_on(job) else []

    async def _following(self, ids: Sequence[JobId]) -> list[Job]:
        tries: list[Job] = []
        id_ = ids[0]
        while (again := await self._visit.next_try(id_)) is not None:
            tries.append(again)
            id_ = again.id
        return tries

    async def cancelled(self, jobs: list[Job]) -> list[Job]:
        """Cancel those that live; returns all as they are then."""
        settled: list[Job] = []
        for _ in range(TRIES):
            changes = self._decided(jobs, settled)
            if not changes:
                return settled
            outcomes = await self._store.commit(await correlated(self._store, changes))
            jobs = self._moved(changes, outcomes, settled)
        self.failed |= {job.id: f"it changed hands {TRIES} times meanwhile" for job in jobs}
        return settled

    def _decided(self, jobs: list[Job], settled: list[Job]) -> list[Change]:
        """Decide what is to be written; those that have ended or were asked hard are settled."""
        changes: list[Change] = []
        for job in jobs:
            kind = c.RequestCancel if job.state in OWNED else c.Cancel
            decision = decide(job, kind(**self._said))
            if isinstance(decision, Change):
                changes.append(decision)
            else:
                settled.append(job)
        return changes

    def _moved(
        self, changes: list[Change], outcomes: list[Outcome], settled: list[Job]
    ) -> list[Job]:
        """Take note of what was written; returns those that somebody else changed first."""
        moved: list[Job] = []
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Committed):
                settled.append(outcome.job)
            elif not isinstance(outcome, Lost):
                self.failed[change.id] = outcome.message
            elif outcome.current is not None:
                moved.append(outcome.current)
        return moved
