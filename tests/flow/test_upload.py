"""Uploads: written whole or not at all, finalized once, limited, gone when nobody uses them."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from holdfast.blobs.local import open_local
from holdfast.errors import (
    BlobsFull,
    BlobsUnavailable,
    NoSuchUpload,
    UploadConflict,
    UploadExpired,
    UploadQuotaExceeded,
    UploadRefused,
    UploadTooLarge,
)
from holdfast.flow import upload as uploads
from holdfast.flow.upload import delete_upload, expire_uploads, read_upload
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import State
from holdfast.ports.blobs import Blobs, read_blob
from holdfast.ports.models import Limits
from holdfast.ports.store import Store
from holdfast.ports.uploads import Upload, UploadPart, UploadState
from holdfast.queries.blob_keys import upload_archive_key, upload_file_key, upload_prefix
from holdfast.testing.factories import CONTROL, JANITOR
from holdfast.testing.store_actions import do, passed, stored
from tests.flow.uploads import (
    BrokenOff,
    finalize,
    new,
    pieces,
    plain_scan,
    submit_with,
    write,
)

pytestmark = pytest.mark.req("D3")
DATA = bytes(range(256)) * 20


@pytest.fixture
def store(either_store: Store) -> Store:
    """Both engines."""
    return either_store


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """A local place."""
    return open_local(tmp_path / "blobs", "test")


@pytest.fixture(autouse=True)
def _plain_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "scan_upload", plain_scan)


async def keys_of(blobs: Blobs, upload: Upload) -> list[str]:
    return [entry.key async for entry in blobs.list(upload_prefix(upload.id))]


async def test_an_archive_is_written_and_counted(store: Store, blobs: Blobs) -> None:
    written = await write(store, blobs, await new(store), DATA, announced=len(DATA))

    assert await read_blob(blobs, upload_archive_key(written.id)) == DATA
    assert (written.bytes, written.reserved, written.writer) == (len(DATA), 0, None)
    assert written.state is UploadState.UPLOADING


async def test_single_files_are_written_by_path(store: Store, blobs: Blobs) -> None:
    upload = await new(store)
    for path, data in (("a.txt", b"1"), ("b/ü.txt", b"22"), ("a.txt", b"333")):
        await write(store, blobs, upload, data, path=path)

    assert await store.upload_parts(upload.id) == [UploadPart("a.txt", 3), UploadPart("b/ü.txt", 2)]
    assert await read_blob(blobs, upload_file_key(upload.id, "b/ü.txt")) == b"22"
    done = await finalize(store, blobs, upload)
    assert (done.bytes, done.files) == (2 * 4096, 2), "a file costs a block at least"


@pytest.mark.parametrize("break_at", [0, 1, 999, 1000, 2500, len(DATA)])
async def test_a_write_that_is_broken_off_at_any_byte_is_repeated(
    store: Store, blobs: Blobs, break_at: int
) -> None:
    upload = await new(store)
    for _ in range(2):
        with pytest.raises(BrokenOff):
            await write(store, blobs, upload, data=pieces(DATA, break_at=break_at))
    assert await keys_of(blobs, upload) == []
    left = await read_upload(store, upload.id, tenant=None)
    assert (left.bytes, left.reserved, left.writer) == (0, 0, None)

    await write(store, blobs, upload, DATA)
    with pytest.raises(BrokenOff):
        await write(store, blobs, upload, data=pieces(b"y" * 5000, break_at=3000))
    # What was whole stays.
    assert await read_blob(blobs, upload_archive_key(upload.id)) == DATA
    assert (await read_upload(store, upload.id, tenant=None)).bytes == len(DATA)


async def test_a_cancelled_write_leaves_the_upload_to_the_next(store: Store, blobs: Blobs) -> None:
    upload = await new(store)
    gate = asyncio.Event()
    task = asyncio.create_task(write(store, blobs, upload, data=pieces(DATA, gate=gate)))
    await _until_written_to(store, upload)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await write(store, blobs, upload, b"next")
    assert await read_blob(blobs, upload_archive_key(upload.id)) == b"next"


async def _until_written_to(store: Store, upload: Upload) -> None:
    for _ in range(1000):
        if (await read_upload(store, upload.id, tenant=None)).reserved:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("nobody writes")


async def test_two_writers_do_not_mix(store: Store, blobs: Blobs) -> None:
    upload = await new(store)
    gate = asyncio.Event()
    first = asyncio.create_task(write(store, blobs, upload, data=pieces(DATA, gate=gate)))
    await _until_written_to(store, upload)
    with pytest.raises(UploadConflict) as refused:
        await write(store, blobs, upload, b"second")
    with pytest.raises(UploadConflict) as unfinished:
        await finalize(store, blobs, upload)
    gate.set()
    await first

    assert (refused.value.code, unfinished.value.code) == ("upload_busy", "upload_busy")
    assert await read_blob(blobs, upload_archive_key(upload.id)) == DATA


async def test_a_silent_writer_loses_the_upload_and_leaves_nothing(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await new(store)
    gate = asyncio.Event()
    first = asyncio.create_task(write(store, blobs, upload, data=pieces(DATA, gate=gate)))
    await _until_written_to(store, upload)
    monkeypatch.setattr(uploads, "SILENT", 0)
    await passed(store, (await store.clock()).now)
    await write(store, blobs, upload, b"second")
    gate.set()
    with pytest.raises(UploadConflict):
        await asyncio.wait_for(_after_finalize(store, blobs, upload, first), 30)
    assert await read_blob(blobs, upload_archive_key(upload.id)) == b"second"


async def _after_finalize(
    store: Store, blobs: Blobs, upload: Upload, writer: asyncio.Task[Upload]
) -> None:
    await finalize(store, blobs, upload)
    await writer


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        ({"digest": "0" * 64}, "digest_mismatch"),
        ({"announced": len(DATA) + 1}, "length_mismatch"),
        ({"announced": len(DATA) - 1}, "length_mismatch"),
    ],
    ids=["digest", "shorter", "longer"],
)
async def test_other_data_than_was_announced_is_refused(
    store: Store, blobs: Blobs, wish: Any, code: str
) -> None:
    upload = await new(store)
    with pytest.raises(UploadRefused) as refused:
        await write(store, blobs, upload, DATA, **wish)

    assert refused.value.code == code
    assert await keys_of(blobs, upload) == []
    await write(store, blobs, upload, DATA, digest=sha256(DATA).hexdigest(), announced=len(DATA))


async def test_an_upload_of_another_tenant_is_not_there(store: Store, blobs: Blobs) -> None:
    upload = await new(store, "mine")
    for attempt in (
        write(store, blobs, upload, tenant="theirs"),
        finalize(store, blobs, upload, tenant="theirs"),
        delete_upload(store, blobs, CONTROL, tenant="theirs", upload=upload.id),
        read_upload(store, "../x", tenant=None),
    ):
        with pytest.raises(NoSuchUpload):
            await attempt
    with pytest.raises(NoSuchUpload):
        await submit_with(store, upload, as_="theirs")


async def test_an_archive_and_single_files_do_not_go_together(store: Store, blobs: Blobs) -> None:
    archive, files = await new(store), await new(store)
    await write(store, blobs, archive)
    await write(store, blobs, files, path="a")

    for upload, path in ((archive, "a"), (files, None)):
        with pytest.raises(UploadConflict) as refused:
            await write(store, blobs, upload, path=path)
        assert refused.value.code == "upload_mixed"


async def test_an_archive_that_came_first_is_seen_by_the_writer_of_a_file(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await new(store)
    start = uploads._Writer.start

    async def start_late(self: uploads._Writer) -> None:
        monkeypatch.setattr(uploads._Writer, "start", start)
        await write(store, blobs, upload)
        await start(self)

    monkeypatch.setattr(uploads._Writer, "start", start_late)
    with pytest.raises(UploadConflict, match="has an archive"):
        await write(store, blobs, upload, path="a")
    assert (await finalize(store, blobs, upload)).state is UploadState.FINALIZED


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "streamed"])
async def test_an_upload_beyond_its_limit_is_refused(
    store: Store, blobs: Blobs, is_announced: bool
) -> None:
    await store.set_limits(Limits(upload_bytes=3000))
    upload = await new(store)
    announced = len(DATA) if is_announced else None
    with pytest.raises(UploadTooLarge):
        await write(store, blobs, upload, DATA, announced=announced)

    assert await keys_of(blobs, upload) == []
    # What fits is written, and may be replaced by as much.
    for _ in range(2):
        await write(store, blobs, upload, DATA[:3000])


async def test_the_third_of_three_writers_exceeds_the_quota_of_the_tenant(
    store: Store, blobs: Blobs
) -> None:
    await store.set_limits(Limits(tenant_upload_bytes=2 * len(DATA)))
    three = [await new(store) for _ in range(3)]
    answers = await asyncio.gather(
        *(write(store, blobs, one, DATA, announced=len(DATA)) for one in three),
        return_exceptions=True,
    )

    refused = [one for one in answers if isinstance(one, BaseException)]
    assert [type(one) for one in refused] == [UploadQuotaExceeded]
    assert await store.upload_bytes("default") == 2 * len(DATA)
    await delete_upload(store, blobs, CONTROL, tenant=None, upload=_written(answers).id)
    again = three[answers.index(refused[0])]
    await write(store, blobs, again, DATA)


def _written(answers: list[Any]) -> Upload:
    return next(one for one in answers if isinstance(one, Upload))


async def test_a_disk_that_is_almost_full_is_not_filled(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = await blobs.room()
    assert room is not None
    monkeypatch.setattr(uploads, "SPARE_BYTES", room + 2**30)
    upload = await new(store)
    with pytest.raises(BlobsFull):
        await write(store, blobs, upload)

    assert (await read_upload(store, upload.id, tenant=None)).writer is None


async def test_a_finalize_that_is_repeated_has_the_same_answer_and_another_is_refused(
    store: Store, blobs: Blobs
) -> None:
    upload = await new(store)
    await write(store, blobs, upload, DATA)
    first, second = await asyncio.gather(
        *(finalize(store, blobs, upload, request_id="r1") for _ in range(2))
    )

    assert first == second == await finalize(store, blobs, upload, request_id="r1")
    assert first.digest == sha256(DATA).hexdigest()
    for other in (None, "r2"):
        with pytest.raises(UploadConflict) as refused:
            await finalize(store, blobs, upload, request_id=other)
        assert refused.value.code == "upload_finalized"
    with pytest.raises(UploadConflict):
        await write(store, blobs, upload, b"late")
    assert await read_blob(blobs, upload_archive_key(upload.id)) == DATA


class GatedScan:
    """Reads when its gate is open; counts how many are under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = asyncio.Event()
        self.reached = asyncio.Event()
        self.now = self.most = self.all = 0
        monkeypatch.setattr(uploads, "scan_upload", self.scan)

    async def scan(self, *args: Any, **wish: Any) -> Any:
        self.now += 1
        self.all += 1
        self.most = max(self.most, self.now)
        self.reached.set()
        await self.gate.wait()
        self.now -= 1
        return await plain_scan(*args, **wish)


