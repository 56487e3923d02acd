"""After a power cut, a job whose end is on record has its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.blobs import local
from holdfast.blobs.local import open_local
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import State
from holdfast.ports.models import Committed, Submitted
from holdfast.queries.blob_keys import artifacts_prefix
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import new_job, owner_of
from holdfast.testing.store_actions import chain, claim
from tests.support.disk_model import Loss
from tests.support.power_cut import Recording, crash_images
from tests.support.tree_cut import TreeRecording

JOBS = 6


def output_of(job: JobId) -> bytes:
    return f"what {job} made ".encode() * 100


async def run_jobs(path: Path, recording: Recording, place: Path) -> None:
    """Run jobs as a worker does: the outputs first, then the end."""
    blobs = open_local(place, "store")
    store = SqliteStore(path, vfs=recording.vfs_name)
    await store.open()
    for _ in range(JOBS):
        [submitted] = await store.submit([new_job()])
        assert isinstance(submitted, Submitted)
        [claimed] = await claim(store)
        actor = owner_of(claimed.job)
        job = claimed.job.id
        await blobs.put(f"{artifacts_prefix(job, 1)}/out", output_of(job))
        changes = chain(claimed.job, c.Start(actor=actor), c.Complete(actor=actor))
        for done in await store.commit(changes):
            assert isinstance(done, Committed)
    await store.close()


async def find_ended(database: Path) -> list[JobId]:
    """Read which jobs have succeeded, as a store that opens after the cut."""
    store = SqliteStore(database)
    await store.open()
    try:
        tail = await store.tail(None)
        ids = sorted({event.id for event in tail.events})
        jobs = await store.get(ids)
        return [job.id for job in jobs if job is not None and job.state is State.SUCCEEDED]
    finally:
        await store.close()


async def missing_outputs(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cut the power at every moment of a run; return which ends have no output."""
    place = directory / "blobs"
    place.mkdir()
    missing: list[str] = []
    most = 0
    with Recording() as recording:
        with monkeypatch.context() as patch:
            tree = TreeRecording(place, lambda: len(recording.operations)).record(patch)
            await run_jobs(directory / "holdfast.db", recording, place)
        images = crash_images(recording, 7, directory=directory, cuts=60, losses=(Loss.KEPT,))
        for image in images:
            ended = await find_ended(image.database)
            most = max(most, len(ended))
            for keeps_names in (False, True):
                left = tree.tree_at(image.cut).after_cut(place, keeps_names=keeps_names)
                missing += [
                    f"{job} at {image}, {keeps_names=}"
                    for job in ended
                    if left.get(place / f"store/{artifacts_prefix(job, 1)}/out") != output_of(job)
                ]
    assert most == JOBS
    return missing


@pytest.mark.req("B29")
async def test_an_end_on_record_has_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await missing_outputs(tmp_path, monkeypatch) == []


@pytest.mark.req("B29")
@pytest.mark.parametrize("removed", ["of files", "of directories", "of all but the last directory"])
async def test_without_a_sync_an_end_on_record_lacks_its_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    """What shows that the test above could fail: each of the syncs is needed."""
    real_sync = local._sync
    real_write = local._IncomingFile.write
    if removed == "of files":
        monkeypatch.setattr(
            local._IncomingFile, "write", lambda file, data, last=False: real_write(file, data)
        )
    elif removed == "of directories":
        monkeypatch.setattr(local, "_sync", lambda directory: None)
    else:
        monkeypatch.setattr(
            local, "_sync", lambda one: real_sync(one) if one.name.isdigit() else None
        )

    assert await missing_outputs(tmp_path, monkeypatch) != []
