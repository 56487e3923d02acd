"""The port of the host: the machine, for jobs that take room on it and boxes that outlive workers.

A worker without one runs functions only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from holdfast.lifecycle.record import JobId, KeptOutput
from holdfast.lifecycle.states import Kind
from holdfast.ports.box import BoxLabel, Sight
from holdfast.ports.models import Claimed
from holdfast.ports.runner import Runner
from holdfast.ports.store import Store


class Room(Struct, frozen=True):
    """CPUs and memory: of a host, or what a job takes of it."""

    cpus: int
    memory_mb: int


class AttemptFiles(Struct, frozen=True, kw_only=True):
    """The directory of an attempt on this host."""

    job: JobId
    attempt: int
    changed_at: int
    """In microseconds, by the clock of the host."""


class Host(Protocol):
    """This machine, as one worker at a time sees it. All calls come from one event loop."""

    @property
    def name(self) -> str:
        """Its identity; the names of its workers start with it."""

    @property
    def room(self) -> Room:
        """All that jobs may take."""

    @property
    def patience_seconds(self) -> float:
        """After this long a job that would fit the empty host is waited for."""

    @property
    def pause_seconds(self) -> float:
        """Between two passes over what was left behind, and before trouble is tried again."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of jobs that take room."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What a worker can do here beside its own."""

    @property
    def runners(self) -> Mapping[Kind, Sequence[Runner[Any, Any]]]:
        """What runs jobs that take room."""

    def take_lock(self) -> str | None:
        """Take the host's lock, or see that it is still held; return why it cannot be had.

        While it is held no other worker of this host runs commands, and the one that did is dead.
        """

    async def look(self, claimed: Claimed) -> Sight:
        """Return what the box of a job shows that another worker of this host owned."""

    async def salvage(self, claimed: Claimed) -> KeptOutput | None:
        """Kill what is left of a box that is lost, and keep what it printed, if that can be."""

    async def boxes(self) -> Sequence[BoxLabel]:
        """Return all boxes of this host and store."""

    def made(self) -> Sequence[tuple[JobId, int]]:
        """Return attempts (job, attempt) with a box of this worker: it goes once their end is
        written."""

    async def remove(self, job: JobId, attempt: int) -> None:
        """Kill what is left of a box, and remove it; not its files."""

    async def files(self) -> Sequence[AttemptFiles]:
        """Return the files of some attempts on this host; repeated, those of all, in turn."""

    async def remove_files(self, job: JobId, attempt: int) -> None:
        """Remove the files of an attempt whose box is removed."""

    def close(self) -> None:
        """Let go of the lock."""


class HostPlan(Protocol):
    """A host that is not opened yet: what is known of it before there is a store."""

    @property
    def name(self) -> str:
        """The host's identity; the names of its workers start with it."""

    async def open(self, store: Store) -> Host:
        """Return the host, for the commands of one store."""
