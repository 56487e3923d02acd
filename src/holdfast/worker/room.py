"""The claimer of jobs that take room: never more CPUs and memory than the host has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from msgspec import field
from msgspec.structs import replace

from holdfast.lifecycle.record import Job
from holdfast.ports.host import Room
from holdfast.ports.models import Capacity, ClaimRequest
from holdfast.worker.claimer import Claimer
from holdfast.worker.owned_job import OwnedJob

MOST_AT_ONCE = 32
LOOKAHEAD = 1000
"""How many due jobs a claim looks at to find some that fit."""


def left_of(room: Room, jobs: Iterable[Job]) -> Room:
    """Return what is left of a host's room beside these jobs."""
    taken = [(job.cpus or 0, job.memory_mb or 0) for job in jobs]
    cpus, memory_mb = (sum(column) for column in zip((0, 0), *taken, strict=True))
    return Room(cpus=room.cpus - cpus, memory_mb=room.memory_mb - memory_mb)


class RoomClaimer(Claimer, kw_only=True, eq=False):
    """Claims jobs into the room of a host; nothing ahead of what it runs."""

    total: Room
    patience: int
    """After this long a job that would fit the empty host is waited for: nothing behind it is
    taken."""
    unsettled: Sequence[Job] = ()
    """Jobs that dead workers of this host left behind, and whose boxes are not known yet."""
    # What an unanswered claim may have brought takes room, so it is asked for until it is answered.
    repeat_seconds: float = inf
    _is_open: bool = False
    _taken: list[OwnedJob] = field(default_factory=list)

    def open(self) -> None:
        """Claim from now on: the host's lock is held, and all boxes on it are known."""
        if not self._is_open:
            self._is_open = True
            self.owned.changed.set()

    def close(self) -> None:
        """Claim no more."""
        self._is_open = False

    @property
    def is_open(self) -> bool:
        """Whether it claims."""
        return self._is_open

    def leave_room_for(self, jobs: Sequence[Job]) -> None:
        """Take note of what was left behind and is not known yet; room may have become free."""
        self.unsettled = jobs
        self.owned.changed.set()

    def left(self) -> Room:
        """Return what is left of the room.

        A job takes its room until its end is written, and an attempt that was lost until it is
        proven dead: at no point of the event log is there more than the host has. What was left
        behind may run as well.
        """
        taking = {job for job in self.owned.by_id.values() if job.takes_room} | self.owned.in_room
        return left_of(self.total, [*(job.record for job in taking), *self.unsettled])

    def _count_room(self) -> int:
        left = self.left()
        if not self._is_open or left.cpus <= 0 or left.memory_mb <= 0:
            return 0
        return min(left.cpus, MOST_AT_ONCE)

    def _make_request(self, limit: int, capacity: Capacity | None = None) -> ClaimRequest:
        left = self.left()
        capacity = Capacity(
            cpus=left.cpus,
            memory_mb=left.memory_mb,
            total_cpus=self.total.cpus,
            total_memory_mb=self.total.memory_mb,
            patience=self.patience,
        )
        # Jobs larger than the host stay due for ever: they must not hide all others.
        return replace(super()._make_request(limit, capacity), lookahead=LOOKAHEAD)

    def _add(self, job: OwnedJob) -> None:
        job.takes_room = True
        self.owned.by_id[job.claimed.id.int] = job
        self._taken.append(job)

    def take(self) -> list[OwnedJob]:
        """Return what the last claim brought, to be started."""
        taken, self._taken = self._taken, []
        return taken
