"""A kill is done once nothing of a box is left, whatever its command does (D7)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.errors import BoxLost, BoxRefused, BoxUnkillable
from holdfast.ports.box import BoxExit, BoxState, Sight
from holdfast.runners.container.podman import Podman
from holdfast.runners.container.settings import CallLimits
from tests.runners.container.runs import (
    first_process,
    log_of,
    monitor,
    processes,
    run,
    start,
    until,
    until_logged,
    within_limit,
)
from tests.support.podman import PrivatePodman
from tests.support.small_disk import small_disk

KILLED = BoxExit(code=137)
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
"""Of the kernel's fs.h: hold and release the writers of a file system."""
SURVIVORS = {
    "ignores SIGTERM": "trap '' TERM; echo ready; while :; do sleep 1; done",
    "leaves its session": "trap '' TERM; setsid sleep 1000 & echo ready; wait; sleep 1000",
    "forks twice": "(sh -c 'trap \"\" TERM; sleep 1000 & sleep 1000' &) ; echo ready; sleep 1000",
    "forks in a loop": "loop() { while :; do sleep 0.05 & sleep 0.01; done; };"
    " trap '' TERM; loop & loop & echo ready; wait",
}


@pytest.mark.req("D7")
@pytest.mark.parametrize("script", SURVIVORS.values(), ids=SURVIVORS)
async def test_a_killed_box_has_no_process(
    podman: Podman, private_podman: PrivatePodman, script: str
) -> None:
    box = private_podman.shell(script)
    await start(podman, box)
    await until_logged(box, "stdout F ready")
    assert processes(private_podman, box)
    await podman.kill(box)
    assert not processes(private_podman, box)
    assert await podman.look(box) == Sight(BoxState.EXITED, KILLED)
    assert await within_limit(podman.wait(box)) == KILLED


@pytest.mark.req("D7")
async def test_a_wait_ends_with_the_kill(podman: Podman, private_podman: PrivatePodman) -> None:
    box = private_podman.shell("sleep 1000")
    await start(podman, box)
    waiting = asyncio.create_task(podman.wait(box))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await podman.kill(box)
    assert await within_limit(waiting) == KILLED


