"""Upload: files for jobs are created, written, finalized, and expire (D3).

One writer at a time: a second one is refused, so two never mix. Bytes are reserved in the store
before they are written, and every move is a compare-and-set: a writer or a finalize that comes too
late changes nothing. `upload_archive` judges what is in it, `admit` lets jobs go that wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256

from msgspec import Struct, field

from holdfast.errors import (
    BlobsFull,
    HoldfastError,
    NoSuchUpload,
    StoreUnavailable,
    UploadConflict,
    UploadExpired,
    UploadQuotaExceeded,
    UploadRefused,
    UploadTooLarge,
    about,
)
from holdfast.flow.admit import admit_held
from holdfast.flow.upload_archive import scan_upload
from holdfast.ids import mint_request, mint_upload_id
from holdfast.lifecycle.payload import check_number, check_text
from holdfast.lifecycle.record import Actor, NewJob
from holdfast.lifecycle.states import KeyKind
from holdfast.lifecycle.times import SECOND
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.ports.uploads import (
    LEAST_FILE_BYTES,
    OVER,
    READABLE,
    WHOLE,
    Finalization,
    NewUpload,
    Reservation,
    Upload,
    UploadPart,
    UploadState,
    is_upload_id,
)
from holdfast.queries.blob_keys import upload_archive_key, upload_file_key, upload_prefix

UNFINISHED = 30 * 60 * SECOND
"""How long an upload that is not finalized lives after its last byte."""
KEPT = 24 * 3600 * SECOND
"""How long its files are kept after they were last used: a redrive still finds them."""
REMEMBERED = 24 * 3600 * SECOND
"""How long the record of an upload is kept after its files are gone."""
SILENT = 60 * SECOND
"""After this time without a sign of life a writer is taken for dead."""
RENEW_SECONDS = 10.0
"""How often a writer gives a sign of life."""
STEP_BYTES = 16 * 1024**2
"""Reserved ahead where the length was not announced; also how often the room is looked at."""
SPARE_BYTES = 64 * 1024**2
"""What a local place must keep free: the store may be on the same disk."""
MOST_PARTS = 10_000
"""Single files that an upload may consist of; more come as an archive."""
OPEN_UPLOADS = 1000
"""Uploads of a tenant that are not finalized; a few more if many are created at one moment."""
SAME_REQUEST_SECONDS = 0.5
"""Between two looks whether a finalize by the same request has ended."""
NAMEABLE = (UploadState.UPLOADING, UploadState.FINALIZED)
"""States in which a new job may name an upload."""
DIGEST_LENGTH = 64
"""Characters of a SHA-256 in hexadecimal."""


async def create_upload(store: Store, actor: Actor, *, tenant: str) -> Upload:
    """Create an upload that files may be written to."""
    if await store.open_uploads(tenant, limit=OPEN_UPLOADS) >= OPEN_UPLOADS:
        raise UploadQuotaExceeded(
            f"tenant {tenant!r} has {OPEN_UPLOADS:,} uploads that are not finalized, the limit; "
            "finalize or delete some"
        )
    return await store.add_upload(
        NewUpload(id=mint_upload_id(), tenant=tenant, created_by=actor.label, lifetime=UNFINISHED)
    )


async def read_upload(store: Store, upload: str, *, tenant: str | None) -> Upload:
    """Read an upload; `NoSuchUpload` if there is none, or it is another tenant's."""
    found = await _find(store, upload, tenant=tenant)
    if found is None:
        raise NoSuchUpload(f"no upload {upload}")
    return found


async def _find(store: Store, upload: str, *, tenant: str | None) -> Upload | None:
    if not is_upload_id(upload):
        return None
    return (await store.look_up_uploads([upload], tenant=tenant))[0]


