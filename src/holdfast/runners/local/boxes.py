"""Boxes that are children of the worker, and die with it: what `bare` and `sandbox` share.

What is known of a box is kept in memory, because no box outlives this process. Two things do:
the mark in the box's directory, which is the right to start it, taken once and never given back;
and its control group, by which a later worker finds, kills and removes what was left behind.
"""

from __future__ import annotations

import asyncio
import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from uuid import UUID

from holdfast.errors import BoxLost, BoxRefused, BoxUnkillable, RuntimeTrouble
from holdfast.lifecycle.record import JobId
from holdfast.ports.box import Box, BoxExit, BoxLabel, BoxState, Sight, box_name
from holdfast.runners.cgroups import Cgroups, Group, GroupLimits
from holdfast.runners.local.box_process import BoxProcess
from holdfast.runners.local.bubblewrap import LAUNCH_TRIES, Launch
from holdfast.runners.spool import OutputLog

MARK_FILE = "mark"
"""In a box's directory: to create it is to take the right to start the box, or to withdraw it."""
STARTED, WITHDRAWN, REMOVED = "started", "withdrawn", "removed"
START_SECONDS = 60.0
"""How long a box may take to its first process. Only a host in trouble needs more than a moment."""
KILL_SECONDS = 10.0
"""How long a kill may take until it counts as failed."""


class LocalBox:
    """What this process knows of one box."""

    def __init__(self, box: Box, group: Group | None) -> None:
        """Remember a box that is prepared."""
        self.box = box
        self.group = group
        self.process: BoxProcess | None = None
        self.is_stopped = False
        """Whether its command must not be started any more."""
        self.exit: BoxExit | BoxLost | None = None
        self.ended = asyncio.Event()
        self.watch: asyncio.Task[None] | None = None


