"""Children: wake parents whose children have ended, and end those of parents that are no more.

Level-triggered, like every sweep: a mark only says whose family to look at, the rows say what is to
be done, and doing it again changes nothing. So any number may tend at once, and one that dies
leaves its marks to the next. Called early, after a child's end or a cancel, it only saves time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from holdfast.errors import StoreError
from holdfast.flow.correlate import correlated
from holdfast.flow.outcomes import last_event, linked_retry
from holdfast.flow.reports import writable
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.family import KIN, awaits, awaits_children, forsakes, may_go_on
from holdfast.lifecycle.job import Actor, Change, Draft, Job, JobId, Refusal
from holdfast.lifecycle.payload import TEXT_LIMIT
from holdfast.lifecycle.states import OWNED, Cancel, EventType, Role, State
from holdfast.ports import Committed, Lost, Outcome, Store

ROUNDS = 20
"""How often one call looks again: for more marks, and for what its own writes have marked."""
FIRST_LOOK, NEXT_LOOK = 20, 500
"""Live children of each parent that are read at first, and where these do not settle it."""


class Tended(Struct, kw_only=True):
    """What was done for families."""

    marks: int = 0
    woken: int = 0
    """Parents whose children had all ended."""
    cancelled: int = 0
    asked: int = 0
    """Children with an owner, which was asked to end them."""
    lost: int = 0
    """Somebody else came first: it is looked at again."""
    failed: dict[JobId, str] = {}
    """Parents and children that could not be judged or written; the others were."""

    @property
    def written(self) -> int:
        """How many jobs it changed."""
        return self.woken + self.cancelled + self.asked

    def count(self, change: Change) -> None:
        """Take note of a write that was accepted."""
        kind = change.event.type
        self.woken += kind is EventType.WAIT_COMPLETED
        self.cancelled += kind is EventType.CANCELLED
        self.asked += kind is EventType.CANCEL_REQUESTED


async def tend(store: Store, actor: Actor, *, limit: int = 500) -> Tended:
    """Look at all marked families, and at those that doing so marks, as far as one call goes."""
    report = Tended()
    for _ in range(ROUNDS):
        marks = await store.marked(limit=limit)
        if not marks:
            break
        before = report.written + report.lost
        report.marks += len(marks)
        visit = Visit(store, actor, report, limit)
        await visit.look(list(dict.fromkeys(mark.id for mark in marks)))
        # Only now: whoever dies before this leaves them to the next.
        settled = [mark for mark in marks if mark.id not in visit.unfinished]
        await store.unmark(settled)
        if not settled and report.written + report.lost == before:
            break
    return report


async def tend_unmarked(
    store: Store, actor: Actor, *, after: JobId | None = None, limit: int = 500
) -> tuple[Tended, JobId | None]:
    """Look at some families whether they are marked or not: the slow pass, which heals a lost mark.

    Returns where the next call goes on; None is the beginning again.
    """
    report = Tended()
    families = await store.families(after=after, limit=limit)
    await Visit(store, actor, report, limit).look(families)
    return report, families[-1] if len(families) == limit else None


async def awaited(store: Store, parent: Job, *, limit: int = 1000) -> list[Job]:
    """List the live children that a waiting parent waits for, oldest first, or their next tries."""
    live = await store.children([parent.id], live_only=True, limit=limit)
    found = [child for child in live if awaits(parent.wait_for, child)]
    if found:
        return found
    visit = Visit(store, Actor(Role.RECONCILER, "nobody"), Tended(), limit)
    tries = await visit.tries([parent])
    return [job for job in tries.get(parent.id, []) if awaits(parent.wait_for, job)]


class Visit:
    """One look at some families: what each calls for is decided, then written together."""

    def __init__(self, store: Store, actor: Actor, report: Tended, limit: int) -> None:
        """Prepare to look; `limit` children of a family at most are ended by one look."""
        self.unfinished: set[JobId] = set()
        """Parents that have to be looked at again."""
        self._store = store
        self._control = Actor(Role.CONTROL, actor.name)
        self._reconciler = Actor(Role.RECONCILER, actor.name)
        self._report = report
        self._limit = limit
        self._changes: list[tuple[JobId, Change]] = []
        """What is to be written, each with the parent whose family it is for."""

    async def look(self, ids: Sequence[JobId]) -> None:
        """Do what these families call for."""
        parents = [job for job in await self._climb(ids) if _is_concerned(job)]
        live = by_parent(await self.read(self._first_children, [job.id for job in parents]))
        # Only of those whose live children keep nothing back is more read than these.
        called = [job for job in parents if await self._calls(job, live.setdefault(job.id, []))]
        tries = await self.tries(called)
        for parent in called:
            if parent.id in self._report.failed:
                continue
            with self._sparing_others(parent.id):
                self._judge(parent, [*live[parent.id], *tries.get(parent.id, [])])
        await self._commit()

    async def _climb(self, ids: Sequence[JobId]) -> list[Job]:
        """Read jobs, and whose tries they are: a retry's end concerns the parent of the first."""
        found: dict[JobId, Job] = {}
        while ids:
            read = await self.read(self._get, ids)
            found |= {job.id: job for job in read}
            above = {job.parent_id: None for job in read if may_go_on(job) and job.link_kind in KIN}
            ids = [id_ for id_ in above if id_ is not None and id_ not in found]
        return list(found.values())

    async def _get(self, ids: Sequence[JobId]) -> list[Job]:
        return [job for job in await self._store.get(ids) if job is not None]

    async def _first_children(self, ids: Sequence[JobId]) -> list[Job]:
        return await self._store.children(ids, live_only=True, limit=FIRST_LOOK)

    async def read(
        self, read: Callable[[Sequence[JobId]], Awaitable[list[Job]]], ids: Sequence[JobId]
    ) -> list[Job]:
        """Read for all at once; where a row cannot be read, for each by itself."""
        if not ids:
            return []
        try:
            return await read(ids)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one poison row must not stop the others
            if len(ids) == 1:
                self._report.failed[ids[0]] = repr(error)
                return []
        return [job for id_ in ids for job in await self.read(read, [id_])]

    async def _calls(self, parent: Job, live: list[Job]) -> bool:
        """Whether there is something to be done; adds to its live children where these are many."""
        calls = False
        with self._sparing_others(parent.id):
            if forsakes(parent):
                await self._more(
                    parent, live, lambda found: len(_untold(parent, found)) > self._limit
                )
                calls = True
            else:
                await self._more(parent, live, lambda found: _is_awaited(parent, found))
                calls = not _is_awaited(parent, live)
        return calls

    @contextmanager
    def _sparing_others(self, id: JobId) -> Iterator[None]:
        """Let one that cannot be judged stop none of the others."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one poison row must not stop the others
            self._report.failed[id] = repr(error)

    def _judge(self, parent: Job, live: list[Job]) -> None:
        """Decide what one family calls for, now that all is known."""
        if forsakes(parent):
            untold = _untold(parent, live)
            for child in untold[: self._limit]:
                with self._sparing_others(child.id):
                    self._decide(parent, child, self._farewell(parent, child))
            if len(untold) > self._limit:
                self.unfinished.add(parent.id)
        elif not _is_awaited(parent, live):
            self._decide(parent, parent, *self._wake(parent))

    async def _more(
        self, parent: Job, live: list[Job], is_enough: Callable[[list[Job]], bool]
    ) -> None:
        """Read more of a parent's live children until there are enough, or all are read."""
        page, size = live, FIRST_LOOK
        while len(page) == size and not is_enough(live):
            last, size = page[-1].id, NEXT_LOOK
            page = await self._store.children([parent.id], live_only=True, after=last, limit=size)
            live += page

    async def tries(self, parents: Sequence[Job]) -> dict[JobId, list[Job]]:
        """Find, by parent, live jobs that are the next try of a child that has ended (A16)."""
        found: dict[JobId, list[Job]] = {}
        children = await self.read(self._all_children, [parent.id for parent in parents])
        for child in filter(may_go_on, children):
            tries = await self.read(self._last_try, [child.id])
            if child.parent_id is None:
                continue
            if child.id in self._report.failed:
                self._report.failed[child.parent_id] = self._report.failed[child.id]
            found.setdefault(child.parent_id, []).extend(job for job in tries if not job.terminal)
        return found

    async def _all_children(self, ids: Sequence[JobId]) -> list[Job]:
        first = await self._store.children(ids, limit=NEXT_LOOK)
        for id_, page in by_parent(first).items():
            while len(page) == NEXT_LOOK and id_ is not None:
                page = await self._store.children([id_], after=page[-1].id, limit=NEXT_LOOK)  # noqa: PLW2901
                first += page
        return first

    async def _last_try(self, ids: Sequence[JobId]) -> list[Job]:
        """Follow the tries of one job to the last of them; nothing if there is no other."""
        last: list[Job] = []
        id_ = ids[0]
        while (again := await self.next_try(id_)) is not None:
            last, id_ = [again], again.id
        return last

    async def next_try(self, id: JobId) -> Job | None:
        """Find the linked retry of a job (A16)."""
        # By the event that ended the job: among its links it may be far behind newer ones.
        return await linked_retry(self._store, await last_event(self._store, id))

    def _farewell(self, parent: Job, child: Job) -> c.Command:
        """End a child with its parent: at once where nobody holds it, else by asking its owner."""
        ended = f"ended {parent.state}" if parent.terminal else "is being cancelled"
        # An id may be as long as a whole reason.
        reason = writable(f"its parent {parent.public_id} {ended}", TEXT_LIMIT)
        actor, mode = self._reconciler, _mode(parent)
        if child.state in OWNED:
            return c.RequestCancel(actor=actor, mode=mode, reason=reason)
        return c.Cancel(actor=actor, mode=mode, parent_cancelled=True, reason=reason)

    def _wake(self, parent: Job) -> list[c.Command]:
        """Send a parent what it waits for and resume it, in one commit."""
        name = parent.wait_for or ""
        resume = c.Resume(actor=self._reconciler, reason="its children have ended")
        if any(pending.name == name for pending in parent.signals):
            return [resume]
        return [c.SignalJob(actor=self._control, name=name), resume]

    def _decide(self, parent: Job, job: Job, *commands: c.Command) -> None:
        record: Draft = job
        changes: list[tuple[JobId, Change]] = []
        for command in commands:
            decision = decide(record, command)
            if isinstance(decision, Refusal):
                self._report.failed[job.id] = decision.message
                return
            if isinstance(decision, Change):
                changes.append((parent.id, decision))
                record = decision.next
        self._changes += changes

    async def _commit(self) -> None:
        if not self._changes:
            return
        changes = await correlated(self._store, [change for _, change in self._changes])
        outcomes = await self._store.commit(changes)
        for (parent, change), outcome in zip(self._changes, outcomes, strict=True):
            self._settle(parent, change, outcome)

    def _settle(self, parent: JobId, change: Change, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._report.count(change)
        elif isinstance(outcome, Lost) or outcome.busy:
            self._report.lost += 1
            self.unfinished.add(parent)
        else:
            # Left to the slow pass: a row that the database refuses must not hold up the marks.
            self._report.failed[change.id] = outcome.message


def by_parent(children: Iterable[Job]) -> dict[JobId | None, list[Job]]:
    """Sort children by whose they are."""
    found: dict[JobId | None, list[Job]] = {}
    for child in children:
        found.setdefault(child.parent_id, []).append(child)
    return found


def _is_concerned(parent: Job) -> bool:
    """Whether a family calls for a look at its children at all."""
    waits = parent.state is State.WAITING and awaits_children(parent.wait_for)
    return waits or forsakes(parent)


def _mode(parent: Job) -> Cancel:
    return parent.cancel_requested or Cancel.SOFT


def _untold(parent: Job, children: Iterable[Job]) -> list[Job]:
    """Leave those out whose owner was asked before: they would hide the others for ever."""
    told = (_mode(parent), Cancel.HARD)
    return [
        child
        for child in children
        if child.state not in OWNED or child.cancel_requested not in told
    ]


def _is_awaited(parent: Job, children: Iterable[Job]) -> bool:
    return any(awaits(parent.wait_for, child) for child in children)
