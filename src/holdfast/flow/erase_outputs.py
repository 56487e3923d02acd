"""Erase outputs: delete what a command or an agent left in the place of blobs.

A job's logs and artifacts count as gone once a listing shows none of them, not once a deletion
returned. What a deletion that failed or died has left, the next one finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from holdfast.crash_points import reach
from holdfast.errors import BlobsUnavailable
from holdfast.flow.batch import CountedSweep
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import BOXED
from holdfast.ports.blobs import Blobs
from holdfast.queries.blob_keys import artifacts_prefix, logs_prefix

AT_ONCE = 8
"""Jobs whose outputs are deleted at the same time: a place far away answers slowly."""
DELETE_KEYS = 1000
"""Blobs that one request deletes."""


class OutputSize(Struct, kw_only=True):
    """How much was found or deleted, in bytes."""

    blobs: int = 0
    logs: int = 0
    artifacts: int = 0

    def add(self, other: OutputSize) -> None:
        """Add what was found elsewhere."""
        self.blobs += other.blobs
        self.logs += other.logs
        self.artifacts += other.artifacts


def has_outputs(job: Job) -> bool:
    """Return whether a job may have left something outside the store: only boxes do."""
    return job.kind in BOXED


async def erase_outputs(blobs: Blobs, jobs: Sequence[Job], sweep: CountedSweep) -> OutputSize:
    """Delete the logs and artifacts of jobs. Those of which something is left have failed.

    If a place does not answer, it is not asked for each of them: that could take minutes.
    """
    deleted = OutputSize()
    turn = asyncio.Semaphore(AT_ONCE)
    failures = 0

    async def erase(job: Job) -> None:
        nonlocal failures
        async with turn:
            with sweep.spare_others(job.id):
                if failures >= AT_ONCE and not deleted.blobs:
                    raise BlobsUnavailable("the place of blobs does not answer")
                failures += 1
                await _erase_job(blobs, job.id, deleted)
                failures -= 1

    await asyncio.gather(*(erase(job) for job in jobs))
    return deleted


async def _erase_job(blobs: Blobs, job: JobId, deleted: OutputSize) -> None:
    count, size = await delete_below(blobs, logs_prefix(job))
    deleted.add(OutputSize(blobs=count, logs=size))
    reach("clean.logs_deleted")
    count, size = await delete_below(blobs, artifacts_prefix(job))
    deleted.add(OutputSize(blobs=count, artifacts=size))
    reach("clean.artifacts_deleted")
    left = await measure_outputs(blobs, job)
    if left.blobs:
        raise BlobsUnavailable(f"{left.blobs:,} of its blobs are still there")


async def measure_outputs(blobs: Blobs, job: JobId) -> OutputSize:
    """Return how much the logs and artifacts of a job take."""
    logs = [entry.bytes async for entry in blobs.list(logs_prefix(job))]
    artifacts = [entry.bytes async for entry in blobs.list(artifacts_prefix(job))]
    return OutputSize(blobs=len(logs) + len(artifacts), logs=sum(logs), artifacts=sum(artifacts))


async def delete_below(blobs: Blobs, prefix: str) -> tuple[int, int]:
    """Delete all blobs below a prefix; return how many there were, and their bytes."""
    number, size = 0, 0
    keys: list[str] = []
    async for entry in blobs.list(prefix):
        keys.append(entry.key)
        size += entry.bytes
        if len(keys) == DELETE_KEYS:
            await blobs.delete(keys)
            number += len(keys)
            keys = []
    if keys:
        await blobs.delete(keys)
    return number + len(keys), size