class LocalBoxes(ABC):
    """Implements `Boxes` for what starts a box as one line; a subclass gives the line."""

    name: str
    survives = False
    isolated: bool

    def __init__(self, cgroups: Cgroups | None) -> None:
        """Keep boxes in control groups, or without any: then a kill is proven by a namespace."""
        self._cgroups = cgroups
        self._boxes: dict[str, LocalBox] = {}
        self._withdrawn: set[str] = set()
        """Names of boxes that were killed before they had a directory to keep the mark in."""

    @abstractmethod
    def launch(self, box: Box, doors: Sequence[Path]) -> AbstractContextManager[Launch]:
        """Give the line that starts a box, after it has entered control groups by their files."""

    async def ready(self, box: Box) -> None:  # noqa: B027  a subclass may need none
        """Prepare what a box needs beside its group. Raise `BoxRefused` if that is impossible."""

    def forget(self, box: Box) -> None:  # noqa: B027
        """Take back what `ready` gave."""

    async def prepare(self, box: Box) -> None:
        """Make its group and directories."""
        if box.name in self._boxes:
            return
        group = self._group(box.name, box.epoch)
        self._boxes[box.name] = LocalBox(box, group)
        try:
            if group is not None:
                await asyncio.to_thread(group.make, _limits(box))
            await self.ready(box)
        except OSError as error:
            await self._drop(box.name)
            raise RuntimeTrouble(f"box {box.name} cannot be prepared: {error}") from error
        except BaseException:
            await self._drop(box.name)
            raise

    async def start(self, box: Box) -> None:
        """Start its line, and wait until it has a first process."""
        local = self._boxes.get(box.name)
        if local is None:
            raise BoxRefused(f"box {box.name} was not prepared")
        if box.name in self._withdrawn or not _take_mark(box.directory, STARTED):
            raise BoxRefused(f"box {box.name} has run before, or was killed before it ran")
        try:
            process = local.process = self._spawn(local)
        except OSError as error:
            raise BoxRefused(f"box {box.name} cannot be started: {error}") from error
        local.watch = asyncio.create_task(self._watch(local, process))
        await self._launched(local, process)

    async def wait(self, box: Box) -> BoxExit:
        """Wait for the end of a box of this process; another's is lost."""
        local = self._boxes.get(box.name)
        if local is None or local.process is None:
            raise BoxLost(f"box {box.name} is not running here, and its exit code is not known")
        await local.ended.wait()
        if isinstance(local.exit, BoxExit):
            return local.exit
        raise BoxLost(str(local.exit))

    async def terminate(self, box: Box) -> None:
        """Ask the first process; it stays alone with the request."""
        local = self._boxes.get(box.name)
        if local is not None and local.process is not None:
            local.is_stopped = True
            local.process.terminate()

    async def kill(self, box: Box) -> None:
        """Kill by control group and namespace, and return once both are proven empty."""
        if not box.directory.exists():
            self._withdrawn.add(box.name)
        else:
            _take_mark(box.directory, WITHDRAWN)
        await self._kill(box.name)

    async def look(self, box: Box) -> Sight:
        """Look into memory, and at the mark of what ran under another process."""
        local = self._boxes.get(box.name)
        mark = _read_mark(box.directory)
        if local is None or local.process is None:
            if mark == STARTED:
                return Sight(BoxState.LOST)
            is_here = local is not None and mark is None
            return Sight(BoxState.CREATED if is_here else BoxState.ABSENT)
        if local.exit is None:
            return Sight(BoxState.RUNNING)
        if isinstance(local.exit, BoxExit):
            return Sight(BoxState.EXITED, local.exit)
        return Sight(BoxState.LOST)

    async def list(self) -> Sequence[BoxLabel]:
        """Return the boxes in memory, and those whose groups another process left behind."""
        labels = {name: _label(local.box) for name, local in self._boxes.items()}
        if self._cgroups is not None:
            for found in await asyncio.to_thread(self._cgroups.names):
                label = _read_group_name(found)
                if label is not None:
                    labels.setdefault(label.name, label)
        return list(labels.values())

    async def remove(self, job: JobId, attempt: int) -> None:
        """Kill what runs, then remove its groups. What has run stays marked."""
        name = box_name(job, attempt)
        await self._kill(name)
        local = self._boxes.get(name)
        if local is not None:
            _replace_mark(local.box.directory, REMOVED)
        await self._drop(name)
        self._withdrawn.discard(name)

    async def close(self) -> None:
        """Kill and remove every box of this process."""
        ends = [self._close(name) for name in list(self._boxes)]
        failed = [end for end in await asyncio.gather(*ends, return_exceptions=True) if end]
        if self._cgroups is not None:
            await asyncio.to_thread(self._cgroups.remove)
        if failed:
            raise failed[0]

    async def _close(self, name: str) -> None:
        await self._kill(name)
        await self._drop(name)

    def _spawn(self, local: LocalBox) -> BoxProcess:
        log = OutputLog(local.box.directory, local.box.log_bytes)
        doors = [] if local.group is None else local.group.doors()
        try:
            with self.launch(local.box, doors) as launch:
                return BoxProcess(launch, log)
        except BaseException:
            if local.group is not None:
                local.group.kill()
            log.close()
            raise

    async def _launched(self, local: LocalBox, process: BoxProcess) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await process.is_launched.wait()
        except TimeoutError as error:
            raise RuntimeTrouble(f"box {local.box.name} did not start in time") from error
        if not process.had_a_first_process:
            await local.ended.wait()
            words = process.first_words() or "no reason given"
            raise BoxRefused(f"box {local.box.name} cannot be started: {words}")

    async def _watch(self, local: LocalBox, process: BoxProcess) -> None:
        await self._over(local, process)
        for _ in range(LAUNCH_TRIES - 1):
            if local.is_stopped or not process.failed_before_the_command:
                break
            try:
                process = local.process = self._spawn(local)
            except OSError:
                break
            await self._over(local, process)
        local.exit = _exit(local, process)
        local.ended.set()

    async def _over(self, local: LocalBox, process: BoxProcess) -> None:
        """Wait until nothing of a process is left and its output is in the log."""
        await process.ended()
        # With a namespace the group is empty already; without one, here the rest of it dies.
        # Until it has, the box has not ended, however long that takes.
        while local.group is not None and not await local.group.emptied(KILL_SECONDS):
            continue
        await process.complete_log()

    async def _kill(self, name: str) -> None:
        local = self._boxes.get(name)
        if local is not None:
            local.is_stopped = True
        groups = [local.group] if local and local.group else self._groups(name)
        if local is not None and local.process is not None and local.exit is None:
            if local.group is None:
                local.process.kill()
            else:
                local.group.kill()
        for group in groups:
            if not await group.emptied(KILL_SECONDS):
                raise BoxUnkillable(
                    f"box {name}: processes are left {KILL_SECONDS:.0f} s after a kill"
                )
        if local is not None and local.process is not None:
            await self._dead(local, local.process)

    async def _dead(self, local: LocalBox, process: BoxProcess) -> None:
        limit = asyncio.get_running_loop().time() + KILL_SECONDS
        while not local.ended.is_set():
            # Again and again: a box that is just being made has no first process yet.
            process.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await local.ended.wait()
            if asyncio.get_running_loop().time() > limit:
                name = local.box.name
                raise BoxUnkillable(f"box {name} is still there {KILL_SECONDS:.0f} s after a kill")

    async def _drop(self, name: str) -> None:
        for group in self._groups(name):
            await group.removed()
        local = self._boxes.pop(name, None)
        if local is not None:
            self.forget(local.box)

    def _group(self, name: str, epoch: int) -> Group | None:
        return None if self._cgroups is None else self._cgroups.group(f"{name}.{epoch}")

    def _groups(self, name: str) -> builtins.list[Group]:
        """Return the groups of a box that exist, also those of an earlier process."""
        if self._cgroups is None:
            return []
        found = self._cgroups.names()
        return [self._cgroups.group(each) for each in found if each.rpartition(".")[0] == name]


