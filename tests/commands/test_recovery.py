"""A worker dies and another one of its host takes over: the six rows of D14, and podman's own.

Every command counts its starts in /artifacts: whatever happens, it never runs twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.runners.container.podman import Podman
from holdfast.tasks.handles import JobHandle
from tests.commands.support import RUNS, CommandPlace, gone, killed, runs
from tests.commands.test_agents import PREPARED
from tests.commands.test_outputs import KEEPING
from tests.commands.test_uploads import UNPACKED
from tests.support.named_points import command_points
from tests.support.podman import PrivatePodman

PODMAN = pytest.mark.parametrize("runner", ["podman"], indirect=True)
LOCAL = pytest.mark.parametrize("runner", ["process", "sandbox"], indirect=True)
BEFORE_A_BOX = ("room.claimed", "attempt.bound")
WITH_A_BOX = (
    "box.created",
    "start.posted",
    "handler.entering",
    "box.started",
    "box.exited",
    "handler.returned",
    "finish.posted",
)
AFTER_THE_END = ("finish.acknowledged", "box.removed")
RECOVERING = "boxes.recovered"
ELSEWHERE = (*KEEPING, UNPACKED, PREPARED)
"""Points that other tests die at: of outputs, of uploads and of agents."""


def test_every_point_that_only_commands_reach_is_died_at() -> None:
    died_at = {*BEFORE_A_BOX, *WITH_A_BOX, *AFTER_THE_END, RECOVERING, *ELSEWHERE}
    assert set(command_points()) <= died_at


async def event_types(job: JobHandle[Any]) -> list[str]:
    return [str(event.type) for event in await job.events()]


async def lose_worker(place: CommandPlace, job: JobHandle[Any]) -> Job:
    """Run a job in a worker that is killed once the command runs."""
    process = place.start_worker()
    await place.running(job)
    await killed(process)
    return await place.read(job)


@PODMAN
@pytest.mark.req("D14")
@pytest.mark.parametrize("point", WITH_A_BOX)
async def test_a_worker_that_dies_at_any_point_leaves_a_job_that_ends_once(
    place: CommandPlace, point: str
) -> None:
    job = await place.submit(RUNS + "exit 0")
    assert await gone(place.start_worker(die_at=point)) == -signal.SIGKILL
    # A container that podman cannot make at first costs an attempt, which ran nothing.
    attempt = (await place.read(job)).attempt
    async with place.worker():
        record = await place.ended(job)
    history = await event_types(job)
    ended = record.state, record.exit_code, record.attempt
    assert ended == (State.SUCCEEDED, 0, attempt), history
    assert await runs(place, job) == 1
    assert "job_adopted" in history


@PODMAN
@pytest.mark.req("D14", "D16")
async def test_a_worker_that_dies_while_it_takes_over_is_succeeded_itself(
    place: CommandPlace,
) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 6; exit 4")
    lost = await lose_worker(place, job)
    assert await gone(place.start_worker(die_at=RECOVERING)) == -signal.SIGKILL
    async with place.worker() as third:
        record = await place.until(job, lambda record: record.owner == third.name)
        assert record.owner != lost.owner
        ended = await place.ended(job)
    assert (ended.state, ended.exit_code, ended.attempt) == (State.FAILED, 4, lost.attempt)
    assert (await event_types(job)).count("job_adopted") == 2
    assert await runs(place, job) == 1


@pytest.mark.req("D14")
@pytest.mark.parametrize("point", BEFORE_A_BOX)
async def test_a_job_without_a_box_fails_as_not_found(place: CommandPlace, point: str) -> None:
    job = await place.submit(RUNS + "exit 0")
    assert await gone(place.start_worker(die_at=point)) == -signal.SIGKILL
    async with place.worker():
        record = await place.ended(job)
    found = record.state, record.error_code, record.exit_code
    assert found == (State.FAILED, "container_not_found_on_recovery", None)
    assert await runs(place, job) == 0


@pytest.mark.parametrize("point", AFTER_THE_END)
async def test_what_is_left_of_an_ended_job_is_removed(place: CommandPlace, point: str) -> None:
    job = await place.submit(RUNS + "exit 0")
    process = place.start_worker(die_at=point)
    await place.ended(job)
    assert await gone(process) == -signal.SIGKILL
    async with place.worker():
        await place.cleared()
        record = await place.read(job)
    assert (record.state, record.exit_code) == (State.SUCCEEDED, 0)
    assert await runs(place, job) == 1


@LOCAL
@pytest.mark.req("D14", "D16")
async def test_a_box_that_dies_with_its_worker_is_lost(place: CommandPlace) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 60")
    before = await lose_worker(place, job)
    assert before.running
    async with place.worker():
        record = await place.ended(job)
    assert (record.state, record.error_code) == (State.FAILED, "container_lost_on_recovery")
    assert await runs(place, job) == 1


@PODMAN
@pytest.mark.req("D14", "D15", "D16")
async def test_a_running_container_is_adopted_and_its_log_has_no_gap(place: CommandPlace) -> None:
    count = "echo ready; for n in $(seq 30); do echo $n; sleep 0.1; done; exit 5"
    job = await place.submit(RUNS + count)
    await lose_worker(place, job)
    async with place.worker():
        record = await place.ended(job)
    assert (record.state, record.exit_code) == (State.FAILED, 5)
    assert await place.output(job) == ["ready", *map(str, range(1, 31))]
    assert await runs(place, job) == 1
    assert (await event_types(job)).count("job_adopted") == 1


@PODMAN
@pytest.mark.req("D14")
async def test_a_container_that_ended_without_a_worker_ends_by_its_exit_code(
    place: CommandPlace,
) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 0.5; exit 7")
    await lose_worker(place, job)
    await asyncio.sleep(1.5)
    async with place.worker():
        record = await place.ended(job)
    assert (record.state, record.exit_code) == (State.FAILED, 7)


@PODMAN
@pytest.mark.req("D8")
async def test_an_adopted_job_whose_cancel_was_requested_is_cancelled_whatever_its_code(
    place: CommandPlace,
) -> None:
    job = await place.submit(RUNS + "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    await lose_worker(place, job)
    await job.cancel()
    async with place.worker():
        record = await place.ended(job)
    assert (record.state, record.exit_code) == (State.CANCELLED, 0)


@PODMAN
@pytest.mark.req("D6")
async def test_the_time_limit_is_kept_across_an_adoption(place: CommandPlace) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 60", timeout_seconds=8)
    before = await lose_worker(place, job)
    async with place.worker():
        record = await place.ended(job)
    assert record.state is State.TIMED_OUT
    assert before.timeout_at is not None
    assert record.finished_at is not None
    assert record.finished_at >= before.timeout_at


@PODMAN
@pytest.mark.req("D14")
async def test_a_container_that_was_removed_by_hand_is_lost_and_others_go_on(
    place: CommandPlace, private_podman: PrivatePodman
) -> None:
    async with place.worker():
        job = await place.submit("echo ready; sleep 60")
        other = await place.submit("echo ready; sleep 2; exit 4")
        for one in (job, other):
            await place.running(one)
        record = await place.read(job)
        # Twice: Podman may find a mount busy that it has just unmounted, and give up half-way.
        for _ in range(2):
            private_podman.call("rm", "-f", "-t", "0", f"hf-{record.id}-1", check=False)
        lost, ended = await place.ended(job), await place.ended(other)
    assert lost.state is State.FAILED
    assert lost.error_code in ("container_lost", "command_failed")
    assert (ended.state, ended.exit_code) == (State.FAILED, 4)


@PODMAN
@pytest.mark.req("D14")
async def test_after_a_reboot_nothing_counts_as_success(
    place: CommandPlace, private_podman: PrivatePodman
) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 60")
    await lose_worker(place, job)
    private_podman.reboot()
    async with place.worker():
        record = await place.ended(job)
    assert (record.state, record.error_code) == (State.FAILED, "container_lost_on_recovery")
    assert await runs(place, job) == 1


@PODMAN
@pytest.mark.req("D14")
async def test_a_container_whose_monitor_died_is_lost_and_its_command_killed(
    place: CommandPlace,
) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 60")
    await lose_worker(place, job)
    record = await place.read(job)
    for pid in _processes_with(f"hf-{record.id}-1", "conmon"):
        os.kill(pid, signal.SIGKILL)
    async with place.worker():
        ended = await place.ended(job)
    assert (ended.state, ended.error_code) == (State.FAILED, "container_lost_on_recovery")


def _processes_with(name: str, program: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if words and words[0].endswith(program.encode()) and name.encode() in b" ".join(words):
            found.append(int(entry.parts[2]))
    return found


@PODMAN
@pytest.mark.req("D14")
async def test_a_container_without_a_live_job_is_killed(place: CommandPlace) -> None:
    job = await place.submit("echo ready; sleep 60")
    await lose_worker(place, job)
    # What a host that was away too long finds: its job was ended elsewhere.
    store = await place.app.store()
    await _end_elsewhere(store, await place.read(job))
    async with place.worker():
        await place.cleared()
        record = await place.read(job)
    assert record.state is State.FAILED


async def _end_elsewhere(store: Any, job: Job) -> None:
    from holdfast.lifecycle import commands as c
    from holdfast.lifecycle.record import Actor
    from holdfast.lifecycle.states import Role
    from holdfast.testing.store_actions import change

    lost = c.Lose(actor=Actor(Role.HOST, "elsewhere"), error_code="container_lost_on_recovery")
    await store.commit([change(job, lost)])


@PODMAN
@pytest.mark.req("D16")
async def test_a_deploy_leaves_containers_running_and_the_next_worker_adopts_them(
    place: CommandPlace,
) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 4; exit 6")
    process = place.start_worker()
    started = await place.running(job)
    assert await killed(process, signal.SIGTERM) == 0
    assert (await place.read(job)).running
    async with place.worker():
        record = await place.ended(job)
    assert (record.state, record.exit_code, record.attempt) == (State.FAILED, 6, started.attempt)
    assert await runs(place, job) == 1


@LOCAL
async def test_a_deploy_ends_what_cannot_go_on_without_its_worker(place: CommandPlace) -> None:
    job = await place.submit("echo ready; sleep 60")
    process = place.start_worker()
    await place.running(job)
    assert await killed(process, signal.SIGTERM) == 0
    record = await place.read(job)
    assert record.state is State.DEAD_LETTERED
    assert record.error_code == "infrastructure_failure"


@PODMAN
@pytest.mark.req("D16")
async def test_of_two_workers_on_a_host_one_runs_commands_until_it_dies(
    place: CommandPlace,
) -> None:
    first = place.start_worker()
    job = await place.submit(RUNS + "echo ready; sleep 3; exit 2")
    # A container that podman cannot make at first costs an attempt, which ran nothing.
    started = await place.running(job)
    async with place.worker() as second:
        assert (await place.read(job)).owner != second.name
        await killed(first)
        record = await place.until(job, lambda record: record.owner == second.name)
        assert record.attempt == started.attempt
        ended = await place.ended(job)
    assert (ended.state, ended.exit_code) == (State.FAILED, 2)
    assert await runs(place, job) == 1


def test_a_worker_program_can_be_started_alone() -> None:
    """The control: without arguments it fails at once, so that no test waits for nothing."""
    done = subprocess.run(
        ["python3", "-m", "tests.commands.worker_program"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0


assert Podman.survives, "these tests rely on it"
