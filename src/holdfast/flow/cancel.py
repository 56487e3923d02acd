"""Cancel a job: at once where it has no owner, else by asking its owner; a hard cancel reaches
every live job below it, also below those that have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

from msgspec import Struct, field

from holdfast.errors import Refused, StoreError
from holdfast.flow.batch import CountedSweep, carry_out
from holdfast.flow.command import check_reason, check_revision, perform
from holdfast.flow.families import tend
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.family import forsakes
from holdfast.lifecycle.payload import TEXT_LIMIT
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.record import Actor, Change, Job, JobId, LoggedEvent, Refusal, Unchanged
from holdfast.lifecycle.states import CancelMode
from holdfast.ports.store import Store
from holdfast.queries.error_reports import writable
from holdfast.queries.family import FamilyReader

PARENTS = 50
"""How many jobs' children are read together; most have none."""


async def cancel(
    store: Store,
    id: JobId,
    actor: Actor,
    *,
    hard: bool = False,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Cancel a job: at once where it has no owner, else by asking its owner.

    The record that is returned shows which: `cancelled`, or `cancel_requested`. A job that had
    ended before is returned as it is. A hard cancel also cancels every live job below, whether
    the job has ended or not; if it fails midway, repeat it.
    """
    reason = check_reason(reason)
    mode = CancelMode.HARD if hard else CancelMode.SOFT
    ended = repeated = False

    def choose(job: Job) -> c.Command | Unchanged:
        nonlocal ended
        ended = job.terminal
        if ended:
            return Unchanged(job)
        return c.cancel_or_ask(job, actor, mode, reason=reason, request_id=request_id)

    def is_repeat(event: LoggedEvent, job: Job) -> bool:
        # By its sender alone: the job may have moved on since, so that the same request would be
        # another command now.
        nonlocal ended, repeated
        repeated = event.actor == actor.label
        if repeated or not job.terminal:
            return repeated
        # There is nothing left to cancel, also if another actor used the request_id before.
        check_revision(job, expected_rev)
        ended = True
        return ended

    command = c.RequestCancel(actor=actor, mode=mode, reason=reason, request_id=request_id)
    job = await perform(
        store, id, command, expected_rev=expected_rev, choose=choose, is_repeat=is_repeat
    )
    if not (ended or repeated):
        await _cancel_children(store, id, actor)
    # The first request may have broken off on its way down; one that was soft stays soft.
    if hard and (job.cancel_requested is CancelMode.HARD or not repeated):
        await _cancel_descendants_hard(store, job, actor, reason)
    return job


async def _cancel_children(store: Store, id: JobId, actor: Actor) -> None:
    """Cancel the children now; a reconciler would do it within its tick."""
    # The cancel itself is written: it has not failed because the rest has to wait.
    with suppress(StoreError):
        if await store.children([id], live_only=True, limit=1):
            await tend(store, actor)


async def _cancel_descendants_hard(
    store: Store, top: Job, actor: Actor, reason: str | None
) -> None:
    """Cancel every live job below a job hard, parents before their children.

    Below a job that succeeded, only those that were asked to end before: the others run on.
    """
    reason = reason or writable(f"{top.public_id} was cancelled hard", TEXT_LIMIT)
    walk = _Walk(store, actor, reason)
    left = [_branch(top), *map(_branch, await walk.cancel(await walk.reader.next_tries(top)))]
    while left:
        some = left[-PARENTS:]
        del left[-PARENTS:]
        kept = {parent.id for parent in some if not parent.forsakes}
        async for page in walk.reader.children([parent.id for parent in some]):
            left += map(_branch, await walk.cancel(await walk.find_to_cancel(page, kept)))
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
    """A job whose children are still to be visited; it is small, because there may be many."""

    id: JobId
    forsakes: bool


def _branch(job: Job) -> _Branch:
    return _Branch(job.id, forsakes(job))


class _HardCancel(CountedSweep, kw_only=True):
    """What became of some jobs that were cancelled hard."""

    moved: dict[JobId, Job] = field(default_factory=dict)
    """Jobs that another writer changed first, as they were then: some of them have ended."""

    def on_missed(self, change: Change, current: Job | None) -> bool:
        """Decide it again, unless it is gone."""
        if current is not None:
            self.moved[current.id] = current
        return current is not None

    def on_refused(self, job: Job, refusal: Refusal) -> None:
        """Ignore the refusal: the job has ended, and only its children matter."""


class _Walk:
    """The way of one hard cancel through a tree."""

    def __init__(self, store: Store, actor: Actor, reason: str) -> None:
        self._sweep = _HardCancel()
        self.failed = self._sweep.failed
        """Jobs that could not be read or written; the others were."""
        self.reader = FamilyReader(store, self.failed)
        self._store = store
        self._actor = actor
        self._reason = reason

    async def find_to_cancel(self, page: Sequence[Job], kept: AbstractSet[JobId]) -> list[Job]:
        """Return the jobs of a page that have to end, and those that have ended, with all tries."""
        return [
            job
            for child in page
            for job in [child, *await self.reader.next_tries(child)]
            if child.parent_id not in kept or job.terminal or job.cancel_requested is not None
        ]

    async def cancel(self, jobs: list[Job]) -> list[Job]:
        """Cancel those that live; return all as they are then."""
        written = await carry_out(self._store, jobs, self._choose, self._sweep, tries=REBASES + 1)
        moved, self._sweep.moved = self._sweep.moved, {}
        now = {job.id: job for job in [*jobs, *moved.values(), *written]}
        return list(now.values())

    async def _choose(self, job: Job) -> Sequence[c.Command]:
        return (c.cancel_or_ask(job, self._actor, CancelMode.HARD, reason=self._reason),)
