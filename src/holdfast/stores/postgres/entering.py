"""Where a claim enters its ranges, against dead index entries that a pinned xmin keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from holdfast.lifecycle.job import Job
from holdfast.lifecycle.policy import needs_key
from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.times import SECOND
from holdfast.ports import Claimed
from holdfast.stores.ranges import Range

NOWHERE = -(2**62)
CURSOR_AFTER = 4
"""Full claims in a row after which a range is entered where the last one ended."""
CURSOR_FOR = 16
"""Claims by cursor after which all is looked at from the beginning again."""
SLACK = 2 * SECOND
"""How far before the latest job a range is entered: what is submitted first may be seen later."""
CHEAP_SECONDS, CHEAP_SECONDS_A_JOB = 0.02, 0.0004
"""What a claim from the beginning may take before the next ones enter later."""
REST = 20
"""How many times as long as a costly claim from the beginning took there is no other."""

ARMS = 10_000
"""Of how many it is remembered where they are; queues may come and go."""

Arm: TypeAlias = tuple[str, int, int]


class Cursors:
    """Tells where to enter each range. Only a hint, which may pass over jobs for a while.

    A range is entered from its beginning, as long as that is cheap. Where it is not, what is due
    for longer than the slack waits for the next claim from the beginning. A backlog is taken in
    its order: after some full claims each begins where the last one ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at the beginning."""
        self._full = 0
        self._at: dict[Arm, int] = {}
        """The latest that was taken by full claims in a row."""
        self._ever: dict[Arm, int] = {}
        """The latest that was ever taken."""
        self._clock = clock
        self._rested_at = 0.0

    def starts(self, ranges: Sequence[Range]) -> list[int]:
        """Tell where to enter these ranges now."""
        if self._full >= CURSOR_AFTER:
            return [self._at.get(one[:3], NOWHERE) for one in ranges]
        if self._rests:
            return [self._ever.get(one[:3], NOWHERE + SLACK) - SLACK for one in ranges]
        return [NOWHERE] * len(ranges)

    @property
    def _rests(self) -> bool:
        return self._clock() < self._rested_at

    def took(self, starts: Sequence[int], seconds: float, jobs: int) -> None:
        """Hear how long a claim took that entered there, and how many jobs it brought."""
        costly = seconds > CHEAP_SECONDS + CHEAP_SECONDS_A_JOB * jobs
        if costly and all(start == NOWHERE for start in starts):
            self._rested_at = self._clock() + REST * seconds

    def learn(self, jobs: Sequence[Claimed], limit: int, ageing: Mapping[Priority, int]) -> None:
        """Hear what a claim brought."""
        self._full = self._full + 1 if len(jobs) == limit and limit > 1 else 0
        if self._full > CURSOR_AFTER + CURSOR_FOR and not self._rests:
            self._full = 0
        if not self._full:
            self._at.clear()
        if len(self._ever) > ARMS:
            self._ever.clear()
        for job, run_at in _latest(jobs):
            arm = (job.queue, needs_key(job.needs), job.priority.code)
            order = run_at + ageing[job.priority]
            for latest in (self._at, self._ever) if self._full else (self._ever,):
                latest[arm] = max(latest.get(arm, NOWHERE), order)


def _latest(jobs: Sequence[Claimed]) -> list[tuple[Job, int]]:
    """Tell how late the latest is due of jobs that were asked for alike, with one of them."""
    latest: dict[int, tuple[Job, int]] = {}
    created, due = None, 0
    for claimed in jobs:
        run_at = claimed.job.run_at or 0
        # Neighbours mostly share what was asked for.
        if claimed.created is not created or run_at > due:
            created = claimed.created
            due = max(run_at, latest[id(created)][1]) if id(created) in latest else run_at
            latest[id(created)] = claimed.job, due
    return list(latest.values())
