"""Boxes whose worker, Podman or host died: what another worker finds and does (D14, D15)."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.errors import BoxLost, BoxRefused, RuntimeTrouble
from holdfast.ports.box import Box, BoxExit, BoxLabel, BoxState, Sight
from holdfast.runners.container.argv import cgroup_of, create_arguments, leaf_of
from holdfast.runners.container.box_cgroup import hierarchies
from holdfast.runners.container.podman import Podman
from holdfast.runners.container.traces import Traces
from tests.runners.container.runs import (
    log_of,
    monitor,
    processes,
    run,
    start,
    until,
    within_limit,
)
from tests.runners.container.starter import packed, start_and_stay
from tests.support.podman import PrivatePodman
from tests.support.processes import ProcessGroup

INIT = "/usr/bin/tini-static"


@pytest.mark.req("D14", "D16")
async def test_a_box_outlives_its_worker_and_another_one_waits_for_it(
    podman: Podman, private_podman: PrivatePodman, tmp_path: Path
) -> None:
    box = private_podman.shell("for i in 1 2 3 4 5; do echo $i; sleep 0.3; done; exit 5")
    started = tmp_path / "started"
    given = {"given": packed(private_podman.settings, box), "started": str(started)}
    with ProcessGroup(start_and_stay, [given]) as worker:
        worker.go()
        await until(started.exists, "the start of the box")
        worker.kill(0)
    assert await podman.look(box) == Sight(BoxState.RUNNING)
    assert await within_limit(podman.wait(box)) == BoxExit(code=5)
    assert log_of(box) == [f"stdout F {number}" for number in range(1, 6)]


@pytest.mark.req("D14")
async def test_a_box_that_was_only_created_is_started_by_another_worker(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("echo once; exit 5")
    await Podman(private_podman.settings).prepare(box)
    assert await podman.look(box) == Sight(BoxState.CREATED)
    await podman.start(box)
    assert await within_limit(podman.wait(box)) == BoxExit(code=5)
    assert log_of(box) == ["stdout F once"]


@pytest.mark.req("D14")
async def test_after_a_reboot_nothing_is_a_success_that_was_not_seen_to_end(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    running = private_podman.shell("sleep 1000")
    ended = private_podman.shell("exit 0")
    created = private_podman.shell("echo once; exit 5")
    await start(podman, running)
    await run(podman, ended)
    # Until Podman has written its end down, a reboot loses it.
    await until(lambda: not _is_open(monitor(ended)), "the clean-up of the ended box")
    await podman.prepare(created)
    await asyncio.to_thread(private_podman.reboot)
    assert await podman.look(running) == Sight(BoxState.LOST)
    assert (await podman.look(ended)).state in (BoxState.EXITED, BoxState.LOST)
    assert await podman.look(created) == Sight(BoxState.CREATED)
    with pytest.raises(BoxLost):
        await within_limit(podman.wait(running))
    await podman.start(created)
    assert await within_limit(podman.wait(created)) == BoxExit(code=5)
    assert log_of(created) == ["stdout F once"]


@pytest.mark.req("D15")
async def test_boxes_are_listed_by_host_and_store(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    ours = private_podman.shell("exit 0", attempt=4, epoch=9)
    another_hosts = private_podman.shell("exit 0", host="other")
    another_stores = private_podman.shell("exit 0", store="other")
    for box in (ours, another_hosts, another_stores):
        settings = replace(private_podman.settings, host=box.host, store=box.store)
        await Podman(
            replace(settings, directory=settings.directory / box.host / box.store)
        ).prepare(box)
    assert list(await podman.list()) == [BoxLabel(name=ours.name, job=ours.job, attempt=4, epoch=9)]
    for box in (another_hosts, another_stores):
        await podman.remove(box.job, box.attempt)


@pytest.mark.req("D15")
async def test_labels_have_what_recovery_needs(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 0")
    await podman.prepare(box)
    shown = private_podman.call("inspect", "--format", "{{json .Config.Labels}}", box.name)
    assert all(
        f'"holdfast.{name}":"{value}"' in shown
        for name, value in {
            "job": box.job,
            "attempt": 1,
            "epoch": 3,
            "host": box.host,
            "store": box.store,
            "type": "worker",
        }.items()
    )


async def test_processes_that_podman_does_not_know_are_listed_and_swept(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("sleep 1000")
    left = _leave_process(private_podman, box)
    label = BoxLabel(name=box.name, job=box.job, attempt=box.attempt, epoch=box.epoch)
    assert list(await podman.list()) == [label]
    assert await podman.look(box) == Sight(BoxState.ABSENT)
    assert processes(private_podman, box) == {left.pid}
    assert list(await podman.sweep_leaks()) == [label]
    assert left.wait(timeout=10) == -signal.SIGKILL
    assert not await podman.list()


async def test_a_sweep_leaves_boxes_alone_that_podman_knows(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("sleep 1000")
    await start(podman, box)
    assert not await podman.sweep_leaks()
    assert await podman.look(box) == Sight(BoxState.RUNNING)


async def test_a_box_that_may_have_run_without_a_record_is_lost_and_not_started(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("echo again")
    await podman.prepare(box)
    # As a Podman leaves it that was killed between the start and its record.
    (box.directory / "pid").write_text("1")
    other = Podman(private_podman.settings)
    assert await other.look(box) == Sight(BoxState.LOST)
    with pytest.raises(BoxRefused, match="it is lost"):
        await other.start(box)
    with pytest.raises(BoxLost):
        await other.wait(box)
    assert log_of(box) == []


@pytest.mark.parametrize("seed", range(6))
async def test_a_start_that_is_cut_off_leaves_nothing_or_a_box_that_runs_once(
    podman: Podman, private_podman: PrivatePodman, seed: int
) -> None:
    box = private_podman.shell("echo ran; sleep 0.2; exit 5")
    await podman.prepare(box)
    await _cut_off(private_podman, box, ["start", box.name], random.Random(seed).uniform(0.02, 0.2))
    sight = await _settled(podman, box)
    if sight.state is BoxState.CREATED:
        await Podman(private_podman.settings).start(box)
        assert await within_limit(podman.wait(box)) == BoxExit(code=5)
        assert log_of(box) == ["stdout F ran"]
    else:
        assert log_of(box).count("stdout F ran") <= 1


@pytest.mark.parametrize("seed", range(6))
async def test_a_create_that_is_cut_off_is_repeated(
    podman: Podman, private_podman: PrivatePodman, seed: int
) -> None:
    box = private_podman.shell("echo ran; exit 5")
    for directory in (box.directory, box.work, box.artifacts):
        directory.mkdir()
    arguments = create_arguments(box, private_podman.settings, INIT)
    await _cut_off(private_podman, box, arguments, random.Random(seed).uniform(0.01, 0.08))
    await _settled(podman, box)
    assert await run(podman, box) == BoxExit(code=5)
    assert log_of(box) == ["stdout F ran"]


async def test_what_a_start_that_was_cut_off_has_left_is_removed(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    for milliseconds in (50, 65, 80, 95):
        box = private_podman.shell("sleep 1000")
        await podman.prepare(box)
        await _cut_off(private_podman, box, ["start", box.name], milliseconds / 1000)
        await podman.remove(box.job, box.attempt)
        assert not processes(private_podman, box)


async def test_a_kill_ends_what_a_start_that_was_cut_off_has_left(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    for milliseconds in (50, 65, 80, 95):
        box = private_podman.shell("sleep 1000")
        await podman.prepare(box)
        await _cut_off(private_podman, box, ["start", box.name], milliseconds / 1000)
        await podman.kill(box)
        assert not processes(private_podman, box)


async def test_a_box_may_be_cancelled_at_any_time_of_its_start(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    for milliseconds in (5, 40, 80, 120):
        box = private_podman.shell("trap '' TERM; sleep 1000")
        await podman.prepare(box)
        starting = asyncio.create_task(podman.start(box))
        await asyncio.sleep(milliseconds / 1000)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await podman.kill(box)
        assert not processes(private_podman, box)
        assert (await podman.look(box)).state is not BoxState.RUNNING


async def _cut_off(private: PrivatePodman, box: Box, arguments: list[str], seconds: float) -> None:
    """Call Podman as the adapter does, and kill it by SIGKILL after a time."""
    traces = Traces(private.settings.directory / "traces")
    with traces.hold(leaf_of(box)) as trace:
        process = subprocess.Popen(  # noqa: ASYNC220 - it is killed by its own handle
            ["podman", *private.settings.global_options, *arguments],
            cwd=box.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(trace,),
            start_new_session=True,
        )
    await asyncio.sleep(seconds)
    process.kill()
    process.wait()


async def _settled(podman: Podman, box: Box) -> Sight:
    """Look until it is known what is there, as a recovery does."""
    while True:
        try:
            return await podman.look(box)
        except RuntimeTrouble:
            await asyncio.sleep(0.05)


def _leave_process(private: PrivatePodman, box: Box) -> subprocess.Popen[bytes]:
    """Leave a process in a container's control group, as a Podman does that dies."""
    process = subprocess.Popen(["/bin/sleep", "1000"])
    group = hierarchies()[0] / cgroup_of(box, private.settings).lstrip("/") / f"libpod-{'ab' * 32}"
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text(f"{process.pid}")
    return process


def _is_open(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists()
