"""Artifacts of commands: boxes with files, places of blobs, jobs that ended with them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from pathlib import Path
from uuid import UUID

from holdfast.blobs.local import open_local
from holdfast.errors import BlobsUnavailable
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, JobId, KeptOutput
from holdfast.ports.blobs import Blobs, StoredBlob
from holdfast.ports.box import Box
from holdfast.ports.store import Store
from holdfast.queries.artifacts import NO_ARTIFACTS
from holdfast.runners.command.collect_artifacts import collect_artifacts
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do
from tests.support.spool import running_command

JOB = JobId(UUID(int=7))


def local_blobs(directory: Path) -> Blobs:
    """Make a place of blobs in a directory."""
    return open_local(directory / "blobs", "test")


def dead_box(directory: Path, job: JobId = JOB, attempt: int = 1) -> Box:
    """Return a box whose command has ended."""
    directory = directory / str(job) / str(attempt)
    (directory / "artifacts").mkdir(parents=True, exist_ok=True)
    return Box(
        job=job,
        attempt=attempt,
        epoch=1,
        host="here",
        store="test",
        type="worker",
        argv=("true",),
        image=None,
        cpus=1,
        memory_mb=64,
        env={},
        work=directory / "work",
        work_writable=False,
        artifacts=directory / "artifacts",
        directory=directory,
    )


def write_files(box: Box, files: Mapping[str, bytes]) -> None:
    """Leave files in /artifacts."""
    for path, data in files.items():
        file = box.artifacts / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


async def end_with(
    store: Store,
    blobs: Blobs,
    directory: Path,
    files: Mapping[str, bytes],
    *,
    exit_code: int = 0,
    **fields: object,
) -> Job:
    """Run a command to its end that left files in /artifacts."""
    job = await running_command(store, **fields)
    box = dead_box(directory, job.id, job.attempt)
    write_files(box, files)
    kept = await collect_artifacts(blobs, box) or NO_ARTIFACTS
    return await end(store, job, kept, exit_code)


async def end(store: Store, job: Job, kept: KeptOutput | None, exit_code: int = 0) -> Job:
    """Record the end of a command and what was kept of it."""
    if exit_code == 0:
        ending: c.Command = c.Complete(actor=owner_of(job), exit_code=0, artifacts=kept)
    else:
        ending = c.Fail(
            actor=owner_of(job), exit_code=exit_code, error_code="command_failed", artifacts=kept
        )
    return await do(store, job, ending)


class FailingBlobs:
    """A place of blobs that fails at one of its puts."""

    def __init__(self, blobs: Blobs, fails_at: int) -> None:
        self._blobs = blobs
        self.left = fails_at
        self.size = blobs.size
        self.read = blobs.read
        self.list = blobs.list
        self.delete = blobs.delete
        self.room = blobs.room

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        """Write a blob, or fail."""
        self.left -= 1
        if self.left == 0:
            raise BlobsUnavailable("it does not answer")
        return await self._blobs.put(key, data)
