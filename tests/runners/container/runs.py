"""Steps that tests of boxes share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.ports.box import LOG_FILE, Box, BoxExit
from holdfast.runners.container.argv import MONITOR_PID_FILE, PID_FILE, cgroup_of
from holdfast.runners.container.box_cgroup import BoxCgroup
from holdfast.runners.container.pid_wait import read_pid
from holdfast.runners.container.podman import Podman
from tests.support.podman import PrivatePodman

T = TypeVar("T")
LIMIT_SECONDS = 60.0


async def start(podman: Podman, box: Box) -> None:
    """Create and start a box."""
    await podman.prepare(box)
    await podman.start(box)


async def run(podman: Podman, box: Box) -> BoxExit:
    """Run a box to its end."""
    await start(podman, box)
    async with asyncio.timeout(LIMIT_SECONDS):
        return await podman.wait(box)


async def until_logged(box: Box, line: str) -> None:
    """Wait until a box has written a line."""
    await until(lambda: line in log_of(box), f"{line!r} in the log")


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds, without keeping the loop."""
    limit = asyncio.get_running_loop().time() + LIMIT_SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < limit, f"waited for {what}"
        await asyncio.sleep(0.02)


async def within_limit(waiting: Awaitable[T]) -> T:
    """Wait for what must come."""
    return await asyncio.wait_for(waiting, LIMIT_SECONDS)


def log_of(box: Box) -> list[str]:
    """Return the lines of a box's output with their streams, without their times."""
    try:
        lines = (box.directory / LOG_FILE).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.split(" ", 1)[1] for line in lines]


def first_process(box: Box) -> int:
    """Return the number of a box's init on the host."""
    return read_pid(box.directory / PID_FILE)


def monitor(box: Box) -> int:
    """Return the number of a box's monitor."""
    return read_pid(box.directory / MONITOR_PID_FILE)


def processes(private: PrivatePodman, box: Box) -> set[int]:
    """Return the processes of a box, by its control groups."""
    return BoxCgroup(cgroup_of(box, private.settings)).processes()
