"""Which jobs of a look-ahead a worker has room for. Pure; both stores ask it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.lifecycle.record import Job
from holdfast.ports.models import Capacity


class Candidate(NamedTuple):
    """What a due job asks for, and for how long it has been due, in microseconds."""

    cpus: int | None
    memory_mb: int | None
    waited: int

    def fits(self, cpus: int | None, memory_mb: int | None) -> bool:
        """Return whether there is room for it; of what is unknown there is none."""
        if cpus is None or memory_mb is None:
            return False
        return (self.cpus or 0) <= cpus and (self.memory_mb or 0) <= memory_mb


def subtract_room(capacity: Capacity, taken: Iterable[Job]) -> Capacity:
    """Return what is left after these jobs."""
    jobs = list(taken)
    return replace(
        capacity,
        cpus=capacity.cpus - sum(job.cpus or 0 for job in jobs),
        memory_mb=capacity.memory_mb - sum(job.memory_mb or 0 for job in jobs),
    )


def choose_fitting(candidates: Iterable[Candidate], capacity: Capacity, limit: int) -> list[int]:
    """Pick, in order, the numbers of candidates that fit what is still left.

    First fit: one that is too large for now is passed over, until it has waited longer than the
    host's patience. Then nothing behind it is picked, so that the host drains for it. One that is
    larger than the host is always passed over. What a job does not ask for it does not use up.
    """
    cpus, memory_mb = capacity.cpus, capacity.memory_mb
    picked: list[int] = []
    for number, one in enumerate(candidates):
        if len(picked) == limit:
            break
        if one.fits(cpus, memory_mb):
            cpus -= one.cpus or 0
            memory_mb -= one.memory_mb or 0
            picked.append(number)
        elif one.waited > capacity.patience and one.fits(
            capacity.total_cpus, capacity.total_memory_mb
        ):
            break
    return picked
