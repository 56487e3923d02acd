"""Rebuild: the projection restored from the events alone.

A row is replaced only if its job has not moved on since its events were read. So a writer at the
same time, such as a worker that was forgotten, loses nothing and finds no stale row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from msgspec import Struct

from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.keys import derived_keys
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import KeyKind
from holdfast.ports.models import KeyRow, LedgerEntry
from holdfast.ports.store import Store

TRIES = 5
"""How often a job that moved on is read again."""


class Rebuilt(Struct, kw_only=True):
    """What a rebuild did."""

    jobs: int = 0
    changed: int = 0
    skipped: list[JobId] = []
    """Jobs whose events cannot be read, or which have none: left as they are."""
    busy: list[JobId] = []
    """Jobs that moved on each time they were read: a process writes them. Left as they are."""
    freed: int = 0
    """Keys of ids that have no job."""


async def rebuild(store: Store, *, progress: Callable[[int], None] | None = None) -> Rebuilt:
    """Write every job's row, keys and summaries from its events; free keys that have no job."""
    # First: one of these may be a job's own key that was altered.
    report = Rebuilt(freed=await store.free_stray_keys())
    async for batch in store.ledger():
        entries = [entry for entry in batch if not _is_purged(entry)]
        report.jobs += len(entries)
        moved = await _write_projection(store, report, entries)
        for _ in range(TRIES):
            if not moved:
                break
            again = [entry for id_ in moved for entry in await _read(store, id_)]
            moved = await _write_projection(store, report, again)
        report.busy += moved
        if progress is not None:
            progress(report.jobs)
    await store.recount()
    return report


def _is_purged(entry: LedgerEntry) -> bool:
    return entry.purged and entry.row is None and not entry.events


async def _write_projection(
    store: Store, report: Rebuilt, entries: Sequence[LedgerEntry]
) -> list[JobId]:
    """Write the projection of these jobs; return those that have moved on."""
    jobs: list[Job] = []
    keys: list[tuple[JobId, KeyRow]] = []
    wrong: set[JobId] = set()
    for entry in entries:
        job = _derive(entry)
        if job is None:
            report.skipped.append(entry.id)
            continue
        if job != entry.row or entry.unclaimed or entry.quarantined is not None:
            wrong.add(job.id)
        jobs.append(job)
        keys += _derive_keys(entry, job)
    moved = await store.rebuild(jobs, keys=keys) if jobs else []
    report.changed += len(wrong.difference(moved))
    return moved


async def _read(store: Store, id: JobId) -> list[LedgerEntry]:
    async for batch in store.ledger(after=JobId(UUID(int=id.int - 1)), batch=1):
        return [entry for entry in batch if entry.id == id]
    return []


def _derive_keys(entry: LedgerEntry, job: Job) -> list[tuple[JobId, KeyRow]]:
    return [
        (
            job.id,
            KeyRow(tenant=job.tenant, kind=KeyKind.of(key.kind), key=key.key, digest=key.digest),
        )
        for key in derived_keys(job, entry.events[0])
    ]


def _derive(entry: LedgerEntry) -> Job | None:
    try:
        return derive(entry.events) if entry.events else None
    except ValueError:
        return None
