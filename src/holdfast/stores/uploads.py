"""The records of uploads: written once, for both engines, over the rows of `side_tables`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import JobId
from holdfast.ports.models import Limits
from holdfast.ports.uploads import (
    LEAST_FILE_BYTES,
    Finalization,
    NewUpload,
    Reservation,
    Upload,
    UploadPart,
    UploadState,
)
from holdfast.stores.side_tables import (
    NEWEST_UPLOAD,
    check_actor,
    check_id,
    finalization_row,
    read_upload,
    reservation_row,
    upload_row,
)
from holdfast.stores.statements import EngineStore

_USUAL = Limits()
PATH_LIMIT = 4096
"""Characters of the path of a single file."""


class SharedUploads(EngineStore):
    """Keeps uploads, reserves their bytes, and knows which jobs name them."""

    async def add_upload(self, upload: NewUpload) -> Upload:
        """Keep an upload."""
        if not await self._session.write("add_upload", *upload_row(upload)):
            await self.await_durable()
        [kept] = await self.look_up_uploads([upload.id])
        assert kept is not None
        return kept

    async def look_up_uploads(
        self, ids: Sequence[str], *, tenant: str | None = None
    ) -> list[Upload | None]:
        """Read uploads by id."""
        wanted = [check_id(id, "upload") for id in ids]
        rows = await self._session.rows("look_up_uploads", wanted, tenant)
        found = {row[0]: read_upload(row) for row in rows}
        return [found.get(id) for id in ids]

    async def uploads(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Upload]:
        """List uploads, newest first."""
        below = NEWEST_UPLOAD if before is None else check_id(before, "upload")
        rows = await self._session.rows("uploads", below, tenant, limit)
        return [read_upload(row) for row in rows]

    async def upload_bytes(self, tenant: str) -> int:
        """Return how many bytes the uploads of a tenant have."""
        [[total]] = await self._session.rows("upload_bytes", tenant)
        return int(total)

    async def open_uploads(self, tenant: str, *, limit: int) -> int:
        """Return how many uploads of a tenant are not finalized."""
        [[count]] = await self._session.rows("open_uploads", tenant, limit)
        return int(count)

    async def reserve_upload(self, reservation: Reservation) -> Upload | None:
        """Reserve bytes for the writer of an upload, in one statement."""
        usual = (_USUAL.upload_bytes, _USUAL.tenant_upload_bytes)
        return await self._move(
            "reserve_upload", *reservation_row(reservation), *usual, reservation.starts
        )

    async def end_write(
        self, id: str, *, writer: str, lifetime: int, part: UploadPart | None = None
    ) -> bool:
        """Note what a writer has written, then that it has ended.

        If this is broken off in between, the next end of a write counts what is there.
        """
        if part is not None:
            path = check_text(part.path, "path", limit=PATH_LIMIT, empty=True)
            await self._session.write("keep_upload_file", id, writer, path, part.bytes)
        return bool(
            await self._session.write(
                "end_write", check_id(id, "upload"), writer, lifetime, LEAST_FILE_BYTES
            )
        )

    async def upload_parts(self, id: str, *, path: str | None = None) -> list[UploadPart]:
        """List what was written to an upload."""
        rows = await self._session.rows("upload_files", check_id(id, "upload"), path)
        return [UploadPart(*row) for row in rows]

    async def finalize_upload(self, found: Finalization) -> Upload | None:
        """Finalize an upload."""
        return await self._move("finalize_upload", *finalization_row(found))

    async def use_upload(
        self, id: str, *, tenant: str, job: JobId, states: Sequence[UploadState], lifetime: int
    ) -> Upload | None:
        """Note that a job names an upload: first the upload, whose time it extends."""
        codes = [str(state) for state in states]
        found = await self._move("use_upload", check_id(id, "upload"), tenant, codes, lifetime)
        if found is not None:
            await self._session.write("link_upload", id, job)
        return found

    async def consume_uploads(self, *, actor: str, limit: int = 100) -> int:
        """Move finalized uploads to consumed whose jobs have started."""
        return len(await self._session.write("consume_uploads", check_actor(actor), limit))

    async def due_uploads(self, *, now: int, ended_before: int, limit: int = 100) -> list[Upload]:
        """List uploads whose time is over."""
        rows = await self._session.rows("due_uploads", now, ended_before, limit)
        return [read_upload(row) for row in rows]

    async def upload_in_use(self, id: str) -> bool:
        """Return whether a job that has not ended names an upload."""
        return bool(await self._session.rows("upload_in_use", check_id(id, "upload")))

    async def end_upload(
        self, id: str, *, rev: int, to: UploadState, actor: str, due_only: bool
    ) -> Upload | None:
        """Expire or delete an upload."""
        key = (check_id(id, "upload"), rev)
        return await self._move("end_upload", *key, str(to), check_actor(actor), due_only)

    async def clear_upload(self, id: str, *, lifetime: int) -> bool:
        """Note that the files of an upload are gone."""
        return bool(await self._session.write("clear_upload", check_id(id, "upload"), lifetime))

    async def drop_upload(self, id: str) -> bool:
        """Remove the record of an upload, then of its files and jobs."""
        dropped = await self._session.write("drop_upload", check_id(id, "upload"))
        await self._session.write("drop_upload_files", id)
        await self._session.write("drop_upload_jobs", id)
        return bool(dropped)

    async def _move(self, name: str, id: str, *parameters: object) -> Upload | None:
        """Run a statement that changes one upload; return what it is then."""
        if not await self._session.write(name, id, *parameters):
            return None
        return (await self.look_up_uploads([id]))[0]
