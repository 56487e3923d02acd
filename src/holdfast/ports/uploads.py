"""The port to the records of uploads: what was sent to become the files of jobs.

The bytes are in the place of blobs; here is who they belong to, how many there are, and what may
still be done with them. Every move is a compare-and-set, by the store's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from holdfast.lifecycle.record import JobId


class UploadState(StrEnum):
    """What may be done with an upload."""

    UPLOADING = "uploading"
    """It is written to; jobs that name it wait."""
    FINALIZED = "finalized"
    """It was read and accepted, and does not change any more."""
    CONSUMED = "consumed"
    """Every job that named it has started; no other may name it."""
    EXPIRED = "expired"
    """Nobody used it for too long: its files are removed."""
    DELETED = "deleted"
    """It was deleted: its files are removed."""


READABLE = frozenset({UploadState.FINALIZED, UploadState.CONSUMED})
"""States in which a job may start with the files of an upload."""
OVER = frozenset({UploadState.EXPIRED, UploadState.DELETED})
"""States in which the files of an upload are gone, or about to go."""


class NewUpload(Struct, frozen=True, kw_only=True):
    """An upload to be kept."""

    id: str
    """Later uploads have higher ids."""
    tenant: str
    created_by: str
    lifetime: int
    """Microseconds until it expires, unless something is written."""


class Upload(Struct, frozen=True, kw_only=True):
    """An upload as it is kept, its times by the store's clock."""

    id: str
    tenant: str
    state: UploadState
    rev: int
    """Grows with every move, and when a writer starts or ends."""
    bytes: int
    """Written; a single file counts as `LEAST_FILE_BYTES` or more."""
    reserved: int
    """Promised to its writer beside these."""
    files: int | None
    """Parts that were written; once it is finalized, files, directories and links in it."""
    digest: str | None
    request_id: str | None
    """That its finalize was sent with."""
    writer: str | None
    """Who writes to it now; None if nobody does."""
    created_at: int
    created_by: str
    written_at: int | None
    finalized_at: int | None
    moved_at: int
    """When it came into its state, and by whom."""
    moved_by: str
    expires_at: int
    """When it expires; later if a job that names it has not ended by then."""
    removed_at: int | None
    """When its files were gone."""


def is_upload_id(text: str) -> bool:
    """Return whether a text can be the id of an upload; any other is the id of none."""
    return text.isascii() and text.isalnum() and len(text) <= 40


class UploadPart(Struct, frozen=True):
    """What one write left."""

    path: str
    """A single file's own; `WHOLE` for an archive of all."""
    bytes: int

    @property
    def counted(self) -> int:
        """How many bytes it counts as."""
        return self.bytes if self.path == WHOLE else max(self.bytes, LEAST_FILE_BYTES)


WHOLE = ""
"""The path of an archive of a whole upload."""
LEAST_FILE_BYTES = 4096
"""What a single file counts as, however short: it costs a block of a disk, a row and a request."""


class Reservation(Struct, frozen=True, kw_only=True):
    """What a writer asks for: a number of bytes beside those that are written."""

    id: str
    tenant: str
    writer: str
    bytes: int
    starts: bool
    """Whether it may become the writer; one that has lost the upload must not return."""
    silent: int
    """Microseconds after which another writer is taken for dead."""
    lifetime: int
    """Microseconds until the upload expires unless more is written."""


class Finalization(Struct, frozen=True, kw_only=True):
    """What was found in an upload that is to be finalized."""

    id: str
    tenant: str
    rev: int
    """The upload as it was before it was read: one that was written to since is refused."""
    writer: str | None = None
    """Who has kept others from writing meanwhile."""
    files: int
    digest: str
    actor: str
    request_id: str | None
    silent: int
    lifetime: int


class Uploads(Protocol):
    """Records of uploads, and which jobs name them."""

    async def add_upload(self, upload: NewUpload) -> Upload:
        """Keep an upload. One whose id is there already changes nothing, and that is returned."""

    async def look_up_uploads(
        self, ids: Sequence[str], *, tenant: str | None = None
    ) -> list[Upload | None]:
        """Read uploads by id, of one tenant or of any."""

    async def uploads(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Upload]:
        """List uploads, newest first, after an id: of one tenant, or of all."""

    async def upload_bytes(self, tenant: str) -> int:
        """Return how many bytes the uploads of a tenant have, written and reserved."""

    async def open_uploads(self, tenant: str, *, limit: int) -> int:
        """Return how many uploads of a tenant are not finalized; it counts no further than that."""

    async def reserve_upload(self, reservation: Reservation) -> Upload | None:
        """Reserve bytes for the writer of an upload before they are written; note that it lives.

        None, and nothing changes, unless it is uploading, has no other live writer, and the bytes
        fit into the limits of an upload and of its tenant (`Limits`). However many reserve at once,
        a tenant never has more. Repeated, it replaces what the writer had reserved.
        """

    async def end_write(
        self, id: str, *, writer: str, lifetime: int, part: UploadPart | None = None
    ) -> bool:
        """Note that a writer has ended, and which part it has written; what was reserved is free.

        False, and nothing changes, if it is not the writer any more.
        """

    async def upload_parts(self, id: str, *, path: str | None = None) -> list[UploadPart]:
        """List what was written to an upload, by path: all of it, or one path."""

    async def finalize_upload(self, found: Finalization) -> Upload | None:
        """Finalize an upload; None if it was written to since it was read, or moved."""

    async def use_upload(
        self, id: str, *, tenant: str, job: JobId, states: Sequence[UploadState], lifetime: int
    ) -> Upload | None:
        """Note that a job names an upload, before the job is submitted; repeating is success.

        None, and nothing changes, unless it is in one of these states. One that is finalized does
        not expire before its lifetime from now.
        """

    async def consume_uploads(self, *, actor: str, limit: int = 100) -> int:
        """Move finalized uploads to consumed if every job that names one has started or ended."""

    async def due_uploads(self, *, now: int, ended_before: int, limit: int = 100) -> list[Upload]:
        """List uploads whose time is over, the oldest first.

        Not one whose files a job that has not ended may still need, or one that ended later than
        `ended_before`.
        """

    async def upload_in_use(self, id: str) -> bool:
        """Return whether a job that has not ended names an upload."""

    async def end_upload(
        self, id: str, *, rev: int, to: UploadState, actor: str, due_only: bool
    ) -> Upload | None:
        """Expire or delete an upload, if it still is at that revision; None otherwise.

        Its writer loses it. `due_only` refuses one whose time is not over, because it was written
        to or named since it was listed.
        """

    async def clear_upload(self, id: str, *, lifetime: int) -> bool:
        """Note that the files of an upload that is over are gone; the record stays for a while."""

    async def drop_upload(self, id: str) -> bool:
        """Remove the record of an upload whose files are gone."""
