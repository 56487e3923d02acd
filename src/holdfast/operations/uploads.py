"""Handlers of uploads: create, read, list, finalize, delete. Bytes come by another route."""

from __future__ import annotations

from holdfast.flow import upload
from holdfast.operations import requests as q
from holdfast.operations.scope import CallerScope
from holdfast.operations.upload_view import UploadList, UploadView


async def create_upload(scope: CallerScope, request: q.CreateUpload) -> UploadView:
    """Create an upload for the caller's tenant, or the one that it names."""
    tenant = scope.tenant_of(request.tenant)
    return UploadView.of(await upload.create_upload(scope.store, scope.control, tenant=tenant))


async def get_upload(scope: CallerScope, request: q.GetUpload) -> UploadView:
    """Read an upload."""
    return UploadView.of(await upload.read_upload(scope.store, request.upload, tenant=scope.tenant))


async def list_uploads(scope: CallerScope, request: q.ListUploads) -> UploadList:
    """List uploads, newest first."""
    # One more than asked for shows whether there is a next page.
    found = await scope.store.uploads(
        tenant=scope.tenant, before=request.before, limit=request.limit + 1
    )
    shown = found[: request.limit]
    following = shown[-1].id if len(found) > request.limit else None
    return UploadList(uploads=[UploadView.of(one) for one in shown], next=following)


async def finalize_upload(scope: CallerScope, request: q.FinalizeUpload) -> UploadView:
    """Accept what was uploaded, and admit the jobs that wait for it."""
    return UploadView.of(
        await upload.finalize_upload(
            scope.store,
            await scope.session.blobs(),
            scope.control,
            tenant=scope.tenant,
            upload=request.upload,
            slots=scope.session.finalizing,
            request_id=request.request_id,
        )
    )


async def delete_upload(scope: CallerScope, request: q.DeleteUpload) -> UploadView:
    """Delete an upload and its files."""
    blobs = await scope.session.blobs()
    return UploadView.of(
        await upload.delete_upload(
            scope.store, blobs, scope.control, tenant=scope.tenant, upload=request.upload
        )
    )