async def test_an_upload_is_read_by_one_finalize_at_a_time(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await write(store, blobs, await new(store))
    scan = GatedScan(monkeypatch)
    first = asyncio.create_task(finalize(store, blobs, upload, request_id="r1"))
    await scan.reached.wait()

    for request_id in (None, "r2"):
        with pytest.raises(UploadConflict) as refused:
            await finalize(store, blobs, upload, request_id=request_id)
        assert refused.value.code == "upload_busy"
    with pytest.raises(UploadConflict) as refused:
        await write(store, blobs, upload)
    assert refused.value.code == "upload_busy"
    again = asyncio.create_task(finalize(store, blobs, upload, request_id="r1"))
    scan.gate.set()
    assert await first == await again
    assert scan.all == 1


async def test_a_finalize_that_is_cancelled_leaves_the_upload_to_the_next(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await write(store, blobs, await new(store))
    scan = GatedScan(monkeypatch)
    first = asyncio.create_task(finalize(store, blobs, upload))
    await scan.reached.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    scan.gate.set()
    assert (await finalize(store, blobs, upload)).state is UploadState.FINALIZED


async def test_few_uploads_are_read_at_a_time(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await write(store, blobs, await new(store)) for _ in range(5)]
    scan, slots = GatedScan(monkeypatch), asyncio.Semaphore(2)
    reading = asyncio.gather(*(finalize(store, blobs, one, slots=slots) for one in made))
    for one in made:
        now = one
        while now.writer is None:
            await asyncio.sleep(0.01)
            now = await read_upload(store, one.id, tenant=None)
    await asyncio.sleep(0.05)
    scan.gate.set()
    await reading
    assert (scan.most, scan.all) == (2, 5)


async def test_a_slow_finalize_shows_that_it_lives(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "RENEW_SECONDS", 0.01)
    upload = await write(store, blobs, await new(store))
    scan = GatedScan(monkeypatch)
    first = asyncio.create_task(finalize(store, blobs, upload))
    await scan.reached.wait()
    held = await read_upload(store, upload.id, tenant=None)
    async with asyncio.timeout(30):
        now = held
        while now.written_at == held.written_at:
            await asyncio.sleep(0.01)
            now = await read_upload(store, upload.id, tenant=None)
    scan.gate.set()
    assert (await first).state is UploadState.FINALIZED


async def test_a_lowered_limit_does_not_keep_an_upload_from_its_end(
    store: Store, blobs: Blobs
) -> None:
    upload = await write(store, blobs, await new(store))
    await store.set_limits(Limits(tenant_upload_bytes=1))
    assert (await finalize(store, blobs, upload)).state is UploadState.FINALIZED


async def test_a_tenant_has_a_limited_number_of_uploads_that_are_not_finalized(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "OPEN_UPLOADS", 3)
    [first, *_] = [await new(store) for _ in range(3)]
    with pytest.raises(UploadQuotaExceeded, match="3 uploads that are not finalized"):
        await new(store)
    await new(store, tenant="other")
    await write(store, blobs, first)
    await finalize(store, blobs, first)
    await new(store)


async def test_many_tiny_files_count_as_what_they_cost(store: Store, blobs: Blobs) -> None:
    await store.set_limits(Limits(tenant_upload_bytes=3 * 4096))
    upload = await new(store)
    for number in (0, 1, 2, 0, 1, 2):
        await write(store, blobs, upload, b"x", path=f"{number}.txt")
    with pytest.raises(UploadQuotaExceeded):
        await write(store, blobs, upload, b"x", path="4.txt")


async def test_what_the_scan_refuses_may_be_written_again(store: Store, blobs: Blobs) -> None:
    upload = await new(store)
    with pytest.raises(UploadRefused):
        await finalize(store, blobs, upload)
    await write(store, blobs, upload, b"bad")
    with pytest.raises(UploadRefused):
        await finalize(store, blobs, upload)

    await write(store, blobs, upload, b"good")
    assert (await finalize(store, blobs, upload)).state is UploadState.FINALIZED


async def test_a_finalize_loses_against_the_expiry_that_came_first(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "UNFINISHED", 1)
    upload = await write(store, blobs, await new(store))
    await passed(store, upload.expires_at)

    async def scan_slowly(*args: Any, **wish: Any) -> Any:
        manifest = await plain_scan(*args, **wish)
        await expire_uploads(store, blobs, JANITOR)
        return manifest

    monkeypatch.setattr(uploads, "scan_upload", scan_slowly)
    with pytest.raises(UploadExpired):
        await finalize(store, blobs, upload)
    assert await keys_of(blobs, upload) == []


async def test_an_upload_that_is_not_finished_expires_with_its_files(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = await write(store, blobs, await new(store))
    monkeypatch.setattr(uploads, "UNFINISHED", 1)
    old = await write(store, blobs, await new(store))
    await passed(store, old.expires_at)
    sweep = await expire_uploads(store, blobs, JANITOR)

    assert (sweep.expired, sweep.removed, sweep.failed) == (1, 1, {})
    assert await keys_of(blobs, old) == []
    assert len(await keys_of(blobs, fresh)) == 1
    assert (await read_upload(store, old.id, tenant=None)).state is UploadState.EXPIRED
    with pytest.raises(UploadExpired):
        await write(store, blobs, old)
    assert (await expire_uploads(store, blobs, JANITOR)).written == 0


async def test_uploads_end_also_while_their_place_is_away(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "UNFINISHED", 1)
    written, empty = await write(store, blobs, await new(store)), await new(store)
    waiting = await submit_with(store, empty)
    await passed(store, max(written.expires_at, empty.expires_at))
    sweep = await expire_uploads(store, None, JANITOR)

    assert (sweep.expired, sweep.removed, sweep.failed) == (2, 1, {})
    [job] = await store.get([waiting.id])
    assert job is not None
    assert (job.terminal, job.error_code) == (True, "upload_expired")
    # Once the place is there again, what is left goes, too.
    assert len(await keys_of(blobs, written)) == 1
    assert (await expire_uploads(store, blobs, JANITOR)).removed == 1
    assert await keys_of(blobs, written) == []


async def test_the_record_goes_last(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await write(store, blobs, await new(store))
    monkeypatch.setattr(uploads, "REMEMBERED", 1)
    deleted = await delete_upload(store, blobs, CONTROL, tenant=None, upload=upload.id)
    assert (deleted.state, deleted.bytes) == (UploadState.DELETED, 0)
    await passed(store, deleted.expires_at)

    assert (await expire_uploads(store, blobs, JANITOR)).dropped == 1
    with pytest.raises(NoSuchUpload):
        await read_upload(store, upload.id, tenant=None)
    assert await store.side_problems() == []


async def test_files_that_cannot_be_deleted_keep_their_record(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "UNFINISHED", 1)
    bad, good = [await write(store, blobs, await new(store)) for _ in range(2)]
    await passed(store, good.expires_at)
    delete = blobs.delete

    async def fail_for_one(keys: Any) -> None:
        if any(bad.id in key for key in keys):
            raise BlobsUnavailable("no route")
        await delete(keys)

    monkeypatch.setattr(blobs, "delete", fail_for_one)
    sweep = await expire_uploads(store, blobs, JANITOR)
    assert (sweep.expired, sweep.removed, list(sweep.failed)) == (2, 1, [bad.id])
    monkeypatch.undo()
    assert (await expire_uploads(store, blobs, JANITOR)).removed == 1
    assert await keys_of(blobs, bad) == []


async def test_files_stay_for_a_job_that_has_not_ended_and_then_for_a_while(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await write(store, blobs, await new(store))
    await finalize(store, blobs, upload)
    monkeypatch.setattr(uploads, "KEPT", 1)
    job = await submit_with(store, upload)
    await passed(store, (await read_upload(store, upload.id, tenant=None)).expires_at)

    assert (await expire_uploads(store, blobs, JANITOR)).written == 0
    with pytest.raises(UploadConflict) as refused:
        await delete_upload(store, blobs, CONTROL, tenant=None, upload=upload.id)
    assert refused.value.code == "upload_in_use"
    await do(store, await stored(store, job.id), c.Cancel(actor=CONTROL))
    monkeypatch.setattr(uploads, "KEPT", 10**12)
    assert (await expire_uploads(store, blobs, JANITOR)).written == 0
    monkeypatch.setattr(uploads, "KEPT", 1)
    assert (await expire_uploads(store, blobs, JANITOR)).expired == 1
    assert (await stored(store, job.id)).state is State.CANCELLED
