"""Sweeping blobs: what no job has goes, after a day; what a job has or may get stays."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ArtifactsErased
from holdfast.flow.clean import DAY, RetentionTerms, clean
from holdfast.flow.purge import PurgeTerms, purge_all
from holdfast.flow.sweep_blobs import BlobSweep, list_all, sweep_blobs
from holdfast.flow.upload import create_upload
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import KeptOutput
from holdfast.lifecycle.states import LIVE, TERMINAL, Kind, Retention, State
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.queries.artifacts import read_manifest
from holdfast.queries.blob_keys import artifacts_prefix, logs_prefix, upload_prefix
from holdfast.services.janitor import Janitor
from holdfast.testing.factories import CONTROL, JANITOR, owner_of
from holdfast.testing.store_actions import do, job_in, running_job, stored, submit_one
from holdfast.wiring import plan_blobs, plan_upkeep_blobs
from tests.flow.families import child_of, end
from tests.flow.outputs import (
    ARTIFACT,
    LOG,
    Reluctant,
    ended_command,
    keys_of,
    outputs_of,
    put_outputs,
)
from tests.flow.test_clean_outputs import opened

SIZE = 2 * len(LOG) + 2 * len(ARTIFACT)
"""What one attempt leaves."""
AT_ONCE = RetentionTerms(succeeded=0, unsuccessful=0)


@pytest.fixture
async def blobs(blobs_address: str, either_store: Store) -> Blobs:
    """Each kind of place, of each kind of store."""
    return await plan_blobs(blobs_address)(either_store)


@pytest.fixture
async def local(local_address: str, either_store: Store) -> Blobs:
    """A local place, of each kind of store."""
    return await plan_blobs(local_address)(either_store)


@pytest.fixture
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    """All blobs are old: also those that were put a moment ago, by another clock."""
    monkeypatch.setattr("holdfast.flow.sweep_blobs.GRACE", -DAY)


async def swept(
    store: Store, blobs: Any, terms: RetentionTerms | None = None, **wishes: Any
) -> BlobSweep:
    """Sweep all blobs."""
    total, listing = BlobSweep(), list_all(blobs)
    while not total.ended:
        report = await sweep_blobs(store, blobs, terms or RetentionTerms(), listing, **wishes)
        total.add(report)
        total.ended = report.ended
    return total


@pytest.mark.usefixtures("_old")
async def test_blobs_without_a_job_are_swept_and_those_of_jobs_stay(
    either_store: Store, blobs: Blobs
) -> None:
    stranger = mint_id()
    await blobs.put(f"{logs_prefix(stranger, 1)}/0", LOG)
    await blobs.put(f"{artifacts_prefix(stranger, 1)}/0", ARTIFACT)
    kept = [
        await ended_command(either_store, blobs, state)
        for state in (State.SUCCEEDED, State.FAILED, State.RUNNING)
    ]
    report = await swept(either_store, blobs)

    assert (report.blobs, report.failed) == (2, {})
    assert report.orphan_bytes == len(LOG) + len(ARTIFACT)
    assert await keys_of(blobs, logs_prefix(stranger), artifacts_prefix(stranger)) == []
    assert [len(await outputs_of(blobs, job)) for job in kept] == [4] * len(kept)


async def test_a_blob_that_is_younger_than_a_day_is_left_alone(
    either_store: Store, local: Blobs
) -> None:
    key = f"{logs_prefix(mint_id(), 1)}/0"
    await local.put(key, LOG)
    assert (await swept(either_store, local)).blobs == 0
    assert await local.size(key) == len(LOG)


@pytest.mark.usefixtures("_old")
async def test_what_a_late_writer_adds_to_a_cleaned_or_purged_job_is_swept(
    either_store: Store, local: Blobs
) -> None:
    cleaned = await ended_command(either_store, local)
    await clean(either_store, JANITOR, AT_ONCE, blobs=opened(local))
    await put_outputs(local, cleaned, 1)
    assert (await swept(either_store, local)).orphan_bytes == SIZE
    assert await outputs_of(local, cleaned) == []

    await submit_one(either_store, queue="newest")
    assert (await purge_all(either_store, JANITOR, PurgeTerms(succeeded=0))).jobs == 1
    await put_outputs(local, cleaned, 1)
    assert (await swept(either_store, local)).orphan_bytes == SIZE


@pytest.mark.usefixtures("_old")
@pytest.mark.parametrize("state", sorted(LIVE | TERMINAL))
async def test_only_an_ended_job_loses_the_outputs_of_other_attempts(
    store: Store, local_address: str, state: State
) -> None:
    blobs = await plan_blobs(local_address)(store)
    job = await ended_command(store, blobs, state)
    await put_outputs(blobs, job, job.attempt + 1)
    report = await swept(store, blobs)

    left = [key.split("/")[2] for key in await outputs_of(blobs, job)]
    expected = {job.attempt} if job.terminal else {job.attempt, job.attempt + 1}
    assert set(map(int, left)) == expected
    assert report.orphan_bytes == (SIZE if job.terminal else 0)


@pytest.mark.usefixtures("_old")
async def test_a_job_that_is_being_cleaned_is_left_to_that(
    store: Store, local_address: str
) -> None:
    blobs = await plan_blobs(local_address)(store)
    job = await ended_command(store, blobs)
    await put_outputs(blobs, job, 2)
    await do(store, job, c.Clean(actor=JANITOR))
    assert (await swept(store, blobs, RetentionTerms(artifacts=0))).blobs == 0


@pytest.mark.usefixtures("_old")
async def test_keys_that_this_version_does_not_make_are_left_alone(
    store: Store, local_address: str
) -> None:
    blobs = await plan_blobs(local_address)(store)
    strange = ["logs/not-a-job/1/0", f"logs/{mint_id()}/first/0", f"artifacts/{mint_id()}"]
    for key in strange:
        await blobs.put(key, LOG)
    report = await swept(store, blobs)
    assert (report.looked, report.blobs) == (3, 0)


@pytest.mark.req("D13")
async def test_artifacts_may_go_before_their_job_without_any_event(
    either_store: Store, blobs: Blobs
) -> None:
    job = await running_job(either_store, kind=Kind.COMMAND)
    kept = KeptOutput(digest="0" * 64, bytes=1)
    done = c.Complete(actor=owner_of(job), exit_code=0, log=kept, artifacts=kept)
    job = await do(either_store, job, done)
    await put_outputs(blobs, job, job.attempt)
    running = await ended_command(either_store, blobs, State.RUNNING)
    before = len(await either_store.events(job.id))
    assert (await swept(either_store, blobs, RetentionTerms(artifacts=DAY))).blobs == 0
    report = await swept(either_store, blobs, RetentionTerms(artifacts=0))

    assert (report.blobs, report.artifact_bytes) == (2, 2 * len(ARTIFACT))
    assert await keys_of(blobs, artifacts_prefix(job.id)) == []
    assert len(await keys_of(blobs, logs_prefix(job.id))) == 2
    assert len(await outputs_of(blobs, running)) == 4
    after = await stored(either_store, job.id)
    with pytest.raises(ArtifactsErased):
        await read_manifest(either_store, opened(blobs), after)
    assert (after.retention, len(await either_store.events(job.id))) == (Retention.LIVE, before)


async def test_artifacts_stay_while_a_job_above_may_ask_for_them(
    either_store: Store, local: Blobs
) -> None:
    parent = await job_in(either_store, State.RUNNING)
    child = await child_of(either_store, parent, State.SUCCEEDED, kind=Kind.COMMAND)
    await put_outputs(local, child, child.attempt)
    terms = RetentionTerms(artifacts=0)
    assert (await swept(either_store, local, terms)).blobs == 0
    await end(either_store, parent)
    assert (await swept(either_store, local, terms)).blobs == 2


@pytest.mark.usefixtures("_old")
async def test_a_pass_reads_only_so_many_blobs_and_the_next_continues(
    store: Store, local_address: str
) -> None:
    blobs = await plan_blobs(local_address)(store)
    for _ in range(5):
        await blobs.put(f"{logs_prefix(mint_id(), 1)}/0", LOG)
    seen: list[BlobSweep] = []
    janitor = Janitor(
        store, "j", look_at=2, blobs=plan_upkeep_blobs(local_address), on_sweep=seen.append
    )
    assert (await janitor.sweep_all_blobs()).blobs == 5
    assert [one.looked for one in seen] == [2, 2, 1]


@pytest.mark.usefixtures("_old")
async def test_what_cannot_be_deleted_is_named_and_no_obstacle_for_others(
    either_store: Store, local: Blobs
) -> None:
    stuck, other = mint_id(), mint_id()
    for job in (stuck, other):
        await local.put(f"{logs_prefix(job, 1)}/0", LOG)
    report = await swept(either_store, Reluctant(local, logs_prefix(stuck)))

    assert (report.blobs, list(report.failed)) == (1, [str(stuck)])
    assert await keys_of(local, logs_prefix(other)) == []
    assert (await swept(either_store, local)).blobs == 1


@pytest.mark.usefixtures("_old")
async def test_files_of_an_upload_without_a_record_are_swept(
    either_store: Store, local: Blobs
) -> None:
    upload = await create_upload(either_store, CONTROL, tenant="default")
    kept, orphan = f"{upload_prefix(upload.id)}/archive", f"{upload_prefix('unknown')}/archive"
    for key in (kept, orphan):
        await local.put(key, LOG)
    report = await swept(either_store, local)

    assert (report.blobs, report.orphan_bytes) == (1, len(LOG))
    assert [await local.size(key) for key in (kept, orphan)] == [len(LOG), None]


@pytest.mark.usefixtures("_old")
async def test_a_dry_run_of_a_sweep_deletes_nothing(either_store: Store, local: Blobs) -> None:
    job = await ended_command(either_store, local)
    await local.put(f"{logs_prefix(mint_id(), 1)}/0", LOG)
    report = await swept(either_store, local, RetentionTerms(artifacts=0), dry_run=True)

    assert (report.orphan_bytes, report.artifact_bytes) == (len(LOG), 2 * len(ARTIFACT))
    assert len(await outputs_of(local, job)) == 4
    assert len(await keys_of(local, "logs")) == 3
