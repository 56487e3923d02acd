"""Rebuild: the projection restored from the events alone. Nobody else may write meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.states import KeyKind
from holdfast.lifecycle.submit import derived_keys
from holdfast.ports import KeyRow, LedgerEntry, Store


class Rebuilt(Struct, kw_only=True):
    """What a rebuild did."""

    jobs: int = 0
    changed: int = 0
    skipped: list[JobId] = []
    """Jobs whose events cannot be read, or which have none: left as they are."""
    freed: int = 0
    """Keys of ids of which nothing else was left."""


async def rebuild(store: Store, *, progress: Callable[[int], None] | None = None) -> Rebuilt:
    """Write every job's row, keys and summaries anew from its events; free the keys of no job."""
    # First: one of these may be a job's own key, that somebody turned.
    report = Rebuilt(freed=await store.free_stray_keys())
    async for batch in store.ledger():
        jobs: list[Job] = []
        keys: list[tuple[JobId, KeyRow]] = []
        for entry in batch:
            if entry.purged and entry.row is None and not entry.events:
                continue
            report.jobs += 1
            _restore(entry, report, jobs, keys)
        if jobs:
            await store.rebuild(jobs, keys=keys)
        if progress is not None:
            progress(report.jobs)
    await store.recount()
    return report


def _restore(
    entry: LedgerEntry, report: Rebuilt, jobs: list[Job], keys: list[tuple[JobId, KeyRow]]
) -> None:
    job = _derive(entry)
    if job is None:
        report.skipped.append(entry.id)
        return
    report.changed += job != entry.row or entry.unclaimed
    jobs.append(job)
    keys += [
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
