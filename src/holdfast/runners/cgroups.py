"""Control groups of boxes: limits, the proof that nothing is left, and who ran out of memory.

Version 2 has one hierarchy for all of it. Version 1 has one per controller, and beside them often
the unified hierarchy without controllers, which is all that a kill needs. The groups themselves
are the record of what was left behind: they outlive the process that made them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from holdfast.errors import RuntimeTrouble

MOUNTS = Path("/proc/self/mountinfo")
CONTROLLERS = ("memory", "cpu", "pids")
"""What limits a box."""
_PERIOD_MICROS = 100_000
_POLL_SECONDS = 0.002
_REMOVE_SECONDS = 5.0
_MAKE_TRIES = 20
_REMOVED_MEANWHILE = (errno.ENOENT, errno.EEXIST, errno.ENODEV)
"""EEXIST: it was there for mkdir, and gone when Python looked what it is."""


class GroupLimits(Struct, frozen=True, kw_only=True):
    """What a group may use."""

    cpus: int
    memory_bytes: int
    pids: int


class Hierarchy(Struct, frozen=True):
    """A mounted tree of groups, and the controllers of ours that it has."""

    mount: Path
    unified: bool
    controllers: frozenset[str]


class Cgroups:
    """The groups of one store's boxes on this host, all below one parent."""

    def __init__(self, hierarchies: Sequence[Hierarchy], parent: str) -> None:
        """Keep groups below `parent`, a relative path, in each hierarchy."""
        self._hierarchies = tuple(hierarchies)
        self._parent = parent

    @property
    def controllers(self) -> frozenset[str]:
        """What is limited."""
        return frozenset().union(*(each.controllers for each in self._hierarchies))

    def check(self) -> None:
        """Raise OSError if groups cannot be made here. Tries it."""
        trial = self.group(f"trial-{os.getpid()}")
        try:
            trial.make(GroupLimits(cpus=1, memory_bytes=1 << 26, pids=16))
        finally:
            trial.remove()

    def group(self, name: str) -> Group:
        """Return a group by name, whether or not it exists."""
        return Group(self._hierarchies, self._parent, name)

    def names(self) -> set[str]:
        """Return the names of all groups that exist, in any hierarchy."""
        return {
            directory.name
            for each in self._hierarchies
            for directory in _subdirectories(each.mount / self._parent)
        }

    def remove(self) -> None:
        """Remove the parent where no group is left in it."""
        for each in self._hierarchies:
            for part in (self._parent, *map(str, Path(self._parent).parents)):
                with suppress(OSError):
                    if part != ".":
                        (each.mount / part).rmdir()