@pytest.mark.req("D6")
async def test_terminate_reaches_the_command_and_its_handler_decides(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("trap 'echo asked; exit 3' TERM; echo ready; sleep 1000 & wait")
    await start(podman, box)
    await until_logged(box, "stdout F ready")
    await podman.terminate(box)
    assert await within_limit(podman.wait(box)) == BoxExit(code=3)
    assert "stdout F asked" in log_of(box)
    await podman.terminate(box)


@pytest.mark.req("D6")
async def test_a_command_without_a_handler_ends_by_sigterm(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.box("/bin/sleep", "1000")
    await start(podman, box)
    await podman.terminate(box)
    assert await within_limit(podman.wait(box)) == BoxExit(code=143)


async def test_a_cancelled_wait_leaves_the_box_alone(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("sleep 1000")
    await start(podman, box)
    waiting = asyncio.create_task(podman.wait(box))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert await podman.look(box) == Sight(BoxState.RUNNING)
    await podman.kill(box)


async def test_a_killed_box_that_was_only_created_can_no_longer_start(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("echo ran")
    await podman.prepare(box)
    await podman.kill(box)
    with pytest.raises(BoxRefused, match="cannot be started"):
        await podman.start(box)
    assert (await podman.look(box)).state is BoxState.ABSENT
    assert log_of(box) == []


async def test_a_box_that_never_was_is_killed_and_removed_without_an_error(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("echo ran")
    await podman.kill(box)
    await podman.terminate(box)
    await podman.remove(box.job, box.attempt)
    assert await podman.look(box) == Sight(BoxState.ABSENT)


async def test_a_kill_that_comes_first_wins_over_an_exit_code(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 5")
    await run(podman, box)
    await podman.kill(box)
    assert await podman.look(box) == Sight(BoxState.EXITED, BoxExit(code=5))


async def test_removing_kills_a_running_box(podman: Podman, private_podman: PrivatePodman) -> None:
    box = private_podman.shell("trap '' TERM; sleep 1000")
    await start(podman, box)
    await podman.remove(box.job, box.attempt)
    assert await podman.look(box) == Sight(BoxState.ABSENT)
    assert not processes(private_podman, box)
    await podman.remove(box.job, box.attempt)


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Let what writes to a disk wait for it, uninterruptibly, as it does for one that is stuck."""
    directory = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(directory, FIFREEZE, 0)
    try:
        yield
    finally:
        fcntl.ioctl(directory, FITHAW, 0)
        os.close(directory)


@pytest.mark.req("D7")
async def test_processes_that_do_not_end_are_unkillable(private_podman: PrivatePodman) -> None:
    podman = Podman(replace(private_podman.settings, limits=CallLimits(kill=1.0)))
    with small_disk() as disk:
        disk.chmod(0o777)
        script = "echo ready; while :; do echo x > /artifacts/file; done"
        box = private_podman.shell(script, artifacts=disk)
        await start(podman, box)
        await until_logged(box, "stdout F ready")
        with frozen(disk):
            await until(lambda: "D" in states(processes(private_podman, box)), "a stuck process")
            with pytest.raises(BoxUnkillable):
                await podman.kill(box)
        await until(lambda: not processes(private_podman, box), "the death of what was stuck")
        await podman.remove(box.job, box.attempt)


def states(pids: set[int]) -> set[str]:
    """Return the states of processes: D for one that waits uninterruptibly."""
    lines = (Path(f"/proc/{pid}/stat").read_text() for pid in pids)
    return {line.rpartition(")")[2].split()[0] for line in lines}


async def test_a_dead_monitor_is_a_lost_box_and_its_processes_are_killed(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("sleep 1000")
    await start(podman, box)
    waiting = asyncio.create_task(podman.wait(box))
    await asyncio.sleep(0.1)
    os.kill(monitor(box), signal.SIGKILL)
    with pytest.raises(BoxLost):
        await within_limit(waiting)
    assert not processes(private_podman, box)
    assert await podman.look(box) == Sight(BoxState.LOST)


async def test_a_box_that_podman_gave_up_on_has_no_exit_code(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("sleep 1000")
    await start(podman, box)
    os.kill(monitor(box), signal.SIGKILL)
    # It kills the process, waits for the monitor's record and then writes one of its own.
    private_podman.call("kill", "--signal", "KILL", box.name, check=False)
    shown = private_podman.call("inspect", "--format", "{{.State.ExitCode}}", box.name)
    assert shown.strip() == "-1"
    assert await podman.look(box) == Sight(BoxState.LOST)
    with pytest.raises(BoxLost):
        await within_limit(podman.wait(box))


async def test_a_monitor_that_is_slow_is_waited_for(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("trap 'exit 3' TERM; echo ready; sleep 1000 & wait")
    await start(podman, box)
    await until_logged(box, "stdout F ready")
    os.kill(monitor(box), signal.SIGSTOP)
    await podman.terminate(box)
    waiting = asyncio.create_task(podman.wait(box))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    os.kill(monitor(box), signal.SIGCONT)
    assert await within_limit(waiting) == BoxExit(code=3)


async def test_a_box_that_was_removed_by_hand_is_lost(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("sleep 1000")
    await start(podman, box)
    private_podman.call("rm", "--force", "--time", "0", box.name, check=False)
    with pytest.raises(BoxLost):
        await within_limit(podman.wait(box))
    assert await podman.look(box) == Sight(BoxState.ABSENT)


async def test_a_number_that_another_process_has_now_is_not_waited_for(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 5")
    await run(podman, box)
    (box.directory / "pid").write_text(f"{os.getpid()}")
    (box.directory / "conmon.pid").write_text(f"{os.getpid()}")
    assert await within_limit(podman.wait(box)) == BoxExit(code=5)
    await podman.terminate(box)


async def test_waiting_costs_no_process(podman: Podman, private_podman: PrivatePodman) -> None:
    box = private_podman.shell("echo ready; exec sleep 1000")
    await start(podman, box)
    await until_logged(box, "stdout F ready")
    before = private_podman.processes()
    waiting = asyncio.create_task(podman.wait(box))
    await asyncio.sleep(0.3)
    assert private_podman.processes() == before
    assert first_process(box) in before
    await podman.kill(box)
    await waiting
