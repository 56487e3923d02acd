"""Boxes as containers of Podman: they outlive their worker, and another one can wait for them.

Podman makes and starts them and reports on them; it is not asked to kill or to wait. Both are done
by the box's control group and by the descriptors of its processes, which answer when Podman hangs.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from uuid import UUID

from holdfast.errors import BoxLost, BoxRefused, BoxUnkillable, RuntimeTrouble
from holdfast.lifecycle.record import JobId
from holdfast.ports.box import (
    LOG_FILE,
    TRUNCATED_FILE,
    Box,
    BoxExit,
    BoxLabel,
    BoxState,
    Sight,
    box_name,
)
from holdfast.runners.container.argv import (
    LABEL_PREFIX,
    MONITOR_PID_FILE,
    PID_FILE,
    cgroup_of,
    chosen_image,
    create_arguments,
    leaf_of,
)
from holdfast.runners.container.box_cgroup import BoxCgroup, group_names, remove_if_empty
from holdfast.runners.container.cli import Answer, PodmanCli
from holdfast.runners.container.conmon_wrapper import write_wrapper
from holdfast.runners.container.inspect import (
    ContainerState,
    Reading,
    decode_listing,
    decode_report,
    read_state,
)
from holdfast.runners.container.pid_wait import (
    is_below,
    is_waiting_init,
    open_process,
    read_pid,
    wait_for_first_end,
)
from holdfast.runners.container.seccomp import write_profile
from holdfast.runners.container.settings import BOX_UID, PodmanSettings, find_program
from holdfast.runners.container.traces import Traces
from holdfast.runners.hand_over import hand_over

OOM_MARK = "oom"
"""A file that the monitor leaves where it was started, if the kernel killed for memory."""
_UNSTARTED = frozenset({BoxState.ABSENT, BoxState.CREATED})
_PAUSE_SECONDS = 0.05
_UNKNOWN_PID_SECONDS = 0.5
_LEAF = re.compile(r"hf-(?P<job>[0-9a-f-]{36})-(?P<attempt>[0-9]+)\.(?P<epoch>[0-9]+)")


class Podman:
    """Containers of one host and store. Needs root."""

    name = "podman"
    survives = True
    isolated = True

    def __init__(self, settings: PodmanSettings) -> None:
        """Use Podman as set. Nothing is called before the first box."""
        self._settings = settings
        self._limits = settings.limits
        self._cli = PodmanCli(settings.program, settings.global_options, settings.directory)
        self._runtime = PodmanCli(_runtime_program(settings), (), settings.directory)
        self._traces = Traces(settings.directory / "traces")
        self._just_created: set[str] = set()
        """Boxes that this process has created and not yet started: they need no look before."""
        self._killed: set[str] = set()
        """Boxes that may not start any more, until they are removed."""
        # The parent has what commands print, which other users must not list.
        settings.directory.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        settings.directory.mkdir(exist_ok=True)

    async def prepare(self, box: Box) -> None:
        """Create the container; one that is there already is the same."""
        self._refuse_killed(box)
        arguments = create_arguments(box, self._settings, _require("init", self._settings.init))
        _make_directories(box, self._settings.uid_base + BOX_UID)
        if self._settings.host_profile is not None:
            write_profile(self._settings.host_profile, self._settings.directory)
        answer = await self._create(box, arguments)
        if not answer.ok and (await self.look(box)).state is BoxState.ABSENT:
            await self._refuse_missing_image(box)
            # A create that was cut off leaves storage under its name, and no container.
            await self._discard(box.name)
            answer = await self._create(box, arguments)
            if not answer.ok:
                raise RuntimeTrouble(f"podman cannot create {box.name}: {answer.error}")
        if answer.ok:
            self._just_created.add(box.name)

    async def start(self, box: Box) -> None:
        """Start the container, which was seen to have never run."""
        self._refuse_killed(box)
        if box.name in self._just_created:
            self._just_created.remove(box.name)
            error = await self._start(box)
        else:
            await self._require_unstarted(box)
            # A start that was cut off leaves processes in the way of the next, and a record of
            # them that makes it fail: the failure clears it.
            await self._clear_half_started(box)
            error = await self._start(box) and await self._start(box)
        if error is not None:
            raise BoxRefused(f"the command cannot be started: {error}")

    async def wait(self, box: Box) -> BoxExit:
        """Wait by the descriptors of the first process and its monitor; then look once."""
        while True:
            await self._wait_for_processes(box)
            sight = await self.look(box)
            if sight.exit is not None:
                return sight.exit
            if sight.state is BoxState.RUNNING:
                await asyncio.sleep(_UNKNOWN_PID_SECONDS)
                continue
            # Its monitor may have died alone.
            await self.kill(box)
            raise BoxLost(f"no exit code is known of {box.name}: it is {sight.state}")

    async def terminate(self, box: Box) -> None:
        """Send SIGTERM to its first process, the init, which forwards it to the command."""
        pid = read_pid(box.directory / PID_FILE)
        if (process := open_process(pid, cgroup_of(box, self._settings))) is not None:
            with process:
                process.send(signal.SIGTERM)

    async def kill(self, box: Box) -> None:
        """Kill by the control group; Podman's word is needed only where a start may be under way.

        Not by `podman kill`: it hangs with Podman, and for seconds where the monitor is dead.
        """
        self._just_created.discard(box.name)
        self._killed.add(box.name)
        loop = asyncio.get_running_loop()
        limit = loop.time() + self._limits.kill
        cgroup = BoxCgroup(cgroup_of(box, self._settings))
        while True:
            if not await cgroup.kill(limit - loop.time()):
                raise BoxUnkillable(f"{len(cgroup.processes())} processes of {box.name} do not end")
            if await self._is_over(box) and not cgroup.processes():
                return
            if loop.time() > limit:
                raise RuntimeTrouble(f"podman does not report the end of {box.name}")
            await asyncio.sleep(_PAUSE_SECONDS)

    async def look(self, box: Box) -> Sight:
        """Return the state of the container, as far as the processes on the host confirm it."""
        sight = await self._read_until_settled(box)
        if sight.state in _UNSTARTED:
            sight = await self._confirm_unstarted(box)
        if sight.state is BoxState.EXITED:
            _mark_truncated(box)
        return sight

    async def list(self) -> Sequence[BoxLabel]:
        """Return the containers by their labels, and what was left of others."""
        left = self._left_behind()
        known = await self._list_containers()
        return [*known, *_without(left, known)]

    async def sweep_leaks(self) -> Sequence[BoxLabel]:
        """Remove what is left of boxes that Podman does not know; return them.

        For the holder of the host's lock, as are all orphans.
        """
        # In this order: what has processes was created before.
        left = self._left_behind()
        leaks = _without(left, await self._list_containers())
        for label in leaks:
            await self.remove(label.job, label.attempt)
        return leaks

    async def remove(self, job: JobId, attempt: int) -> None:
        """Remove the container, its processes and its control groups."""
        name = box_name(job, attempt)
        self._just_created.discard(name)
        leaves = {each for each in self._leaves() if each.rpartition(".")[0] == name}
        groups = [BoxCgroup(f"{self._settings.box_cgroups}/{leaf}") for leaf in leaves]
        for group in groups:
            # First: Podman forgets a container whose processes keep its mounts busy.
            if not await group.kill(self._limits.kill):
                raise BoxUnkillable(f"{len(group.processes())} processes of {name} do not end")
        await self._discard(name)
        for leaf, group in zip(leaves, groups, strict=True):
            await self._forget_in_runtime(group)
            await self._remove_left(leaf, group)
        self._killed.discard(name)

    async def close(self) -> None:
        """Forget what was created; containers stay, and calls under way end by themselves."""
        self._just_created.clear()
        remove_if_empty(self._settings.box_cgroups)

    def _refuse_killed(self, box: Box) -> None:
        if box.name in self._killed:
            raise BoxRefused(f"{box.name} cannot be started: it was killed")

    async def _create(self, box: Box, arguments: Sequence[str]) -> Answer:
        with self._traces.hold(leaf_of(box)) as trace:
            return await self._cli.make(
                *arguments, limit=self._limits.create, directory=box.directory, trace=trace
            )

    async def _start(self, box: Box) -> str | None:
        """Start once; return Podman's error if nothing of the command has run."""
        conmon = _require("monitor", self._settings.conmon)
        groups = BoxCgroup(cgroup_of(box, self._settings)).untouched()
        wrapper = write_wrapper(box.directory, conmon, box.log_bytes, groups)
        with self._traces.hold(leaf_of(box)) as trace:
            answer = await self._cli.make(
                *(f"--conmon={wrapper}", "start", box.name),
                limit=self._limits.start,
                directory=box.directory,
                trace=trace,
            )
        # By the state alone: the exit code is 125 for errors of the command, too.
        if answer.ok or (await self.look(box)).state not in _UNSTARTED:
            return None
        return answer.error or f"podman start ended with {answer.code}"

    async def _require_unstarted(self, box: Box) -> None:
        sight = await self.look(box)
        if sight.state is not BoxState.CREATED:
            raise BoxRefused(f"{box.name} cannot be started: it is {sight.state}")

    async def _confirm_unstarted(self, box: Box) -> Sight:
        """Look again once no call can start the box, and compare with what a start leaves.

        A Podman that is killed after it has started a command, and before it has recorded that,
        reports a container that never ran.
        """
        if await self._has_call(box):
            raise RuntimeTrouble(f"podman is still creating or starting {box.name}")
        sight = await self._read_until_settled(box)
        if sight.state is BoxState.CREATED and self._may_have_run(box):
            return Sight(BoxState.LOST)
        return sight

    def _may_have_run(self, box: Box) -> bool:
        """Return whether a process of the box was made that is not still waiting for its start."""
        file = box.directory / PID_FILE
        if not file.exists():
            return False
        pid = read_pid(file)
        return not (self._is_alive(box, pid) and is_waiting_init(pid))

    async def _clear_half_started(self, box: Box) -> None:
        if not await BoxCgroup(cgroup_of(box, self._settings)).kill(self._limits.kill):
            raise RuntimeTrouble(f"a start of {box.name} that was cut off does not end")
        await asyncio.to_thread(self._traces.kill_monitors, leaf_of(box))
        for file in (PID_FILE, MONITOR_PID_FILE):
            (box.directory / file).unlink(missing_ok=True)

    async def _wait_for_processes(self, box: Box) -> None:
        """Wait until the command's first process or its monitor has ended; not if one is gone."""
        cgroup = cgroup_of(box, self._settings)
        with ExitStack() as stack:
            processes = []
            for file in (PID_FILE, MONITOR_PID_FILE):
                process = open_process(read_pid(box.directory / file), cgroup)
                if process is None:
                    return
                processes.append(stack.enter_context(process))
            await wait_for_first_end(processes)

    async def _is_over(self, box: Box) -> bool:
        """Return whether nothing of a box will run, given that no process of it does now."""
        try:
            sight = await self.look(box)
        except RuntimeTrouble:
            return not await self._has_call(box)
        if sight.state is BoxState.CREATED:
            await self._discard(box.name)
        return sight.state is not BoxState.RUNNING

    async def _read_until_settled(self, box: Box) -> Sight:
        """Read again while the end of a process is not yet on record.

        Where the monitor is gone, once: what it has written before its end is there by then.
        """
        loop = asyncio.get_running_loop()
        limit = loop.time() + self._limits.settle
        monitor_was_gone = False
        while (state := await self._inspect(box.name)) is not None:
            monitor_alive = self._is_alive(box, state.conmon_pid)
            reading = self._read(box, state, monitor_alive)
            given_up = loop.time() > limit or (monitor_was_gone and not monitor_alive)
            if reading.settled or given_up:
                return reading.sight
            monitor_was_gone = not monitor_alive
            await asyncio.sleep(_PAUSE_SECONDS)
        return Sight(BoxState.ABSENT)

    def _read(self, box: Box, state: ContainerState, monitor_alive: bool) -> Reading:
        return read_state(
            state,
            process_alive=self._is_alive(box, state.pid),
            monitor_alive=monitor_alive,
            oom_mark=(box.directory / OOM_MARK).exists(),
        )

    def _is_alive(self, box: Box, pid: int) -> bool:
        return is_below(pid, cgroup_of(box, self._settings))

    async def _has_call(self, box: Box) -> bool:
        return await asyncio.to_thread(self._traces.has_call, leaf_of(box))

    async def _inspect(self, name: str) -> ContainerState | None:
        """Return Podman's report; None if it does not know the container."""
        answer = await self._cli.look("container", "inspect", name, limit=self._limits.look)
        if answer.ok:
            return decode_report(answer.output)
        exists = await self._cli.look("container", "exists", name, limit=self._limits.look)
        if exists.code == 1:
            return None
        raise RuntimeTrouble(f"podman does not report on {name}: {answer.error}")

    async def _refuse_missing_image(self, box: Box) -> None:
        image = chosen_image(box, self._settings)
        exists = await self._cli.look("image", "exists", "--", image, limit=self._limits.look)
        if exists.code == 1:
            raise BoxRefused(f"this host has no image {image!r}")

    async def _discard(self, name: str) -> None:
        """Remove a container; twice, because Podman finds some mounts busy and then has not."""
        for last in (False, True):
            answer = await self._cli.look(
                *("rm", "--force", "--time", "0", name), limit=self._limits.remove
            )
            if answer.ok:
                return
            if last:
                raise RuntimeTrouble(f"podman cannot remove {name}: {answer.error}")

    async def _forget_in_runtime(self, group: BoxCgroup) -> None:
        """Delete what the runtime remembers of a container that Podman did not clean up.

        Its control group is left then, which the runtime removes with it.
        """
        for container in group.container_ids():
            await self._runtime.look("delete", "--force", container, limit=self._limits.look)

    async def _remove_left(self, leaf: str, group: BoxCgroup) -> None:
        if await asyncio.to_thread(self._traces.has_call, leaf):
            raise RuntimeTrouble(f"a call of podman still works on {leaf}")
        await asyncio.to_thread(self._traces.kill_monitors, leaf)
        if not await group.remove(self._limits.kill):
            raise RuntimeTrouble(f"control groups of {leaf} are left")
        self._traces.remove(leaf)

    async def _list_containers(self) -> Sequence[BoxLabel]:
        settings = self._settings
        answer = await self._cli.look(
            *("ps", "--all", "--format", "json"),
            *("--filter", f"label={LABEL_PREFIX}store={settings.store}"),
            *("--filter", f"label={LABEL_PREFIX}host={settings.host}"),
            limit=self._limits.look,
        )
        if not answer.ok:
            raise RuntimeTrouble(f"podman cannot list its containers: {answer.error}")
        found = (_from_labels(each.labels or {}) for each in decode_listing(answer.output))
        return [label for label in found if label is not None]

    def _left_behind(self) -> Sequence[BoxLabel]:
        return [label for leaf in self._leaves() if (label := _from_leaf(leaf)) is not None]

    def _leaves(self) -> set[str]:
        return self._traces.names() | group_names(self._settings.box_cgroups)


