"""Which jobs of a look-ahead a worker has room for. Pure; both stores ask it."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.ports import Capacity


def fit(
    candidates: Iterable[tuple[int | None, int | None]], capacity: Capacity, limit: int
) -> list[int]:
    """Pick, in order, the numbers of candidates (cpus, memory_mb) that fit what is still left.

    First fit: one that is too large is passed over for this time, not waited for. What a job does
    not ask for it does not use up.
    """
    cpus, memory_mb = capacity.cpus, capacity.memory_mb
    picked: list[int] = []
    for number, (wanted_cpus, wanted_mb) in enumerate(candidates):
        if len(picked) == limit:
            break
        if (wanted_cpus or 0) <= cpus and (wanted_mb or 0) <= memory_mb:
            cpus -= wanted_cpus or 0
            memory_mb -= wanted_mb or 0
            picked.append(number)
    return picked
