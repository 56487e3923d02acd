"""Arranges uploads for tests: a local place of blobs, data that comes in pieces, a plain scan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from typing import Any

from holdfast.errors import UploadRefused
from holdfast.flow.submit_command import WantedCommand
from holdfast.flow.upload import create_upload, finalize_upload, write_upload
from holdfast.flow.upload_archive import UploadedFile, UploadManifest
from holdfast.lifecycle.record import Job
from holdfast.operations.local import LocalOperations
from holdfast.operations.requests import SubmitJob
from holdfast.operations.session import StoreSession
from holdfast.ports.blobs import Blobs, read_blob
from holdfast.ports.store import Store
from holdfast.ports.uploads import Upload
from holdfast.queries.blob_keys import upload_archive_key, upload_file_key
from holdfast.testing.factories import CONTROL

PIECE = 1000


class BrokenOff(Exception):
    """The connection of a client is gone."""


async def pieces(
    data: bytes, *, break_at: int | None = None, gate: asyncio.Event | None = None
) -> AsyncIterator[bytes]:
    """Send data in pieces; stop before the second until a gate opens, or break off at a byte."""
    end = len(data) if break_at is None else break_at
    for start in range(0, end, PIECE):
        yield data[start : min(start + PIECE, end)]
        if gate is not None:
            await gate.wait()
    if break_at is not None:
        raise BrokenOff


async def plain_scan(
    blobs: Blobs, upload: str, *, files: Sequence[str] = (), most_bytes: int
) -> UploadManifest:
    """List what is there; refuse data that starts with `bad`. The real one has tests of its own."""
    keys = {path: upload_file_key(upload, path) for path in files}
    keys = keys or {"archive": upload_archive_key(upload)}
    data = {path: await read_blob(blobs, key) for path, key in keys.items()}
    if any(text.startswith(b"bad") or len(text) > most_bytes for text in data.values()):
        raise UploadRefused("bad data")
    entries = tuple(UploadedFile(path=path, bytes=len(text)) for path, text in data.items())
    return UploadManifest(
        entries=entries,
        bytes=sum(map(len, data.values())),
        digest=sha256(b"".join(data.values())).hexdigest(),
    )


async def write(
    store: Store,
    blobs: Blobs,
    upload: Upload,
    data: bytes | AsyncIterator[bytes] = b"x" * 2500,
    **wish: Any,
) -> Upload:
    """Write an archive to an upload, or what is wished."""
    sent = pieces(data) if isinstance(data, bytes) else data
    plain: dict[str, Any] = {"path": None, "data": sent, "tenant": upload.tenant}
    return await write_upload(store, blobs, upload=upload.id, **plain | wish)


async def new(store: Store, tenant: str = "default") -> Upload:
    """An upload without a byte."""
    return await create_upload(store, CONTROL, tenant=tenant)


async def finalize(store: Store, blobs: Blobs, upload: Upload, **wish: Any) -> Upload:
    """Finalize an upload."""
    plain: dict[str, Any] = {
        "tenant": upload.tenant,
        "upload": upload.id,
        "slots": asyncio.Semaphore(4),
    }
    return await finalize_upload(store, blobs, CONTROL, **plain | wish)


async def submit_with(store: Store, upload: Upload | str, **fields: Any) -> Job:
    """Submit a command that names an upload."""
    files_id = upload if isinstance(upload, str) else upload.id
    tenant = "default" if isinstance(upload, str) else upload.tenant
    acting = LocalOperations(StoreSession(store), name="ann", tenant=fields.pop("as_", tenant))
    wanted = WantedCommand(type="worker", command="make", files_id=files_id, **fields)
    return (await acting.do(SubmitJob(job=wanted))).job