def _require(purpose: str, program: str) -> str:
    path = find_program(program)
    if path is None:
        raise RuntimeTrouble(f"the {purpose} of containers, {program}, is not installed")
    return path


def _runtime_program(settings: PodmanSettings) -> str:
    return settings.runtime or next(filter(find_program, ("crun", "runc")), "runc")


def _make_directories(box: Box, owner: int) -> None:
    """Give a box's own directories to the user that its command runs as."""
    try:
        box.directory.mkdir(parents=True, exist_ok=True)
        for directory in (box.work, box.artifacts):
            directory.mkdir(parents=True, exist_ok=True)
            os.chown(directory, owner, owner)
        if box.work_writable:
            hand_over(box.work, owner)
        box.artifacts.chmod(0o700)
        for directory in box.exchanged:
            hand_over(directory, owner)
    except OSError as error:
        raise RuntimeTrouble(f"the directories of {box.name} cannot be made: {error}") from error


def _mark_truncated(box: Box) -> None:
    with suppress(OSError):
        if (box.directory / LOG_FILE).stat().st_size >= box.log_bytes:
            (box.directory / TRUNCATED_FILE).touch()


def _from_labels(labels: Mapping[str, str]) -> BoxLabel | None:
    """Return a box by its labels; None if these are not complete: then it is not ours."""
    try:
        job = JobId(UUID(labels[f"{LABEL_PREFIX}job"]))
        attempt = int(labels[f"{LABEL_PREFIX}attempt"])
        epoch = int(labels[f"{LABEL_PREFIX}epoch"])
    except (KeyError, ValueError):
        return None
    return BoxLabel(name=box_name(job, attempt), job=job, attempt=attempt, epoch=epoch)


def _from_leaf(leaf: str) -> BoxLabel | None:
    found = _LEAF.fullmatch(leaf)
    if found is None:
        return None
    job, attempt = JobId(UUID(found["job"])), int(found["attempt"])
    return BoxLabel(
        name=box_name(job, attempt), job=job, attempt=attempt, epoch=int(found["epoch"])
    )


def _without(labels: Sequence[BoxLabel], known: Sequence[BoxLabel]) -> list[BoxLabel]:
    names = {label.name for label in known}
    return [label for label in labels if label.name not in names]
