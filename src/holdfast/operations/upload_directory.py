"""Upload a directory: create, write, finalize; what fails on the way leaves no upload behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from hashlib import sha256

from holdfast.errors import HoldfastError, UploadRefused
from holdfast.ids import mint_request
from holdfast.operations.pack_directory import PackedDirectory
from holdfast.operations.request import Operations
from holdfast.operations.requests import (
    CreateUpload,
    DeleteUpload,
    FinalizeUpload,
    WriteUpload,
)
from holdfast.operations.upload_view import UploadView

REMOVE_SECONDS = 10.0
"""How long the removal of an upload that failed may take; it expires anyway."""


def _ignore_progress(_: int) -> None:
    pass


async def upload_directory(
    operations: Operations,
    archive: PackedDirectory,
    on_progress: Callable[[int], None] = _ignore_progress,
) -> UploadView:
    """Upload a directory and return the finalized upload.

    `on_progress` is called with the bytes that were sent so far. Cancelled or refused, it removes
    the upload.
    """
    made = await operations.do(CreateUpload())
    try:
        watched = _WatchedArchive(archive, on_progress)
        await operations.do(WriteUpload(upload=made.id, data=watched, announced=archive.bytes))
        done = await operations.do(FinalizeUpload(upload=made.id, request_id=mint_request()))
        if done.digest != watched.digest:
            text = f"upload {made.id} is not what was sent; upload the directory again"
            raise UploadRefused(text, code="digest_mismatch")
        return done
    except BaseException:
        await _remove(operations, made.id)
        raise


async def _remove(operations: Operations, upload: str) -> None:
    """Remove an upload, as far as that is possible now."""
    with suppress(HoldfastError, TimeoutError):
        async with asyncio.timeout(REMOVE_SECONDS):
            await operations.do(DeleteUpload(upload=upload))


class _WatchedArchive:
    """An archive that counts what is read of it, from the start each time that it is read."""

    def __init__(self, archive: PackedDirectory, on_progress: Callable[[int], None]) -> None:
        self._archive = archive
        self._on_progress = on_progress
        self.digest = ""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count, digest = 0, sha256()
        async for piece in self._archive:
            yield piece
            digest.update(piece)
            count += len(piece)
            self._on_progress(count)
        self.digest = digest.hexdigest()
