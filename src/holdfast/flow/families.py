"""Families: wake parents whose children have ended, and end children whose parents have ended.

A mark only names a family to look at; the rows show what is to be done, and doing it again changes
nothing. So any number may run at once, and one that dies leaves its marks to the next. Called
early, after a child's end or a cancel, it only saves time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import field

from holdfast.flow.batch import CountedSweep, carry_out
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.family import KIN, awaits, awaits_children, forsakes, may_go_on
from holdfast.lifecycle.payload import TEXT_LIMIT
from holdfast.lifecycle.record import Actor, Change, Job, JobId
from holdfast.lifecycle.states import CancelMode, Role
from holdfast.ports.models import Rejected
from holdfast.ports.store import Store
from holdfast.queries.error_reports import writable
from holdfast.queries.family import FIRST_PAGE, NEXT_PAGE, FamilyReader, group_by_parent

ROUNDS = 20
"""How often one call looks again: for more marks, and for what its own writes have marked."""


class FamilySweep(CountedSweep, kw_only=True):
    """What was done for families."""

    marks: int = 0
    woken: int = 0
    """Parents whose children had all ended."""
    cancelled: int = 0
    asked: int = 0
    """Children with an owner, which was asked to end them."""
    unfinished: set[JobId] = field(default_factory=set)
    """Parents that have to be looked at again."""
    parents: dict[JobId, JobId] = field(default_factory=dict)
    """For whose family a job is written."""

    @property
    def written(self) -> int:
        """How many jobs it changed."""
        return self.woken + self.cancelled + self.asked

    def on_written(self, change: Change) -> None:
        """Count a change that was written."""
        self.woken += c.written_by(change.event, c.Resume)
        self.cancelled += c.written_by(change.event, c.Cancel)
        self.asked += c.written_by(change.event, c.RequestCancel)

    def on_missed(self, change: Change, current: Job | None) -> bool:
        """Look at the family again: it is as it was before."""
        self.unfinished.add(self.parents[change.id])
        return super().on_missed(change, current)

    def on_rejected(self, change: Change, outcome: Rejected) -> None:
        """Leave it to the slow pass, unless the row was only locked: it must not hold up marks."""
        if outcome.busy:
            self.on_missed(change, None)
        else:
            self.fail(change.id, outcome.message)


async def tend(store: Store, actor: Actor, *, limit: int = 500) -> FamilySweep:
    """Look at all marked families, and at those that doing so marks, as far as one call goes."""
    report = FamilySweep()
    for _ in range(ROUNDS):
        marks = await store.marked(limit=limit)
        if not marks:
            break
        before = report.written + report.lost
        report.marks += len(marks)
        report.unfinished.clear()
        await _Look(store, actor, report, limit).handle([mark.id for mark in marks])
        # Only now: a sweep that dies before this leaves them to the next.
        settled = [mark for mark in marks if mark.id not in report.unfinished]
        await store.unmark(settled)
        if not settled and report.written + report.lost == before:
            break
    return report


async def tend_ignoring_marks(
    store: Store, actor: Actor, *, after: JobId | None = None, limit: int = 500
) -> tuple[FamilySweep, JobId | None]:
    """Look at some families whether they are marked or not: the slow pass, which finds a lost mark.

    Returns the job after which the next call starts; None means from the first.
    """
    report = FamilySweep()
    families = await store.families(after=after, limit=limit)
    await _Look(store, actor, report, limit).handle(families)
    return report, families[-1] if len(families) == limit else None


class _Look:
    """One look at some families: what each calls for is decided, then written together."""

    def __init__(self, store: Store, actor: Actor, report: FamilySweep, limit: int) -> None:
        """Prepare a look, which ends at most `limit` children of a family."""
        self._store = store
        self._reader = FamilyReader(store, report.failed)
        self._control = Actor(Role.CONTROL, actor.name)
        self._reconciler = Actor(Role.RECONCILER, actor.name)
        self._report = report
        self._limit = limit
        self._jobs: list[Job] = []
        self._commands: dict[JobId, Sequence[c.Command]] = {}
        """What is to be written, for which jobs."""

    async def handle(self, ids: Iterable[JobId]) -> None:
        """Do what these families call for."""
        report = self._report
        parents = [
            job
            for job in await self._read_with_first_tries(list(dict.fromkeys(ids)))
            if _must_read_children(job)
        ]
        live = group_by_parent(
            await self._reader.read_page([job.id for job in parents], live_only=True)
        )
        # Only for those whose live children keep nothing back is more read than these.
        called = [
            job for job in parents if await self._calls_for_change(job, live.setdefault(job.id, []))
        ]
        tries = await self._reader.find_live_tries(called) if called else {}
        for parent in called:
            if parent.id not in report.failed:
                with report.spare_others(parent.id):
                    self._choose_commands(parent, [*live[parent.id], *tries.get(parent.id, [])])
        await carry_out(self._store, self._jobs, self._choose, report)

    async def _choose(self, job: Job) -> Sequence[c.Command]:
        return self._commands[job.id]

    async def _read_with_first_tries(self, ids: Sequence[JobId]) -> list[Job]:
        """Read jobs, and whose tries they are: a retry's end concerns the parent of the first."""
        found: dict[JobId, Job] = {}
        while ids:
            read = await self._reader.jobs(ids)
            found |= {job.id: job for job in read}
            above = {job.parent_id: None for job in read if may_go_on(job) and job.link_kind in KIN}
            ids = [id_ for id_ in above if id_ is not None and id_ not in found]
        return list(found.values())

    async def _calls_for_change(self, parent: Job, live: list[Job]) -> bool:
        """Return whether a family calls for a change; read more of its live children if needed."""

        def is_enough() -> bool:
            if forsakes(parent):
                return len(_list_unasked(parent, live)) > self._limit
            return _is_awaited(parent, live)

        with self._report.spare_others(parent.id):
            page, size = live, FIRST_PAGE
            while len(page) == size and not is_enough():
                last, size = page[-1].id, NEXT_PAGE
                page = await self._reader.read_page(
                    [parent.id], live_only=True, after=last, size=size
                )
                live += page
        known = parent.id not in self._report.failed
        return known and (forsakes(parent) or not _is_awaited(parent, live))

    def _choose_commands(self, parent: Job, live: list[Job]) -> None:
        """Choose what one family calls for, now that all is known."""
        if forsakes(parent):
            unasked = _list_unasked(parent, live)
            for child in unasked[: self._limit]:
                self._plan_write(parent, child, self._make_end(parent, child))
            if len(unasked) > self._limit:
                self._report.unfinished.add(parent.id)
        elif not _is_awaited(parent, live):
            self._plan_write(parent, parent, *self._make_wake(parent))

    def _plan_write(self, parent: Job, job: Job, *commands: c.Command) -> None:
        if job.id in self._commands:
            # It is written for another family already: a second write would lose to the first.
            self._report.unfinished.add(parent.id)
            return
        self._jobs.append(job)
        self._commands[job.id] = commands
        self._report.parents[job.id] = parent.id

    def _make_end(self, parent: Job, child: Job) -> c.Command:
        """End a child with its parent: at once where it has no owner, else by asking that."""
        ended = f"ended {parent.state}" if parent.terminal else "is being cancelled"
        # An id may be as long as a whole reason.
        reason = writable(f"its parent {parent.public_id} {ended}", TEXT_LIMIT)
        return c.cancel_or_ask(
            child, self._reconciler, _cancel_mode_of(parent), reason=reason, parent_cancelled=True
        )

    def _make_wake(self, parent: Job) -> list[c.Command]:
        """Send a parent what it waits for and resume it, in one commit."""
        name = parent.wait_for or ""
        resume = c.Resume(actor=self._reconciler, reason="its children have ended")
        if any(pending.name == name for pending in parent.signals):
            return [resume]
        return [c.SignalJob(actor=self._control, name=name), resume]


def _must_read_children(parent: Job) -> bool:
    """Return whether the children of a job have to be read."""
    waits = parent.waiting and awaits_children(parent.wait_for)
    return waits or forsakes(parent)


def _cancel_mode_of(parent: Job) -> CancelMode:
    return parent.cancel_requested or CancelMode.SOFT


def _list_unasked(parent: Job, children: Iterable[Job]) -> list[Job]:
    """Leave those out whose owner was asked before: they would hide the others for ever."""
    asked = (_cancel_mode_of(parent), CancelMode.HARD)
    return [child for child in children if not child.owned or child.cancel_requested not in asked]


def _is_awaited(parent: Job, children: Iterable[Job]) -> bool:
    return any(awaits(parent.wait_for, child) for child in children)
