"""Handlers that write to uploads: bytes come piece by piece, and are never held."""

from __future__ import annotations

from holdfast.flow.upload import write_upload
from holdfast.operations import requests as q
from holdfast.operations.scope import CallerScope
from holdfast.operations.upload_view import UploadView


async def write_archive(scope: CallerScope, request: q.WriteUpload) -> UploadView:
    """Write the archive of an upload."""
    return await _write(scope, request, None)


async def write_file(scope: CallerScope, request: q.WriteUploadFile) -> UploadView:
    """Write one file of an upload."""
    return await _write(scope, request, request.name)


async def _write(
    scope: CallerScope, request: q.WriteUpload | q.WriteUploadFile, path: str | None
) -> UploadView:
    written = await write_upload(
        scope.store,
        await scope.session.blobs(),
        tenant=scope.tenant,
        upload=request.upload,
        path=path,
        data=request.data,
        announced=request.announced,
        digest=request.digest,
    )
    return UploadView.of(written)
