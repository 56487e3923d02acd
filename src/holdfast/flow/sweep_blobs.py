"""Sweep blobs: delete logs, artifacts and files of uploads that nothing in the store names.

They are found by a listing of the place, and judged by the records of jobs and uploads. This is
also how artifacts go that are kept shorter than their jobs: that writes no event, because nothing
about the job changes. Any number may sweep at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

from holdfast.errors import BlobsUnavailable
from holdfast.flow.clean import (
    DAY,
    RetentionTerms,
    find_needed_by_others,
    is_over,
    read_undamaged,
)
from holdfast.flow.erase_outputs import delete_below
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import Retention
from holdfast.ports.blobs import BlobEntry, Blobs
from holdfast.ports.store import Store
from holdfast.queries.blob_keys import ARTIFACTS, LOGS, UPLOADS, artifacts_prefix

GRACE = DAY
"""How old a blob must be to count as left behind: the end that names it may be on its way."""


class BlobSweep(Struct, kw_only=True):
    """What one pass over a part of a listing deleted, or would delete."""

    looked: int = 0
    """Blobs that were listed."""
    blobs: int = 0
    """Blobs that were deleted."""
    orphan_bytes: int = 0
    """Those of no job or upload, of a cleaned job, or of an attempt that did not end its job."""
    artifact_bytes: int = 0
    """Artifacts whose own term is over."""
    failed: dict[str, str] = {}
    """Jobs and uploads whose blobs could not be deleted, and why."""
    ended: bool = False
    """Whether the listing is at its end."""

    def add(self, other: BlobSweep) -> None:
        """Add what another pass did."""
        self.looked += other.looked
        self.blobs += other.blobs
        self.orphan_bytes += other.orphan_bytes
        self.artifact_bytes += other.artifact_bytes
        self.failed |= other.failed

    @contextmanager
    def spare_others(self, id: str) -> Iterator[None]:
        """Record trouble with the blobs of one job, so that those of others are still deleted."""
        try:
            yield
        except (BlobsUnavailable, OSError) as error:
            self.failed[id] = str(error)


class OutputBlob(NamedTuple):
    """A blob of a job's attempt."""

    top: str
    attempt: int
    entry: BlobEntry


class ListedBlobs(Struct):
    """Some blobs of a listing, by whose they are."""

    jobs: dict[JobId, list[OutputBlob]]
    uploads: dict[str, list[BlobEntry]]

    def add(self, entry: BlobEntry) -> None:
        """Add a blob; not one whose key another version made: it is not ours to judge."""
        top, owner, attempt, *_ = [*entry.key.split("/", 3), "", ""]
        if top == UPLOADS:
            self.uploads.setdefault(owner, []).append(entry)
            return
        with suppress(ValueError):
            blob = OutputBlob(top, int(attempt), entry)
            self.jobs.setdefault(JobId(UUID(owner)), []).append(blob)


async def list_all(blobs: Blobs) -> AsyncIterator[BlobEntry]:
    """List all blobs of a store."""
    for top in (ARTIFACTS, LOGS, UPLOADS):
        async for entry in blobs.list(top):
            yield entry


async def sweep_blobs(
    store: Store,
    blobs: Blobs,
    terms: RetentionTerms,
    listing: AsyncIterator[BlobEntry],
    *,
    look_at: int = 1000,
    dry_run: bool = False,
) -> BlobSweep:
    """Take the next blobs of a listing, and delete those that nothing in the store names.

    A blob that is younger than a day is left alone, and so are those of jobs that have not ended.
    """
    report = BlobSweep()
    listed = await _take(listing, report, look_at)
    now = (await store.clock()).now
    deletion = _Deletion(blobs=blobs, report=report, now=now, dry_run=dry_run)
    await _sweep_uploads(store, deletion, listed.uploads)
    await _sweep_jobs(store, deletion, listed.jobs, terms)
    return report


async def _take(listing: AsyncIterator[BlobEntry], report: BlobSweep, look_at: int) -> ListedBlobs:
    """Take the next blobs of a listing."""
    found = ListedBlobs({}, {})
    while report.looked < look_at:
        entry = await anext(listing, None)
        if entry is None:
            report.ended = True
            break
        report.looked += 1
        found.add(entry)
    return found


async def _sweep_uploads(
    store: Store, deletion: _Deletion, found: Mapping[str, Sequence[BlobEntry]]
) -> None:
    """Delete files of uploads without a record: it is made before the first, and dropped last."""
    if not found:
        return
    records = await store.look_up_uploads(list(found))
    for id_, record in zip(found, records, strict=True):
        if record is None:
            await deletion.delete_old(id_, found[id_])


async def _sweep_jobs(
    store: Store,
    deletion: _Deletion,
    found: Mapping[JobId, Sequence[OutputBlob]],
    terms: RetentionTerms,
) -> None:
    """Delete outputs that no job has any more."""
    jobs = await read_undamaged(store, list(found))
    expired = await _find_expired(store, jobs, found, terms, deletion.now)
    for id_ in expired:
        await deletion.delete_artifacts(id_, found[id_])
    for id_, job in jobs.items():
        orphans = [
            one.entry
            for one in found[id_]
            if is_orphan(job, one.attempt) and not (id_ in expired and one.top == ARTIFACTS)
        ]
        await deletion.delete_old(str(id_), orphans)


def is_orphan(job: Job | None, attempt: int) -> bool:
    """Return whether nothing will ask for the outputs of a job's attempt.

    While a job is being cleaned they are left to that; a job that has not ended may get them yet.
    """
    if job is None or job.retention is Retention.CLEANED:
        return True
    return job.terminal and job.retention is Retention.LIVE and attempt != job.attempt


async def _find_expired(
    store: Store,
    jobs: Mapping[JobId, Job | None],
    found: Mapping[JobId, Sequence[OutputBlob]],
    terms: RetentionTerms,
    now: int,
) -> set[JobId]:
    """Find the ended jobs with artifacts whose own term is over, and that no job may ask about."""
    over = [
        job
        for job in jobs.values()
        if job is not None
        and job.terminal
        and job.retention is Retention.LIVE
        and terms.is_artifacts_term_over(job, now)
        # One whose own term is over loses them with all the rest.
        and not is_over(job, terms, now)
        and any(one.top == ARTIFACTS for one in found[job.id])
    ]
    needed = await find_needed_by_others(store, over) if over else set()
    return {job.id for job in over} - needed


class _Deletion(Struct, kw_only=True):
    """Deletes blobs and counts them; a dry run only counts."""

    blobs: Blobs
    report: BlobSweep
    now: int
    dry_run: bool

    async def delete_old(self, owner: str, entries: Sequence[BlobEntry]) -> None:
        """Delete those of some blobs that are old enough to be left behind."""
        old = [entry for entry in entries if entry.modified_at <= self.now - GRACE]
        with self.report.spare_others(owner):
            if old and not self.dry_run:
                await self.blobs.delete([entry.key for entry in old])
            self.report.blobs += len(old)
            self.report.orphan_bytes += sum(entry.bytes for entry in old)

    async def delete_artifacts(self, job: JobId, found: Sequence[OutputBlob]) -> None:
        """Delete all artifacts of a job, also those that the listing has not come to."""
        with self.report.spare_others(str(job)):
            if self.dry_run:
                listed = [one.entry.bytes for one in found if one.top == ARTIFACTS]
                number, size = len(listed), sum(listed)
            else:
                number, size = await delete_below(self.blobs, artifacts_prefix(job))
            self.report.blobs += number
            self.report.artifact_bytes += size
