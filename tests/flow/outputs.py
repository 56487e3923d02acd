"""Logs and artifacts of commands, put by hand; and a place of blobs that fails where it is told."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from holdfast.errors import BlobsUnavailable
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import Kind, State
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.queries.blob_keys import artifacts_prefix, logs_prefix
from holdfast.testing.store_actions import job_in

LOG, ARTIFACT = b"a line\n", b"what was made"


async def ended_command(
    store: Store,
    blobs: Blobs,
    state: State = State.SUCCEEDED,
    *,
    kind: Kind = Kind.COMMAND,
    **fields: Any,
) -> Job:
    """A command that has ended, with two pieces of its log and two artifacts."""
    job = await job_in(store, state, kind=kind, **fields)
    await put_outputs(blobs, job, job.attempt)
    return job


async def put_outputs(blobs: Blobs, job: Job, attempt: int) -> None:
    """Put what an attempt would leave."""
    for name in ("0", "1"):
        await blobs.put(f"{logs_prefix(job.id, attempt)}/{name}", LOG)
        await blobs.put(f"{artifacts_prefix(job.id, attempt)}/{name}", ARTIFACT)


async def keys_of(blobs: Blobs, *prefixes: str) -> list[str]:
    """List the keys below some prefixes."""
    return [entry.key for prefix in prefixes for entry in [one async for one in blobs.list(prefix)]]


async def outputs_of(blobs: Blobs, job: Job) -> list[str]:
    """List what is left of a job's outputs."""
    return await keys_of(blobs, logs_prefix(job.id), artifacts_prefix(job.id))


class Reluctant:
    """A place of blobs that refuses to delete some keys, or claims to have deleted them."""

    def __init__(self, inner: Blobs, refused: str, *, lies: bool = False) -> None:
        self._inner, self._refused, self._lies = inner, refused, lies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            if not key.startswith(self._refused):
                await self._inner.delete([key])
            elif not self._lies:
                raise BlobsUnavailable(f"blob {key} cannot be deleted: 500")
