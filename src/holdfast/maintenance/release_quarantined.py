"""Release jobs that were set aside, once they can be read again and agree with their events."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct

from holdfast.lifecycle.record import JobId
from holdfast.maintenance.verify import entry_problems
from holdfast.ports.models import LedgerEntry
from holdfast.ports.store import Store

PAGE = 500


class Released(Struct, kw_only=True):
    """What a release did."""

    released: list[JobId] = []
    damaged: dict[JobId, str] = {}
    """Jobs that are still damaged, and how; they stay set aside."""


async def release_some(store: Store, ids: Sequence[JobId]) -> Released:
    """Release these jobs, except those that are still damaged."""
    report = Released()
    for id_ in ids:
        problem = await _find_problem(store, id_)
        if problem is not None:
            report.damaged[id_] = problem
        elif await store.release_quarantined([id_]):
            report.released.append(id_)
    return report


async def release_all(store: Store) -> Released:
    """Release every job that is set aside and not damaged any more."""
    report = Released()
    after: JobId | None = None
    while True:
        page = (await store.quarantined(after=after, limit=PAGE)).jobs
        done = await release_some(store, [one.id for one in page])
        report.released += done.released
        report.damaged |= done.damaged
        if len(page) < PAGE:
            return report
        after = page[-1].id


async def _find_problem(store: Store, id: JobId) -> str | None:
    """Return what is still wrong with a job; None if nothing is."""
    before = JobId(UUID(int=id.int - 1))
    async for batch in store.ledger(after=before, batch=1):
        entry = next((one for one in batch if one.id == id), None)
        return "there is no such job" if entry is None else _find_damage(entry)
    return "there is no such job"


def _find_damage(entry: LedgerEntry) -> str | None:
    # That it is set aside, and that no claim names it, ends with the release.
    bare = LedgerEntry(
        id=entry.id,
        row=entry.row,
        unreadable=entry.unreadable,
        events=entry.events,
        keys=entry.keys,
        holds=entry.holds,
    )
    return "; ".join(entry_problems(bare)) or None
