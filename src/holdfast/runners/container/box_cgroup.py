"""The control groups of one container: its processes found, killed and proven gone without Podman.

Podman makes `libpod-<id>` for the command's processes and `conmon` for their monitor below the
group that the container was created with, in every hierarchy. Those of a start that was cut off
may be in some hierarchies only, so all of them are read.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.runners.cgroups import read_members
from holdfast.runners.container.pid_wait import open_process

_MOUNTS = Path("/proc/self/mountinfo")
_CONTAINER = "libpod-"
_MONITOR = "conmon"
_POLL_SECONDS = 0.01


class BoxCgroup:
    """The group that a box's own groups are made in."""

    def __init__(self, path: str) -> None:
        """Name it by its path below the hierarchies' mounts."""
        self.path = path
        self._directories = [mount / path.lstrip("/") for mount in hierarchies()]

    def untouched(self) -> list[Path]:
        """Return the monitor's groups in hierarchies where Podman does not make them."""
        return [mount / self.path.lstrip("/") / _MONITOR for mount in _without_controllers()]

    def processes(self) -> set[int]:
        """Return the numbers of the command's processes, started or half-started."""
        return _members(self._container_groups())

    def container_ids(self) -> set[str]:
        """Return the containers that have a group here: those that the runtime remembers."""
        return {
            group.name.removeprefix(_CONTAINER)
            for directory in self._directories
            for group in directory.glob(f"{_CONTAINER}*")
        }

    async def kill(self, seconds: float) -> bool:
        """Kill the command's processes until none is left; False if some are after the time."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + seconds
        while processes := self.processes():
            if loop.time() > limit:
                return False
            self._kill_at_once()
            # Where the kernel cannot kill a group: the first process takes its namespace along.
            _kill(processes, self.path)
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def remove(self, seconds: float) -> bool:
        """Kill what is left, monitors too, and remove the groups; False if some are left."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + seconds
        while left := self._remove_empty():
            if loop.time() > limit:
                return False
            _kill(_members(left), self.path)
            await asyncio.sleep(_POLL_SECONDS)
        return True

    def _kill_at_once(self) -> None:
        for group in self._container_groups():
            with suppress(OSError):
                _write_existing(group / "cgroup.kill", b"1")

    def _container_groups(self) -> Iterator[Path]:
        for directory in self._directories:
            for group in directory.glob(f"{_CONTAINER}*"):
                yield from _tree(group)

    def _remove_empty(self) -> list[Path]:
        """Remove each group that is empty, the inner ones first; return those that are left."""
        left = []
        for directory in self._directories:
            for group in reversed(list(_tree(directory))):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:
                    left.append(group)
        return left


def hierarchies() -> list[Path]:
    """Return where the kernel's hierarchies of control groups are mounted."""
    lines = _MOUNTS.read_text().splitlines()
    return [
        Path(line.split(" ")[4])
        for line in lines
        if line.partition(" - ")[2].startswith(("cgroup ", "cgroup2 "))
    ]


def _without_controllers() -> list[Path]:
    """Return the hierarchies that only group processes, beside others that also limit them.

    Service managers find by them what belongs to a unit, where controllers are of version 1.
    """
    lines = _MOUNTS.read_text().splitlines()
    mounts = [(line.split(" ")[4], line.partition(" - ")[2]) for line in lines]
    has_version_1 = any(kind.startswith("cgroup ") for _, kind in mounts)
    return [
        Path(place)
        for place, kind in mounts
        if has_version_1 and (kind.startswith("cgroup2 ") or "name=" in kind)
        if kind.startswith(("cgroup ", "cgroup2 "))
    ]


def group_names(path: str) -> set[str]:
    """Return the names of the groups directly below one, in any hierarchy."""
    return {
        each.name
        for mount in hierarchies()
        for each in (mount / path.lstrip("/")).glob("*")
        if each.is_dir()
    }


def remove_if_empty(path: str) -> None:
    """Remove a group without processes and groups below it, in every hierarchy."""
    for mount in hierarchies():
        # One that is in use, or that another worker's containers are in, cannot be removed.
        with suppress(OSError):
            (mount / path.lstrip("/")).rmdir()


def _tree(group: Path) -> list[Path]:
    """Return a group and those below it, the outer ones first; none if it does not exist."""
    return [Path(directory) for directory, _, _ in os.walk(group)]


def _members(groups: Iterable[Path]) -> set[int]:
    found: set[int] = set()
    for group in groups:
        found.update(read_members(group / "cgroup.procs"))
    return found


def _kill(processes: Iterable[int], path: str) -> None:
    for pid in processes:
        if (process := open_process(pid, path)) is not None:
            with process:
                process.send(signal.SIGKILL)


def _write_existing(file: Path, value: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value)
    finally:
        os.close(descriptor)
