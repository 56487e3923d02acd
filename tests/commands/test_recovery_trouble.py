"""Taking over in trouble: another epoch, a lost reply, a damaged job, a worker without a grace."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import JobUnreadable, StoreUnavailable
from holdfast.flow.command import perform
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.ports.models import Claimed
from holdfast.runners.command.files import read_note
from holdfast.runners.command.host_lock import HostLock
from holdfast.worker.host_loop import HostLoop
from holdfast.worker.owned_job import OwnedJobs
from holdfast.worker.room import RoomClaimer
from tests.commands.support import RUNS, CommandPlace, killed, runs

pytestmark = [
    pytest.mark.parametrize("runner", ["podman"], indirect=True),
    pytest.mark.parametrize("store_url", ["sqlite"], indirect=True),
]


def counted(seconds: int) -> str:
    """Return a command that counts its start, and ends after a while with 5."""
    return f"{RUNS}echo ready; sleep {seconds}; exit 5"


async def leave_running(place: CommandPlace, *seconds: int) -> list[Any]:
    """Start commands in a worker that is killed once all of them run."""
    jobs = [await place.submit(counted(each)) for each in seconds]
    process = place.start_worker()
    for job in jobs:
        await place.running(job)
    await killed(process)
    return jobs


def is_taken_from(owner: str | None) -> Callable[[Job], bool]:
    """Return what tells that a job has another owner."""
    return lambda record: record.owner != owner


async def assert_ended_by_its_code(place: CommandPlace, job: Any) -> None:
    record = await place.ended(job)
    assert (record.state, record.exit_code) == (State.FAILED, 5)
    assert await runs(place, job) == 1


@pytest.mark.req("D14")
async def test_a_container_is_adopted_though_the_epoch_was_raised_twice(
    place: CommandPlace,
) -> None:
    [job] = await leave_running(place, 8)
    store = await place.app.store()
    for _ in range(2):
        await store.bump_epoch()
        process = place.start_worker()
        await place.until(job, is_taken_from((await place.read(job)).owner))
        await killed(process)
    async with place.worker():
        await assert_ended_by_its_code(place, job)


async def test_a_job_whose_adoption_was_not_answered_is_found_again(
    place: CommandPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = await leave_running(place, 3)
    asked = 0

    async def lose_reply(*args: Any, **more: Any) -> Job:
        nonlocal asked
        done = await perform(*args, **more)
        asked += 1
        if asked == 1:
            raise StoreUnavailable("the reply was lost")
        return done

    monkeypatch.setattr("holdfast.worker.host_loop.perform", lose_reply)
    async with place.worker(pause_seconds=0.2):
        await assert_ended_by_its_code(place, job)
    assert asked == 2


async def test_a_damaged_job_is_not_in_the_way_of_others(
    place: CommandPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, sound = await leave_running(place, 4, 2)
    read = HostLoop._read_claim
    hidden = True

    async def read_others(self: HostLoop, job: Job) -> Claimed:
        if hidden and job.id == damaged.record.id:
            raise JobUnreadable("its first event is damaged", job_id=job.public_id)
        return await read(self, job)

    monkeypatch.setattr(HostLoop, "_read_claim", read_others)
    async with place.worker(pause_seconds=0.2):
        await assert_ended_by_its_code(place, sound)
        fresh = await place.submit("exit 3")
        assert (await place.ended(fresh)).exit_code == 3
        hidden = False
        await assert_ended_by_its_code(place, damaged)


async def test_a_worker_without_a_grace_leaves_containers_alone(place: CommandPlace) -> None:
    job = await place.submit(counted(3))
    worker = place.app.worker(commands=place.commands, grace=0, tick="100ms", poll="50ms")
    async with worker:
        await place.running(job)
    assert (await place.read(job)).running
    async with place.worker():
        await assert_ended_by_its_code(place, job)


async def test_a_claimer_looks_again_when_what_was_left_behind_is_known(
    place: CommandPlace,
) -> None:
    claimer: Any = SimpleNamespace(owned=OwnedJobs(), unsettled=[await place.submit("exit 0")])
    RoomClaimer.leave_room_for(claimer, [])
    assert claimer.unsettled == []
    assert claimer.owned.changed.is_set()


async def test_a_note_on_a_box_is_read_or_known_to_be_missing(
    place: CommandPlace, tmp_path: Path
) -> None:
    assert read_note(tmp_path) is None
    (tmp_path / "runner").write_text("")
    with pytest.raises(OSError, match="cannot be read"):
        read_note(tmp_path)


def test_two_directories_do_not_make_two_locks_of_one_host(
    tmp_path: Path, runner: str, store_url: str
) -> None:
    first, second = HostLock(tmp_path / "a", "h/s"), HostLock(tmp_path / "b", "h/s")
    assert first.take() is None
    assert "another worker of this host" in (second.take() or "")
    first.release()
    assert second.take() is None
    second.release()


async def test_directories_can_be_passed_whatever_the_umask(
    place: CommandPlace, command_directory: Path
) -> None:
    before = os.umask(0o077)
    try:
        async with place.worker():
            job = await place.submit("echo ready; sleep 1000")
            await place.running(job)
            directory = await place.files(job)
            for each in (directory, *directory.parents):
                if each == command_directory:
                    break
                assert each.stat().st_mode & 0o777 == 0o711, each
            await job.cancel(hard=True)
            assert (await place.ended(job)).state is State.CANCELLED
    finally:
        os.umask(before)
