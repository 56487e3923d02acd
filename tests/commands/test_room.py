"""Room on a host: never more CPUs or memory than it has, and nobody waits for ever (D18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import Any

import pytest
from msgspec import Struct

from holdfast.lifecycle.record import Job, JobId, LoggedEvent
from holdfast.lifecycle.states import State
from holdfast.lifecycle.transitions import CLAIM_EVENT, LEAVES
from holdfast.ports.host import Room
from holdfast.ports.models import WorkerStatus
from holdfast.queries.why.reasons import NoRoom
from holdfast.tasks.handles import JobHandle
from holdfast.worker.room import left_of
from tests.commands.support import LIMIT_SECONDS, CommandPlace, killed

PROCESS = pytest.mark.parametrize("runner", ["process"], indirect=True)
SQLITE = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
HOST_ROOM = Room(cpus=4, memory_mb=2048)
SIZES = ((1, 64), (2, 512), (1, 1024), (4, 64), (3, 128), (1, 2048))
"""CPUs and megabytes."""


class Peak(Struct):
    """The most that was taken at once."""

    cpus: int = 0
    memory_mb: int = 0
    jobs: int = 0


async def read_log(place: CommandPlace) -> list[LoggedEvent]:
    """Read all events, in the order in which they were committed."""
    store = await place.app.store()
    events: list[LoggedEvent] = []
    cursor: str | None = None
    while (tail := await store.tail(cursor)).events:
        events += tail.events
        cursor = tail.cursor
    return events


async def replay(place: CommandPlace) -> Peak:
    """Take room at each claim and free it where an ownership ends; return the most at once."""
    events = await read_log(place)
    store = await place.app.store()
    ids = list({event.id for event in events})
    sizes: dict[JobId, Job] = {
        id: job for id, job in zip(ids, await store.get(ids), strict=True) if job is not None
    }
    taking: set[JobId] = set()
    peak = Peak()
    for event in events:
        if event.type is CLAIM_EVENT:
            assert event.id not in taking
            taking.add(event.id)
        elif event.type in LEAVES:
            taking.discard(event.id)
        left = left_of(HOST_ROOM, [sizes[one] for one in taking])
        peak.cpus = max(peak.cpus, HOST_ROOM.cpus - left.cpus)
        peak.memory_mb = max(peak.memory_mb, HOST_ROOM.memory_mb - left.memory_mb)
        peak.jobs = max(peak.jobs, len(taking))
    return peak


async def submit_mixed(place: CommandPlace, count: int, command: str) -> list[JobHandle[Any]]:
    sizes = islice(cycle(SIZES), count)
    return [await place.submit(command, cpus=cpus, memory_mb=mb) for cpus, mb in sizes]


@PROCESS
@pytest.mark.req("D18")
async def test_jobs_never_take_more_than_the_host_has(place: CommandPlace) -> None:
    jobs = await submit_mixed(place, 60, "exit 0")
    async with place.worker(patience_seconds=0.5):
        ends = [await place.ended(job) for job in jobs]
    assert {job.state for job in ends} == {State.SUCCEEDED}
    peak = await replay(place)
    assert peak.cpus <= HOST_ROOM.cpus
    assert peak.memory_mb <= HOST_ROOM.memory_mb
    # Not because each ran alone: the room was really filled.
    assert (peak.cpus, peak.jobs > 1) == (HOST_ROOM.cpus, True)


@pytest.mark.parametrize("runner", ["process", "podman"], indirect=True)
@SQLITE
@pytest.mark.req("D18", "D14")
async def test_what_a_dead_worker_left_behind_takes_its_room(
    place: CommandPlace, runner: str
) -> None:
    count = 20 if runner == "process" else 8
    jobs = await submit_mixed(place, count, "echo ready; sleep 0.3")
    process = place.start_worker(patience_seconds=0.5)
    await place.running(jobs[0])
    await killed(process)
    left = [job for job in [await place.read(job) for job in jobs] if job.owned]
    assert left, "the worker had jobs when it died"
    async with place.worker(patience_seconds=0.5):
        ends = [await place.ended(job) for job in jobs]
    lost = [job for job in ends if job.state is not State.SUCCEEDED]
    assert len(lost) <= len(left)
    peak = await replay(place)
    assert peak.cpus <= HOST_ROOM.cpus
    assert peak.memory_mb <= HOST_ROOM.memory_mb


@PROCESS
@SQLITE
@pytest.mark.req("D18")
async def test_a_large_job_is_not_starved_by_an_endless_stream_of_small_ones(
    place: CommandPlace,
) -> None:
    async with stream_of_small_jobs(place) as small, place.worker(patience_seconds=4.0):
        await place.ended(small[4])
        large = await place.submit("exit 0", cpus=4)
        end = await place.ended(large)
        assert end.state is State.SUCCEEDED
        others = [await place.read(job) for job in small]
        # The stream never ended, and at first it passed the large job by.
        assert any(not job.terminal for job in others)
        later = [job for job in others if job.created_at > end.created_at]
        assert any(job.started_at and job.started_at < (end.started_at or 0) for job in later)


@asynccontextmanager
async def stream_of_small_jobs(place: CommandPlace) -> AsyncIterator[list[JobHandle[Any]]]:
    """Keep more small jobs waiting than the host has room for."""
    jobs: list[JobHandle[Any]] = []

    async def feed() -> None:
        while True:
            waiting = [job for job in jobs[-20:] if not (await place.read(job)).terminal]
            if len(waiting) < 12:
                jobs.append(await place.submit("sleep 0.2"))
            else:
                await asyncio.sleep(0.05)

    feeding = asyncio.create_task(feed())
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while len(jobs) < 12:  # noqa: ASYNC110  the feeder's
                await asyncio.sleep(0.02)
        yield jobs
    finally:
        feeding.cancel()
        for job in jobs:
            await job.cancel()


@PROCESS
@SQLITE
@pytest.mark.req("D18")
async def test_a_job_that_is_larger_than_the_host_blocks_nobody_and_why_names_the_host(
    place: CommandPlace,
) -> None:
    too_large = await place.submit("exit 0", cpus=64)
    others = [await place.submit("exit 0", cpus=cpus) for cpus in (1, 4, 2)]
    async with place.worker(patience_seconds=0.1) as worker:
        for job in others:
            assert (await place.ended(job)).state is State.SUCCEEDED
        await announced(place, worker.name, lambda status: status.cpus is not None)
        why = await place.app.why(too_large)
    assert isinstance(why.reason, NoRoom)
    assert not why.reason.ever
    assert "needs 64 CPUs; the largest host" in why.text
    assert why.text.rstrip(".").endswith("has 4")
    assert (await place.read(too_large)).attempt == 0


@PROCESS
@SQLITE
@pytest.mark.req("D18")
async def test_a_worker_announces_the_room_that_is_free_and_why_names_it(
    place: CommandPlace,
) -> None:
    async with place.worker(patience_seconds=60) as worker:
        runs = await place.submit("echo ready; sleep 60", cpus=3, memory_mb=1024)
        await place.running(runs)
        status = await announced(place, worker.name, lambda status: status.free_cpus == 1)
        assert (status.cpus, status.memory_mb, status.free_memory_mb) == (4, 2048, 1024)
        waits = await place.submit("exit 0", cpus=2)
        why = await place.app.why(waits)
        assert isinstance(why.reason, NoRoom)
        assert (why.reason.ever, why.reason.cpus, why.reason.host_cpus) == (True, 2, 1)
        await runs.cancel(hard=True)
        assert (await place.ended(waits)).state is State.SUCCEEDED
        await announced(place, worker.name, lambda status: status.free_cpus == 4)


async def announced(place: CommandPlace, name: str, holds: Any) -> WorkerStatus:
    """Wait until a worker has announced what it must."""
    store = await place.app.store()
    async with asyncio.timeout(LIMIT_SECONDS):
        while (status := await store.worker(name)) is None or not holds(status):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return status
