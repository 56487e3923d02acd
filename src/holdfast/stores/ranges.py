"""The ranges of the claim index that a claim reads: a queue, a set of needs, a class each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.stores.law import AGEING

MOST_RANGES = 192
"""What one claim statement reads. More are taken in turn, a window of them per claim."""


class Range(NamedTuple):
    """One stretch of the claim index: what is due in it has `claim_order` <= now + ageing."""

    queue: str
    needs: int
    priority: int
    ageing: int


def servable(needs: Mapping[int, frozenset[str]], capabilities: Collection[str]) -> list[int]:
    """List the keys of the sets of needs that a worker with these capabilities can serve."""
    offered = frozenset(capabilities)
    return sorted(key for key, needed in needs.items() if needed <= offered)


def ranges(queues: Iterable[str], needs: Iterable[int]) -> list[Range]:
    """List the ranges of these queues and servable needs, the most urgent class first."""
    keys = list(needs)
    return [
        Range(queue, key, priority.code, ageing)
        for priority, ageing in AGEING.items()
        for queue in dict.fromkeys(queues)
        for key in keys
    ]


def window(all_ranges: Sequence[Range], turn: int) -> list[Range]:
    """Give the ranges whose turn it is; over the turns each comes equally often."""
    size = len(all_ranges)
    if size <= MOST_RANGES:
        return list(all_ranges)
    start = turn * MOST_RANGES % size
    return [all_ranges[(start + i) % size] for i in range(MOST_RANGES)]
