"""This host: its name, its room, its lock, and the boxes on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.lifecycle.command_spec import KINDS, QUEUES
from holdfast.lifecycle.record import JobId, KeptOutput
from holdfast.lifecycle.states import Kind
from holdfast.ports.blobs import Blobs, OpenBlobs
from holdfast.ports.box import Boxes, BoxLabel, Sight
from holdfast.ports.host import AttemptFiles, Room
from holdfast.ports.models import Claimed
from holdfast.ports.runner import Runner
from holdfast.ports.store import Store
from holdfast.queries.box_files import store_identity
from holdfast.runners.command.attempt_files import AttemptDirectories
from holdfast.runners.command.box_of import BoxPlace
from holdfast.runners.command.collect_artifacts import DEFAULT_LIMITS, ArtifactLimits
from holdfast.runners.command.host_lock import HostLock
from holdfast.runners.command.options import GRACE_SECONDS, PATIENCE_SECONDS, PAUSE_SECONDS
from holdfast.runners.command.profiles import AgentProfile, Secret, warn_of_open_profiles
from holdfast.runners.command.runner import CommandRunner
from holdfast.runners.command.secret_files import (
    find_memory_place,
    list_secrets,
    remove_empty_places,
)

MakeBoxes = Callable[[BoxPlace], Awaitable[Sequence[Boxes]]]
"""Makes what runs boxes; the first is the default."""
RESERVED_SHARE = 0.1
"""The share of the memory that is left to everything else on the host."""


class CommandHost:
    """The machine, with the commands of one store. Implements `Host`."""

    def __init__(
        self,
        place: BoxPlace,
        boxes: Sequence[Boxes],
        blobs: Blobs,
        *,
        room: Room,
        queues: tuple[str, ...],
        artifacts: ArtifactLimits = DEFAULT_LIMITS,
        agents: Mapping[str, AgentProfile] = {},
        secrets: Mapping[str, Secret] = {},
        grace_seconds: float = GRACE_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self.name = place.host
        self.room = room
        self.patience_seconds = patience_seconds
        self.pause_seconds = pause_seconds
        self.queues = queues
        self._boxes = tuple(boxes)
        self._secrets = place.secrets
        self._runner = CommandRunner(
            boxes,
            place,
            blobs,
            artifacts=artifacts,
            agents=agents,
            secrets=secrets,
            grace_seconds=grace_seconds,
            pause_seconds=pause_seconds,
        )
        self.runners: Mapping[Kind, Sequence[Runner[Any, Any]]] = dict.fromkeys(
            KINDS.values(), (self._runner,)
        )
        self.capabilities = self._runner.capabilities
        self._files = AttemptDirectories(place.root)
        self._lock = HostLock(place.root, f"{place.host}/{place.store}")

    def take_lock(self) -> str | None:
        """Take the host's lock; return why it cannot be had."""
        return self._lock.take()

    async def look(self, claimed: Claimed) -> Sight:
        """Look at the box of a job that another worker of this host owned."""
        return await self._runner.look(claimed)

    async def salvage(self, claimed: Claimed) -> KeptOutput | None:
        """Kill what is left of a box that is lost, and keep what it printed."""
        return await self._runner.salvage(claimed)

    async def boxes(self) -> Sequence[BoxLabel]:
        """Return all boxes of this host and store, also those of which only secrets are left."""
        left = await asyncio.to_thread(list_secrets, self._secrets)
        known = [label for boxes in self._boxes for label in await boxes.list()]
        names = {label.name for label in known}
        return [*known, *(label for label in left if label.name not in names)]

    def made(self) -> Sequence[tuple[JobId, int]]:
        """Return attempts whose boxes were made or taken over here, and are still there."""
        return tuple(self._runner.made)

    async def remove(self, job: JobId, attempt: int) -> None:
        """Kill what is left of a box, and remove it."""
        await self._runner.remove(job, attempt)

    async def files(self) -> Sequence[AttemptFiles]:
        """Return the directories of the next attempts."""
        return await asyncio.to_thread(self._files.list)

    async def remove_files(self, job: JobId, attempt: int) -> None:
        """Remove the directory of an attempt."""
        await asyncio.to_thread(self._files.remove, job, attempt)

    def close(self) -> None:
        """Let go of the lock."""
        remove_empty_places(self._secrets)
        self._lock.release()


class CommandHostPlan(Struct, frozen=True, kw_only=True):
    """How commands are to be run on this host. Implements `HostPlan`."""

    name: str
    directory: Path
    """Where the files of commands are, of all stores."""
    make_boxes: MakeBoxes
    open_blobs: OpenBlobs
    room: Room
    queues: tuple[str, ...] = tuple(QUEUES.values())
    artifacts: ArtifactLimits = DEFAULT_LIMITS
    agents: Mapping[str, AgentProfile] = {}
    secrets: Mapping[str, Secret] = {}
    grace_seconds: float = GRACE_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    pause_seconds: float = PAUSE_SECONDS

    async def open(self, store: Store) -> CommandHost:
        """Return the host, for the commands of one store."""
        warn_of_open_profiles(self.agents)
        identity = await store_identity(store)
        memory = find_memory_place()
        place = BoxPlace(
            host=self.name,
            store=identity,
            root=self.directory / identity,
            memory=None if memory is None else memory / f"{identity}.{self.name}",
        )
        return CommandHost(
            place,
            await self.make_boxes(place),
            await self.open_blobs(store),
            room=self.room,
            queues=self.queues,
            artifacts=self.artifacts,
            agents=self.agents,
            secrets=self.secrets,
            grace_seconds=self.grace_seconds,
            patience_seconds=self.patience_seconds,
            pause_seconds=self.pause_seconds,
        )


def measure_room() -> Room:
    """Return what commands may take of this machine unless it is set: all CPUs, most memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    cpus = len(os.sched_getaffinity(0))
    return Room(cpus=cpus, memory_mb=int(memory * (1 - RESERVED_SHARE)))
