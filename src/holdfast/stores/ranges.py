"""The ranges of the claim index that a claim reads: a queue, a set of needs, a class each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from holdfast.stores.law import AGEING

MOST_RANGES = 192
"""What one claim statement reads; more are read a window after the other."""


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


def windows(all_ranges: Sequence[Range], turn: int) -> Iterator[list[Range]]:
    """Give all ranges, as many at a time as a statement reads, the most urgent class first.

    Within a class another one leads in every turn, so that whoever stops when it has enough does
    not always stop before the same queues.
    """
    rotated: list[Range] = []
    for _, group in groupby(all_ranges, key=lambda one: one.priority):
        of_class = list(group)
        start = turn * MOST_RANGES % len(of_class)
        rotated += of_class[start:] + of_class[:start]
    for start in range(0, len(rotated), MOST_RANGES):
        yield rotated[start : start + MOST_RANGES]
