"""Folding: from a batch of decided changes to the rows that a store writes.

Changes of one job that follow each other become one row update with several events.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast.lifecycle.family import KIN, marks
from holdfast.lifecycle.record import NO_FACTS, Change, JobId, NewJob
from holdfast.lifecycle.transitions import ORDINARY, may_follow


class Fold(Struct, frozen=True, gc=False):
    """What one job's row and log get in one commit."""

    changes: tuple[Change, ...]
    ordinary: bool = False
    """The bulk of all commits: nothing depends on it, it wakes nobody, it sets no rare column."""

    @property
    def first(self) -> Change:
        """The change that the compare-and-set is made on."""
        return self.changes[0]

    @property
    def last(self) -> Change:
        """The change whose record is written."""
        return self.changes[-1]

    @property
    def id(self) -> JobId:
        """The job."""
        return self.changes[0].record.id

    @property
    def expected(self) -> int:
        """The revision it was decided on."""
        return self.changes[0].record.rev

    @property
    def adopts(self) -> bool:
        """Whether the job has another owner afterwards."""
        return any(change.adopts for change in self.changes)

    @property
    def corrects(self) -> bool:
        """Whether the job has other terms afterwards."""
        return any(change.corrects for change in self.changes)

    @property
    def marks(self) -> list[tuple[JobId, bool]]:
        """Jobs whose families need a look if this is accepted; False: if they have children."""
        return marks(self.changes[0].record, self.changes[-1].next)

    @property
    def signals(self) -> list[tuple[int, str | None]]:
        """Signals that become pending, by revision with their name; without, those consumed.

        One that is consumed in the commit that brings it is neither.
        """
        changed: dict[int, str | None] = {}
        for change in self.changes:
            facts, rev = change.event.facts, change.event.rev
            if facts.consumed is not None and changed.pop(facts.consumed, None) is None:
                changed[facts.consumed] = None
            if facts.signal is not None:
                changed[rev] = facts.signal
        return list(changed.items())

    @property
    def submits(self) -> list[NewJob]:
        """Jobs to be inserted if this is accepted."""
        return [job for change in self.changes for job in change.submits]


STALE = -1
"""The number of a change that neither starts nor continues its job's fold."""


def fold(changes: Sequence[Change]) -> tuple[list[Fold], list[int]]:
    """Group changes by job, sorted by id; also return for each change the number of its fold.

    Sorted, so that two batches lock the rows they share in the same order. A second change of a
    job that does not follow from the first, or may not fold with it, can only lose: it is `STALE`
    and is not written.
    """
    chains: list[list[Change]] = []
    # By number, which is also what they are sorted by: an id's own hash may be a Python function.
    found: dict[int, int] = {}
    numbers: list[int] = []
    last = None
    number = 0
    for change in changes:
        # Changes of one job mostly follow each other: that spares the look-up.
        if (id_ := change.record.id) is not last:
            last, number = id_, found.setdefault(id_.int, len(chains))
            if number == len(chains):
                chains.append([change])
                numbers.append(number)
                continue
        chain = chains[number]
        if _follows(chain[-1], change):
            chain.append(change)
            numbers.append(number)
        else:
            numbers.append(STALE)
    ids = list(found)
    order = sorted(range(len(ids)), key=ids.__getitem__)
    # The last place is that of `STALE`, which is -1.
    place = [STALE] * (len(chains) + 1)
    for i, number in enumerate(order):
        place[number] = i
    folds = [Fold(tuple(chains[i]), _is_ordinary(chains[i])) for i in order]
    return folds, [place[number] for number in numbers]


def _follows(before: Change, change: Change) -> bool:
    return change.record.rev == before.next.rev and may_follow(before.event.type, change.event.type)


def _is_ordinary(chain: list[Change]) -> bool:
    link = chain[0].record.link_kind
    if link is not None and link in KIN:
        return False
    for change in chain:
        event = change.event
        if event.facts is not NO_FACTS or event.type not in ORDINARY or change.submits:
            return False
    return True
