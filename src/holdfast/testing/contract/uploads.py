"""Records of uploads: moved by compare-and-set, their bytes reserved before they are written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.ports.models import Limits
from holdfast.ports.store import Store
from holdfast.ports.uploads import (
    LEAST_FILE_BYTES,
    Finalization,
    Reservation,
    Upload,
    UploadPart,
    UploadState,
)
from holdfast.testing.factories import CONTROL, HOUR, job_ids, new_upload
from holdfast.testing.store_actions import do, passed, running_job, submit_one

MOMENT = 1
"""A lifetime that is over at once, in microseconds."""
NAMEABLE = (UploadState.UPLOADING, UploadState.FINALIZED)
BAD_UPLOADS: dict[str, Any] = {
    "no id": {"id": ""},
    "an id that sorts by locale": {"id": "ä1"},
    "an id with a slash": {"id": "a/b"},
    "no tenant": {"tenant": ""},
    "a NUL": {"tenant": "a\0"},
    "no maker": {"created_by": ""},
    "no lifetime": {"lifetime": 0},
}


def asks_for(upload: Upload, bytes: int, *, writer: str = "w1", **fields: Any) -> Reservation:
    """What a writer asks the store for."""
    plain: dict[str, Any] = {"starts": True, "silent": HOUR, "lifetime": HOUR}
    return Reservation(
        id=upload.id, tenant=upload.tenant, writer=writer, bytes=bytes, **plain | fields
    )


def found_in(upload: Upload, **fields: Any) -> Finalization:
    """What a finalize has found in an upload."""
    plain: dict[str, Any] = {
        "rev": upload.rev,
        "files": 3,
        "digest": "d1",
        "actor": "control:ann",
        "request_id": "r1",
        "silent": HOUR,
        "lifetime": HOUR,
    }
    return Finalization(id=upload.id, tenant=upload.tenant, **plain | fields)


async def written(store: Store, bytes: int = 5, **fields: Any) -> Upload:
    """An upload with an archive."""
    upload = await store.add_upload(new_upload(**fields))
    assert await store.reserve_upload(asks_for(upload, bytes))
    part = UploadPart("", bytes)
    assert await store.end_write(upload.id, writer="w1", lifetime=HOUR, part=part)
    return await kept(store, upload)


async def finalized(store: Store, *, lifetime: int = HOUR, **fields: Any) -> Upload:
    """An upload that jobs may start with."""
    upload = await written(store, **fields)
    done = await store.finalize_upload(found_in(upload, lifetime=lifetime))
    assert done is not None
    return done


async def kept(store: Store, upload: Upload) -> Upload:
    """The upload as it is now."""
    [found] = await store.look_up_uploads([upload.id])
    assert found is not None
    return found


async def due(store: Store, *, ended_before: int | None = None) -> list[str]:
    """The ids of the uploads whose time is over."""
    now = (await store.clock()).now
    before = now if ended_before is None else ended_before
    return [one.id for one in await store.due_uploads(now=now, ended_before=before)]


class UploadContract:
    """What is kept of an upload, who may write how much to it, and how long it stays."""

    async def test_an_upload_is_kept_with_the_times_of_the_store(self, store: Store) -> None:
        before = (await store.clock()).now
        upload = await store.add_upload(new_upload(tenant="線", lifetime=7))
        again = await store.add_upload(new_upload(id=upload.id, tenant="other"))

        assert again == upload == await kept(store, upload)
        assert (upload.state, upload.tenant) == (UploadState.UPLOADING, "線")
        assert before <= upload.created_at <= (await store.clock()).now
        assert upload.expires_at == upload.created_at + 7
        assert (upload.moved_at, upload.moved_by) == (upload.created_at, upload.created_by)
        assert (upload.bytes, upload.reserved, upload.writer) == (0, 0, None)

    @pytest.mark.parametrize("options", BAD_UPLOADS.values(), ids=BAD_UPLOADS)
    async def test_an_invalid_upload_is_refused(self, store: Store, options: Any) -> None:
        with pytest.raises(BadData):
            await store.add_upload(new_upload(**options))
        assert await store.uploads() == []

    async def test_uploads_are_listed_by_tenant_newest_first_in_pages(self, store: Store) -> None:
        made = [await store.add_upload(new_upload(tenant=name)) for name in ("a", "b", "a", "a")]
        mine = [made[3], made[2], made[0]]

        assert await store.uploads() == made[::-1]
        assert await store.uploads(tenant="a") == mine
        assert await store.uploads(tenant="a", limit=2) == mine[:2]
        assert await store.uploads(tenant="a", before=mine[1].id) == mine[2:]
        assert await store.look_up_uploads([made[1].id, "none"], tenant="a") == [None, None]

    async def test_bytes_are_reserved_and_counted_once_they_are_written(self, store: Store) -> None:
        upload = await store.add_upload(new_upload())
        reserved = await store.reserve_upload(asks_for(upload, 100))
        assert reserved is not None
        assert (reserved.reserved, reserved.writer, reserved.bytes) == (100, "w1", 0)
        # More of the same writer replaces what it had.
        assert await store.reserve_upload(asks_for(upload, 70))
        assert await store.upload_bytes(upload.tenant) == 70

        part = UploadPart("a/ü.txt", 60)
        assert await store.end_write(upload.id, writer="w1", lifetime=HOUR, part=part)
        after = await kept(store, upload)
        counted = (after.bytes, after.reserved, after.writer, after.files)
        assert counted == (LEAST_FILE_BYTES, 0, None, 1)
        assert await store.upload_bytes(upload.tenant) == LEAST_FILE_BYTES
        assert await store.upload_parts(upload.id) == [part]
        assert await store.upload_parts(upload.id, path="a") == []

    async def test_a_part_that_is_written_again_is_counted_once(self, store: Store) -> None:
        upload = await written(store, 50)
        for size in (80, 20):
            assert await store.reserve_upload(asks_for(upload, size))
            part = UploadPart("", size)
            assert await store.end_write(upload.id, writer="w1", lifetime=HOUR, part=part)
        assert (await kept(store, upload)).bytes == 20

    async def test_a_write_that_fails_gives_its_bytes_back(self, store: Store) -> None:
        upload = await written(store, 50)
        assert await store.reserve_upload(asks_for(upload, 80))
        assert await store.end_write(upload.id, writer="w1", lifetime=HOUR)

        after = await kept(store, upload)
        assert (after.bytes, after.reserved, after.writer) == (50, 0, None)

    async def test_a_second_writer_is_refused_until_the_first_is_silent(self, store: Store) -> None:
        upload = await store.add_upload(new_upload())
        assert await store.reserve_upload(asks_for(upload, 1))

        assert await store.reserve_upload(asks_for(upload, 1, writer="w2")) is None
        assert not await store.end_write(upload.id, writer="w2", lifetime=HOUR)
        await passed(store, (await store.clock()).now + 1)
        assert await store.reserve_upload(asks_for(upload, 1, writer="w2", silent=0))
        # The first one has lost it, and what it reports has no effect.
        assert await store.reserve_upload(asks_for(upload, 1)) is None
        part = UploadPart("", 9)
        assert not await store.end_write(upload.id, writer="w1", lifetime=HOUR, part=part)
        assert await store.upload_parts(upload.id) == []
        assert (await kept(store, upload)).writer == "w2"
        # Nor does it return once the second has ended.
        await store.end_write(upload.id, writer="w2", lifetime=HOUR)
        assert await store.reserve_upload(asks_for(upload, 1, starts=False)) is None

    async def test_a_writer_of_another_tenant_is_refused(self, store: Store) -> None:
        upload = await store.add_upload(new_upload(tenant="a"))
        wanted = replace(asks_for(upload, 1), tenant="b")
        assert await store.reserve_upload(wanted) is None

    async def test_an_upload_has_no_more_bytes_than_one_may_have(self, store: Store) -> None:
        await store.set_limits(Limits(upload_bytes=100))
        upload = await written(store, 60)

        assert await store.reserve_upload(asks_for(upload, 41)) is None
        assert await store.reserve_upload(asks_for(upload, 40))

    async def test_of_three_that_write_at_once_the_third_exceeds_the_tenants_limit(
        self, store: Store
    ) -> None:
        await store.set_limits(Limits(tenant_upload_bytes=100))
        uploads = [await store.add_upload(new_upload(tenant="a")) for _ in range(3)]
        other = await store.add_upload(new_upload(tenant="b"))

        answers = await asyncio.gather(
            *(store.reserve_upload(asks_for(one, 50)) for one in uploads)
        )
        assert sorted(answer is not None for answer in answers) == [False, True, True]
        assert await store.upload_bytes("a") == 100
        assert await store.reserve_upload(asks_for(other, 50))

    async def test_an_upload_is_finalized_once(self, store: Store) -> None:
        upload = await written(store)
        done = await store.finalize_upload(found_in(upload))

        assert done is not None
        assert (done.state, done.files, done.digest) == (UploadState.FINALIZED, 3, "d1")
        assert (done.request_id, done.moved_by) == ("r1", "control:ann")
        assert done.finalized_at is not None
        assert done.expires_at > done.finalized_at
        assert await store.finalize_upload(found_in(done)) is None
        assert await store.reserve_upload(asks_for(done, 1)) is None

    async def test_what_was_written_since_it_was_read_is_not_finalized(self, store: Store) -> None:
        read = await written(store)
        assert await store.reserve_upload(asks_for(read, 1))

        assert await store.finalize_upload(found_in(read)) is None
        assert await store.finalize_upload(found_in(await kept(store, read))) is None
        await store.end_write(read.id, writer="w1", lifetime=HOUR)
        assert await store.finalize_upload(found_in(read)) is None
        assert await store.finalize_upload(found_in(await kept(store, read)))

    async def test_of_finalize_and_expiry_at_once_one_happens(self, store: Store) -> None:
        upload = await written(store)
        done, ended = await asyncio.gather(
            store.finalize_upload(found_in(upload)),
            store.end_upload(
                upload.id, rev=upload.rev, to=UploadState.EXPIRED, actor="j", due_only=False
            ),
        )
        assert (done is None) != (ended is None)
        state = UploadState.EXPIRED if done is None else UploadState.FINALIZED
        assert (await kept(store, upload)).state is state

    async def test_an_upload_expires_only_when_its_time_is_over(self, store: Store) -> None:
        upload = await store.add_upload(new_upload(lifetime=MOMENT))
        await passed(store, upload.expires_at)
        assert await due(store) == [upload.id]

        written = await store.reserve_upload(asks_for(upload, 1))
        assert written is not None
        assert await due(store) == []
        end: Any = {"to": UploadState.EXPIRED, "actor": "janitor:j"}
        assert await store.end_upload(upload.id, rev=written.rev, due_only=True, **end) is None
        ended = await store.end_upload(upload.id, rev=written.rev, due_only=False, **end)
        assert ended is not None
        assert (ended.state, ended.moved_by) == (UploadState.EXPIRED, "janitor:j")
        assert (ended.writer, ended.reserved) == (None, 0)

    async def test_files_go_first_and_the_record_last(self, store: Store) -> None:
        upload = await written(store, 7)
        assert not await store.clear_upload(upload.id, lifetime=HOUR)
        await store.end_upload(
            upload.id, rev=upload.rev, to=UploadState.DELETED, actor="ann", due_only=False
        )
        assert await due(store) == [upload.id]
        assert not await store.drop_upload(upload.id)
        assert await store.upload_bytes(upload.tenant) == 7

        assert await store.clear_upload(upload.id, lifetime=HOUR)
        assert await store.upload_bytes(upload.tenant) == 0
        assert await due(store) == []
        assert await store.drop_upload(upload.id)
        assert await store.look_up_uploads([upload.id]) == [None]
        assert await store.upload_parts(upload.id) == []

    async def test_an_upload_stays_while_a_job_that_names_it_has_not_ended(
        self, store: Store
    ) -> None:
        upload = await finalized(store)
        job = await submit_one(store)
        used = await store.use_upload(
            upload.id, tenant=upload.tenant, job=job.id, states=NAMEABLE, lifetime=MOMENT
        )
        assert used is not None
        await passed(store, used.expires_at)

        assert await store.upload_in_use(upload.id)
        assert await due(store) == []
        ended = await do(store, job, c.Cancel(actor=CONTROL))
        assert not await store.upload_in_use(upload.id)
        assert ended.finished_at is not None
        assert await due(store, ended_before=ended.finished_at - 1) == []
        assert await due(store, ended_before=ended.finished_at) == [upload.id]

    async def test_naming_an_upload_keeps_it_and_is_repeated_without_effect(
        self, store: Store
    ) -> None:
        upload = await finalized(store, lifetime=MOMENT)
        options: Any = {"tenant": upload.tenant, "job": job_ids.mint(), "states": NAMEABLE}
        for _ in range(2):
            used = await store.use_upload(upload.id, lifetime=HOUR, **options)
            assert used is not None
            assert used.expires_at > upload.expires_at
        assert await store.use_upload(upload.id, lifetime=1, **options | {"tenant": "b"}) is None
        states = (UploadState.CONSUMED,)
        assert await store.use_upload(upload.id, lifetime=1, **options | {"states": states}) is None
        # A job that was never submitted keeps nothing.
        assert not await store.upload_in_use(upload.id)

    async def test_an_upload_is_consumed_when_all_that_name_it_have_started(
        self, store: Store
    ) -> None:
        upload, unused = await finalized(store), await finalized(store)
        started, waiting = await running_job(store), await submit_one(store)
        for job in (started, waiting):
            await store.use_upload(
                upload.id, tenant=upload.tenant, job=job.id, states=NAMEABLE, lifetime=HOUR
            )
        assert await store.consume_uploads(actor="janitor:j") == 0

        await do(store, waiting, c.Cancel(actor=CONTROL))
        assert await store.consume_uploads(actor="janitor:j") == 1
        consumed = await kept(store, upload)
        assert (consumed.state, consumed.moved_by) == (UploadState.CONSUMED, "janitor:j")
        assert (await kept(store, unused)).state is UploadState.FINALIZED
