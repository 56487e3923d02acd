"""Uploads as operations, at hand and through a server: a tenant's own, finalized and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.blobs.local import open_local
from holdfast.errors import BadData, NoSuchUpload, Refused
from holdfast.flow import upload as uploads
from holdfast.flow.submit_command import WantedCommand
from holdfast.operations.request import Operations
from holdfast.operations.requests import (
    CreateUpload,
    DeleteUpload,
    ExplainJob,
    FinalizeUpload,
    GetUpload,
    ListUploads,
    SubmitJob,
)
from holdfast.operations.session import StoreSession
from holdfast.operations.upload_view import UploadView
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.ports.uploads import UploadState
from tests.flow.uploads import pieces, plain_scan

pytestmark = pytest.mark.req("D3")


@pytest.fixture(autouse=True)
def blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Blobs:
    """The place of blobs that every session uses; archives are scanned elsewhere."""
    place = open_local(tmp_path / "blobs", "test")

    async def found(_: StoreSession) -> Blobs:
        return place

    monkeypatch.setattr(StoreSession, "blobs", found)
    monkeypatch.setattr(uploads, "scan_upload", plain_scan)
    return place


async def write(store: Store, blobs: Blobs, upload: UploadView) -> None:
    await uploads.write_upload(
        store, blobs, tenant="mine", upload=upload.id, path=None, data=pieces(b"some data")
    )


async def test_an_upload_is_a_tenants_own(mine: Operations, theirs: Operations) -> None:
    upload = await mine.do(CreateUpload())
    assert (upload.tenant, upload.state) == ("mine", UploadState.UPLOADING)
    assert await mine.do(GetUpload(upload=upload.id)) == upload
    assert (await theirs.do(ListUploads())).uploads == []
    for request in (
        GetUpload(upload=upload.id),
        FinalizeUpload(upload=upload.id),
        DeleteUpload(upload=upload.id),
    ):
        with pytest.raises(NoSuchUpload):
            await theirs.do(request)
    with pytest.raises(BadData):
        await mine.do(CreateUpload(tenant="theirs"))


async def test_uploads_are_listed_in_pages(mine: Operations, everybody: Operations) -> None:
    made = [await mine.do(CreateUpload()) for _ in range(3)]
    made.append(await everybody.do(CreateUpload(tenant="other")))
    first = await mine.do(ListUploads(limit=2))
    assert [one.id for one in first.uploads] == [made[2].id, made[1].id]
    rest = await mine.do(ListUploads(before=first.next))
    assert ([one.id for one in rest.uploads], rest.next) == ([made[0].id], None)
    assert len((await everybody.do(ListUploads())).uploads) == 4


async def test_a_job_waits_for_its_upload_and_why_names_it(
    mine: Operations, store: Store, blobs: Blobs
) -> None:
    upload = await mine.do(CreateUpload())
    wanted = WantedCommand(type="worker", command="make", files_id=upload.id)
    job = (await mine.do(SubmitJob(job=wanted))).job
    answer = await mine.do(ExplainJob(job=job.id))
    assert answer.reason.code == "waits_for_upload"
    assert upload.id in answer.text

    await write(store, blobs, upload)
    done = await mine.do(FinalizeUpload(upload=upload.id, request_id="r1"))
    assert done.state is UploadState.FINALIZED
    assert await mine.do(FinalizeUpload(upload=upload.id, request_id="r1")) == done
    with pytest.raises(Refused):
        await mine.do(FinalizeUpload(upload=upload.id, request_id="r2"))
    answer = await mine.do(ExplainJob(job=job.id))
    assert answer.reason.code == "no_command_worker"
    with pytest.raises(Refused):
        await mine.do(DeleteUpload(upload=upload.id))


async def test_a_deleted_upload_is_remembered_as_such(
    mine: Operations, store: Store, blobs: Blobs
) -> None:
    upload = await mine.do(CreateUpload())
    await write(store, blobs, upload)
    gone = await mine.do(DeleteUpload(upload=upload.id))
    assert (gone.state, gone.bytes) == (UploadState.DELETED, 0)
    assert await mine.do(DeleteUpload(upload=upload.id)) == gone
    assert await mine.do(GetUpload(upload=upload.id)) == gone
