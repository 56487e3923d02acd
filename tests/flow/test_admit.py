"""A job that names an upload waits for it: admitted once it is finalized, ended once it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.blobs.local import open_local
from holdfast.errors import Refused, UploadConflict, UploadExpired
from holdfast.flow import upload as uploads
from holdfast.flow.admit import admit_pending
from holdfast.flow.cancel import cancel
from holdfast.flow.hold import unhold
from holdfast.flow.redrive import redrive
from holdfast.flow.upload import delete_upload, expire_uploads
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.dialects import DIALECTS
from holdfast.lifecycle.holds import upload_hold
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import EventType, Letter, State
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.ports.uploads import UploadState
from holdfast.queries.why import reasons as r
from holdfast.services.reconciler import Reconciler
from holdfast.testing.factories import CONTROL, JANITOR, owner_of
from holdfast.testing.store_actions import claim_one, do, passed, stored
from tests.flow.uploads import finalize, new, plain_scan, submit_with, write
from tests.queries.why.acts import ask

pytestmark = pytest.mark.req("D3")


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


async def events_of(store: Store, job: Job) -> list[EventType]:
    return [event.type for event in await store.events(job.id)]


async def test_a_job_waits_until_its_upload_is_finalized(store: Store, blobs: Blobs) -> None:
    upload = await write(store, blobs, await new(store))
    two = [await submit_with(store, upload) for _ in range(2)]
    for job in two:
        assert (job.state, job.held_by) == (State.PENDING, (upload_hold(upload.id),))
    _, reason = await ask(store, two[0], r.WaitsForUpload)
    assert (reason.upload, reason.state) == (upload.id, "uploading")
    assert reason.until == upload.expires_at
    assert upload.id in reason.sentence(reason.since)

    await finalize(store, blobs, upload)
    for job in two:
        admitted = await stored(store, job.id)
        assert (admitted.state, admitted.held_by) == (State.QUEUED, ())
        assert await events_of(store, job) == [EventType.CREATED, EventType.ADMITTED]


async def test_a_job_that_names_a_finalized_upload_is_admitted_at_once(
    store: Store, blobs: Blobs
) -> None:
    upload = await write(store, blobs, await new(store))
    await finalize(store, blobs, upload)
    job = await submit_with(store, upload)

    assert (job.state, job.held_by) == (State.QUEUED, ())
    [first] = await store.events(job.id, limit=1)
    assert first.created is not None
    assert first.created.files_id == upload.id


async def test_the_reconciler_admits_what_a_finalize_left_behind(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await write(store, blobs, await new(store))
    other = await submit_with(store, await write(store, blobs, await new(store)))
    unheld = await submit_with(store, upload)
    await unhold(store, unheld.id, CONTROL, upload_hold(upload.id))
    job = await submit_with(store, upload)

    async def die(*args: object) -> None:
        raise RuntimeError("the server died")

    monkeypatch.setattr(uploads, "admit_held", die)
    with pytest.raises(RuntimeError):
        await finalize(store, blobs, upload)
    assert (await stored(store, job.id)).state is State.PENDING

    await Reconciler(store, "one").sweep()
    for one in (job, unheld):
        assert (await stored(store, one.id)).state is State.QUEUED
    assert (await stored(store, other.id)).state is State.PENDING


async def test_many_pending_jobs_are_looked_at_a_batch_at_a_time(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await write(store, blobs, await new(store))
    jobs = [await submit_with(store, upload) for _ in range(5)]
    monkeypatch.setattr(uploads, "admit_held", admit_none)
    await finalize(store, blobs, upload)

    first = await admit_pending(store, "one", limit=2)
    assert (first.admitted, first.next) == (2, jobs[1].id)
    rest = await admit_pending(store, "one", after=first.next, limit=10)
    assert (rest.admitted, rest.next) == (3, None)


async def admit_none(*_: object) -> None:
    """Leave it to the reconciler."""


@pytest.mark.parametrize("way", ["expired", "deleted"])
async def test_a_job_ends_whose_upload_is_gone(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(uploads, "UNFINISHED", 1)
    upload = await write(store, blobs, await new(store))
    job = await submit_with(store, upload)
    await passed(store, upload.expires_at)
    if way == "expired":
        await expire_uploads(store, blobs, JANITOR)
    else:
        await delete_upload(store, blobs, CONTROL, tenant=None, upload=upload.id)

    ended = await stored(store, job.id)
    assert (ended.state, ended.error_code) == (State.DEAD_LETTERED, "upload_expired")
    assert ended.letter is Letter.OPEN
    event = (await store.events(job.id))[-1]
    assert event.facts.stage == "fetch"
    assert upload.id.encode() in (event.body or b"")
    with pytest.raises(UploadExpired):
        await redrive(store, job.id, CONTROL)


async def test_a_job_whose_upload_was_forgotten_ends_within_one_tick(
    store: Store, blobs: Blobs
) -> None:
    upload = await write(store, blobs, await new(store))
    job = await submit_with(store, upload)
    ended = await store.end_upload(
        upload.id, rev=upload.rev, to=UploadState.DELETED, actor="a", due_only=False
    )
    assert ended is not None
    await store.clear_upload(upload.id, lifetime=1)
    await store.drop_upload(upload.id)

    await Reconciler(store, "one").sweep()
    assert (await stored(store, job.id)).error_code == "upload_expired"


async def test_a_job_that_waits_for_its_upload_can_be_cancelled(store: Store, blobs: Blobs) -> None:
    upload = await write(store, blobs, await new(store))
    job = await submit_with(store, upload)
    await cancel(store, job.id, CONTROL)
    await finalize(store, blobs, upload)

    assert (await stored(store, job.id)).state is State.CANCELLED


async def test_a_consumed_upload_serves_redrives_and_repeats_but_no_new_job(
    store: Store, blobs: Blobs
) -> None:
    upload = await write(store, blobs, await new(store))
    key = str(mint_id()).replace("-7", "-4", 1)
    waiting = await submit_with(store, upload, request_id=key)
    await finalize(store, blobs, upload)
    claimed = (await claim_one(store, waiting.queue, capabilities=waiting.needs)).job
    running = await do(store, claimed, c.Start(actor=owner_of(claimed)))
    assert (await expire_uploads(store, blobs, JANITOR)).consumed == 1

    assert (await submit_with(store, upload, request_id=key)).id == waiting.id
    with pytest.raises(UploadConflict) as refused:
        await submit_with(store, upload)
    assert refused.value.code == "upload_consumed"
    with pytest.raises(Refused):
        await submit_with(store, upload, request_id=key, labels={"another": "request"})
    failed = await do(store, running, c.Fail(actor=owner_of(running), error_code="x", exit_code=1))
    again = await redrive(store, failed.id, CONTROL)
    assert again.held_by == (upload_hold(upload.id),)
    await Reconciler(store, "one").sweep()
    assert (await stored(store, again.id)).state is State.QUEUED


async def test_two_requests_that_name_other_uploads_are_not_the_same(
    store: Store, blobs: Blobs
) -> None:
    first, second = [await write(store, blobs, await new(store)) for _ in range(2)]
    job = await submit_with(store, first, request_id="k")
    assert (await submit_with(store, first, request_id="k")).id == job.id
    # Finalized meanwhile, it is still the same request.
    await finalize(store, blobs, first)
    assert (await submit_with(store, first, request_id="k")).id == job.id
    with pytest.raises(Refused):
        await submit_with(store, second, request_id="k")


def test_the_end_for_want_of_files_is_a_failure_in_dialect_d() -> None:
    assert DIALECTS["D"].states[State.DEAD_LETTERED] == "failed"
