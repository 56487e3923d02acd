"""Cleaning commands and agents: the keys are free only once a listing of their outputs is empty."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ArtifactsErased, BlobsUnavailable, LogErased, NoSuchBlob
from holdfast.flow.blobs_on_demand import BlobsOnDemand, BlobsPlan
from holdfast.flow.clean import (
    DAY,
    CleanSweep,
    OutcomeTerms,
    RetentionTerms,
    clean,
    is_over,
)
from holdfast.flow.purge import PurgeTerms, purge_all
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import EventType, Kind, Retention, State
from holdfast.operations.local import LocalOperations
from holdfast.operations.requests import GetLogs, ListArtifacts
from holdfast.operations.session import StoreSession
from holdfast.ports.blobs import Blobs, GetBlobs
from holdfast.ports.models import Submitted
from holdfast.ports.store import Store
from holdfast.queries.blob_keys import artifacts_prefix, logs_prefix
from holdfast.services.janitor import Janitor
from holdfast.testing.factories import JANITOR, new_job
from holdfast.testing.store_actions import do, job_in, stored, submit_one
from holdfast.wiring import plan_blobs, plan_upkeep_blobs
from tests.flow.outputs import ARTIFACT, LOG, Reluctant, ended_command, outputs_of

AT_ONCE = RetentionTerms(succeeded=0, unsuccessful=0)
KEY = "6fa459ea-ee8a-4ca4-894e-db77e160355e"
CLIENTS = 64
LIMIT_SECONDS = 60


def opened(blobs: Any) -> GetBlobs:
    """A place that is open already."""

    async def get() -> Blobs:
        place: Blobs = blobs
        return place

    return get


async def cleaned(store: Store, blobs: Any, terms: RetentionTerms = AT_ONCE) -> CleanSweep:
    """Clean what is to be cleaned."""
    return await clean(store, JANITOR, terms, blobs=opened(blobs))


async def retention(store: Store, *jobs: Job) -> list[Retention]:
    return [(await stored(store, job.id)).retention for job in jobs]


@pytest.fixture
async def blobs(blobs_address: str, either_store: Store) -> Blobs:
    """Each kind of place, of each kind of store."""
    return await plan_blobs(blobs_address)(either_store)


@pytest.fixture
async def local(local_address: str, either_store: Store) -> Blobs:
    """A local place, of each kind of store."""
    return await plan_blobs(local_address)(either_store)


@pytest.mark.req("D12", "D13")
async def test_a_command_is_cleaned_with_its_log_and_artifacts(
    either_store: Store, blobs: Blobs
) -> None:
    command = await ended_command(either_store, blobs, client_job_id=KEY)
    agent = await ended_command(either_store, blobs, State.FAILED, kind=Kind.AGENT)
    live = await ended_command(either_store, blobs, State.RUNNING)
    report = await cleaned(either_store, blobs)

    assert (report.cleaned, report.failed) == (2, {})
    assert (report.outputs.logs, report.outputs.artifacts) == (4 * len(LOG), 4 * len(ARTIFACT))
    assert await retention(either_store, command, agent) == [Retention.CLEANED] * 2
    assert [len(await outputs_of(blobs, job)) for job in (command, agent, live)] == [0, 0, 4]
    [again] = await either_store.submit([new_job(client_job_id=KEY)])
    assert isinstance(again, Submitted)
    assert again.created


@pytest.mark.req("D12", "D13")
@pytest.mark.parametrize("prefix", [logs_prefix, artifacts_prefix])
@pytest.mark.parametrize("lies", [False, True], ids=["fails", "deletes nothing"])
async def test_a_job_keeps_its_key_until_all_of_its_outputs_are_deleted(
    either_store: Store, local: Blobs, prefix: Any, lies: bool
) -> None:
    stuck = await ended_command(either_store, local, client_job_id=KEY)
    other = await ended_command(either_store, local)
    report = await cleaned(either_store, Reluctant(local, f"{prefix(stuck.id)}/1/1", lies=lies))

    assert (report.cleaned, list(report.failed)) == (1, [stuck.id])
    assert await retention(either_store, stuck, other) == [Retention.CLEANING, Retention.CLEANED]
    assert f"{prefix(stuck.id)}/1/1" in await outputs_of(local, stuck)
    [same] = await either_store.submit([new_job(client_job_id=KEY)])
    assert isinstance(same, Submitted)
    assert (same.created, same.job.id) == (False, stuck.id)

    # Whatever the terms are by now: what was started is finished.
    assert (await cleaned(either_store, local, RetentionTerms(succeeded=0))).cleaned == 1
    assert await retention(either_store, stuck) == [Retention.CLEANED]
    assert await outputs_of(local, stuck) == []
    types = [event.type for event in await either_store.events(stuck.id)]
    assert types.count(EventType.CLEANING) == types.count(EventType.CLEANED) == 1


async def test_what_was_never_there_is_gone(either_store: Store, blobs: Blobs) -> None:
    job = await job_in(either_store, State.CANCELLED, kind=Kind.COMMAND)
    assert (await cleaned(either_store, blobs)).cleaned == 1
    assert await retention(either_store, job) == [Retention.CLEANED]


async def unreachable() -> Blobs:
    """A place that is not for this process."""
    raise BlobsUnavailable("no credentials")


@pytest.mark.parametrize(("get", "why"), [(None, "no place"), (unreachable, "no credentials")])
async def test_without_the_place_of_blobs_only_functions_are_cleaned(
    either_store: Store, get: GetBlobs | None, why: str
) -> None:
    command = await job_in(either_store, State.SUCCEEDED, kind=Kind.COMMAND)
    function = await job_in(either_store, State.SUCCEEDED)
    report = await clean(either_store, JANITOR, AT_ONCE, blobs=get)

    assert (report.cleaned, report.waiting, report.failed) == (1, 1, {})
    assert report.unreachable is not None
    assert why in report.unreachable
    assert await retention(either_store, command, function) == [Retention.LIVE, Retention.CLEANED]


async def test_a_janitor_without_the_place_of_blobs_logs_that_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await job_in(store, State.SUCCEEDED, kind=Kind.COMMAND)
    janitor = Janitor(store, "j", AT_ONCE)
    with caplog.at_level(logging.WARNING):
        await janitor.clean_all()
        await janitor.clean_all()
    assert [record.getMessage() for record in caplog.records] == [
        "commands and agents are not cleaned: no place of blobs is set"
    ]


async def test_functions_alone_never_open_the_place_of_blobs(store: Store, tmp_path: Path) -> None:
    await job_in(store, State.SUCCEEDED)
    janitor = Janitor(store, "j", AT_ONCE, blobs=plan_upkeep_blobs(None, tmp_path))
    assert (await janitor.clean_all()).cleaned == 1
    await janitor.purge_all()
    assert (await janitor.sweep_all_blobs()).looked == 0
    assert not (tmp_path / "blobs").exists()


async def test_a_pass_cleans_only_so_many_jobs_with_outputs(
    store: Store, local_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.flow.clean.MOST_OUTPUTS", 2)
    blobs = await plan_blobs(local_address)(store)
    jobs = [await ended_command(store, blobs) for _ in range(5)]
    janitor = Janitor(store, "j", AT_ONCE, blobs=plan_upkeep_blobs(local_address))
    first = await janitor.clean()

    assert (first.cleaned, first.next) == (2, jobs[1].id)
    assert (await janitor.clean_all()).cleaned == 3
    assert await retention(store, *jobs) == [Retention.CLEANED] * 5


async def test_a_dry_run_counts_jobs_and_bytes_and_writes_nothing(
    either_store: Store, local: Blobs
) -> None:
    job = await ended_command(either_store, local)
    function = await job_in(either_store, State.SUCCEEDED)
    report = await clean(either_store, JANITOR, AT_ONCE, blobs=opened(local), dry_run=True)

    assert report.cleaned == 2
    assert (report.outputs.logs, report.outputs.artifacts) == (2 * len(LOG), 2 * len(ARTIFACT))
    assert await retention(either_store, job, function) == [Retention.LIVE] * 2
    assert len(await outputs_of(local, job)) == 4


async def test_commands_may_have_terms_of_their_own(store: Store) -> None:
    terms = RetentionTerms(commands=OutcomeTerms(succeeded=DAY, unsuccessful=None))
    won = await job_in(store, State.SUCCEEDED, kind=Kind.COMMAND)
    lost = await job_in(store, State.FAILED, kind=Kind.AGENT)
    function = await job_in(store, State.SUCCEEDED)
    now = function.updated_at + DAY

    assert terms.shortest == DAY
    assert [is_over(job, terms, now) for job in (won, lost, function)] == [True, False, False]
    assert is_over(function, terms, now + 6 * DAY)
    assert not is_over(lost, terms, now + 1000 * DAY)


@pytest.mark.req("D13")
async def test_a_reader_of_a_job_that_is_being_cleaned_gets_no_part_of_its_log(
    store: Store, tmp_path: Path
) -> None:
    job = await job_in(store, State.SUCCEEDED, kind=Kind.COMMAND)
    await do(store, job, c.Clean(actor=JANITOR))
    session = StoreSession(store, open_blobs=plan_blobs(None, tmp_path))
    operations = LocalOperations(session, name="reader")
    with pytest.raises(LogErased):
        await operations.do(GetLogs(job=str(job.id)))
    with pytest.raises(ArtifactsErased):
        await operations.do(ListArtifacts(job=str(job.id)))


async def test_a_blob_that_is_deleted_while_it_is_read_is_never_a_shorter_one(
    either_store: Store, blobs: Blobs
) -> None:
    job, whole = await ended_command(either_store, blobs), b"x" * 3_000_000
    key = f"{artifacts_prefix(job.id, 1)}/large"
    await blobs.put(key, whole)
    reading = aiter(blobs.read(key))
    read = await anext(reading)
    assert (await cleaned(either_store, blobs)).cleaned == 1
    # The reader gets all of it, because it was opened before; or an error.
    with suppress(NoSuchBlob, BlobsUnavailable):
        async for piece in reading:
            read += piece
        assert read == whole
    assert await blobs.size(key) is None


@pytest.mark.req("D12")
async def test_many_clients_that_resubmit_while_a_key_is_freed_get_one_new_job(
    either_store: Store, local: Blobs
) -> None:
    first = await ended_command(either_store, local, client_job_id=KEY)
    ready = asyncio.Semaphore(0)

    async def resubmit() -> tuple[Job, bool]:
        """Submit until the job is another one than that which is cleaned."""
        made = False
        while True:
            new = new_job(client_job_id=KEY, kind=Kind.COMMAND)
            [outcome] = await either_store.submit([new])
            ready.release()
            assert isinstance(outcome, Submitted)
            made |= outcome.created
            if outcome.job.id != first.id:
                return outcome.job, made

    async with asyncio.timeout(LIMIT_SECONDS), asyncio.TaskGroup() as group:
        clients = [group.create_task(resubmit()) for _ in range(CLIENTS)]
        for _ in clients:
            await ready.acquire()
        assert (await cleaned(either_store, local)).cleaned == 1
    answers = [client.result() for client in clients]
    assert len({job.id for job, _ in answers}) == 1
    assert sum(made for _, made in answers) == 1


@pytest.mark.req("D13")
async def test_a_record_is_purged_only_after_its_outputs(either_store: Store, local: Blobs) -> None:
    job = await ended_command(either_store, local)
    await submit_one(either_store, queue="newest")
    terms = PurgeTerms(succeeded=0, unsuccessful=0)
    stuck = Reluctant(local, artifacts_prefix(job.id))

    async def purged(blobs: GetBlobs | None) -> int:
        return (await purge_all(either_store, JANITOR, terms, blobs=blobs)).jobs

    assert await purged(None) == 0
    assert await purged(opened(stuck)) == 0
    assert await retention(either_store, job) == [Retention.CLEANING]
    await submit_one(either_store, queue="newer")
    # SQLite keeps the job of the newest event: after its cleaning that is this one.
    assert await purged(opened(local)) <= 1
    assert await outputs_of(local, job) == []
    await submit_one(either_store, queue="newest of all")
    await purged(None)
    assert await either_store.get([job.id]) == [None]


async def test_the_place_is_opened_once(store: Store, local_address: str) -> None:
    calls = 0
    plan = plan_upkeep_blobs(local_address)

    def counting(which: Store) -> Awaitable[Blobs]:
        nonlocal calls
        calls += 1
        return plan.open(which)

    on_demand = BlobsOnDemand(store, BlobsPlan(open=counting, is_there=plan.is_there))
    assert await on_demand.find() is None
    assert await on_demand.get() is await on_demand.get()
    assert await on_demand.find() is not None
    assert calls == 1