async def write_upload(
    store: Store,
    blobs: Blobs,
    *,
    tenant: str | None,
    upload: str,
    path: str | None,
    data: AsyncIterable[bytes],
    announced: int | None = None,
    digest: str | None = None,
) -> Upload:
    """Write a part of an upload: the single file at `path`, or an archive of all of it.

    A part that is there is replaced by the whole new one, or, if this fails at any byte, stays as
    it is: a write that was broken off is repeated. `announced` is the length of the data and
    `digest` its SHA-256, where the sender knows them; other data is refused.

    Raises `NoSuchUpload`, `UploadExpired`, `UploadConflict` (finalized, or another writer),
    `UploadTooLarge`, `UploadQuotaExceeded`, `BlobsFull`, and `UploadRefused` for other data than
    was announced.
    """
    found = await read_upload(store, upload, tenant=tenant)
    _check_announced(announced, digest)
    place = WHOLE if path is None else _check_path(path)
    replaced = await _find_replaced(store, found, place)
    writer = _Writer(
        store,
        blobs,
        found,
        name=mint_request(),
        replaced=replaced,
        least=0 if place == WHOLE else LEAST_FILE_BYTES,
        announced=announced,
        digest=digest,
    )
    await writer.start()
    part: UploadPart | None = None
    try:
        # Again, now that no other writes: another may have come before, with another kind of part.
        now = await read_upload(store, upload, tenant=tenant)
        if await _find_replaced(store, now, place) != replaced:
            text = f"upload {upload} was written to at the same time; repeat the write"
            raise UploadConflict(text, code="upload_busy")
        stored = await writer.put(_key(upload, place), data)
        part = UploadPart(place, stored)
    finally:
        # Also of one that was cancelled: the next write must not have to wait for it.
        await asyncio.shield(writer.end(part))
    return await read_upload(store, upload, tenant=tenant)


def _key(upload: str, place: str) -> str:
    return upload_archive_key(upload) if place == WHOLE else upload_file_key(upload, place)


def _check_path(path: str) -> str:
    with about("path"):
        return check_text(path, "path", limit=4096)


def _check_announced(announced: int | None, digest: str | None) -> None:
    if announced is not None:
        check_number(announced, "the length of an upload", low=0, high=2**62)
    if digest is not None:
        with about("digest"):
            check_text(digest, "digest", limit=DIGEST_LENGTH)


async def _find_replaced(store: Store, upload: Upload, place: str) -> int:
    """Return the length of the part that is replaced; refuse a mixture, and too many parts."""
    parts = await store.upload_parts(upload.id, path=place)
    if parts:
        return parts[0].counted
    if upload.files and place == WHOLE:
        text = f"upload {upload.id} consists of single files; create another one for an archive"
        raise UploadConflict(text, code="upload_mixed")
    if upload.files and await store.upload_parts(upload.id, path=WHOLE):
        text = f"upload {upload.id} has an archive; create another one for single files"
        raise UploadConflict(text, code="upload_mixed")
    if (upload.files or 0) >= MOST_PARTS:
        text = f"upload {upload.id} has {MOST_PARTS:,} files, the limit; send them as an archive"
        raise UploadTooLarge(text)
    return 0


