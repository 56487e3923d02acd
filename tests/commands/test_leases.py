"""Leases of commands: a worker that lost one kills its box and writes nothing more; a host that
comes back in time takes over, and one that comes too late only cleans up."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from holdfast.app.app import Holdfast
from holdfast.flow.submit_command import COMMAND_TERMS
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import EventType, Role, State
from holdfast.lifecycle.times import SECOND
from holdfast.tasks.handles import JobHandle
from holdfast.testing.store_actions import change
from holdfast.wiring import migrate, read_address
from tests.commands.support import RUNS, CommandPlace, killed, processes_of, runs
from tests.crashes.outages import locked, suspend_between_writes

SQLITE = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
PODMAN = pytest.mark.parametrize("runner", ["podman"], indirect=True)
TWO_RUNNERS = pytest.mark.parametrize("runner", ["process", "podman"], indirect=True)
SHORT = replace(COMMAND_TERMS, lease=3 * SECOND, heartbeat=SECOND, host_recovery=2 * SECOND)
"""A lease of two seconds while it runs, and two more until the job is lost."""
PATIENT = replace(SHORT, host_recovery=600 * SECOND)
TICKS = RUNS + "echo ready; while :; do sleep 0.1; done"


class Suspended(Struct):
    """A worker's process that can be stopped for a while."""

    process: subprocess.Popen[bytes]

    def suspend(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def sweeper(place: CommandPlace) -> AsyncIterator[None]:
    """Run a worker without commands: what it sweeps, a worker of another host would."""
    async with Holdfast(place.url) as app, app.worker(tick="100ms", poll="50ms", grace="5s"):
        yield


async def writers_after(place: CommandPlace, job: JobHandle[Any], rev: int) -> list[str]:
    """Return who wrote to a job after a revision."""
    return [event.actor for event in await place.events(job) if event.rev > rev]


@SQLITE
@TWO_RUNNERS
@pytest.mark.req("B6", "D16")
async def test_a_box_is_killed_when_its_lease_cannot_be_renewed_and_nothing_is_written(
    place: CommandPlace,
) -> None:
    async with place.worker() as worker:
        job = await place.submit(TICKS, policy=SHORT)
        await place.running(job)
        assert processes_of(job)
        async with locked(place.url):
            before = await place.read(job)
            await place.dead(job)
            now = (await (await place.app.store()).clock()).now
        # Not before its lease had passed, and before anybody else could act on the job.
        assert (before.lease_expires_at or 0) - SECOND // 2 <= now
        ended = await place.ended(job)
        await place.cleared()
    assert (ended.state, ended.error_code) == (State.FAILED, "container_lost_on_recovery")
    assert not any(
        worker.name in actor and actor.startswith("owner")
        for actor in await writers_after(place, job, before.rev)
    )
    assert await runs(place, job) == 1


@SQLITE
@TWO_RUNNERS
@pytest.mark.req("B6")
async def test_a_store_that_is_back_within_the_lease_is_not_noticed(place: CommandPlace) -> None:
    async with place.worker():
        job = await place.submit(RUNS + "echo ready; sleep 3; exit 6", policy=PATIENT)
        before = await place.running(job)
        async with locked(place.url):
            await place.passed((before.lease_expires_at or 0) - SECOND)
            assert processes_of(job)
        ended = await place.ended(job)
    assert (ended.state, ended.exit_code, ended.attempt) == (State.FAILED, 6, before.attempt)
    assert await runs(place, job) == 1


@SQLITE
@PODMAN
@pytest.mark.req("B6", "D16")
@pytest.mark.parametrize("command", [TICKS, RUNS + "echo ready; sleep 0.5; exit 0"])
async def test_a_worker_that_stood_still_too_long_is_refused_and_its_box_killed(
    place: CommandPlace, command: str
) -> None:
    process = place.start_worker()
    try:
        job = await place.submit(command, policy=SHORT)
        await place.running(job)
        suspend_between_writes(Suspended(process), place.url)
        async with sweeper(place):
            lost = await place.ended(job)
        assert (lost.state, lost.error_code) == (State.FAILED, "container_lost_on_recovery")
        if command == TICKS:
            assert processes_of(job), "the box outlived its job"
        process.send_signal(signal.SIGCONT)
        await place.dead(job)
        await place.cleared()
        other = await place.submit("exit 0")
        assert (await place.ended(other)).state is State.SUCCEEDED
        assert await place.read(job) == lost
    finally:
        process.send_signal(signal.SIGCONT)
        await killed(process, signal.SIGTERM)
    assert await runs(place, job) == 1


@SQLITE
@PODMAN
@pytest.mark.req("D14")
async def test_a_host_that_comes_back_too_late_kills_what_is_left_and_writes_nothing(
    place: CommandPlace,
) -> None:
    process = place.start_worker()
    job = await place.submit(TICKS, policy=SHORT)
    await place.running(job)
    await killed(process)
    async with sweeper(place):
        lost = await place.ended(job)
    assert (lost.state, lost.error_code) == (State.FAILED, "container_lost_on_recovery")
    assert processes_of(job)
    async with place.worker():
        await place.dead(job)
        await place.cleared()
    assert await place.read(job) == lost


@SQLITE
@PODMAN
@pytest.mark.req("D14", "D16")
async def test_a_host_that_comes_back_after_the_lease_and_in_time_adopts(
    place: CommandPlace,
) -> None:
    process = place.start_worker()
    job = await place.submit(RUNS + "echo ready; sleep 4; exit 6", policy=PATIENT)
    await place.running(job)
    await killed(process)
    left = await place.read(job)
    async with sweeper(place):
        await place.passed(left.lease_expires_at)
        assert (await place.read(job)).running
        async with place.worker():
            ended = await place.ended(job)
    assert (ended.state, ended.exit_code, ended.attempt) == (State.FAILED, 6, left.attempt)
    assert await runs(place, job) == 1


@SQLITE
@PODMAN
@pytest.mark.req("D16")
async def test_a_worker_keeps_the_host_though_its_lock_file_is_removed(
    place: CommandPlace,
) -> None:
    async with place.worker() as first:
        job = await place.submit(RUNS + "echo ready; sleep 3; exit 6")
        await place.running(job)
        [lock] = place.directory.glob("*/host.lock")
        lock.unlink()
        async with place.worker() as second:
            other = await place.submit("exit 0")
            assert (await place.ended(other)).state is State.SUCCEEDED
            ended = await place.ended(job)
            assert lock.exists(), "its holder has made it again"
        owners = {event.actor for job_ in (job, other) for event in await place.events(job_)}
        assert not any(second.name in owner for owner in owners)
        assert any(first.name in owner for owner in owners)
    assert (ended.state, ended.exit_code) == (State.FAILED, 6)
    assert await runs(place, job) == 1


@SQLITE
@PODMAN
@pytest.mark.req("D15", "D16")
async def test_a_worker_of_another_store_leaves_the_boxes_of_this_host_alone(
    place: CommandPlace, tmp_path: Path
) -> None:
    mine = await place.submit(RUNS + "echo ready; sleep 8; exit 6")
    await _lose_worker(place, mine)
    async with _other_store(place, tmp_path) as other:
        theirs = await other.submit(TICKS)
        await _lose_worker(other, theirs)
        await _end_elsewhere(other, theirs)
        async with other.worker():
            # It has swept: what was left of its own store is gone.
            await other.dead(theirs)
            assert processes_of(mine)
            assert (await place.read(mine)).running
    async with place.worker():
        ended = await place.ended(mine)
        await place.cleared()
    assert (ended.state, ended.exit_code) == (State.FAILED, 6)
    assert (await place.events(mine))[-2].type is EventType.ADOPTED
    assert await runs(place, mine) == 1


@asynccontextmanager
async def _other_store(place: CommandPlace, directory: Path) -> AsyncIterator[CommandPlace]:
    url = str(directory / "other.db")
    await migrate(read_address(url))
    async with Holdfast(url) as app:
        yield CommandPlace(
            url=url,
            directory=place.directory,
            commands=place.commands,
            app=app,
            podman=place.podman,
        )


async def _lose_worker(place: CommandPlace, job: JobHandle[Any]) -> None:
    process = place.start_worker()
    await place.running(job)
    await killed(process)


async def _end_elsewhere(place: CommandPlace, job: JobHandle[Any]) -> None:
    lost = c.Lose(actor=Actor(Role.HOST, "elsewhere"), error_code="container_lost_on_recovery")
    await (await place.app.store()).commit([change(await place.read(job), lost)])


@SQLITE
@PODMAN
@pytest.mark.req("D6", "D14")
async def test_a_command_that_ended_in_time_without_a_worker_is_not_timed_out(
    place: CommandPlace,
) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 0.3; exit 0", timeout_seconds=8)
    await _lose_worker(place, job)
    await place.passed((await place.read(job)).timeout_at)
    assert not processes_of(job)
    async with place.worker():
        ended = await place.ended(job)
    assert (ended.state, ended.exit_code) == (State.SUCCEEDED, 0)
