"""Anchors: the last seal of every job, to be kept where a writer of the store cannot reach it.

A seal is a plain hash: by itself it shows a changed event whose chain was not made again. Compared
with an anchor, `verify` also finds a history that was cut off at its end, a job that was removed
and never purged, and a chain that was made again, for all that was sealed when the anchor was made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from uuid import UUID

import msgspec
from msgspec import Struct

from holdfast.errors import BadData
from holdfast.lifecycle.record import JobId, LoggedEvent
from holdfast.lifecycle.states import BEATS
from holdfast.ports.models import LedgerEntry
from holdfast.ports.store import Store


class Anchored(Struct, frozen=True):
    """A job's last sealed event, but for heartbeats, which may be dropped."""

    internal_id: UUID
    """The job's."""
    rev: int
    seal: str
    """In hexadecimal."""


async def list_anchors(store: Store) -> AsyncIterator[Anchored]:
    """Return the anchor of every job that has a sealed event, by id."""
    async for batch in store.ledger():
        for entry in batch:
            if (last := _find_last_sealed(entry.events)) is not None:
                yield last


def _find_last_sealed(events: Iterable[LoggedEvent]) -> Anchored | None:
    last = None
    for event in events:
        if event.seal is not None and event.type not in BEATS:
            last = Anchored(event.id, event.rev, event.seal.hex())
    return last


def write_anchor(one: Anchored) -> str:
    """Write a line of an anchor file."""
    return msgspec.json.encode(one).decode()


def read_anchors(lines: Iterable[str]) -> Iterator[Anchored]:
    """Read an anchor file, whose jobs are in the order of their ids."""
    before = UUID(int=0)
    for number, line in enumerate(lines, 1):
        try:
            one = msgspec.json.decode(line, type=Anchored)
        except msgspec.MsgspecError as error:
            raise BadData(f"line {number} of the anchor cannot be read: {error}") from error
        if one.internal_id <= before:
            raise BadData(f"line {number} of the anchor is out of order: {one.internal_id}")
        before = one.internal_id
        yield one


class AnchorCheck:
    """Compares a ledger that is read by id with an anchor, side by side, in bounded memory."""

    def __init__(self, store: Store, anchored: Iterator[Anchored]) -> None:
        self._store = store
        self._anchored = anchored
        self._next = next(anchored, None)

    async def check_entry(self, entry: LedgerEntry) -> list[tuple[JobId, str]]:
        """Compare one job; return its problems, and those of missing jobs before it."""
        problems = await self._list_missing(entry.id)
        one = self._next
        if one is not None and one.internal_id == entry.id:
            self._next = next(self._anchored, None)
            if not entry.purged and not _still_holds(entry, one):
                text = f"was anchored at rev {one.rev} with another seal: its history was changed"
                problems.append((entry.id, text))
        return problems

    async def rest(self) -> list[tuple[JobId, str]]:
        """Return anchored jobs behind the last one that are missing."""
        return await self._list_missing(JobId(UUID(int=2**128 - 1)))

    async def _list_missing(self, before: UUID) -> list[tuple[JobId, str]]:
        problems = []
        while (one := self._next) is not None and one.internal_id < before:
            [purged] = await self._store.purged([JobId(one.internal_id)])
            if purged is None:
                text = "was anchored, and is neither in the ledger nor was it purged"
                problems.append((JobId(one.internal_id), text))
            self._next = next(self._anchored, None)
        return problems


def _still_holds(entry: LedgerEntry, one: Anchored) -> bool:
    return any(
        event.rev == one.rev and event.seal is not None and event.seal.hex() == one.seal
        for event in entry.events
    )