class _Writer:
    """One write to an upload: reserves ahead of the data, and shows that it lives."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        upload: Upload,
        *,
        name: str,
        replaced: int = 0,
        least: int = 0,
        announced: int | None = None,
        digest: str | None = None,
    ) -> None:
        """Write as `name` a part that counts as `least` bytes or more."""
        self._store = store
        self._blobs = blobs
        self._upload = upload
        self._name = name
        self._replaced = replaced
        self._least = least
        self._announced = announced
        self._digest = digest
        self._has_started = False
        self._granted = 0
        """Bytes of this part that are reserved."""
        self._seen = 0
        self._looked_at = 0
        """How much was seen when the room was last looked at."""
        self._renewed_at = 0.0
        self._error: Exception | None = None

    async def start(self) -> None:
        """Become the writer of the upload, with room for what is announced."""
        await self._check_room()
        await self._reserve(self._announced or 0, starts=True)

    async def try_to_hold(self) -> Upload | None:
        """Become the writer of the upload to read it; return it as it is then."""
        try:
            return await self._reserve(0, starts=True)
        except UploadConflict:
            return None

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Give signs of life for the time of a block."""
        renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})

    async def _renew(self) -> None:
        """Renew until it is cancelled; the last statement shows whether it was lost."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(HoldfastError):
                await self._reserve(self._granted)

    async def put(self, key: str, data: AsyncIterable[bytes]) -> int:
        """Write the data; return its length."""
        try:
            return (await self._blobs.put(key, self._meter(data))).bytes
        except Exception:
            # A place of blobs may report an error of the data as its own.
            if self._error is not None:
                raise self._error from None
            raise

    async def end(self, part: UploadPart | None) -> None:
        """Give back what is not used; refuse a part that was written too late."""
        id_ = self._upload.id
        if part is None:
            # The failure itself is what the caller has to know.
            with suppress(StoreUnavailable):
                await self._store.end_write(id_, writer=self._name, lifetime=UNFINISHED)
            return
        is_kept = await self._store.end_write(
            id_, writer=self._name, lifetime=UNFINISHED, part=part
        )
        if not is_kept:
            raise await self._explain(0)

    async def _meter(self, data: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """Pass the data on; an error in here keeps all of it from being written."""
        found = sha256()
        try:
            async for piece in data:
                self._seen += len(piece)
                await self._keep_up()
                found.update(piece)
                yield piece
            self._check_whole(found.hexdigest())
            # The last look: what is written must not replace what was finalized meanwhile.
            await self._reserve(self._granted)
        except Exception as error:
            self._error = error
            raise

    async def _keep_up(self) -> None:
        """See to it that what was seen is reserved, that there is room, and that others know."""
        if self._announced is not None and self._seen > self._announced:
            raise UploadRefused(
                f"there are more than the {self._announced:,} bytes that were announced",
                code="length_mismatch",
            )
        if self._seen > self._granted:
            await self._reserve(self._seen + STEP_BYTES, at_least=self._seen)
        elif asyncio.get_running_loop().time() - self._renewed_at >= RENEW_SECONDS:
            await self._reserve(self._granted)
        if self._seen - self._looked_at >= STEP_BYTES:
            await self._check_room()

    def _check_whole(self, digest: str) -> None:
        if self._announced not in (None, self._seen):
            raise UploadRefused(
                f"there are {self._seen:,} bytes, and {self._announced:,} were announced",
                code="length_mismatch",
            )
        if self._digest is not None and self._digest.lower() != digest:
            raise UploadRefused(
                f"the data has the digest {digest}, not {self._digest}", code="digest_mismatch"
            )

    async def _check_room(self) -> None:
        """Refuse what would fill the disk of a local place."""
        self._looked_at = self._seen
        room = await self._blobs.room()
        needed = max(0, (self._announced or 0) - self._seen) + SPARE_BYTES
        if room is not None and room < needed:
            raise BlobsFull(
                f"the place of blobs has {room:,} bytes free; {needed:,} are needed, of which "
                f"{SPARE_BYTES:,} stay free"
            )

    async def _reserve(
        self, wanted: int, *, at_least: int | None = None, starts: bool = False
    ) -> Upload:
        """Reserve bytes for this part, or fewer where they do not fit; show that it lives."""
        for amount in (wanted,) if at_least is None else (wanted, at_least):
            self._renewed_at = asyncio.get_running_loop().time()
            found = await self._store.reserve_upload(self._reservation(amount, starts))
            if found is not None:
                self._has_started, self._granted = True, amount
                return found
        raise await self._explain(wanted if at_least is None else at_least)

    def _reservation(self, amount: int, starts: bool) -> Reservation:
        return Reservation(
            id=self._upload.id,
            tenant=self._upload.tenant,
            writer=self._name,
            # The part that is replaced is in the upload's bytes already.
            bytes=self._count_more(amount),
            starts=starts,
            silent=SILENT,
            lifetime=UNFINISHED,
        )

    def _count_more(self, amount: int) -> int:
        """Return by how much the upload grows if this part has `amount` bytes."""
        return max(0, max(amount, self._least) - self._replaced)

    async def _explain(self, wanted: int) -> HoldfastError:
        """Return why the store refused a writer."""
        [now] = await self._store.look_up_uploads([self._upload.id])
        if now is None or now.state in OVER:
            return _gone(self._upload.id)
        if now.state is not UploadState.UPLOADING:
            return _already(now)
        if now.writer != self._name and (now.writer is not None or self._has_started):
            return _busy(now)
        limits = await self._store.limits()
        more = self._count_more(wanted)
        total = now.bytes + more
        if total > limits.upload_bytes:
            return UploadTooLarge(
                f"upload {now.id} would have {total:,} bytes; the limit is {limits.upload_bytes:,}"
            )
        used = await self._store.upload_bytes(now.tenant)
        return UploadQuotaExceeded(
            f"the uploads of tenant {now.tenant!r} have {used:,} bytes; with {more:,} more they "
            f"would exceed {limits.tenant_upload_bytes:,}, the limit"
        )


def _gone(upload: str) -> UploadExpired:
    return UploadExpired(f"upload {upload} has expired or was deleted; create a new one")


def _already(upload: Upload) -> UploadConflict:
    text = f"upload {upload.id} is {upload.state} and cannot be changed; create a new one"
    return UploadConflict(text, code="upload_finalized")


def _busy(upload: Upload) -> UploadConflict:
    text = f"upload {upload.id} is being written to; wait until that has ended, then repeat"
    return UploadConflict(text, code="upload_busy")


async def finalize_upload(
    store: Store,
    blobs: Blobs,
    actor: Actor,
    *,
    tenant: str | None,
    upload: str,
    slots: asyncio.Semaphore,
    request_id: str | None = None,
) -> Upload:
    """Read all that was written, accept it, and admit the jobs that wait for it.

    From here on it does not change. Repeated with the same request_id it returns the same answer,
    with another it is refused. `UploadRefused` leaves it as it was: parts may be replaced. `slots`
    limits how many are read at a time.
    """
    found = await read_upload(store, upload, tenant=tenant)
    if found.state is UploadState.UPLOADING:
        found = await _finalize(store, blobs, actor, found, request_id=request_id, slots=slots)
    else:
        _check_repeat(found, request_id)
    await admit_held(store, upload, actor.name)
    return found


async def _finalize(
    store: Store,
    blobs: Blobs,
    actor: Actor,
    found: Upload,
    *,
    request_id: str | None,
    slots: asyncio.Semaphore,
) -> Upload:
    """Finalize an upload as its writer: nobody writes, and no other request reads it meanwhile."""
    name = _name_finalizer(request_id)
    writer = _Writer(store, blobs, found, name=f"{name}{mint_request()}")
    while (held := await writer.try_to_hold()) is None:
        found = await read_upload(store, found.id, tenant=found.tenant)
        if found.state is not UploadState.UPLOADING:
            return _check_repeat(found, request_id)
        if request_id is None or not (found.writer or name).startswith(name):
            raise _busy(found)
        # The same request is under way already, maybe at another server: its answer is ours.
        await asyncio.sleep(SAME_REQUEST_SECONDS)
    done: Upload | None = None
    try:
        async with writer.kept_alive(), slots:
            done = await _read_and_finalize(store, blobs, actor, held, request_id)
    finally:
        if done is None:
            await asyncio.shield(writer.end(None))
    if done is not None:
        return done
    # It expired, was deleted, or was taken from a silent server while it was read.
    current = await read_upload(store, found.id, tenant=found.tenant)
    if current.state is UploadState.UPLOADING:
        raise _busy(current)
    return _check_repeat(current, request_id)


def _name_finalizer(request_id: str | None) -> str:
    """Return how the names of the writers start that finalize by a request."""
    return f"finalize-{sha256((request_id or '').encode()).hexdigest()[:16]}-"


async def _read_and_finalize(
    store: Store, blobs: Blobs, actor: Actor, held: Upload, request_id: str | None
) -> Upload | None:
    parts = await store.upload_parts(held.id)
    if not parts:
        raise UploadRefused(f"nothing was written to upload {held.id}", code="upload_empty")
    manifest = await scan_upload(
        blobs,
        held.id,
        files=[part.path for part in parts if part.path != WHOLE],
        most_bytes=(await store.limits()).upload_bytes,
    )
    return await store.finalize_upload(
        Finalization(
            id=held.id,
            tenant=held.tenant,
            rev=held.rev,
            writer=held.writer,
            files=len(manifest.entries),
            digest=manifest.digest,
            actor=actor.label,
            request_id=request_id,
            silent=SILENT,
            lifetime=KEPT,
        )
    )


def _check_repeat(found: Upload, request_id: str | None) -> Upload:
    """Return an upload that this very request has finalized; refuse any other."""
    if found.state in OVER:
        raise _gone(found.id)
    if request_id is None or found.request_id != request_id:
        raise _already(found)
    return found


async def delete_upload(
    store: Store, blobs: Blobs, actor: Actor, *, tenant: str | None, upload: str
) -> Upload:
    """Delete an upload and its files. Jobs that still wait for it end; repeating is success.

    Refused while a job that has not ended was, or may be, started with its files.
    """
    found = await read_upload(store, upload, tenant=tenant)
    if found.state not in OVER:
        if found.state in READABLE and await store.upload_in_use(upload):
            text = f"upload {upload} has the files of a job that has not ended; cancel that first"
            raise UploadConflict(text, code="upload_in_use")
        ended = await store.end_upload(
            upload, rev=found.rev, to=UploadState.DELETED, actor=actor.label, due_only=False
        )
        if ended is None:
            raise _busy(found)
    await admit_held(store, upload, actor.name)
    await _remove_files(store, blobs, upload)
    return await read_upload(store, upload, tenant=tenant)


async def is_readable(store: Store, upload: str, *, tenant: str) -> bool:
    """Return whether a job may start with the files of an upload."""
    found = await _find(store, upload, tenant=tenant)
    return found is not None and found.state in READABLE


async def name_upload(store: Store, new: NewJob, upload: str) -> None:
    """Note that a job names an upload, before it is submitted; refuse one that it may not name.

    Not the repetition of a submit: its job is there, whatever became of the upload since.
    """
    if not await _use(store, new, upload, NAMEABLE) and not await _is_repeat(store, new):
        found = await read_upload(store, upload, tenant=new.record.tenant)
        if found.state in OVER:
            raise _gone(upload)
        text = f"upload {upload} is {found.state}: the jobs that named it have started"
        raise UploadConflict(text, code="upload_consumed")


async def name_upload_again(store: Store, new: NewJob, upload: str) -> None:
    """Note that a job which repeats another names its upload; refuse one whose files are gone."""
    if not await _use(store, new, upload, (*NAMEABLE, UploadState.CONSUMED)):
        raise _gone(upload)


async def _use(store: Store, new: NewJob, upload: str, states: Sequence[UploadState]) -> bool:
    if not is_upload_id(upload):
        return False
    record = new.record
    return None is not await store.use_upload(
        upload, tenant=record.tenant, job=record.id, states=states, lifetime=KEPT
    )


async def _is_repeat(store: Store, new: NewJob) -> bool:
    """Return whether a key of a new job belongs to a job that is there."""
    tenant = new.record.tenant
    for key in new.keys:
        if await store.look_up(tenant, KeyKind.of(key.kind), key.key) is not None:
            return True
    return False


class UploadSweep(Struct, kw_only=True):
    """What one pass over uploads did."""

    consumed: int = 0
    expired: int = 0
    removed: int = 0
    """Uploads whose files were removed."""
    dropped: int = 0
    """Records that were dropped."""
    failed: dict[str, str] = field(default_factory=dict)
    """Uploads that could not be removed, and why; the next pass tries again."""

    @property
    def written(self) -> int:
        """How much it changed."""
        return self.consumed + self.expired + self.removed + self.dropped


async def expire_uploads(
    store: Store, blobs: Blobs | None, actor: Actor, *, limit: int = 100
) -> UploadSweep:
    """Move uploads on whose time has come: the files go first, the record last.

    Without the place of blobs they end all the same, for the jobs that wait for them; only their
    files stay.
    """
    sweep = UploadSweep()
    sweep.consumed = await store.consume_uploads(actor=actor.label, limit=limit)
    now = (await store.clock()).now
    for upload in await store.due_uploads(now=now, ended_before=now - KEPT, limit=limit):
        try:
            await _expire(store, blobs, actor, upload, sweep)
        except StoreUnavailable:
            raise
        except HoldfastError as error:
            sweep.failed[upload.id] = str(error)
    return sweep


async def expire_all_uploads(store: Store, blobs: Blobs | None, actor: Actor) -> UploadSweep:
    """Move all uploads on whose time has come; return the sum."""
    total = UploadSweep()
    while True:
        sweep = await expire_uploads(store, blobs, actor)
        total.consumed += sweep.consumed
        total.expired += sweep.expired
        total.removed += sweep.removed
        total.dropped += sweep.dropped
        total.failed |= sweep.failed
        if not sweep.written:
            return total


async def measure_due_uploads(store: Store) -> int:
    """Return how many bytes the uploads have whose time has come."""
    now = (await store.clock()).now
    due = await store.due_uploads(now=now, ended_before=now - KEPT, limit=10_000)
    return sum(upload.bytes for upload in due)


async def _expire(
    store: Store, blobs: Blobs | None, actor: Actor, upload: Upload, sweep: UploadSweep
) -> None:
    if upload.state not in OVER:
        ended = await store.end_upload(
            upload.id, rev=upload.rev, to=UploadState.EXPIRED, actor=actor.label, due_only=True
        )
        if ended is None:
            return
        sweep.expired += 1
        await admit_held(store, upload.id, actor.name)
    if blobs is None and upload.bytes:
        return
    # Also before the record is dropped: a put that was under way may have come late.
    sweep.removed += await _remove_files(store, blobs, upload.id)
    if upload.removed_at is not None:
        sweep.dropped += await store.drop_upload(upload.id)


async def _remove_files(store: Store, blobs: Blobs | None, upload: str) -> bool:
    """Delete the files of an upload that is over; note it once a listing is empty."""
    if blobs is not None and (
        keys := [entry.key async for entry in blobs.list(upload_prefix(upload))]
    ):
        await blobs.delete(keys)
        left = [entry.key async for entry in blobs.list(upload_prefix(upload))]
        if left:
            raise UploadConflict(f"upload {upload} has files that were not deleted: {left[0]}")
    return await store.clear_upload(upload, lifetime=REMEMBERED)
