"""How an upload is shown to a client."""

from __future__ import annotations

from msgspec import Struct

from holdfast.durations import Instant, instant
from holdfast.ports.uploads import Upload, UploadState


class UploadView(Struct, frozen=True, kw_only=True):
    """An upload: what was sent to become the files of jobs."""

    id: str
    """What a job names as its `files_id`."""
    tenant: str
    state: UploadState
    bytes: int
    files: int | None
    """Parts that were written; once it is finalized, files, directories and links in it."""
    digest: str | None
    """SHA-256, known once it is finalized."""
    created_at: Instant
    created_by: str
    finalized_at: Instant | None
    moved_at: Instant
    """When it came into its state, and by whom."""
    moved_by: str
    expires_at: Instant
    """When its files go; later if a job that names it has not ended by then."""

    @classmethod
    def of(cls, upload: Upload) -> UploadView:
        """Show an upload."""
        return cls(
            id=upload.id,
            tenant=upload.tenant,
            state=upload.state,
            bytes=upload.bytes,
            files=upload.files,
            digest=upload.digest,
            created_at=instant(upload.created_at),
            created_by=upload.created_by,
            finalized_at=None if upload.finalized_at is None else instant(upload.finalized_at),
            moved_at=instant(upload.moved_at),
            moved_by=upload.moved_by,
            expires_at=instant(upload.expires_at),
        )


class UploadList(Struct, frozen=True, kw_only=True):
    """A page of uploads, newest first."""

    uploads: list[UploadView]
    next: str | None
    """The `before` of the next page; null at the end."""