def _limits(box: Box) -> GroupLimits:
    return GroupLimits(cpus=box.cpus, memory_bytes=box.memory_mb * 1024 * 1024, pids=box.pids)


def _exit(local: LocalBox, process: BoxProcess) -> BoxExit | BoxLost:
    code = process.exit_code
    if code is None:
        words = process.first_words() or "no reason given"
        return BoxLost(f"box {local.box.name} ended before its command ran: {words}")
    group = local.group
    return BoxExit(code=code, out_of_memory=group is not None and group.ran_out_of_memory())


def _label(box: Box) -> BoxLabel:
    return BoxLabel(name=box.name, job=box.job, attempt=box.attempt, epoch=box.epoch)


def _read_group_name(found: str) -> BoxLabel | None:
    """Read `hf-JOB-ATTEMPT.EPOCH`; None for what is not ours."""
    name, _, epoch = found.rpartition(".")
    prefix, _, rest = name.partition("-")
    job, _, attempt = rest.rpartition("-")
    try:
        label = BoxLabel(name=name, job=JobId(UUID(job)), attempt=int(attempt), epoch=int(epoch))
    except ValueError:
        return None
    return label if prefix == "hf" else None


def _take_mark(directory: Path, meaning: str) -> bool:
    """Create the mark; False if it is there already."""
    try:
        with (directory / MARK_FILE).open("x") as file:
            file.write(meaning)
    except FileExistsError:
        return False
    return True


def _replace_mark(directory: Path, meaning: str) -> None:
    with suppress(FileNotFoundError):
        (directory / MARK_FILE).write_text(meaning)


def _read_mark(directory: Path) -> str | None:
    try:
        return (directory / MARK_FILE).read_text()
    except FileNotFoundError:
        return None
