"""Children: wake parents whose children have ended, and end those of parents that are no more.

Level-triggered, like every sweep: a mark only says whose family to look at, the rows say what is to
be done, and doing it again changes nothing. So any number may tend at once, and one that dies
leaves its marks to the next. Called early, after a child's end or a cancel, it only saves time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import Struct

from holdfast.errors import StoreError
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.family import awaits, awaits_children, forsakes
from holdfast.lifecycle.job import Actor, Change, Draft, Job, JobId, Refusal
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
        parents = [job for job in await self._read(self._get, ids) if _is_concerned(job)]
        live: dict[JobId | None, list[Job]] = {}
        for child in await self._read(self._first_children, [parent.id for parent in parents]):
            live.setdefault(child.parent_id, []).append(child)
        for parent in parents:
            await self._judge_safely(parent, live.get(parent.id, []))
        await self._commit()

    async def _get(self, ids: Sequence[JobId]) -> list[Job]:
        return [job for job in await self._store.get(ids) if job is not None]

    async def _first_children(self, ids: Sequence[JobId]) -> list[Job]:
        return await self._store.children(ids, live_only=True, limit=FIRST_LOOK)

    async def _read(
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
        return [job for id_ in ids for job in await self._read(read, [id_])]

    async def _judge_safely(self, parent: Job, live: list[Job]) -> None:
        try:
            await self._judge(parent, live)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one poison row must not stop the others
            self._report.failed[parent.id] = repr(error)

    async def _judge(self, parent: Job, live: list[Job]) -> None:
        """Decide what one family calls for."""
        if forsakes(parent):
            children = await self._more(
                parent, live, lambda found: len(_untold(parent, found)) > self._limit
            )
            untold = _untold(parent, children)
            for child in untold[: self._limit]:
                self._decide(parent, child, self._farewell(parent, child))
            if len(untold) > self._limit:
                self.unfinished.add(parent.id)
        else:
            children = await self._more(parent, live, lambda found: _is_awaited(parent, found))
            if not _is_awaited(parent, children):
                self._decide(parent, parent, *self._wake(parent))

    async def _more(
        self, parent: Job, live: list[Job], is_enough: Callable[[list[Job]], bool]
    ) -> list[Job]:
        """Read more of a parent's live children until there are enough, or all are read."""
        found, page, size = list(live), live, FIRST_LOOK
        while len(page) == size and not is_enough(found):
            size = NEXT_LOOK
            page = await self._store.children(
                [parent.id], live_only=True, after=page[-1].id, limit=size
            )
            found += page
        return found

    def _farewell(self, parent: Job, child: Job) -> c.Command:
        """End a child with its parent: at once where nobody holds it, else by asking its owner."""
        ended = f"ended {parent.state}" if parent.terminal else "is being cancelled"
        reason = f"its parent {parent.public_id} {ended}"
        if child.state in OWNED:
            return c.RequestCancel(actor=self._reconciler, mode=_mode(parent), reason=reason)
        return c.Cancel(actor=self._reconciler, parent_cancelled=True, reason=reason)

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
        outcomes = await self._store.commit([change for _, change in self._changes])
        for (parent, change), outcome in zip(self._changes, outcomes, strict=True):
            self._settle(parent, change, outcome)

    def _settle(self, parent: JobId, change: Change, outcome: Outcome) -> None:
        if isinstance(outcome, Committed):
            self._report.count(change)
        elif isinstance(outcome, Lost):
            self._report.lost += 1
            self.unfinished.add(parent)
        else:
            # Left to the slow pass: a row that the database refuses must not hold up the marks.
            self._report.failed[change.id] = outcome.message


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