class Group:
    """One group: a directory of the same name in each hierarchy."""

    def __init__(self, hierarchies: Sequence[Hierarchy], parent: str, name: str) -> None:
        """Name it; nothing is made."""
        self.name = name
        self._hierarchies = hierarchies
        self._parent = parent

    def make(self, limits: GroupLimits) -> None:
        """Make it with its limits; one that exists gets them again. Raise OSError if refused."""
        for each in self._hierarchies:
            _make(each, self._parent, self.name)
            for file, value in _settings(each, limits):
                _set(self._directory(each) / file, value)

    def doors(self) -> list[Path]:
        """Return the files to which a process writes 0 to enter it."""
        return [self._directory(each) / "cgroup.procs" for each in self._hierarchies]

    def kill(self) -> None:
        """Kill every process in it: once where the kernel can, else those that are seen."""
        for each in self._hierarchies:
            with suppress(OSError):
                if each.unified:
                    _set(self._directory(each) / "cgroup.kill", "1")
                    return
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def is_empty(self) -> bool:
        """Return whether no process is in it, in any hierarchy; true where it does not exist."""
        return not any(True for _ in self._pids())

    async def emptied(self, seconds: float) -> bool:
        """Kill until it is proven empty; False if processes are left when the time is over."""
        limit = asyncio.get_running_loop().time() + seconds
        self.kill()
        # By polling: the kernel reports an empty group of version 1 to nobody.
        while not self.is_empty():
            if asyncio.get_running_loop().time() > limit:
                return False
            await asyncio.sleep(_POLL_SECONDS)
            self.kill()
        return True

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel has killed a process of it for memory."""
        for each in self._hierarchies:
            if "memory" in each.controllers:
                file = "memory.events" if each.unified else "memory.oom_control"
                return _count(self._directory(each) / file, "oom_kill") > 0
        return False

    def remove(self) -> None:
        """Remove it, once it is empty; one that does not exist is success."""
        for each in self._hierarchies:
            with suppress(FileNotFoundError):
                self._directory(each).rmdir()

    async def removed(self) -> None:
        """Remove it off the loop, again while the last process is still on its way out."""
        limit = asyncio.get_running_loop().time() + _REMOVE_SECONDS
        while True:
            try:
                return await asyncio.to_thread(self.remove)
            except OSError as error:
                if error.errno != errno.EBUSY or asyncio.get_running_loop().time() > limit:
                    raise
                await asyncio.sleep(_POLL_SECONDS)

    def _directory(self, hierarchy: Hierarchy) -> Path:
        return hierarchy.mount / self._parent / self.name

    def _pids(self) -> Iterator[int]:
        for door in self.doors():
            yield from read_members(door)


def read_members(file: Path) -> list[int]:
    """Read the processes of a group; one that is gone has none.

    Raise RuntimeTrouble where that is not known: it must not pass for an empty group.
    """
    try:
        return [int(pid) for pid in file.read_text().split()]
    except OSError as error:
        # Reading one that is being removed fails with ENODEV.
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return []
        raise RuntimeTrouble(
            f"the processes of {file.parent.name} cannot be read: {error}"
        ) from error


def find_cgroups(parent: str, mounts: Path = MOUNTS) -> Cgroups | None:
    """Return what this host has of control groups for us; None without a way to prove a kill.

    Whether groups may be made is another question: see `Cgroups.check`.
    """
    hierarchies = [each for each in _mounted(mounts) if each.unified or each.controllers]
    return Cgroups(hierarchies, parent) if hierarchies else None


def _mounted(mounts: Path) -> Iterator[Hierarchy]:
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount = Path(before.split(" ")[4])
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            with suppress(OSError):
                offered = (mount / "cgroup.controllers").read_text().split()
                yield Hierarchy(mount, unified=True, controllers=_ours(offered))
        elif kind == "cgroup":
            yield Hierarchy(mount, unified=False, controllers=_ours(options.split(",")))


def _ours(names: Sequence[str]) -> frozenset[str]:
    return frozenset(CONTROLLERS).intersection(names)


def _settings(hierarchy: Hierarchy, limits: GroupLimits) -> Iterator[tuple[str, str]]:
    """Return the files to write, in the order that the kernel accepts."""
    memory, quota = str(limits.memory_bytes), limits.cpus * _PERIOD_MICROS
    has = hierarchy.controllers
    if "memory" in has and hierarchy.unified:
        yield from (("memory.max", memory), ("memory.swap.max", "0"))
    elif "memory" in has:
        yield from (("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory))
    if "cpu" in has and hierarchy.unified:
        yield "cpu.max", f"{quota} {_PERIOD_MICROS}"
    elif "cpu" in has:
        yield from (("cpu.cfs_period_us", str(_PERIOD_MICROS)), ("cpu.cfs_quota_us", str(quota)))
    if "pids" in has:
        yield "pids.max", str(limits.pids)


SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Absent where the kernel does not account swap; then the limit of memory stands alone."""


def _set(file: Path, value: str) -> None:
    if file.name in SWAP_FILES and not file.exists():
        return
    # Without O_CREAT: a file that is missing is a controller that is missing.
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _make(hierarchy: Hierarchy, parent: str, name: str) -> None:
    """Make a group, and again if another worker has just removed the empty parent."""
    for left in reversed(range(_MAKE_TRIES)):
        try:
            _enable(hierarchy, parent)
            (hierarchy.mount / parent / name).mkdir(exist_ok=True)
        except OSError as error:
            if not left or error.errno not in _REMOVED_MEANWHILE:
                raise
        else:
            return


def _enable(hierarchy: Hierarchy, parent: str) -> None:
    """Make the parent. In version 2 each level must hand the controllers to the next."""
    wanted = " ".join(f"+{name}" for name in sorted(hierarchy.controllers))
    directory = hierarchy.mount
    for part in ("", *Path(parent).parts):
        directory /= part
        directory.mkdir(exist_ok=True)
        if wanted and hierarchy.unified:
            _set(directory / "cgroup.subtree_control", wanted)


def _count(file: Path, key: str) -> int:
    # A group that another process removes at this moment has nothing to report.
    with suppress(OSError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0


def _subdirectories(directory: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        yield from (each for each in directory.iterdir() if each.is_dir())
